// Vectors of lanes as values, in the compilers' own vector extension: one source for all instruction sets.
//
// The functions here are forced inline, so they take on the instruction set of the function they end up in, whose
// `target` attribute decides (see Compiled in detail/simd/vector_sets.h). Vectors are passed by reference and returned
// by value: as parameters they would have no agreed calling convention, as the only member of a class they are returned
// by one.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "attn/detail/simd/math_constants.h"
#include "attn/detail/simd/vector_sets.h"
#include "attn/types.h"

#define ATTN_INLINE __attribute__((always_inline)) inline
#define ATTN_UNROLL _Pragma("GCC unroll 32")
#if defined(__clang__)
#define ATTN_NO_UNROLL _Pragma("clang loop unroll(disable)")
#define ATTN_UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define ATTN_NO_UNROLL _Pragma("GCC unroll 1")
#define ATTN_UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class X, int n>
using Array = X[static_cast<std::size_t>(n)];

/// The integer that has the bits of a lane.
template <class T>
using IntOf = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

/// The compilers' vector of U in place of each lane of a vector of T, and the same in memory: unaligned, and allowed to
/// alias the numbers.
template <class T, int Bytes, class U = T, bool = kHasVectors<T>>
struct RawVec {
  using type = U;
  using InMemory = U;
};
template <class T, int Bytes, class U>
struct RawVec<T, Bytes, U, true> {
  typedef U type __attribute__((vector_size(Bytes)));
  typedef U InMemory __attribute__((vector_size(Bytes), aligned(alignof(U)), may_alias));
};

/// What a comparison of vectors gives: for each lane, whether it holds.
template <class T, int Bytes>
struct Mask {
  std::conditional_t<kHasVectors<T>, typename RawVec<T, Bytes, IntOf<T>>::type, bool> raw;
};

/// A vector of `Bytes`. Left uninitialised it is indeterminate; Vec{} is 0.
template <class T, int Bytes>
struct Vec {
  static constexpr bool kIsVector = kHasVectors<T>;
  static constexpr int kLanes = kIsVector ? Bytes / static_cast<int>(sizeof(T)) : 1;
  using Raw = typename RawVec<T, Bytes>::type;
  using Int = IntOf<T>;
  using IntRaw = typename RawVec<T, Bytes, Int>::type;
  using Mask = detail::Mask<T, Bytes>;

  Raw raw;

  // Through a pointer and not memcpy, which makes g++ 12 keep the vector on the stack.
  static ATTN_INLINE Vec load(const T* from) { return {*reinterpret_cast<const InMemory*>(from)}; }
  ATTN_INLINE void store(T* to) const { *reinterpret_cast<InMemory*>(to) = raw; }

  /// The same number in every lane. The number must meet a vector in an operation: g++ 12 spells out a vector that is
  /// only made of copies of a number lane by lane when the function, before it is inlined, lacks the instruction set.
  static ATTN_INLINE Vec broadcast(T value) { return {Raw{} + value}; }

  /// A product that is not rounded yet. With a sum it is one instruction, wherever the instruction set can: clang fuses
  /// both only if they are in one expression. (Its contract(fast) fuses across functions, but not across the checks of
  /// a sanitizer, and then the bits of a sum depend on what stands around it.)
  template <class Factor>
  struct Product {
    Raw a;
    Factor b;
    ATTN_INLINE operator Vec() const { return {a * b}; }
    ATTN_INLINE void store(T* to) const { Vec(*this).store(to); }
    friend ATTN_INLINE Vec operator+(const Product& x, const Product& y) { return {x.a * x.b + y.a * y.b}; }
    friend ATTN_INLINE Vec operator+(const Vec& sum, const Product& x) { return {x.a * x.b + sum.raw}; }
    friend ATTN_INLINE Vec operator+(const Product& x, const Vec& sum) { return {x.a * x.b + sum.raw}; }
    friend ATTN_INLINE Vec operator-(const Vec& sum, const Product& x) { return {sum.raw - x.a * x.b}; }
    friend ATTN_INLINE Vec operator-(const Product& x, const Vec& sum) { return {x.a * x.b - sum.raw}; }
  };

