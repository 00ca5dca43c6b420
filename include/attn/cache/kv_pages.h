// The memory of a cache: pages of keys and values, and how tokens are appended to them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/cache/cached_kernels.h"
#include "attn/cache/dot_kernels.h"
#include "attn/cache/key_rotation.h"
#include "attn/cache/sequence_rows.h"
#include "attn/core/base/ranges.h"
#include "attn/kv_view.h"

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace attn::detail {

/// Requests huge pages for memory that has not been touched yet. Reading memory from end to end is then a fifth faster
/// (decoding, 4096 and 32768 keys). If the system does not grant the request, nothing changes.
inline void advise_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] std::ptrdiff_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr std::ptrdiff_t kWorthIt = std::ptrdiff_t(4) << 20;  // two huge pages
  if (bytes < kWorthIt) return;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE)),
             address = reinterpret_cast<std::uintptr_t>(data);
  const std::uintptr_t begin = padded(address, page),
                       end = (address + static_cast<std::uintptr_t>(bytes)) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace attn::detail

namespace attn::detail::inline ATTN_BUILT_FOR {

/// How a cache of T stores rows. A format with an integer type or a type of fewer than 16 bits has a function store()
/// that converts a row of floats; a format with scales returns the row's scale from it, and elements of the row are
/// integers in units of that scale. A new type needs a DType, its conversion to vectors in SmallVec, and such a format.
template <class T>
struct CacheFormat {
  using Computed = computed_t<T>;
  static constexpr DType kDType = dtype_of<T>;
  static constexpr bool kScaled = false;
};

/// The format of a type of fewer than 16 bits; T's constructor converts floats. A block that is filled in part repeats
/// the last element, which changes neither its scale nor its zero point.
template <class T, DType kType>
struct SmallFormat {
  using Computed = float;
  static constexpr DType kDType = kType;
  static constexpr bool kScaled = false;

  static void store(const float* row, Index dim, T* to) {
    constexpr Index kBlock = elements_of_block(kType);
    if constexpr (kBlock == 1) {
      for (Index c = 0; c < dim; ++c) to[c] = T(row[c]);
    } else {
      for (; dim >= kBlock; dim -= kBlock, row += kBlock) *to++ = T(row);
      if (dim == 0) return;
      Array<float, kBlock> last;
      std::fill(std::copy_n(row, dim, last), last + kBlock, row[dim - 1]);
      *to = T(last);
    }
  }
};
template <>
struct CacheFormat<Float8E4M3> : SmallFormat<Float8E4M3, DType::f8_e4m3> {};
template <>
struct CacheFormat<Float8E5M2> : SmallFormat<Float8E5M2, DType::f8_e5m2> {};
template <>
struct CacheFormat<Int4> : SmallFormat<Int4, DType::i4> {};
template <>
struct CacheFormat<Int4Asymmetric> : SmallFormat<Int4Asymmetric, DType::i4_asymmetric> {};

/// Integers from -127 to 127. Each row has a scale: its largest magnitude / 127.
template <>
struct CacheFormat<std::int8_t> {
  using Computed = float;
  static constexpr DType kDType = DType::i8;
  static constexpr bool kScaled = true;

  /// Returns the scale. A row with an inf or a NaN gets the scale NaN, so that all of it is NaN.
  static float store(const float* row, Index dim, std::int8_t* to) {
    float largest = 0;
    bool finite = true;
    for (Index c = 0; c < dim; ++c) {
      largest = std::max(largest, std::abs(row[c]));
      finite &= std::isfinite(row[c]);
    }
    // The inverse of a smaller scale overflows.
    if (!finite || largest < 0x1p-120f) {
      std::fill_n(to, dim, std::int8_t(0));
      return finite ? 0.0f : std::numeric_limits<float>::quiet_NaN();
    }
    const float inverse = 127 / largest;
    // 1.5 * 2^23: floats of that size have no fractional bits, so adding it rounds to the nearest integer.
    constexpr float kRound = 12582912;
    for (Index c = 0; c < dim; ++c) to[c] = static_cast<std::int8_t>(row[c] * inverse + kRound - kRound);
    return largest / 127;
  }
};

/// The type in which attention over a cache of T is computed.
template <class T>
using cached_t = typename CacheFormat<T>::Computed;

/// The keys or the values of all pages: a view (pages, kv_heads, page_size, dim), or (…, blocks of a row) if a T is a
/// block of several elements; and the scales, if the format has them.
template <class T>
struct TokenRows : CacheFormat<T> {
  using typename CacheFormat<T>::Computed;
  using CacheFormat<T>::kDType, CacheFormat<T>::kScaled;
  static constexpr Index kBlock = elements_of_block(kDType);

