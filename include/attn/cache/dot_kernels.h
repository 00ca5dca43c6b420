// Kernels for single queries over 8-bit keys and values that multiply integers (AVX512-VNNI, AVX-VNNI): an instruction
// forms 64 or 32 8-bit products and sums them in groups of four, exactly, in 32 bits.
//
// A query and the weights of a tile become 24-bit integers (three 8-bit digits) in units of a power of two. The largest
// of these integers have the precision of a float. So 64 products take three instructions; in float they take four and,
// for every four queries, eight conversions. Two digits would match the accuracy of an 8-bit cache, but would break the
// promise that results have float accuracy for the values in the cache: errors of scores and weights would be 2^-17 of
// the largest.
//
// There are no kernels of this kind for bf16 keys: AVX512-BF16 forms twice as many products per instruction as float
// does, but a float query needs three bf16 values per element, so it would be slower than widening keys once for four
// queries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attn/core/kernels/kernel_table.h"
#include "attn/core/simd/avx512.h"
#include "attn/core/tensor/dtype_view.h"

#if ATTN_X86
namespace attn::detail::inline ATTN_BUILT_FOR {

/// Instructions for vectors of `Bytes`, 64 (AVX512-VNNI) or 32 (AVX-VNNI):
/// - round(x, from): rounds to the nearest integers, ties to even,
/// - load_four(x, from): loads the same four bytes into every lane,
/// - add_dots(sum, bytes, signed_bytes): sum += the dot product of four bytes in every lane; `bytes` are unsigned.
template <int Bytes>
struct VnniInstructions;

// Otherwise, tests/support/software_avx512.h has them in C++.
#if !defined(ATTN_SOFTWARE_AVX512)
typedef std::int32_t FourBytes __attribute__((aligned(1), may_alias));

// Results go through a local variable, because g++ 12 would write an assembly result that is an array element to memory
// each time. With {vex}, registers beyond the first 16 cannot be encoded: hence the constraint "x" for 32 bytes.
#define ATTN_VNNI(Bytes, target, registers, encoding)                                                               \
  template <>                                                                                                       \
  struct VnniInstructions<Bytes> {                                                                                  \
    using V = Vec<float, Bytes>;                                                                                    \
    using Ints = V::IntRaw;                                                                                         \
    ATTN_ASSEMBLY(target) void round(Ints& x, const V& from) {                                                      \
      Ints in_register;                                                                                             \
      asm("vcvtps2dq %1, %0" : "=" registers(in_register) : registers(from.raw));                                   \
      x = in_register;                                                                                              \
    }                                                                                                               \
    ATTN_ASSEMBLY(target) void load_four(Ints& x, const void* from) {                                               \
      Ints in_register;                                                                                             \
      asm("vpbroadcastd %1, %0" : "=" registers(in_register) : "m"(*static_cast<const FourBytes*>(from)));          \
      x = in_register;                                                                                              \
    }                                                                                                               \
    ATTN_ASSEMBLY(target) void add_dots(Ints& sum, const Ints& bytes, const Ints& signed_bytes) {                   \
      Ints in_register = sum;                                                                                       \
      asm(encoding "vpdpbusd %2, %1, %0" : "+" registers(in_register) : registers(bytes), registers(signed_bytes)); \
      sum = in_register;                                                                                            \
    }                                                                                                               \
  };
ATTN_VNNI(64, ATTN_TARGET_AVX512, "v", "")
ATTN_VNNI(32, ATTN_TARGET_AVX2, "x", "%{vex%} ")
#undef ATTN_VNNI
#endif

/// Operations on vectors of `Bytes`, 64 or 32. Their shuffles work within 16-byte parts.
template <int Bytes>
struct VnniVectors : VnniInstructions<Bytes> {
  using V = Vec<float, Bytes>;
  using Ints = typename V::IntRaw;
  static constexpr int kLanes = V::kLanes, kParts = Bytes / 16;
  typedef std::uint32_t Bits __attribute__((vector_size(Bytes)));
  typedef std::int32_t IntsInMemory __attribute__((vector_size(Bytes), aligned(1), may_alias));

  /// Factors that convert floats of up to a given magnitude to integers, and back. They are powers of two, so that
  /// floats with few significant bits stay exact.
  struct Scale {
    float factor, unit;
    bool exists;