  friend ATTN_INLINE Vec operator+(const Vec& a, const Vec& b) { return {a.raw + b.raw}; }
  friend ATTN_INLINE Vec operator-(const Vec& a, const Vec& b) { return {a.raw - b.raw}; }
  friend ATTN_INLINE Product<Raw> operator*(const Vec& a, const Vec& b) { return {a.raw, b.raw}; }
  friend ATTN_INLINE Vec operator+(const Vec& a, T b) { return {a.raw + b}; }
  friend ATTN_INLINE Vec operator-(const Vec& a, T b) { return {a.raw - b}; }
  friend ATTN_INLINE Product<T> operator*(const Vec& a, T b) { return {a.raw, b}; }
  friend ATTN_INLINE Vec operator/(T a, const Vec& b) { return {a / b.raw}; }
  friend ATTN_INLINE Vec operator/(const Vec& a, const Vec& b) { return {a.raw / b.raw}; }
  ATTN_INLINE Vec operator-() const { return {-raw}; }
  template <class Other>
  ATTN_INLINE Vec& operator+=(const Other& other) {
    return *this = *this + other;
  }
  template <class Other>
  ATTN_INLINE Vec& operator-=(const Other& other) {
    return *this = *this - other;
  }
  template <class Other>
  ATTN_INLINE Vec& operator*=(const Other& other) {
    return *this = *this * other;
  }

  friend ATTN_INLINE Mask operator==(const Vec& a, const Vec& b) { return {a.raw == b.raw}; }
  friend ATTN_INLINE Mask operator<(const Vec& a, const Vec& b) { return {a.raw < b.raw}; }
  friend ATTN_INLINE Mask operator>(const Vec& a, const Vec& b) { return {a.raw > b.raw}; }
  friend ATTN_INLINE Mask operator>(const Vec& a, T b) { return {a.raw > b}; }

  /// a where the mask holds, else b.
  friend ATTN_INLINE Vec select(const Mask& mask, const Vec& a, const Vec& b) { return {mask.raw ? a.raw : b.raw}; }
  /// The larger in every lane; b where one of both is NaN.
  friend ATTN_INLINE Vec max(const Vec& a, const Vec& b) { return {a.raw > b.raw ? a.raw : b.raw}; }

  /// What is read from `next` is read after this vector is formed. g++ for ARM orders a loop's loads before its
  /// products otherwise, and then keeps sums in memory for want of registers. No instruction.
  template <class Pointer>
  ATTN_INLINE void form_before([[maybe_unused]] Pointer& next) {
#if ATTN_NEON && !defined(__clang__)
    if constexpr (kIsVector) asm("" : "+w"(raw), "+r"(next));
#endif
  }

  /// The vector is in a register from here on. g++ that tunes for AMD's Zen (-march=native there) otherwise reads a
  /// vector from memory again in each product of a loop that it cannot see to be short of loads. No instruction.
  ATTN_INLINE void keep_in_register() {
#if defined(__x86_64__) && !defined(__clang__)
    if constexpr (kIsVector) asm("" : "+v"(raw));
#endif
  }

  /// What comes later in the text is computed later. g++ otherwise orders the products of a block by columns, and then
  /// rows are not read in the order of memory: 64 floats a key came from memory at 0.74 of the speed. On a copy of a
  /// sum and not on an element of an array, which g++ would store. No instruction.
  ATTN_INLINE void keep_order() {
#if defined(__x86_64__) && !defined(__clang__)
    if constexpr (kIsVector) asm volatile("" : "+v"(raw));
#endif
  }