  TensorView<T, 4> numbers;
  TensorView<float, 3> scales;
  Index dim = 0;

  DTypeView<const Computed> stored() const {
    Shape<4> shape = numbers.shape(), strides = numbers.strides();
    shape[3] = dim;
    for (std::size_t i = 0; i < 3; ++i) strides[i] *= kBlock;
    return {reinterpret_cast<const std::byte*>(numbers.data()), kDType, shape, strides};
  }

  /// Writes `count` contiguous rows into a page, from token `first` on.
  void store([[maybe_unused]] const KernelFamily<Computed>& family, const Computed* rows, Index count, Index page,
             Index head, Index first) const {
    T* const to = &numbers(page, head, first, 0);
    if constexpr (kDType < DType::i8) {
      family.unpack_rows(rows, count, dim, {reinterpret_cast<std::byte*>(to), kDType, dim, 1});
    } else {
      for (Index i = 0; i < count; ++i) {
        const float* const row = rows + i * dim;
        if constexpr (kScaled)
          scales(page, head, first + i) = CacheFormat<T>::store(row, dim, to + i * dim);
        else
          CacheFormat<T>::store(row, dim, to + i * numbers.dim(3));
      }
    }
  }

  /// Moves rows of a page as `move` says, without rotating them. Rows may overlap the rows that they move to.
  void move(const RowMove& move) const {
    for (Index head = 0; head < numbers.dim(1); ++head) {
      std::copy_n(&numbers(move.from_page, head, move.from_row, 0), move.count * numbers.dim(3),
                  &numbers(move.to_page, head, move.to_row, 0));
      if (kScaled)
        std::copy_n(&scales(move.from_page, head, move.from_row), move.count, &scales(move.to_page, head, move.to_row));
    }
  }

  /// Moves and rotates rows of a page. Elements that are not Computed are rotated in Computed and rounded once more;
  /// `memory` has space for `most` rows of Computed.
  void rotate(const RowMove& move, const KernelFamily<Computed>& family, const KeyRotation<Computed>& rotation,
              Computed* memory, Index most) const {
    for (Index head = 0; head < numbers.dim(1); ++head)
      for (Index done = 0, count = 0; done < move.count; done += count) {
        count = std::min(most, move.count - done);
        const Index from = move.from_row + done, to = move.to_row + done;
        if constexpr (kDType == DType::native) {
          rotation.rotate(&numbers(move.from_page, head, from, 0), &numbers(move.to_page, head, to, 0), count, dim);
        } else {
          family.pack_rows(stored().rows(move.from_page, head, from), count, dim, memory);
          rotation.rotate(memory, memory, count, dim);
          for (Index i = 0; i < count; ++i) {
            const float scale = kScaled ? scales(move.from_page, head, from + i) : 1;
            store(family, memory + i * dim, 1, move.to_page, head, to + i);
            if (kScaled) scales(move.to_page, head, to + i) *= scale;
          }
        }
      }
  }

  /// Copies the first `count` tokens of page `from` of `other`, which may be this object, to page `to`.
  void copy(const TokenRows& other, Index from, Index to, Index count) const {
    for (Index head = 0; count > 0 && head < numbers.dim(1); ++head) {
      std::copy_n(&other.numbers(from, head, 0, 0), count * numbers.dim(3), &numbers(to, head, 0, 0));
      if (kScaled) std::copy_n(&other.scales(from, head, 0), count, &scales(to, head, 0));
    }
  }
};

/// Tokens to append to sequences of a cache of T: keys (batch, kv_heads, tokens, head_dim) and values (batch, kv_heads,
/// tokens, v_dim). Sequence i gets the tokens of batch element i, or, if the sequences are packed, the tokens that
/// follow those of sequence i - 1 in the only batch element.
template <class T>
struct NewTokens {
  const KernelFamily<cached_t<T>>& kernels;  ///< convert the elements of keys and values
  DTypeView<const cached_t<T>> k, v;