    /// Scales the largest number to at least 2^bits and less than twice that. For 0 the factor is 0.
    static ATTN_INLINE Scale of(float largest, int bits) {
      std::uint32_t exponent;
      std::memcpy(&exponent, &largest, sizeof(exponent));
      if (exponent == 0) return {0, 0, true};  // -0 is refused below: max_bits() orders it above all numbers
      if (!(largest >= 0x1p-100f && largest <= 0x1p100f)) return {0, 0, false};
      exponent >>= 23;
      return {power(254 - exponent + static_cast<std::uint32_t>(bits)),
              power(exponent - static_cast<std::uint32_t>(bits)), true};
    }
    static ATTN_INLINE float power(std::uint32_t biased_exponent) {
      biased_exponent <<= 23;
      float x;
      std::memcpy(&x, &biased_exponent, sizeof(x));
      return x;
    }
  };

  static ATTN_INLINE void load(Ints& x, const std::byte* from) { x = *reinterpret_cast<const IntsInMemory*>(from); }
  static ATTN_INLINE void store(std::byte* to, const Ints& x) { *reinterpret_cast<IntsInMemory*>(to) = x; }
  /// top = the larger of the two in every lane, compared as integers. This orders non-negative finite floats correctly,
  /// and puts infinity, NaN and negative floats above them.
  static ATTN_INLINE void max_bits(Bits& top, const Bits& x) { top = top > x ? top : x; }
  static ATTN_INLINE float largest(const Bits& x) {
    Bits all = x;
    fold<kLanes / 2>(all, max_bits, std::make_integer_sequence<int, kLanes>());
    float lane;
    std::memcpy(&lane, &all, sizeof(lane));
    return lane;
  }
  static ATTN_INLINE std::int32_t total(const Ints& x) {
    Ints all = x;
    fold<kLanes / 2>(
        all, [](Ints & sum, const Ints& y) __attribute__((always_inline)) { sum += y; },
        std::make_integer_sequence<int, kLanes>());
    return all[0];
  }
  /// Sorts the bytes of every four neighbouring integers: all lowest bytes first, then the second ones, and so on.
  static ATTN_INLINE void sort_digits(Ints& x) { sort_bytes(x, std::make_integer_sequence<int, Bytes>()); }
  template <int... i>
  static ATTN_INLINE void sort_bytes(Ints& x, std::integer_sequence<int, i...>) {
    typedef std::int8_t Small __attribute__((vector_size(Bytes)));
    x = (Ints)__builtin_shufflevector((Small)x, (Small)x, (i / 16 * 16 + i % 4 * 4 + i % 16 / 4)...);
  }

  /// Combines the sums of digits, lowest digits first, into sums in units.
  static ATTN_INLINE V join_digits(const Ints* sums) {
    using Raw = typename V::Raw;
    const V low = V::multiply_add(__builtin_convertvector(sums[1], Raw), 0x1p8f, __builtin_convertvector(sums[0], Raw));
    return V::multiply_add(__builtin_convertvector(sums[2], Raw), 0x1p16f, low.raw);
  }

  /// Interleaves the `Number`s in the lower or upper half of each 16-byte part of two vectors.
  template <class Number, int kHalf, int... i>
  static ATTN_INLINE void zip(Ints& x, const Ints& a, const Ints& b, std::integer_sequence<int, i...>) {
    typedef Number Numbers __attribute__((vector_size(Bytes)));
    constexpr int kAll = sizeof...(i), kPart = kAll / kParts;
    x = (Ints)__builtin_shufflevector((Numbers)a, (Numbers)b,
                                      (i / kPart * kPart + kHalf * kPart / 2 + i % kPart / 2 + (i % 2) * kAll)...);
  }
  template <class Number, int kHalf>
  static ATTN_INLINE void zip(Ints& x, const Ints& a, const Ints& b) {
    zip<Number, kHalf>(x, a, b, std::make_integer_sequence<int, Bytes / static_cast<int>(sizeof(Number))>());
  }
  /// Takes every other part of two vectors, those of `a` first: parts 0 and 2, or 1 and 3 if kOdd.
  template <int kOdd, class Raw, int... i>
  static ATTN_INLINE void take_parts(Raw& x, const Raw& a, const Raw& b, std::integer_sequence<int, i...>) {
    x = __builtin_shufflevector(a, b, (i / 4 * 8 + 4 * kOdd + i % 4)...);
  }
  /// Part i of vector j becomes part j of vector i.
  template <class Raw>
  static ATTN_INLINE void transpose_parts(Array<Raw, kParts>& x) {
    constexpr std::make_integer_sequence<int, kLanes> kAll;
    Raw even, odd;
    take_parts<0>(even, x[0], x[1], kAll);
    take_parts<1>(odd, x[0], x[1], kAll);
    if constexpr (kParts == 2) {
      x[0] = even, x[1] = odd;
    } else {
      Raw even2, odd2;
      take_parts<0>(even2, x[2], x[3], kAll);
      take_parts<1>(odd2, x[2], x[3], kAll);
      take_parts<0>(x[0], even, even2, kAll);
      take_parts<0>(x[1], odd, odd2, kAll);
      take_parts<1>(x[2], even, even2, kAll);
      take_parts<1>(x[3], odd, odd2, kAll);
    }
  }