  /// The first lane.
  ATTN_INLINE T first() const {
    if constexpr (kIsVector)
      return raw[0];
    else
      return raw;
  }
  /// The largest lane of numbers that are not NaN.
  ATTN_INLINE T largest() const { return fold<kLanes / 2, true>(*this, kAllLanes).first(); }
  /// The sum of all lanes.
  ATTN_INLINE T total() const { return fold<kLanes / 2, false>(*this, kAllLanes).first(); }

  /// Transposes a square of numbers, kLanes vectors of kLanes, by exchanging off-diagonal blocks of 1, 2, 4, … (Eklundh
  /// 1972).
  static ATTN_INLINE void transpose(Vec* square) { exchange_blocks<1>(square); }

  /// Lane i is the sum of all lanes of vector i of kLanes, which are overwritten. Half as many exchanges as a transpose
  /// needs.
  static ATTN_INLINE Vec sum_lanes(Vec* vectors) {
    sum_blocks<1>(vectors);
    return vectors[0];
  }

  /// e^x for x <= 0. Exactly 0 for -inf and wherever the result would be denormal; NaN stays NaN. The error is a few
  /// eps near 0 and grows with |x|, because log2(e) is one rounded number: to 10 eps at -86 in float and 45 at -696 in
  /// double, three to five times that without FMA. Such weights are far below an eps of the largest one.
  friend ATTN_INLINE Vec exp(const Vec& x) {
    if constexpr (kIsVector) {
      using C = Exp2Constants<T>;
      constexpr T kLog2e = std::numbers::log2e_v<T>;
      const Raw shifted = x.raw * kLog2e + C::kRound;
      const Raw f = x.raw * kLog2e + (C::kRound - shifted);
      Raw p = f * C::kPolynomial[C::kDegree] + C::kPolynomial[C::kDegree - 1];
      ATTN_UNROLL for (int i = C::kDegree - 2; i >= 0; --i) p = p * f + C::kPolynomial[i];
      // A product, because adding to the bits of a NaN could make a number of it.
      const Raw power = (Raw)((IntRaw)shifted << C::kMantissaBits), r = p * power;
      return {x.raw < C::kSmallest ? Raw{} : r};
    } else {
      return {std::exp(x.raw)};
    }
  }

  /// 1 / (1 + e^-x), 0 for -inf, and 1 less that; neither cancels. NaN stays NaN.
  struct Sigmoid {
    Vec value, rest;
  };
  friend ATTN_INLINE Sigmoid sigmoid(const Vec& x) {
    const Vec minus = -x, small = exp(select(x < minus, x, minus));  // e^-|x|
    const Vec large = T(1) / (small + T(1)), rest = small * large;
    return {select(x < Vec{}, rest, large), select(x < Vec{}, large, rest)};
  }

  /// Within 8 units in the last place, those of the numbers that are less than 1; the sign of zero stays, and so does
  /// NaN. 13 operations and a division, a third less than detail::tanh(), which is more exact.
  friend ATTN_INLINE Vec tanh(const Vec& x) {
    if constexpr (kIsVector) {
      using C = TanhConstants<T>;
      // The bound stands first, so that a NaN is not replaced by it: one instruction each.
      const Vec most = broadcast(C::kIsOne), least = broadcast(-C::kIsOne), below = select(most < x, most, x);
      const Raw y = select(least > below, least, below).raw, square = y * y;
      Raw p = square * C::kP[C::kDegree] + C::kP[C::kDegree - 1],
          q = square * C::kQ[C::kDegree] + C::kQ[C::kDegree - 1];
      ATTN_UNROLL for (int i = C::kDegree - 2; i >= 0; --i) {
        p = p * square + C::kP[i];
        q = q * square + C::kQ[i];
      }
      return {y * p / q};
    } else {
      return {std::tanh(x.raw)};
    }
  }

 private:
  using InMemory = typename RawVec<T, Bytes>::InMemory;
  using Lanes = std::make_integer_sequence<int, kLanes>;
  static constexpr Lanes kAllLanes{};

