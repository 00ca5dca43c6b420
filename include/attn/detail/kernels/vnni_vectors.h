// Vectors of integers of 8 bits and of the digits that numbers are cut into, for detail/kernels/dot_kernels.h.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attn/detail/simd/vec.h"
#include "attn/detail/tensor/dtype_view.h"

#if ATTN_X86
namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

typedef std::int32_t FourBytes __attribute__((aligned(1), may_alias));

// For wide operands of assembly clang wants the function to have their instruction set, and then refuses to be told to
// inline it into one that has not. It inlines by itself, once that one stands in a kernel.
#if defined(__clang__)
#define ATTN_ASSEMBLY(target) target static inline
#else
#define ATTN_ASSEMBLY(target) static ATTN_INLINE
#endif

/// Instructions for vectors of `Bytes`:
/// - round(x, from): to the nearest integers, halfway cases to even,
/// - load_four(x, from): the same four bytes in every lane,
/// - add_dots(sum, bytes, signed_bytes): sum += the products of four bytes, added up, in every lane; those of `bytes`
///   count as 0 to 255, the other ones as -128 to 127.
template <int Bytes>
struct VnniInstructions;

/// AVX512-VNNI.
template <>
struct VnniInstructions<64> {
  using V = Vec<float, 64>;
  using Ints = V::IntRaw;

  ATTN_ASSEMBLY(ATTN_TARGET_AVX512) void round(Ints& x, const V& from) {
    Ints in_register;  // g++ 12 stores what assembly gives to an element of an array each time
    asm("vcvtps2dq %1, %0" : "=v"(in_register) : "v"(from.raw));
    x = in_register;
  }
  ATTN_ASSEMBLY(ATTN_TARGET_AVX512) void load_four(Ints& x, const void* from) {
    Ints in_register;
    asm("vpbroadcastd %1, %0" : "=v"(in_register) : "m"(*static_cast<const FourBytes*>(from)));
    x = in_register;
  }
  ATTN_ASSEMBLY(ATTN_TARGET_AVX512) void add_dots(Ints& sum, const Ints& bytes, const Ints& signed_bytes) {
    Ints in_register = sum;
    asm("vpdpbusd %2, %1, %0" : "+v"(in_register) : "v"(bytes), "v"(signed_bytes));
    sum = in_register;
  }
};

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

/// Vectors of `Bytes`, 64 or 32, which other instructions take as parts of 16 bytes.
template <int Bytes>
struct VnniVectors : VnniInstructions<Bytes> {
  using V = Vec<float, Bytes>;
  using Ints = typename V::IntRaw;
  static constexpr int kLanes = V::kLanes, kParts = Bytes / 16;
  typedef std::uint32_t Bits __attribute__((vector_size(Bytes)));
  typedef std::int32_t IntsInMemory __attribute__((vector_size(Bytes), aligned(1), may_alias));

  /// What makes integers of numbers up to a largest one, and the way back. Powers of two, so that short numbers stay
  /// what they are.
  struct Scale {
    float factor, unit;
    bool exists;

    /// The largest number becomes one of at least 2^bits and less than twice that. 0 has a factor of 0.
    static ATTN_INLINE Scale of(float largest, int bits) {
      std::uint32_t exponent;
      std::memcpy(&exponent, &largest, sizeof(exponent));
      if (exponent == 0) return {0, 0, true};  // and not for -0, which max_bits() takes for more than any number
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
  /// top = the larger of both in every lane, compared as integers: so floats that are not negative are in order, and
  /// infinity, NaN and whatever is negative are larger.
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
  /// Of each four numbers next to each other: the lowest bytes come first, then the second ones, and so on.
  static ATTN_INLINE void sort_digits(Ints& x) { sort_bytes(x, std::make_integer_sequence<int, Bytes>()); }
  template <int... i>
  static ATTN_INLINE void sort_bytes(Ints& x, std::integer_sequence<int, i...>) {
    typedef std::int8_t Small __attribute__((vector_size(Bytes)));
    x = (Ints)__builtin_shufflevector((Small)x, (Small)x, (i / 16 * 16 + i % 4 * 4 + i % 16 / 4)...);
  }

  /// Digits of sums, the lowest first, to what they stand for in units.
  static ATTN_INLINE V join_digits(const Ints* sums) {
    using Raw = typename V::Raw;
    return {__builtin_convertvector(sums[2], Raw) * 0x1p16f +
            (__builtin_convertvector(sums[1], Raw) * 0x1p8f + __builtin_convertvector(sums[0], Raw))};
  }

  /// 16 bytes of each of two vectors: numbers of `Number` in turn, of the lower half of each, or the upper.
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
  /// Every other part of two vectors, those of `a` first: parts 0 and 2, or, kOdd, 1 and 3.
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

  /// Some columns of keys as they are multiplied, (columns / 4, keys): four numbers of one key after the other,
  /// each 128 more than it is. Behind the last key it stands again.
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
          Array<Ints, kParts> part;  // numbers 16 p + 4 i and the three behind, of all keys
          ATTN_UNROLL for (int a = 0; a < kParts; ++a) part[a] = k[4 * a + i];
          transpose_parts(part);
          ATTN_UNROLL for (int p = 0; p < kParts; ++p) store(to + (c + 16 * p + 4 * i) * kVectors * kLanes, part[p]);
        }
      }
  }

  /// Half of `Bytes` numbers of four values, those of a column next to each other. Behind the last value it stands
  /// again.
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
  /// Every lane becomes what join(lane, other) makes of itself and the one kDistance away, then half as far.
  template <int kDistance, class Raw, class Join, int... i>
  static ATTN_INLINE void fold(Raw& x, const Join& join, std::integer_sequence<int, i...> lanes) {
    const Raw other = __builtin_shufflevector(x, x, (i ^ kDistance)...);
    join(x, other);
    if constexpr (kDistance > 1) fold<kDistance / 2>(x, join, lanes);
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
#endif