  /// Reorders some columns of keys for the product, to (columns / 4, keys) groups of four elements of a key, each
  /// element increased by 128. Past the end, the last key is repeated.
  template <int kVectors>
  static ATTN_INLINE void order_keys(std::byte* to, const RowsToRead& key, Index first, Index keys, Index column,
                                     Index columns) {
    for (int v = 0; v < kVectors; ++v, first += kLanes, to += Bytes)
      for (Index c = 0; c < columns; c += Bytes) {
        Array<Ints, kLanes> k;
        ATTN_UNROLL for (int a = 0; a < kLanes; a += 4) {
          Array<Ints, 4> x, y;
          ATTN_UNROLL for (int i = 0; i < 4; ++i) {
            load(x[i], key.data + std::min<Index>(first + a + i, keys - 1) * key.stride + column + c);
            x[i] ^= static_cast<std::int32_t>(0x80808080);
          }
          zip<std::int32_t, 0>(y[0], x[0], x[1]);
          zip<std::int32_t, 1>(y[1], x[0], x[1]);
          zip<std::int32_t, 0>(y[2], x[2], x[3]);
          zip<std::int32_t, 1>(y[3], x[2], x[3]);
          zip<std::int64_t, 0>(k[a], y[0], y[2]);
          zip<std::int64_t, 1>(k[a + 1], y[0], y[2]);
          zip<std::int64_t, 0>(k[a + 2], y[1], y[3]);
          zip<std::int64_t, 1>(k[a + 3], y[1], y[3]);
        }
        ATTN_UNROLL for (int i = 0; i < 4; ++i) {
          Array<Ints, kParts> part;  // columns 16 p + 4 i to 16 p + 4 i + 3 of all keys
          ATTN_UNROLL for (int a = 0; a < kParts; ++a) part[a] = k[4 * a + i];
          transpose_parts(part);
          ATTN_UNROLL for (int p = 0; p < kParts; ++p) store(to + (c + 16 * p + 4 * i) * kVectors * kLanes, part[p]);
        }
      }
  }

  /// Interleaves half of the `Bytes` columns of four values, so that the elements of a column are contiguous. Past the
  /// end, the last value is repeated.
  template <int kHalf>
  static ATTN_INLINE void zip_values(Ints& low, Ints& high, const std::byte* column, Index stride, Index first,
                                     Index keys) {
    Array<Ints, 4> x;
    ATTN_UNROLL for (int i = 0; i < 4; ++i) load(x[i], column + std::min<Index>(first + i, keys - 1) * stride);
    Ints ab, cd;
    zip<std::int8_t, kHalf>(ab, x[0], x[1]);
    zip<std::int8_t, kHalf>(cd, x[2], x[3]);
    zip<std::int16_t, 0>(low, ab, cd);
    zip<std::int16_t, 1>(high, ab, cd);
  }

