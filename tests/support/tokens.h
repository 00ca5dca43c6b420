// A cache's expected contents, in plain vectors: a model that shares no code with the caches.
#pragma once

#include <cstdint>

#include "paths.h"

namespace attn::test {

struct TokenSizes {
  Index kv_heads = 1, head_dim = 1, v_dim = 1;
};

/// How many tokens after a sequence's sinks its window drops when more are appended; see PagedKvCacheConfig.
template <class Config>
Index tokens_leaving(const Config& c, Index length) {
  const Index beyond = length - c.sinks - c.window;
  return c.window > 0 && beyond > 0 ? beyond - beyond % c.page_size : 0;
}

/// Elements of a T of a cache.
template <class T>
constexpr Index kElements = 1;
template <>
inline constexpr Index kElements<Int4> = 32;
template <>
inline constexpr Index kElements<Int4Asymmetric> = 32;

/// Whether an element of a cache of T has fewer than 16 bits.
template <class T>
constexpr bool kIsSmall = sizeof(T) == 1 || kElements<T> > 1;

/// The scalar of keys and values that these tests append to a cache of T.
template <class T>
using Given = std::conditional_t<kIsSmall<T>, float, T>;

/// The tokens of a sequence in order, each with one row of all heads' keys and one of all heads' values.
class Tokens {
 public:
  explicit Tokens(const TokenSizes& sizes) : sizes_(sizes) {}
  Tokens(const TokenSizes& sizes, Index count, Random& random)
      : sizes_(sizes), k_(random.values(count * key_row())), v_(random.values(count * value_row())) {}

  /// Values that a cache of S represents exactly: integers times a power of two, and in each head's row, or block of 32
  /// of its elements, the extremes that determine the scale. By default, floats and 8-bit integers do so.
  template <class S = std::int8_t>
  static Tokens exact(const TokenSizes& sizes, Index count, Random& random) {
    constexpr bool kAsymmetric = std::is_same_v<S, Int4Asymmetric>;
    constexpr Index kMost = kElements < S >> 1              ? 8
                            : std::is_same_v<S, Float8E4M3> ? 16
                            : std::is_same_v<S, Float8E5M2> ? 8
                                                            : 127;
    Tokens t(sizes);
    const auto draw = [&](std::vector<double>& to, Index dim) {
      const auto draw_block = [&](Index size) {
        const double unit = (random.chance(0.5) ? 0x1p-6 : 0x1p-7) * (kMost < 127 ? 8 : 1);
        const Index largest = random.integer(0, size - 1), sign = random.chance(0.5) ? 1 : -1;
        const Index offset = kAsymmetric ? random.integer(-9, 9) : 0, second = kAsymmetric ? (largest + 7) % size : -1;
        for (Index d = 0; d < size; ++d)
          to.push_back(unit * static_cast<double>(offset + (d == largest  ? kMost * sign
                                                            : d == second ? (1 - kMost) * sign
                                                                          : random.integer(1 - kMost, kMost - 1))));
      };
      const Index block = kElements<S> > 1 ? kElements<S> : dim;
      for (Index row = 0; row < count * sizes.kv_heads; ++row)
        for (Index begin = 0; begin < dim; begin += block) draw_block(std::min(block, dim - begin));
    };
    draw(t.k_, sizes.head_dim);
    draw(t.v_, sizes.v_dim);
    return t;
  }
  /// Tokens with the elements key(token, head, d) and value(token, head, d).
  template <class Key, class Value>
  static Tokens made(const TokenSizes& sizes, Index count, const Key& key, const Value& value) {
    Tokens t(sizes);
    for (Index i = 0; i < count; ++i)
      for (Index h = 0; h < sizes.kv_heads; ++h) {
        for (Index d = 0; d < sizes.head_dim; ++d) t.k_.push_back(key(i, h, d));
        for (Index d = 0; d < sizes.v_dim; ++d) t.v_.push_back(value(i, h, d));
      }
    return t;
  }
  static Tokens filled(const TokenSizes& sizes, Index count, double with) {
    Tokens t(sizes);
    t.k_.assign(static_cast<std::size_t>(count * t.key_row()), with);
    t.v_.assign(static_cast<std::size_t>(count * t.value_row()), with);
    return t;
  }

  const TokenSizes& sizes() const { return sizes_; }
  Index size() const { return static_cast<Index>(k_.size()) / key_row(); }

  void add(const Tokens& more) {
    k_.insert(k_.end(), more.k_.begin(), more.k_.end());
    v_.insert(v_.end(), more.v_.begin(), more.v_.end());
  }
  void truncate(Index count) {
    k_.resize(static_cast<std::size_t>(count * key_row()));
    v_.resize(static_cast<std::size_t>(count * value_row()));
  }
  Tokens part(Index begin, Index end) const {
    Tokens t(sizes_);
    t.k_.assign(k_.begin() + begin * key_row(), k_.begin() + end * key_row());
    t.v_.assign(v_.begin() + begin * value_row(), v_.begin() + end * value_row());
    return t;
  }
  /// These tokens rounded to the 16-bit type T.
  template <class T>
  Tokens rounded_to() const {
    Tokens t = *this;
    for (std::vector<double>* numbers : {&t.k_, &t.v_})
      for (double& x : *numbers) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
    return t;
  }