  Index count() const { return k.dim(2); }
};

/// Pages of keys and values. A page stores all keys of a head and then all its values, so that memory is read in long
/// runs, which processors prefetch best. In pages of latent rows, a value is the first v_dim elements of its key.
template <class T>
class KvPages {
 public:
  using Computed = cached_t<T>;

  KvPages(Index pages, Index kv_heads, Index page_size, Index head_dim, Index v_dim, bool latent = false)
      : head_dim_(head_dim),
        v_dim_(v_dim),
        latent_(latent),
        numbers_(Tensor<T, 4>::uninitialized({pages, kv_heads, page_size, row_size(head_dim, latent ? 0 : v_dim)})),
        scales_(Tensor<float, 4>::uninitialized({TokenRows<T>::kScaled ? pages : 0, kv_heads, 2, page_size})) {
    advise_huge_pages(numbers_.data(), bytes_of(numbers_));
  }

  TokenRows<T> keys() { return rows(0, 0, head_dim_); }
  TokenRows<T> values() { return latent_ ? rows(0, 0, v_dim_) : rows(1, blocks(head_dim_), v_dim_); }
  TokenRows<T> keys() const { return const_cast<KvPages*>(this)->keys(); }
  TokenRows<T> values() const { return const_cast<KvPages*>(this)->values(); }
  Index page_size() const { return numbers_.dim(2); }
  Index bytes() const { return bytes_of(numbers_) + bytes_of(scales_); }

  /// Returns a view of the whole memory, regardless of the sequences in it.
  KvView<Computed> view(const Rope* rope) const {
    ChooseDots<Computed> choose_dots = nullptr;
    if constexpr (TokenRows<T>::kScaled) choose_dots = dot_kernels;
    const TokenRows<T> k = keys(), v = values();
    return {k.stored(), v.stored(), rope,       kernels_over_cache<Computed, TokenRows<T>::kDType>(),
            k.scales,   v.scales,   choose_dots};
  }

  void copy_page(const KvPages& other, Index from, Index to, Index tokens) {
    keys().copy(other.keys(), from, to, tokens);
    if (!latent_) values().copy(other.values(), from, to, tokens);
  }

  /// New tokens, and the workspace of append(). It is allocated before anything is changed, so that append() itself
  /// neither allocates nor throws.
  class Writer {
   public:
    Writer(const NewTokens<T>& tokens, const Rope* rope)
        : tokens_(tokens),
          rope_(rope),
          most_(std::min(kMost, std::max<Index>(tokens.count(), 1))),
          packed_(static_cast<std::size_t>(most_ * std::max(tokens.k.dim(3), tokens.v.dim(3)))),
          rotation_(rotation_for<Computed>(rope, most_)) {}

   private:
    friend KvPages;
    static constexpr Index kMost = 64;  // tokens: few enough to stay in the processor's cache until written

    const NewTokens<T>& tokens_;
    const Rope* rope_;
    Index most_;
    std::vector<Computed> packed_;
    Rotation<Computed> rotation_;
  };

  /// Writes lens[i] of the new tokens after the existing tokens of sequence i, for all i. sequence_of(i) is the
  /// sequence: its `length` so far, its `pages`, and the `positions` of its rows, including the new ones.
  template <class SequenceOf>
  void append(Writer& writer, std::span<const Index> lens, bool packed, const SequenceOf& sequence_of) {
    Range rows{0, 0};
    for (std::size_t i = 0; i < lens.size(); ++i) {
      const auto& s = sequence_of(i);
      rows = {packed ? rows.end : 0, packed ? rows.end + lens[i] : lens[i]};
      write(writer, packed ? 0 : static_cast<Index>(i), rows, s.pages, s.length, s.positions.rows());
    }
  }