 private:
  /// Reduces all lanes by join(), and sets every lane to the result: joins each lane with the one kDistance away, then
  /// with the one half as far away, and so on.
  template <int kDistance, class Raw, class Join, int... i>
  static ATTN_INLINE void fold(Raw& x, const Join& join, std::integer_sequence<int, i...> lanes) {
    const Raw other = __builtin_shufflevector(x, x, (i ^ kDistance)...);
    join(x, other);
    if constexpr (kDistance > 1) fold<kDistance / 2>(x, join, lanes);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif

namespace attn::detail::inline ATTN_BUILT_FOR {

#if ATTN_X86
/// The functions of DotKernels.
template <int Bytes, int kRegisters>
struct VnniKernels : private VnniVectors<Bytes> {
  using Vectors = VnniVectors<Bytes>;
  using typename Vectors::V, typename Vectors::Ints, typename Vectors::Bits, typename Vectors::Scale;
  using Vectors::kLanes, Vectors::kParts, Vectors::load, Vectors::load_four, Vectors::store, Vectors::add_dots,
      Vectors::join_digits, Vectors::sort_digits, Vectors::transpose_parts;
  static constexpr Index kColumns = Bytes;

  /// Precedes the digits of a query. Each 16-byte block holds the digits of four elements: the four lowest, the middle
  /// ones, then the highest.
  struct QueryHeader {
    float unit;
    std::int32_t minus_sums[3];  ///< -128 times the sums of the digits, lowest digits first
  };
  static constexpr Index kHeader = sizeof(QueryHeader) / sizeof(float);

  static ATTN_INLINE bool arrange_query(const float* query, Index head_dim, float* to) {
    Bits top = {};
    for (Index d = 0; d < head_dim; d += kLanes) Vectors::max_bits(top, (Bits)V::load(query + d).raw & 0x7fffffffu);
    // The largest integer with digits from -128 to 127 is 2^23 / 1.0039; hence the factor 1.004.
    const Scale scale = Scale::of(Vectors::largest(top) * 1.004f, 22);
    Array<Ints, 3> sums = {};
    std::byte* const digits = reinterpret_cast<std::byte*>(to + kHeader);
    for (Index d = 0; d < head_dim; d += kLanes) {
      Ints number;
      Vectors::round(number, V::load(query + d) * scale.factor);
      // Makes digits signed: the addition of 128 to each digit carries into higher digits, the subtraction does not.
      number = (number + 0x808080) ^ 0x808080;
      ATTN_UNROLL for (int i = 0; i < 3; ++i) sums[i] += (number << (24 - 8 * i)) >> 24;
      sort_digits(number);
      store(digits + 4 * d, number);
    }
    QueryHeader header{scale.unit, {}};
    ATTN_UNROLL for (int i = 0; i < 3; ++i) header.minus_sums[i] = -128 * Vectors::total(sums[i]);
    std::memcpy(to, &header, sizeof(header));
    return scale.exists;
  }

  static ATTN_INLINE void score(const TileMemory<float>& m, Index rows, const RowsToRead& key, Index keys,
                                Index head_dim, Prefetcher& fetching) {
    if (!fetching.is_empty()) {
      const Index groups = ceil_div(rows, kQueriesAtATime);
      fetching.spread(fetching.score_lines(), groups * keys * head_dim);
    }
    Index r = 0;
    for (; rows - r > 1; r = std::min<Index>(r + kQueriesAtATime, rows))
      score_rows<kQueriesAtATime>(m, r, std::min<Index>(kQueriesAtATime, rows - r), key, keys, head_dim, fetching);
    if (r < rows) score_rows<1>(m, r, 1, key, keys, head_dim, fetching);
  }

  static ATTN_INLINE bool value(const TileMemory<float>& m, Index rows, const RowsToRead& value, Index keys,
                                Index v_dim, Prefetcher& fetching) {
    alignas(64) Array<std::byte, kMost * kWeightBytes> digits;
    Array<float, kMost> units;
    for (Index r = 0; r < rows; ++r)
      if (!arrange_weights(m.scores + r * m.row, keys, digits + r * kWeightBytes, units[r])) return false;
    if (!fetching.is_empty()) {
      const Index groups = ceil_div(rows, kValueRows);
      fetching.spread(fetching.lines_left(), groups * keys * v_dim);
    }
    Index r = 0;
    for (; rows - r > 1; r = std::min<Index>(r + kValueRows, rows))
      value_rows<kValueRows>(m, r, std::min<Index>(kValueRows, rows - r), digits, units, value, keys, v_dim, fetching);
    if (r < rows) value_rows<1>(m, r, 1, digits, units, value, keys, v_dim, fetching);
    return true;
  }

  static ATTN_INLINE void multiply(float* numbers, const float* scales, Index count) {
    Index j = 0;
    for (; j + kLanes <= count; j += kLanes) (V::load(numbers + j) * V::load(scales + j)).store(numbers + j);
    for (; j < count; ++j) numbers[j] *= scales[j];
  }

 private:
  static constexpr Index kMost = 16;  ///< queries at a time, as in DecodeState
  static constexpr Index kWeightBytes = 4 * kKeyTile;
  static constexpr bool kMany = kRegisters >= 32;

  /// Vectors of keys whose scores are accumulated together. Several queries use as many as registers allow, so that a
  /// digit is loaded once for all of them. A single query takes 16 keys: with more, keys were read from memory at 0.95
  /// times the speed.
  template <int kRows>
  static constexpr int kKeyVectors = kRows == 1 ? 16 / kLanes
                                     : kMany    ? 2
                                                : 1;
  static constexpr Index kMostColumns = 128;        ///< columns of keys reordered at a time: up to 4 KiB
  static constexpr int kValueRows = kMany ? 4 : 2;  ///< each needs six sums

  /// Computes the scores of `count` rows from `first` on.
  template <int kRows>
  static ATTN_INLINE void score_rows(const TileMemory<float>& m, Index first, Index count, const RowsToRead& key,
                                     Index keys, Index head_dim, Prefetcher& fetching) {
    Array<const std::byte*, kRows> digits;
    Array<QueryHeader, kRows> header;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      const float* const query = m.arranged_query + (first + std::min<Index>(r, count - 1)) * (head_dim + kHeader);
      std::memcpy(&header[r], query, sizeof(QueryHeader));
      digits[r] = reinterpret_cast<const std::byte*>(query + kHeader);
    }
    constexpr int kVectors = kKeyVectors<kRows>;
    constexpr Index kKeys = kVectors * kLanes;
    alignas(64) Array<std::byte, kKeys * kMostColumns> ordered;
    for (Index j = 0; j < keys; j += kKeys) {
      Array<Array<Ints, 3 * kRows>, kVectors> sum;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
          ATTN_UNROLL for (int p = 0; p < 3; ++p) load_four(sum[v][3 * r + p], &header[r].minus_sums[p]);
        }
      }
      for (Index d = 0; d < head_dim; d += kMostColumns) {
        const Index columns = std::min(kMostColumns, head_dim - d);
        // Reordering the next keys between these products gained nothing: on Zen 5 a store costs as much as two
        // products.
        Vectors::template order_keys<kVectors>(ordered, key, j, keys, d, columns);
        for (Index c = 0; c < columns; c += 4) {
          fetching.template step<kVectors * Bytes>();
          Array<Ints, kVectors> x;
          ATTN_UNROLL for (int v = 0; v < kVectors; ++v) load(x[v], ordered + c * kKeys + v * Bytes);
          ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
            ATTN_UNROLL for (int p = 0; p < 3; ++p) {
              Ints q;
              load_four(q, digits[r] + 4 * (d + c + p));
              ATTN_UNROLL for (int v = 0; v < kVectors; ++v) add_dots(sum[v][3 * r + p], x[v], q);
            }
          }
        }
      }
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          if (r < count && j + v * kLanes < keys)
            (join_digits(&sum[v][3 * r]) * header[r].unit).store(m.scores + (first + r) * m.row + j + v * kLanes);
        }
      }
    }
  }

  /// Converts the weights of a tile to digits, padded with zeros: the digits of four keys in 16 bytes, as in a query.
  static ATTN_INLINE bool arrange_weights(const float* weights, Index keys, std::byte* digits, float& unit) {
    Array<V, kKeyTile / kLanes> x;
    const Index vectors = ceil_div(keys, kLanes);
    Bits top = {};
    for (Index i = 0; i < vectors; ++i) {
      if ((i + 1) * kLanes <= keys) {
        x[i] = V::load(weights + i * kLanes);
      } else {
        Array<float, kLanes> rest = {};
        std::copy_n(weights + i * kLanes, keys - i * kLanes, rest);
        x[i] = V::load(rest);
      }
      Vectors::max_bits(top, (Bits)x[i].raw);
    }
    const Scale scale = Scale::of(Vectors::largest(top), 23);
    for (Index i = 0; i < vectors; ++i) {
      Ints number;
      Vectors::round(number, x[i] * scale.factor);
      sort_digits(number);
      store(digits + i * 4 * kLanes, number);
    }
    unit = scale.unit;
    return scale.exists;
  }

  template <int kRows>
  static ATTN_INLINE void value_rows(const TileMemory<float>& m, Index first, Index count, const std::byte* digits,
                                     const float* units, const RowsToRead& value, Index keys, Index v_dim,
                                     Prefetcher& fetching) {
    Array<const std::byte*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) weights[r] =
        digits + (first + std::min<Index>(r, count - 1)) * kWeightBytes;
    for (Index c = 0; c < v_dim; c += kColumns) {
      Array<Array<V, 4>, kRows> out;  // part i of vector v has columns 16 i + 4 v to 16 i + 4 v + 3
      add_columns<0, kRows>(out, weights, value, keys, c, fetching);
      add_columns<1, kRows>(out, weights, value, keys, c, fetching);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) if (r < count)
          add_out(out[r], units[first + r], m.rescale[first + r], m.out + (first + r) * v_dim + c);
    }
  }

  /// Computes half of kColumns: the lower or the upper eight of every 16.
  template <int kHalf, int kRows>
  static ATTN_INLINE void add_columns(Array<V, 4>* out, const Array<const std::byte*, kRows>& weights,
                                      const RowsToRead& value, Index keys, Index c, Prefetcher& fetching) {
    Array<Ints, 6 * kRows> sum;
    ATTN_UNROLL for (int i = 0; i < 6 * kRows; ++i) sum[i] = Ints{};
    const std::byte* const column = value.data + c;
    // If there are enough registers, the next values are reordered before the current ones are multiplied.
    Ints low, high, next_low, next_high;
    if constexpr (kMany) Vectors::template zip_values<kHalf>(low, high, column, value.stride, 0, keys);
    for (Index j = 0; j < keys; j += 4) {
      fetching.template step<2 * Bytes>();
      if constexpr (kMany)
        Vectors::template zip_values<kHalf>(next_low, next_high, column, value.stride, j + 4, keys);
      else
        Vectors::template zip_values<kHalf>(low, high, column, value.stride, j, keys);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        ATTN_UNROLL for (int p = 0; p < 3; ++p) {
          Ints w;
          load_four(w, weights[r] + 4 * j + 4 * p);
          add_dots(sum[6 * r + p], w, low);
          add_dots(sum[6 * r + 3 + p], w, high);
        }
      }
      if constexpr (kMany) low = next_low, high = next_high;
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      out[r][2 * kHalf] = join_digits(&sum[6 * r]);
      out[r][2 * kHalf + 1] = join_digits(&sum[6 * r + 3]);
    }
  }

  /// Part i of x[v] has columns 16 i + 4 v to 16 i + 4 v + 3.
  static ATTN_INLINE void add_out(const Array<V, 4>& x, float unit, float rescale, float* out) {
    constexpr int kTransposed = 4 / kParts;  // number of transposes of kParts vectors
    ATTN_UNROLL for (int t = 0; t < kTransposed; ++t) {
      Array<typename V::Raw, kParts> sum;
      ATTN_UNROLL for (int i = 0; i < kParts; ++i) sum[i] = x[t * kParts + i].raw;
      transpose_parts(sum);
      ATTN_UNROLL for (int i = 0; i < kParts; ++i) {
        float* const to = out + 16 * i + t * kLanes;
        (V::load(to) * rescale + V{sum[i]} * unit).store(to);
      }
    }
  }
};
#endif

/// The 8-bit kernels for a set of vectors, or null if it has none.
inline const DotKernels<float>* dot_kernels([[maybe_unused]] VectorSet vectors) {
#if ATTN_X86
  return with_vectors<float>(vectors, []<VectorSet kSet>() -> const DotKernels<float>* {
    if constexpr (kSet == VectorSet::generic) {
      return nullptr;
    } else {
      using Kernels = VnniKernels<kVectorBytes<kSet>, kVectorRegisters<kSet>>;
      static constexpr DotKernels<float> kKernels{Kernels::kColumns,
                                                  Kernels::kHeader,
                                                  compiled<kSet, Kernels::arrange_query>,
                                                  compiled<kSet, Kernels::score>,
                                                  compiled<kSet, Kernels::value>,
                                                  compiled<kSet, Kernels::multiply>};
      return &kKernels;
    }
  });
#else
  return nullptr;
#endif
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