  double k(Index token, Index head, Index d) const { return k_[at(token, head, d, sizes_.head_dim)]; }
  double v(Index token, Index head, Index d) const { return v_[at(token, head, d, sizes_.v_dim)]; }

  /// The keys as (kv_heads, tokens, dim), the order in tensors.
  std::vector<double> keys() const { return by_heads(k_, sizes_.head_dim); }
  std::vector<double> values() const { return by_heads(v_, sizes_.v_dim); }

 private:
  Index key_row() const { return sizes_.kv_heads * sizes_.head_dim; }
  Index value_row() const { return sizes_.kv_heads * sizes_.v_dim; }
  std::size_t at(Index token, Index head, Index d, Index dim) const {
    return static_cast<std::size_t>((token * sizes_.kv_heads + head) * dim + d);
  }
  std::vector<double> by_heads(const std::vector<double>& rows, Index dim) const {
    std::vector<double> to;
    to.reserve(rows.size());
    for (Index head = 0; head < sizes_.kv_heads; ++head)
      for (Index token = 0; token < size(); ++token)
        for (Index d = 0; d < dim; ++d) to.push_back(rows[at(token, head, d, dim)]);
    return to;
  }

  TokenSizes sizes_;
  std::vector<double> k_, v_;  // row-major (token, kv_head, dim)
};

/// Keys and values in the form of append()'s arguments, (batch, kv_heads, tokens, dim): one batch element per sequence,
/// all with the same number of tokens.
template <class T>
struct Appended {
  Strided<T> keys, values;

  explicit Appended(const std::vector<Tokens>& of, Layout layout = Layout::bhsd)
      : keys(layout, shape(of, of[0].sizes().head_dim), joined(of, &Tokens::keys)),
        values(layout, shape(of, of[0].sizes().v_dim), joined(of, &Tokens::values)) {}
  explicit Appended(const Tokens& of, Layout layout = Layout::bhsd) : Appended(std::vector{of}, layout) {}

  auto k() { return keys.cview(); }
  auto v() { return values.cview(); }

 private:
  static typename Strided<T>::Shape shape(const std::vector<Tokens>& of, Index dim) {
    return {static_cast<Index>(of.size()), of[0].sizes().kv_heads, of[0].size(), dim};
  }
  static std::vector<double> joined(const std::vector<Tokens>& of, std::vector<double> (Tokens::*numbers)() const) {
    std::vector<double> all;
    for (const Tokens& t : of) {
      const std::vector<double> one = (t.*numbers)();
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  }
};

/// Concatenates the tokens of all sequences.
inline Tokens concatenated(const std::vector<Tokens>& sequences) {
  Tokens all(sequences[0].sizes());
  for (const Tokens& t : sequences) all.add(t);
  return all;
}

/// The value represented by element d of a row of a cache. NaN stays NaN, which no token equals.
template <class T>
double meant(const TensorView<const T, 4>& rows, Index batch, Index head, Index row, Index d, float scale) {
  const T& number = rows(batch, head, row, d / kElements<T>);
  if constexpr (kElements < T >> 1)
    return static_cast<double>(number[d % kElements<T>]);
  else if constexpr (std::is_same_v<T, std::int8_t>)
    return static_cast<double>(number) * static_cast<double>(scale);
  else if constexpr (kIsSmall<T>)
    return static_cast<double>(static_cast<float>(number));
  else
    return static_cast<double>(static_cast<Wide<T>>(number));
}

/// Whether row `row` of (batch or pages, kv_heads, tokens, dim) holds a token, bit for bit.
template <class Cache, class T>
bool holds(const Cache& cache, const TensorView<const T, 4>& keys, const TensorView<const T, 4>& values, Index batch,
           Index row, Index scale_batch, const Tokens& tokens, Index token) {
  const TokenSizes& s = tokens.sizes();
  for (Index h = 0; h < s.kv_heads; ++h) {
    float k_scale = 1, v_scale = 1;
    if constexpr (std::is_same_v<T, std::int8_t>) {
      k_scale = cache.key_scales()(scale_batch, h, row);
      v_scale = cache.value_scales()(scale_batch, h, row);
    }
    for (Index d = 0; d < s.head_dim; ++d)
      if (meant(keys, batch, h, row, d, k_scale) != tokens.k(token, h, d)) return false;
    for (Index d = 0; d < s.v_dim; ++d)
      if (meant(values, batch, h, row, d, v_scale) != tokens.v(token, h, d)) return false;
  }
  return true;
}

/// The tokens of a sequence, read from its pages or from a KvCache.
template <class S, class Cache>
Tokens tokens_in_pages(const Cache& cache, Index sequence) {
  const auto& c = cache.config();
  const auto number = [&](const auto& pages, const auto& scales, Index i, Index h, Index d) {
    const Index page = cache.table(sequence)[static_cast<std::size_t>(i / c.page_size)], row = i % c.page_size;
    return meant<S>(pages, page, h, row, d, std::is_same_v<S, std::int8_t> ? scales(page, h, row) : 1.0f);
  };
  return Tokens::made(
      {c.kv_heads, c.head_dim, c.v_dim}, cache.length(sequence),
      [&](Index i, Index h, Index d) { return number(cache.key_pages(), cache.key_scales(), i, h, d); },
      [&](Index i, Index h, Index d) { return number(cache.value_pages(), cache.value_scales(), i, h, d); });
}
/// The pages of a layer of KvCaches, as tokens_in_pages() reads them.
template <class S>
struct PagesOfLayer {
  const KvCaches<S>& caches;
  Index layer;