  /// Workspace of move(), allocated before anything is changed.
  class Mover {
   public:
    /// Without a rope, no keys are rotated.
    Mover(const KvPages& pages, const Rope* rope)
        : family_(kernels_over_cache<Computed, TokenRows<T>::kDType>().choose({}, Bf16Products::none).family),
          rotates_(rope != nullptr),
          rotation_(rope) {
      if (rope && kConverts) packed_.resize(static_cast<std::size_t>(kMost * pages.head_dim_));
    }

   private:
    friend KvPages;
    static constexpr Index kMost = 64;
    static constexpr bool kConverts = TokenRows<T>::kDType != DType::native;  // to rotate keys

    const KernelFamily<Computed>& family_;
    bool rotates_;
    KeyRotation<Computed> rotation_;
    std::vector<Computed> packed_;
  };

  /// Gives the keys in rows `rows` of a page the angles of `to` instead of those of the mover's rope;
  /// position_of(row, axis) is the position by which a row has been rotated. Neither allocates nor throws.
  template <class PositionOf>
  void change_rope(Mover& m, const Rope& to, Index page, const Range& rows, const PositionOf& position_of) const {
    for (Index row = rows.begin; row < rows.end; ++row) {
      m.rotation_.set_change(to, [&](Index axis) { return position_of(row, axis); });
      keys().rotate({page, row, page, row, 1, 0}, m.family_, m.rotation_, m.packed_.data(), Mover::kMost);
    }
  }

  /// Moves tokens as plan_removal() says, and rotates their keys. Neither allocates nor throws.
  void move(Mover& m, std::span<const RowMove> moves) {
    const TokenRows<T> keys = this->keys(), values = this->values();
    for (const RowMove& move : moves) {
      const bool stays = move.from_page == move.to_page && move.from_row == move.to_row;
      if (m.rotates_ && move.shift != 0) {
        m.rotation_.set(move.shift);
        keys.rotate(move, m.family_, m.rotation_, m.packed_.data(), Mover::kMost);
      } else if (!stays) {
        keys.move(move);
      }
      if (!stays && !latent_) values.move(move);
    }
  }

 private:
  /// Writes rows `rows` of batch element `batch` to a sequence with the pages `table`, from its row `row` on. If there
  /// is a rope, keys are first rotated by the positions of these rows.
  void write(Writer& w, Index batch, Range rows, std::span<const Index> table, Index row, RowPositions positions) {
    const auto& [family, k, v] = w.tokens_;
    const Index head_dim = k.dim(3), v_dim = v.dim(3);
    Computed* const packed = w.packed_.data();
    const TokenRows<T> keys = this->keys(), values = this->values();
    while (!rows.empty()) {
      const Index at = row % page_size(), page = table[static_cast<std::size_t>(row / page_size())];
      const Index count = std::min({w.most_, rows.size(), page_size() - at});
      for (Index i = 0; w.rope_ && i < count; ++i)
        w.rope_->set_angles(
            w.rotation_, [&](Index axis) { return positions(row + i, axis); }, i);
      for (Index head = 0; head < k.dim(1); ++head) {
        family.pack_rows(k.rows(batch, head, rows.begin), count, head_dim, packed);
        for (Index i = 0; w.rope_ && i < count; ++i) w.rotation_.rotate(packed + i * head_dim, i);
        keys.store(family, packed, count, page, head, at);
        if (latent_) continue;
        family.pack_rows(v.rows(batch, head, rows.begin), count, v_dim, packed);
        values.store(family, packed, count, page, head, at);
      }
      rows.begin += count;
      row += count;
    }
  }

