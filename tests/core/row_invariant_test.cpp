// Options::row_invariant: the bits of a row depend on nothing but the row. A prompt is computed whole, and again in
// random cuts: other rows, keys, batches, heads, caches, pages and threads.
#include <cmath>
#include <cstdlib>
#include <limits>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/attn.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/random.h"

#include <gtest/gtest.h>

namespace attn::test {
namespace {

/// All available instruction sets, including those whose special products row_invariant does not use.
std::vector<Isa> every_set() {
  std::vector<Isa> sets;
  for (const Isa isa : kIsas)
    if (available(isa)) sets.push_back(isa);
  return sets;
}

/// Rows compared so far; ATTN_ROWS=100000 requests a longer run.
Index rows_compared = 0;
Index rows_wanted(Index by_default) {
  const auto number = [](const char* name, Index otherwise) {
    const char* const text = std::getenv(name);
    return text ? std::strtoll(text, nullptr, 10) : otherwise;
  };
  return number("ATTN_ROWS", by_default / number("ATTN_TEST_EVERY", 1));
}

/// A prompt: its queries, keys and values.
template <class T>
struct Prompt {
  Index heads, kv_heads, len, dim, v_dim;
  Tensor<T, 4> q, k, v;

  explicit Prompt(Random& random, Index most = 200)
      : heads(0), kv_heads(random.integer(1, 3)), len(random.integer(1, most)), dim(0), v_dim(0) {
    heads = kv_heads * random.integer(1, 5);
    dim = random.pick(std::vector<Index>{1, 8, 19, 32, 64});
    v_dim = random.chance(0.5) ? dim : random.integer(1, 40);
    q = drawn<T>({1, heads, len, dim}, random);
    k = drawn<T>({1, kv_heads, len, dim}, random);
    v = drawn<T>({1, kv_heads, len, v_dim}, random);
  }
};

/// Some rows of some heads of the whole prompt, computed in a different call.
struct Cut {
  Index begin, end;      ///< rows of queries
  Index keys;            ///< keys 0 .. keys - 1; no row sees those from `end` on
  Index heads;           ///< the first of them
  Index batch, element;  ///< the prompt is this element of a batch
};

constexpr int kMods = 12;
/// Calls use(mods, window) with mods for some heads. All are causal; with a window, rows see that many earlier keys.
template <class Use>
void with_mods(int which, Index heads, const Use& use) {
  std::vector<double> slopes, logits;
  for (Index h = 0; h < heads; ++h) {
    slopes.push_back(0.3 / static_cast<double>(h + 1));
    logits.push_back(0.7 * static_cast<double>(h) - 1);
  }
  switch (which) {
    case 0:
      return use(causal(), Index(-1));
    case 1:
      return use(causal() | alibi(slopes), Index(-1));
    case 2:
      return use(softcap(3) | causal(), Index(-1));
    case 3:
      return use(sliding_window(37), Index(37));
    case 4:
      return use(sliding_window(5) | sinks(logits), Index(5));
    case 5:
      return use(score_mod([](auto x, const Position& p) {
                   // No sum: g++ may fuse it with a product for whole vectors and not for single pairs.
                   return x * decltype(x)(0.2) * decltype(x)((p.q - p.kv) % 7);
                 }) | causal(),
                 Index(-1));
    case 6:
      return use(mask_mod([](const Position& p) { return p.q >= p.kv && (p.q + p.kv) % 3 != 0; }), Index(-1));
    case 7:
      return use(causal() | dropout(0.3, 17), Index(-1));
    case 8:
      return use(fixed_sparse(32, 8), Index(-1));
    case 9:  // a product is added to another
      return use(softcap(3) | alibi(slopes) | causal(), Index(-1));
    case 10:
      return use(strided_sparse(8), Index(-1));
    default:
      return use(causal() | weight_mod([](auto w, const Position& p) {
                   return w * w * decltype(w)(1 + (p.q + p.kv) % 3);  // no sum, as above
                 }),
                 Index(-1));
  }
}

/// Compares rows of a cut with those of the whole prompt; `x` and `lse` have the prompt in element `element`.
template <class T, class R, class Lse>
void expect_same_rows(const R& whole, const Tensor<T, 4>& out, const Lse& lse, const Cut& cut, const std::string& how) {
  for (Index h = 0; h < cut.heads; ++h)
    for (Index i = cut.begin; i < cut.end; ++i) {
      ++rows_compared;
      const T *const a = &whole.out(0, h, i, 0), *const b = &out(cut.element, h, i - cut.begin, 0);
      const auto x = whole.lse(0, h, i), y = lse(cut.element, h, i - cut.begin);
      ASSERT_TRUE(same_bits(a, b, out.dim(3)) && same_bits(&x, &y, 1))
          << how << ": row " << i << " of head " << h << ", rows " << cut.begin << ".." << cut.end << " of "
          << whole.out.dim(2) << ", " << cut.keys << " keys, " << cut.heads << " heads, element " << cut.element
          << " of " << cut.batch << ", head_dim " << out.dim(3) << ", out " << static_cast<double>(*a) << " and "
          << static_cast<double>(*b) << ", lse " << static_cast<double>(x) << " and " << static_cast<double>(y);
    }
}

/// Returns the first heads and some rows of x, copied to element `element` of a batch whose other elements are random.
template <class T>
Tensor<T, 4> part(const Tensor<T, 4>& x, Index heads, Range rows, Index batch, Index element, Random& random) {
  auto to = drawn<T>({batch, heads, rows.size(), x.dim(3)}, random);
  for (Index h = 0; h < heads; ++h)
    for (Index i = 0; i < rows.size(); ++i) std::copy_n(&x(0, h, rows.begin + i, 0), x.dim(3), &to(element, h, i, 0));
  return to;
}

template <class T>
void expect_invariant(Prompt<T>& p, int which, Isa isa, Random& random, int cuts) {
  const Options options{.executor = serial(), .isa = isa, .row_invariant = true};
  const auto whole = [&] {
    decltype(attention(p.q, p.k, p.v, causal(), options)) r;
    with_mods(which, p.heads, [&](const auto& mods, Index) { r = attention(p.q, p.k, p.v, mods, options); });
    return r;
  }();
  const Index group = p.heads / p.kv_heads;
  for (int n = 0; n < cuts; ++n) {
    Cut cut;
    const Index most = random.pick(std::vector<Index>{1, 1, 7, 64, p.len});
    cut.begin = random.integer(0, p.len - 1);
    cut.end = std::min(cut.begin + random.integer(1, most), p.len);
    cut.keys = random.chance(0.5) ? cut.end : random.integer(cut.end, p.len);
    const Index kv_heads = random.integer(1, p.kv_heads);
    cut.heads = group * kv_heads;
    cut.batch = random.integer(1, 3);
    cut.element = which == 7 ? 0 : random.integer(0, cut.batch - 1);  // dropout depends on the element
    with_mods(which, cut.heads, [&](const auto& mods, Index window) {
      // Keys before all windows may be omitted.
      const Index first = window < 0 || random.chance(0.5) ? 0 : std::max<Index>(cut.begin - window, 0) / 16 * 16;
      const auto q = part(p.q, cut.heads, {cut.begin, cut.end}, cut.batch, cut.element, random);
      auto k = part(p.k, kv_heads, {first, cut.keys}, cut.batch, cut.element, random),
           v = part(p.v, kv_heads, {first, cut.keys}, cut.batch, cut.element, random);
      // Keys and values that a row does not see may hold anything: rows before `bad` do not see it, and the others are
      // not compared.
      Cut compared = cut;
      if (random.chance(0.3) && cut.keys > cut.begin + 1) {
        const Index bad = random.integer(cut.begin + 1, cut.keys - 1);
        compared.end = std::min(cut.end, bad);
        const T what = random.chance(0.5) ? std::numeric_limits<T>::quiet_NaN() : std::numeric_limits<T>::infinity();
        v(cut.element, random.integer(0, kv_heads - 1), bad - first, random.integer(0, p.v_dim - 1)) = what;
        if (random.chance(0.3)) k(cut.element, random.integer(0, kv_heads - 1), bad - first, 0) = what;
      }
      Options other = options;
      other.executor = random.chance(0.5) ? serial() : eager_threads(static_cast<int>(random.integer(2, 3)));
      other.q_offset = cut.begin;
      other.kv_offset = first;
      std::vector<std::byte> workspace;
      if (random.chance(0.3)) {
        workspace.resize(static_cast<std::size_t>(workspace_bytes(q, k, v, mods, other)));
        other.workspace = workspace;
      }
      const auto r = attention(q, k, v, mods, other);
      expect_same_rows<T>(whole, r.out, r.lse, compared, "tensors, mods " + std::to_string(which));
    });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

template <class T>
void run_all(Index rows, int mods) {
  Random random(1);
  for (const Index before = rows_compared; rows_compared - before < rows_wanted(rows);) {
    Prompt<T> prompt(random, random.chance(0.02) ? 5000 : 200);
    const int which = mods == 1 ? 0 : static_cast<int>(random.integer(0, mods - 1));
    expect_invariant(prompt, which, random.pick(every_set()), random, 8);
    if (::testing::Test::HasFatalFailure()) return;
  }
  ::testing::Test::RecordProperty("rows", std::to_string(rows_compared));
}

TEST(RowInvariant, Float) { run_all<float>(30000, kMods); }
TEST(RowInvariant, Double) { run_all<double>(5000, 4); }
TEST(RowInvariant, Half) { run_all<Eigen::half>(5000, 4); }
TEST(RowInvariant, Bfloat16) { run_all<Eigen::bfloat16>(5000, 4); }

/// The rows of a prompt over a cache, in chunks of random lengths.
template <class T, class Cache, class Append, class View>
void expect_same_over(const Prompt<T>& p, const Tensor<T, 4>& wanted, Cache& cache, const Options& options,
                      Random& random, const Append& append, const View& view) {
  for (Index begin = 0, end; begin < p.len; begin = end) {
    end = std::min(begin + random.pick(std::vector<Index>{1, 2, 3, 7, 64, 100}), p.len);
    append(part(p.k, p.kv_heads, {begin, end}, 1, 0, random), part(p.v, p.kv_heads, {begin, end}, 1, 0, random));
    const auto out =
        attention(part(p.q, p.heads, {begin, end}, 1, 0, random), view(cache), softcap(3) | causal(), options).out;
    for (Index h = 0; h < p.heads; ++h)
      for (Index i = begin; i < end; ++i)
        ASSERT_TRUE(same_bits(&wanted(0, h, i, 0), &out(0, h, i - begin, 0), p.v_dim))
            << "row " << i << " of head " << h << ", rows " << begin << ".." << end << " of " << p.len;
  }
}

template <class S>
void run_caches(int rounds) {
  Random random(2);
  for (int round = 0; round < rounds; ++round) {
    const Prompt<float> p(random);
    Options options{.executor = serial(), .isa = random.pick(every_set()), .row_invariant = true};
    KvCache<S> whole({.batch = 1, .kv_heads = p.kv_heads, .head_dim = p.dim, .v_dim = p.v_dim});
    whole.append(p.k, p.v);
    const auto wanted = attention(p.q, whole, softcap(3) | causal(), options).out;
    if constexpr (std::is_same_v<S, float>) {
      const auto over_tensors = attention(p.q, p.k, p.v, softcap(3) | causal(), options).out;
      ASSERT_TRUE(same_bits(wanted.data(), over_tensors.data(), wanted.size()));
    }
    KvCache<S> cache({.batch = 1, .kv_heads = p.kv_heads, .head_dim = p.dim, .v_dim = p.v_dim});
    expect_same_over(
        p, wanted, cache, options, random, [&](const auto& k, const auto& v) { cache.append(k, v); },
        [](auto& c) -> auto& { return c; });
    if (::testing::Test::HasFatalFailure()) return;
    // Pages of any size, in a batch with an unrelated sequence.
    const Index page_size = random.pick(std::vector<Index>{1, 5, 16, 48, 64, 128});
    PagedKvCache<S> pages({.pages = 2 * (p.len / page_size + 2),
                           .page_size = page_size,
                           .kv_heads = p.kv_heads,
                           .head_dim = p.dim,
                           .v_dim = p.v_dim});
    const Index stranger = pages.add(), id = pages.add();
    pages.append(stranger, p.v_dim == p.dim ? p.v : p.k, p.v);
    options.executor = eager_threads(3);
    expect_same_over(
        p, wanted, pages, options, random, [&](const auto& k, const auto& v) { pages.append(id, k, v); },
        [&](auto& c) { return c.view({id}); });
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(RowInvariant, FloatCaches) { run_caches<float>(30); }
TEST(RowInvariant, HalfCaches) { run_caches<Eigen::half>(30); }
TEST(RowInvariant, EightBitCaches) { run_caches<std::int8_t>(30); }

TEST(RowInvariant, MoreKeysThanAStretch) {
  Random random(3);
  for (const Isa isa : instruction_sets()) {
    Prompt<float> p(random, 1);
    p.heads = 2, p.kv_heads = 1, p.len = 4200, p.dim = p.v_dim = 16;
    p.q = drawn<float>({1, p.heads, p.len, p.dim}, random);
    p.k = drawn<float>({1, p.kv_heads, p.len, p.dim}, random);
    p.v = drawn<float>({1, p.kv_heads, p.len, p.v_dim}, random);
    expect_invariant(p, 0, isa, random, 12);
    expect_invariant(p, kMods - 1, isa, random, 4);
  }
}

/// Keys in parts that begin at multiples of 4096 give the bits of one call, for outputs that are not rounded to 16
/// bits.
template <class T, class Mods>
void expect_same_in_parts(const Prompt<T>& p, const Mods& mods, const Options& whole_options, Random& random) {
  using Number = Wide<T>;
  Tensor<Number, 4> whole({1, p.heads, p.len, p.v_dim});
  Tensor<Number, 3> whole_lse({1, p.heads, p.len});
  attention_into(whole, whole_lse, p.q, p.k, p.v, mods, whole_options);
  for (int n = 0; n < 6; ++n) {
    const Index begin = random.integer(0, p.len - 1), end = std::min(begin + random.integer(1, n < 3 ? 1 : 90), p.len);
    const auto q = part(p.q, p.heads, {begin, end}, 1, 0, random);
    Tensor<Number, 4> out({1, p.heads, end - begin, p.v_dim});
    Tensor<Number, 3> lse({1, p.heads, end - begin});
    Options options = whole_options;
    options.q_offset = whole_options.q_offset.value_or(0) + begin;
    const auto add = [&](Index from, Index to, bool accumulate) {
      options.accumulate = accumulate;
      options.kv_offset = whole_options.kv_offset.value_or(0) + from;
      options.executor = random.chance(0.5) ? serial() : eager_threads(2);
      attention_into(out, lse, q, part(p.k, p.kv_heads, {from, to}, 1, 0, random),
                     part(p.v, p.kv_heads, {from, to}, 1, 0, random), mods, options);
    };
    bool begun = false;
    const auto maybe_nothing = [&](Index at) {
      if (random.chance(0.3)) add(at, at, std::exchange(begun, true));
    };
    for (Index from = 0, to; from < p.k.dim(2); from = to) {
      maybe_nothing(from);
      to = std::min(from + 4096 * random.integer(1, 2), p.k.dim(2));
      add(from, to, std::exchange(begun, true));
    }
    maybe_nothing(p.k.dim(2) / 4096 * 4096);
    rows_compared += p.heads * (end - begin);
    for (Index h = 0; h < p.heads; ++h)
      for (Index i = begin; i < end; ++i)
        ASSERT_TRUE(same_bits(&whole(0, h, i, 0), &out(0, h, i - begin, 0), p.v_dim) &&
                    same_bits(&whole_lse(0, h, i), &lse(0, h, i - begin), 1))
            << "row " << i << " of head " << h << ", rows " << begin << ".." << end << ", " << p.k.dim(2) << " keys, "
            << p.heads << " on " << p.kv_heads << " heads, " << to_string(*options.isa) << ", out " << whole(0, h, i, 0)
            << " and " << out(0, h, i - begin, 0) << ", lse " << whole_lse(0, h, i) << " and " << lse(0, h, i - begin);
  }
}

template <class T>
void run_parts(Index rows) {
  Random random(12);
  for (const Index before = rows_compared; rows_compared - before < rows_wanted(rows);) {
    Prompt<T> p(random, 120);
    const Index keys = random.integer(4000, 13000), offset = 4096 * random.integer(-2, 2);
    p.k = drawn<T>({1, p.kv_heads, keys, p.dim}, random);
    p.v = drawn<T>({1, p.kv_heads, keys, p.v_dim}, random);
    // Queries among the keys, so that rows differ in the stretches that they see.
    const Options options{.q_offset = offset + std::max<Index>(4096 * random.integer(1, 3) - 60, 0),
                          .kv_offset = offset,
                          .executor = serial(),
                          .isa = random.pick(every_set()),
                          .row_invariant = true};
    std::vector<double> slopes, logits;
    for (Index h = 0; h < p.heads; ++h) slopes.push_back(0.001), logits.push_back(0.5 * static_cast<double>(h));
    const auto check = [&](const auto& mods) { expect_same_in_parts(p, mods, options, random); };
    const Index which = random.integer(0, 6);
    SCOPED_TRACE(::testing::Message() << "mods " << which);
    switch (which) {
      case 0:
        check(causal());
        break;
      case 1:
        check(causal() | alibi(slopes));
        break;
      case 2:
        check(sliding_window(37));
        break;
      case 3:
        check(sliding_window(5000));
        break;
      case 4:
        check(causal() | dropout(0.3, 17));
        break;
      case 5:
        check(mask_mod([](const Position& x) { return x.kv > 4500 && x.q >= x.kv; }));
        break;
      default:  // sinks count only without accumulate
        check(causal() | sinks(logits));
    }
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(RowInvariant, KeysInParts) { run_parts<float>(4000); }
TEST(RowInvariant, KeysInPartsDouble) { run_parts<double>(1000); }
TEST(RowInvariant, KeysInPartsHalf) { run_parts<Eigen::half>(1000); }

TEST(RowInvariant, SigmoidsOfKeysInParts) {
  Random random(13);
  for (const Isa isa : instruction_sets()) {
    const Index keys = 9000;
    const auto q = drawn<float>({1, 2, 70, 24}, random), k = drawn<float>({1, 2, keys, 24}, random),
               v = drawn<float>({1, 2, keys, 20}, random);
    Options options{.q_offset = 4060, .isa = isa, .normaliser = Normaliser::sigmoid(-9), .row_invariant = true};
    const auto whole = attention(q, k, v, causal(), options).out;
    Tensor<float, 4> out({1, 2, 70, 20});
    for (Index from = 0; from < keys; from += 4096) {
      const Range part_of{from, std::min<Index>(from + 4096, keys)};
      options.kv_offset = from;
      options.accumulate = from > 0;
      attention_into(out, q, part(k, 2, part_of, 1, 0, random), part(v, 2, part_of, 1, 0, random), causal(), options);
    }
    EXPECT_TRUE(same_bits(whole.data(), out.data(), out.size())) << to_string(isa);
  }
}

TEST(RowInvariant, ALayerOverACache) {
  Random random(4);
  for (const Index kv_heads : {1, 4}) {
    MultiHeadAttention<float> layer(
        {.embed_dim = 48, .heads = 4, .kv_heads = kv_heads, .rope = Rope({.head_dim = 12})});
    layer.for_each_parameter([&](const std::string&, std::span<float> values, std::span<float>) {
      for (float& x : values) x = static_cast<float>(random.uniform(-0.3, 0.3));
    });
    Tensor<float, 3> x({1, 90, 48});
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<float>(random.uniform(-1, 1));
    const auto in_chunks = [&](const std::vector<Index>& lens, bool row_invariant) {
      auto cache = layer.make_cache({.batch = 1});
      Tensor<float, 3> all({1, 90, 48});
      Index begin = 0;
      for (std::size_t n = 0; begin < 90; ++n) {
        const Index len = std::min(lens[n % lens.size()], 90 - begin);
        Tensor<float, 3> some({1, len, 48});
        std::copy_n(&x(0, begin, 0), len * 48, some.data());
        MultiHeadOptions options;
        options.attention.row_invariant = row_invariant;
        const auto out = layer(some, cache, causal(), options).out;
        std::copy_n(out.data(), len * 48, &all(0, begin, 0));
        begin += len;
      }
      return all;
    };
    const auto whole = in_chunks({90}, true);
    for (const std::vector<Index>& lens : {std::vector<Index>{1}, {7}, {3, 20, 1, 1, 16}})
      EXPECT_TRUE(same_bits(whole.data(), in_chunks(lens, true).data(), whole.size()));
    // The control: without the option, bits differ.
    EXPECT_FALSE(same_bits(in_chunks({90}, false).data(), in_chunks({1}, false).data(), whole.size()));
  }
}

TEST(RowInvariant, AdditiveAttentionAndSigmoids) {
  Random random(5);
  for (const Isa isa : instruction_sets()) {
    const auto q = drawn<float>({1, 2, 80, 24}, random), k = drawn<float>({1, 2, 80, 24}, random),
               v = drawn<float>({1, 2, 80, 20}, random);
    const Options options{.isa = isa, .normaliser = Normaliser::sigmoid(-2), .row_invariant = true};
    const auto whole = attention(q, k, v, causal(), options).out;
    for (Index i : {0, 5, 63, 64, 79}) {
      const auto row = part(q, 2, {i, i + 1}, 1, 0, random), keys = part(k, 2, {0, i + 1}, 1, 0, random),
                 values = part(v, 2, {0, i + 1}, 1, 0, random);
      const auto one = attention(row, keys, values, causal(), options).out;
      for (Index h : {0, 1}) EXPECT_TRUE(same_bits(&whole(0, h, i, 0), &one(0, h, 0, 0), 20)) << i;
    }
    using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const auto matrix = [&](Index rows, Index columns) {
      Matrix m(rows, columns);
      for (Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<float>(random.uniform(-1, 1));
      return m;
    };
    const Matrix of_q = matrix(16, 24), of_k = matrix(16, 24), qs = matrix(70, 24), ks = matrix(70, 24),
                 vs = matrix(70, 9);
    const Eigen::VectorXf w = matrix(16, 1);
    const Options own{.isa = isa, .row_invariant = true};
    const Matrix all = additive_attention(qs, ks, vs, {of_q, of_k, w}, causal(), own).out;
    for (const Index i : {0, 3, 40, 69}) {
      const Matrix q_row = qs.row(i), keys = ks.topRows(i + 1), values = vs.topRows(i + 1);
      const Matrix one = additive_attention(q_row, keys, values, {of_q, of_k, w}, causal(), own).out;
      EXPECT_TRUE(same_bits(all.data() + i * 9, one.data(), 9)) << i;
    }
  }
}

#if (defined(__x86_64__) || defined(__aarch64__)) && !defined(ATTN_NO_THREADS)
template <class T>
std::uint64_t hash_of_results(Isa isa) {
  Tensor<T, 4> q({1, 4, 90, 40}), k({1, 2, 90, 40}), v({1, 2, 90, 36});
  for (auto* x : {&q, &k, &v})
    for (Index i = 0; i < x->size(); ++i)
      x->data()[i] = static_cast<T>(static_cast<float>((37 * i * i + i) % 1009 - 504) / 256);
  std::uint64_t hash = 14695981039346656037u;
  const auto add = [&](const auto& x) {
    const auto* const bytes = reinterpret_cast<const unsigned char*>(x.data());
    for (std::size_t i = 0; i < static_cast<std::size_t>(x.size()) * sizeof(*x.data()); ++i)
      hash = (hash ^ bytes[i]) * 1099511628211u;
  };
  const Options options{.isa = isa, .row_invariant = true};
  with_mods(3, 4, [&](const auto& window, Index) {
    const auto a = attention(q, k, v, causal(), options), b = attention(q, k, v, window, options);
    add(a.out), add(b.out);  // the logarithms in lse are those of the C library
  });
  return hash;
}

// All instruction sets with fused multiply-adds do the same operations in the same order, whatever the compiler and the
// width of vectors. The numbers change when a kernel's arithmetic does.
TEST(RowInvariant, AllSetsWithFusedMultiplyAddsGiveTheSameBits) {
  for (const Isa isa : instruction_sets()) {
#if defined(__x86_64__)
    if (isa == Isa::generic) continue;
#endif
    EXPECT_EQ(hash_of_results<float>(isa), 0xc75ac52187c589f4u) << to_string(isa);
    EXPECT_EQ(hash_of_results<double>(isa), 0xb596d5a5c601661eu) << to_string(isa);
  }
}
#endif

TEST(RowInvariant, ExplainSaysSo) {
  Random random(6);
  const auto q = drawn<float>({1, 2, 1, 16}, random), k = drawn<float>({1, 2, 50, 16}, random);
  const Explanation e = explain(q, k, k, causal(), {.row_invariant = true});
  EXPECT_TRUE(e.row_invariant);
  EXPECT_EQ(e.few_queries, 0);
  EXPECT_EQ(e.single_queries, 0);
  EXPECT_FALSE(explain(q, k, k, causal()).row_invariant);
}

TEST(RowInvariant, KeysAtNegativePositions) {
  Random random(9);
  for (const Index kv_offset : {-16, -48, -64, -4096 + 16, -4096 - 16, -8192}) {
    const auto q = drawn<float>({1, 2, 150, 16}, random), k = drawn<float>({1, 2, 150, 16}, random),
               v = drawn<float>({1, 2, 150, 20}, random);
    for (const Index window : {3, 1000}) {
      const auto mods = sliding_window(window);
      Options options{.q_offset = kv_offset, .kv_offset = kv_offset};
      const auto plain = attention(q, k, v, mods, options);
      options.row_invariant = true;
      const auto whole = attention(q, k, v, mods, options);
      for (Index i = 0; i < plain.out.size(); ++i) ASSERT_NEAR(plain.out.data()[i], whole.out.data()[i], 1e-5);
      for (const Index i : {0, 17, 48, 100, 149}) {
        options.q_offset = kv_offset + i;
        const auto one = attention(part(q, 2, {i, i + 1}, 1, 0, random), k, v, mods, options);
        for (const Index h : {0, 1})
          EXPECT_TRUE(same_bits(&whole.out(0, h, i, 0), &one.out(0, h, 0, 0), 20)) << kv_offset << ", row " << i;
      }
    }
  }
}

/// Pages between which a tile may end, because the first key's position is not a multiple of a tile's length: results
/// have the bits of those over tensors, and nothing is written beyond a workspace of workspace_bytes(). The pages of
/// another sequence, between those of this one, are NaN.
template <class S>
void run_positions_in_pages(int rounds) {
  Random random(14);
  for (int round = 0; round < rounds; ++round) {
    Prompt<S> p(random, 300);
    const Index page_size = random.pick(std::vector<Index>{16, 32, 48, 64, 64, 128, 192});
    Options options{.kv_offset = random.pick(std::vector<Index>{0, 16, 32, 48, 64, 80, 4064, -16, -112}),
                    .executor = random.chance(0.5) ? serial() : eager_threads(2),
                    .isa = random.pick(every_set()),
                    .row_invariant = true};
    PagedKvCache<S> cache({.pages = 2 * (p.len / page_size + 1),
                           .page_size = page_size,
                           .kv_heads = p.kv_heads,
                           .head_dim = p.dim,
                           .v_dim = p.v_dim});
    const Index id = cache.add(), stranger = cache.add();
    for (Index begin = 0, end; begin < p.len; begin = end) {
      end = std::min(begin + page_size, p.len);
      cache.append(id, p.k.slice(2, begin, end), p.v.slice(2, begin, end));
      Tensor<S, 4> k({1, p.kv_heads, end - begin, p.dim}), v({1, p.kv_heads, end - begin, p.v_dim});
      std::fill_n(k.data(), k.size(), std::numeric_limits<S>::quiet_NaN());
      std::fill_n(v.data(), v.size(), std::numeric_limits<S>::quiet_NaN());
      cache.append(stranger, k, v);
    }
    const Index rows = random.pick(std::vector<Index>{1, 1, 5, p.len}), begin = std::max<Index>(p.len - rows, 0);
    const auto q = part(p.q, p.heads, {begin, p.len}, 1, 0, random);
    options.q_offset = *options.kv_offset + begin;
    with_mods(random.chance(0.5) ? 0 : 3, p.heads, [&](const auto& mods, Index) {
      const auto wanted = attention(q, p.k, p.v, mods, options);
      const std::size_t bytes = workspace_bytes(q, cache.view({id}), mods, options), guard = std::size_t{1} << 19;
      std::vector<std::byte> memory(bytes + guard, std::byte{0xA5});
      if (random.chance(0.7)) options.workspace = std::span(memory).first(bytes);
      const auto got = attention(q, cache.view({id}), mods, options);
      const auto how = ::testing::Message()
                       << "round " << round << ", " << to_string(*options.isa) << ", pages of " << page_size
                       << ", kv_offset " << *options.kv_offset << ", " << p.len << " keys, " << q.dim(2) << " queries, "
                       << p.heads << " on " << p.kv_heads << " heads of " << p.dim << " and " << p.v_dim;
      EXPECT_TRUE(same_bits(got.out.data(), wanted.out.data(), wanted.out.size())) << how;
      EXPECT_TRUE(same_bits(got.lse.data(), wanted.lse.data(), wanted.lse.size())) << how;
      EXPECT_EQ(std::count(memory.end() - static_cast<std::ptrdiff_t>(guard), memory.end(), std::byte{0xA5}),
                static_cast<std::ptrdiff_t>(guard))
          << "written beyond the workspace: " << how;
    });
    if (::testing::Test::HasFailure()) return;
  }
}

TEST(RowInvariant, PositionsWithinATileOverPages) { run_positions_in_pages<float>(150); }
TEST(RowInvariant, PositionsWithinATileOverPagesOfDoubles) { run_positions_in_pages<double>(50); }
TEST(RowInvariant, PositionsWithinATileOverPagesOfHalves) { run_positions_in_pages<Eigen::half>(50); }

TEST(RowInvariant, RefusesOtherOffsetsOfKeys) {
  Random random(8);
  const auto x = drawn<float>({1, 2, 9, 16}, random);
  EXPECT_NO_THROW(attention(x, x, x, causal(), {.q_offset = 50, .kv_offset = 48, .row_invariant = true}));
  try {
    attention(x, x, x, causal(), {.q_offset = 50, .kv_offset = 37, .row_invariant = true});
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(), "attn: row_invariant needs a kv_offset that is a multiple of 16, but it is 37");
  }
}

}  // namespace
}  // namespace attn::test
