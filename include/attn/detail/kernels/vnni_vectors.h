// Vectors of integers of 8 bits and of the digits that numbers are cut into, for detail/kernels/dot_kernels.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

#include "attn/detail/simd/simd.h"

#if ATTN_X86
namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

struct VnniVectors {
  using S = Simd<float, 64>;
  using Vec = S::Vec;
  using Ints = S::IntVec;
  static constexpr int kLanes = S::kLanes;
  typedef std::int32_t IntsInMemory __attribute__((vector_size(64), aligned(1), may_alias));

  /// What makes integers of numbers up to a largest one, and the way back. Powers of two, so that short numbers stay
  /// what they are.
  struct Scale {
    float factor, unit;
    bool exists;

    /// The largest number becomes one of at least 2^bits and less than twice that. 0 has a factor of 0.
    static ATTN_INLINE Scale of(float largest, int bits) {
      if (largest == 0) return {0, 0, true};
      if (!(largest >= 0x1p-100f && largest <= 0x1p100f)) return {0, 0, false};
      std::uint32_t exponent;
      std::memcpy(&exponent, &largest, sizeof(exponent));
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

  ATTN_TARGET_AVX512 static ATTN_INLINE void load(Ints& x, const std::byte* from) {
    x = *reinterpret_cast<const IntsInMemory*>(from);
  }
  ATTN_TARGET_AVX512 static ATTN_INLINE void store(std::byte* to, const Ints& x) {
    *reinterpret_cast<IntsInMemory*>(to) = x;
  }
  ATTN_TARGET_AVX512 static ATTN_INLINE void max_magnitude(Vec& top, const Vec& x) {
    const Vec magnitude = (Vec)((Ints)x & 0x7fffffff);
    S::max_with(top, magnitude);
  }
  ATTN_TARGET_AVX512 static ATTN_INLINE void mark_unless(Vec& marks, const Ints& condition) {
    marks = condition ? marks : Vec{} + 1;
  }
  /// To the nearest, halfway cases to even.
  ATTN_TARGET_AVX512 static ATTN_INLINE void round(Ints& x, const Vec& from) {
    Ints in_register;
    asm("vcvtps2dq %1, %0" : "=v"(in_register) : "v"(from));
    x = in_register;
  }
  ATTN_TARGET_AVX512 static ATTN_INLINE std::int32_t total(const Ints& x) {
    std::int32_t sum = 0;
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i) sum += x[i];
    return sum;
  }
  /// Of each four numbers next to each other: the lowest bytes come first, then the second ones, and so on.
  ATTN_TARGET_AVX512 static ATTN_INLINE void sort_digits(Ints& x) {
    sort_bytes(x, std::make_integer_sequence<int, 64>());
  }
  template <int... i>
  ATTN_TARGET_AVX512 static ATTN_INLINE void sort_bytes(Ints& x, std::integer_sequence<int, i...>) {
    typedef std::int8_t Small __attribute__((vector_size(64)));
    x = (Ints)__builtin_shufflevector((Small)x, (Small)x, (i / 16 * 16 + i % 4 * 4 + i % 16 / 4)...);
  }

  /// sum += the products of four bytes, added up, in every lane: those of `bytes` count as 0 to 255, the other ones as
  /// -128 to 127.
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_dots(Ints& sum, const Ints& bytes, const Ints& signed_bytes) {
    Ints in_register = sum;  // g++ 12 stores what assembly gives to an element of an array each time
    asm("vpdpbusd %2, %1, %0" : "+v"(in_register) : "v"(bytes), "v"(signed_bytes));
    sum = in_register;
  }
  /// The same with the same four bytes in every lane.
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_dots(Ints& sum, const Ints& bytes, const std::byte* four) {
    typedef std::int32_t Four __attribute__((aligned(1), may_alias));
    Ints in_register = sum;
    asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(in_register) : "v"(bytes), "m"(*reinterpret_cast<const Four*>(four)));
    sum = in_register;
  }
  /// Digits of sums, the lowest first, to what they stand for in units.
  ATTN_TARGET_AVX512 static ATTN_INLINE void join_digits(Vec& x, const Ints* sums) {
    x = __builtin_convertvector(sums[2], Vec) * 0x1p16f +
        (__builtin_convertvector(sums[1], Vec) * 0x1p8f + __builtin_convertvector(sums[0], Vec));
  }

  /// 16 bytes of each of two vectors: numbers of `Number` in turn, of the lower half of each, or the upper.
  template <class Number, int kHalf, int... i>
  ATTN_TARGET_AVX512 static ATTN_INLINE void zip(Ints& x, const Ints& a, const Ints& b,
                                                 std::integer_sequence<int, i...>) {
    typedef Number Numbers __attribute__((vector_size(64)));
    constexpr int kAll = sizeof...(i), kPart = kAll / 4;
    x = (Ints)__builtin_shufflevector((Numbers)a, (Numbers)b,
                                      (i / kPart * kPart + kHalf * kPart / 2 + i % kPart / 2 + (i % 2) * kAll)...);
  }
  template <class Number, int kHalf>
  ATTN_TARGET_AVX512 static ATTN_INLINE void zip(Ints& x, const Ints& a, const Ints& b) {
    zip<Number, kHalf>(x, a, b, std::make_integer_sequence<int, 64 / sizeof(Number)>());
  }
  /// Two quarters of each of two vectors: quarters 0 and 2 of both, or 1 and 3.
  template <int kOdd, class V, int... i>
  ATTN_TARGET_AVX512 static ATTN_INLINE void take_quarters(V& x, const V& a, const V& b,
                                                           std::integer_sequence<int, i...>) {
    x = __builtin_shufflevector(a, b, (i / 8 * 16 + i / 4 % 2 * 8 + 4 * kOdd + i % 4)...);
  }
  /// Quarter i of vector j becomes quarter j of vector i.
  template <class V>
  ATTN_TARGET_AVX512 static ATTN_INLINE void transpose_quarters(Array<V, 4>& x, const V& a, const V& b, const V& c,
                                                                const V& d) {
    constexpr std::make_integer_sequence<int, kLanes> kAll;
    V even, odd, even2, odd2;
    take_quarters<0>(even, a, b, kAll);
    take_quarters<1>(odd, a, b, kAll);
    take_quarters<0>(even2, c, d, kAll);
    take_quarters<1>(odd2, c, d, kAll);
    take_quarters<0>(x[0], even, even2, kAll);
    take_quarters<0>(x[1], odd, odd2, kAll);
    take_quarters<1>(x[2], even, even2, kAll);
    take_quarters<1>(x[3], odd, odd2, kAll);
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
#endif