  const KvCachesConfig& config() const { return caches.config(); }
  Index length(Index sequence) const { return caches.length(sequence); }
  auto table(Index sequence) const { return caches.table(sequence); }
  auto key_pages() const { return caches.key_pages(layer); }
  auto value_pages() const { return caches.value_pages(layer); }
  auto key_scales() const { return caches.key_scales(layer); }
  auto value_scales() const { return caches.value_scales(layer); }
};

template <class S>
Tokens tokens_of(const PagedKvCache<S>& cache, Index sequence) {
  return tokens_in_pages<S>(cache, sequence);
}
template <class S>
Tokens tokens_of(const KvCache<S>& cache, Index sequence) {
  const auto& c = cache.config();
  const auto number = [&](const auto& rows, const auto& scales, Index i, Index h, Index d) {
    return meant<S>(rows, 0, h, i, d, std::is_same_v<S, std::int8_t> ? scales(sequence, h, i) : 1.0f);
  };
  return Tokens::made(
      {c.kv_heads, c.head_dim, c.v_dim}, cache.length(sequence),
      [&](Index i, Index h, Index d) { return number(cache.keys(sequence), cache.key_scales(), i, h, d); },
      [&](Index i, Index h, Index d) { return number(cache.values(sequence), cache.value_scales(), i, h, d); });
}

/// Whether the pages of a sequence hold these tokens.
template <class T>
::testing::AssertionResult holds(const PagedKvCache<T>& cache, Index sequence, const Tokens& tokens) {
  if (cache.length(sequence) != tokens.size())
    return ::testing::AssertionFailure() << "sequence " << sequence << " has " << cache.length(sequence)
                                         << " tokens instead of " << tokens.size();
  const Index size = cache.config().page_size;
  const auto keys = cache.key_pages(), values = cache.value_pages();
  for (Index i = 0; i < tokens.size(); ++i) {
    const Index page = cache.table(sequence)[static_cast<std::size_t>(i / size)];
    if (!holds(cache, keys, values, page, i % size, page, tokens, i))
      return ::testing::AssertionFailure() << "token " << i << " of sequence " << sequence << " differs";
  }
  return ::testing::AssertionSuccess();
}

/// Whether a cache holds these sequences, both in the views of each and in the view of all.
template <class T>
::testing::AssertionResult holds(const KvCache<T>& cache, const std::vector<Tokens>& sequences) {
  if (cache.lengths().size() != sequences.size())
    return ::testing::AssertionFailure() << "the number of sequences differs";
  const auto all_keys = cache.keys(), all_values = cache.values();
  for (Index s = 0; s < static_cast<Index>(sequences.size()); ++s) {
    const Tokens& tokens = sequences[static_cast<std::size_t>(s)];
    const auto keys = cache.keys(s), values = cache.values(s);
    const Index length = tokens.size();
    const auto blocks = [](Index dim) { return (dim + kElements<T> - 1) / kElements<T>; };
    if (cache.length(s) != length || cache.lengths()[static_cast<std::size_t>(s)] != length ||
        keys.shape() != Shape<4>{1, tokens.sizes().kv_heads, length, blocks(tokens.sizes().head_dim)} ||
        values.shape() != Shape<4>{1, tokens.sizes().kv_heads, length, blocks(tokens.sizes().v_dim)})
      return ::testing::AssertionFailure()
             << "sequence " << s << " has " << cache.length(s) << " tokens instead of " << length;
    for (Index i = 0; i < length; ++i)
      if (!holds(cache, keys, values, 0, i, s, tokens, i) || !holds(cache, all_keys, all_values, s, i, s, tokens, i))
        return ::testing::AssertionFailure() << "token " << i << " of sequence " << s << " differs";
  }
  return ::testing::AssertionSuccess();
}

}  // namespace attn::test