  static Index blocks(Index dim) { return ceil_div(dim, TokenRows<T>::kBlock); }
  template <class X>
  static Index bytes_of(const Tensor<X, 4>& t) {
    return t.size() * static_cast<Index>(sizeof(X));
  }
  static Index row_size(Index head_dim, Index v_dim) {
    require(head_dim <= kLargestIndex && v_dim <= kLargestIndex, "a cache of head_dim ", head_dim, " and v_dim ", v_dim,
            " is too large");
    return blocks(head_dim) + blocks(v_dim);
  }
  /// `which`: 0 for keys, 1 for values; `first`: blocks of each token that precede them.
  TokenRows<T> rows(Index which, Index first, Index dim) {
    const Index heads = numbers_.dim(1), tokens = page_size(), row = numbers_.dim(3);
    TokenRows<T> t;
    t.dim = dim;
    t.numbers = TensorView<T, 4>(numbers_.data() + first * tokens, {numbers_.dim(0), heads, tokens, blocks(dim)},
                                 {heads * tokens * row, tokens * row, latent_ ? row : blocks(dim), 1});
    if (TokenRows<T>::kScaled)
      t.scales = TensorView<float, 3>(scales_.data() + which * tokens, {numbers_.dim(0), heads, tokens},
                                      {heads * 2 * tokens, 2 * tokens, 1});
    return t;
  }

  Index head_dim_, v_dim_;
  bool latent_;
  Tensor<T, 4> numbers_;  // for each head of a page, all its keys and then all its values
  Tensor<float, 4> scales_;
};

/// Checks tokens that are to be appended to some sequences of a cache with the configuration `c`, and lens[i], the
/// number of them for the sequence number_of(i).
template <class T, class Config, class NumberOf>
void check_appended(const NewTokens<T>& tokens, const Config& c, std::size_t sequences, std::span<const Index> lens,
                    bool packed, const NumberOf& number_of) {
  const Shape<4>&k = tokens.k.shape(), &v = tokens.v.shape();
  const Index batch = packed ? 1 : static_cast<Index>(sequences), count = tokens.count();
  const Shape<4> want_k{batch, c.kv_heads, count, c.head_dim}, want_v{batch, c.kv_heads, count, c.v_dim};
  require(
      k == want_k, "append: keys have shape ", k, ", expected ", want_k, " as (batch, kv_heads, tokens, head_dim)",
      k[0] == 1 && batch > 1
          ? "; to append concatenated tokens of several sequences, pass their lengths after the values, as in {3, 1}"
          : "");
  require(v == want_v, "append: values have shape ", v, ", expected ", want_v, " as (batch, kv_heads, tokens, v_dim)");
  require(lens.size() == sequences, "append: got ", lens.size(), " lengths for ", sequences, " sequences");
  Index left = count;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    require(lens[i] >= 0 && lens[i] <= left, "append: the length for sequence ", number_of(i), " must be in 0..", left,
            " (the tokens that remain of the ", count, " given), but is ", lens[i]);
    if (packed) left -= lens[i];
  }
  require(!packed || left == 0, "append: the lengths add up to ", count - left, ", but there are ", count, " tokens");
}

/// Returns a rank-4 view of a tensor that is to be appended.
template <class T, class X>
DTypeView<const T> appended(const X& x) {
  static_assert(is_scalar<typename Traits<X>::Scalar> && std::is_same_v<computed_t<typename Traits<X>::Scalar>, T>,
                "attn: keys and values to append must have the scalar type that the cache computes in (float and "
                "16-bit floats may be mixed)");
  static_assert(Traits<X>::kRank == 2 || Traits<X>::kRank == 4,
                "attn: keys and values to append must be (tokens, dim) or (batch, kv_heads, tokens, dim)");
  return as_rank4(view(x));
}

/// Calls use() with the NewTokens whose keys are k and whose values are v.
template <class T, class K, class V, class Use>
void with_new_tokens(const K& k, const V& v, const Use& use) {
  using Computed = cached_t<T>;
  constexpr bool kNative = TokenRows<T>::kDType == DType::native && hold_computed_numbers<K, V>();
  const auto& keys = evaluated(k);
  const auto& values = evaluated(v);
  use(NewTokens<T>{kernel_family<Computed, !kNative>(vectors_of(default_isa())), appended<Computed>(keys),
                   appended<Computed>(values)});
}

/// Rejects, with a one-sentence error, types that a cache cannot hold.
template <class T>
constexpr void check_cached() {
  static_assert(CacheFormat<T>::kDType >= DType::i8 || is_scalar<T>,
                "attn: a cache must hold float, double, long double, 16-bit floats, attn::Float8E4M3, "
                "attn::Float8E5M2, std::int8_t, attn::Int4 or attn::Int4Asymmetric");
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