  template <int kBlock>
  static ATTN_INLINE void exchange_blocks(Vec* square) {
    if constexpr (kBlock < kLanes) {
      ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
        if (!(i & kBlock)) exchange<kBlock>(square[i], square[i + kBlock], kAllLanes);
      }
      exchange_blocks<2 * kBlock>(square);
    }
  }
  template <int kBlock, int... i>
  static ATTN_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, i...>) {
    const Raw upper = __builtin_shufflevector(a.raw, b.raw, ((i & kBlock) ? kLanes + (i ^ kBlock) : i)...);
    b.raw = __builtin_shufflevector(a.raw, b.raw, ((i & kBlock) ? kLanes + i : (i ^ kBlock))...);
    a.raw = upper;
  }

  template <int kBlock>
  static ATTN_INLINE void sum_blocks(Vec* vectors) {
    if constexpr (kBlock < kLanes) {
      ATTN_UNROLL for (int i = 0; i < kLanes; i += 2 * kBlock)
          add_blocks<kBlock>(vectors[i], vectors[i + kBlock], kAllLanes);
      sum_blocks<2 * kBlock>(vectors);
    }
  }
  /// a = the sums of what exchange() makes of a and b. A blend, which most units can do, takes the place of an
  /// exchange, which few can, where there are blends.
  template <int kBlock, int... i>
  static ATTN_INLINE void add_blocks(Vec& a, Vec& b, std::integer_sequence<int, i...> lanes) {
    if constexpr (Bytes >= 32) {
      const Raw other = __builtin_shufflevector(a.raw, b.raw, ((i & kBlock ? kLanes : 0) + (i ^ kBlock))...);
      a.raw = __builtin_shufflevector(a.raw, b.raw, ((i & kBlock ? kLanes : 0) + i)...);
      a.raw += other;
    } else {
      exchange<kBlock>(a, b, lanes);
      a.raw += b.raw;
    }
  }

  /// Every lane becomes the largest, or the sum, of all: of itself and the one `kDistance` away, then half as far.
  template <int kDistance, bool kLargest, int... i>
  static ATTN_INLINE Vec fold(const Vec& x, std::integer_sequence<int, i...> lanes) {
    if constexpr (kDistance > 0) {
      const Vec other{__builtin_shufflevector(x.raw, x.raw, (i ^ kDistance)...)};
      if constexpr (kLargest)
        return fold<kDistance / 2, kLargest>(max(x, other), lanes);
      else
        return fold<kDistance / 2, kLargest>(x + other, lanes);
    } else {
      return x;
    }
  }
};

/// sum += x for numbers or vectors; `rest` collects what rounding takes from the sum (Knuth, The Art of Computer
/// Programming, volume 2, section 4.2.2, theorem B).
template <class X>
ATTN_INLINE void add_exactly(X& sum, X& rest, const X& x) {
  const X all = sum + x, added = all - sum;
  rest += (sum - (all - added)) + (x - added);
  sum = all;
}
/// Adds the rest to its sum. Where the sum is not finite, the rest is NaN and is left out.
template <class X>
ATTN_INLINE void add_rest(X& sum, const X& rest) {
  if constexpr (std::is_arithmetic_v<X>)
    sum = rest - rest == X(0) ? sum + rest : sum;
  else
    sum = select(rest - rest == X{}, sum + rest, sum);
}

/// Numbers become -inf where `kept` is 0: as many as a vector has lanes.
template <class V, class T>
ATTN_INLINE void drop_where_zero(T* numbers, const typename V::Int* kept) {
  const V x = V::load(numbers), infinity = V::broadcast(std::numeric_limits<T>::infinity());
  typename V::Mask is_kept;
  if constexpr (V::kIsVector) {
    typename V::IntRaw k;
    __builtin_memcpy(&k, kept, sizeof(k));
    is_kept.raw = k != 0;
  } else {
    is_kept.raw = *kept != 0;
  }
  select(is_kept, x, -infinity).store(numbers);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
