// Vectors of 8-bit integers and of the digits that floats are split into, for cache/dot_kernels.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attn/core/simd/avx512.h"
#include "attn/core/tensor/dtype_view.h"

#if ATTN_X86
namespace attn::detail::inline ATTN_BUILT_FOR {

/// Instructions for vectors of `Bytes`:
/// - round(x, from): rounds to the nearest integers, ties to even,
/// - load_four(x, from): loads the same four bytes into every lane,
/// - add_dots(sum, bytes, signed_bytes): sum += the dot product of four bytes in every lane; `bytes` are unsigned.
template <int Bytes>
struct VnniInstructions;

/// AVX512-VNNI.
template <>
struct VnniInstructions<64> : Avx512Instructions {};

/// AVX-VNNI.
template <>
struct VnniInstructions<32> {
  using V = Vec<float, 32>;
  using Ints = V::IntRaw;

  ATTN_ASSEMBLY(ATTN_TARGET_AVX2) void round(Ints& x, const V& from) {
    Ints in_register;
    asm("vcvtps2dq %1, %0" : "=x"(in_register) : "x"(from.raw));
    x = in_register;
  }
  ATTN_ASSEMBLY(ATTN_TARGET_AVX2) void load_four(Ints& x, const void* from) {
    Ints in_register;
    asm("vpbroadcastd %1, %0" : "=x"(in_register) : "m"(*static_cast<const FourBytes*>(from)));
    x = in_register;
  }
  ATTN_ASSEMBLY(ATTN_TARGET_AVX2) void add_dots(Ints& sum, const Ints& bytes, const Ints& signed_bytes) {
    Ints in_register = sum;
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(in_register) : "x"(bytes), "x"(signed_bytes));
    sum = in_register;
  }
};
#undef ATTN_ASSEMBLY

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
