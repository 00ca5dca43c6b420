// Vectors of lanes in the compilers' own vector extension: one text for all instruction sets.
//
// The functions here are forced inline and pass vectors by reference, so they take on the instruction set of the
// function they end up in, whose `target` attribute decides (see detail/kernels/kernel_table.h). A vector passed by
// value would have no agreed calling convention.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "attn/detail/simd/exp2_constants.h"
#include "attn/detail/simd/tanh_constants.h"
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
  sum = rest - rest == X{} ? sum + rest : sum;
}

/// `Bytes` wide vectors of T. A scalar without vectors (long double) is its own vector of one lane.
template <class T, int Bytes>
struct Simd {
  static constexpr bool kVector = std::is_same_v<T, float> || std::is_same_v<T, double>;
  static constexpr int kLanes = kVector ? Bytes / static_cast<int>(sizeof(T)) : 1;

  template <class U, bool = kVector>
  struct VectorOf {
    using type = U;
    using InMemory = U;
  };
  template <class U>
  struct VectorOf<U, true> {
    typedef U type __attribute__((vector_size(Bytes)));
    typedef U InMemory __attribute__((vector_size(Bytes), aligned(alignof(U)), may_alias));
  };
  using Vec = typename VectorOf<T>::type;
  using InMemory = typename VectorOf<T>::InMemory;  // unaligned, and allowed to alias the numbers
  using Int = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;
  using IntVec = typename VectorOf<Int>::type;

  // Through a pointer and not memcpy, which makes g++ 12 keep the vector on the stack.
  static ATTN_INLINE void load(Vec& x, const T* from) { x = *reinterpret_cast<const InMemory*>(from); }
  static ATTN_INLINE void store(T* to, const Vec& x) { *reinterpret_cast<InMemory*>(to) = x; }
  static ATTN_INLINE void splat(Vec& x, T value) { x = Vec{} + value; }

  /// sum += x * y in every lane. The scalar must meet the vector in an operation: g++ 12 spells out a vector that is
  /// only made of copies of a scalar lane by lane when the function, before it is inlined, lacks the instruction set.
  static ATTN_INLINE void add_product(Vec& sum, const Vec& x, T y) { sum += x * y; }

  /// The same, rounded once wherever the instruction set can, for sums whose bits must not depend on where they are
  /// formed. g++ decides for each place whether it fuses a product with its sum: g++ 13 does not in a loop with a
  /// single sum of 32 bytes or less, and else by what stands around. Other compilers fuse all, and so does g++ in a
  /// loop with several sums, where this would hide from it what is being multiplied.
  static ATTN_INLINE void add_fused(Vec& sum, const Vec& x, const T& y) {
#if defined(__x86_64__) && !defined(__clang__)
#if defined(__FMA__)
    constexpr bool kFused = kVector;
#else
    constexpr bool kFused = kVector && Bytes > 16;
#endif
    if constexpr (kFused) {
      Vec all = sum, factor;  // in registers: g++ 12 stores what assembly gives to an element of an array
      if constexpr (sizeof(T) == 4) {
        asm("vbroadcastss %1, %0" : "=v"(factor) : "m"(y));
        asm("vfmadd231ps %2, %1, %0" : "+v"(all) : "v"(x), "v"(factor));
      } else {
        if constexpr (Bytes > 16)
          asm("vbroadcastsd %1, %0" : "=v"(factor) : "m"(y));
        else
          asm("vmovddup %1, %0" : "=v"(factor) : "m"(y));
        asm("vfmadd231pd %2, %1, %0" : "+v"(all) : "v"(x), "v"(factor));
      }
      sum = all;
      return;
    }
#endif
    add_product(sum, x, y);
  }
  static ATTN_INLINE void max_with(Vec& x, const Vec& y) { x = x > y ? x : y; }

  /// What is read from `next` is read after `sum` is formed. g++ for ARM orders a loop's loads before its products
  /// otherwise, and then keeps sums in memory for want of registers. No instruction.
  template <class Pointer>
  static ATTN_INLINE void form_before([[maybe_unused]] Vec& sum, [[maybe_unused]] Pointer& next) {
#if ATTN_NEON && !defined(__clang__)
    if constexpr (kVector) asm("" : "+w"(sum), "+r"(next));
#endif
  }

  /// x is in a register from here on. g++ that tunes for AMD's Zen (-march=native there) otherwise reads a vector from
  /// memory again in each product of a loop that it cannot see to be short of loads. No instruction.
  static ATTN_INLINE void keep_in_register([[maybe_unused]] Vec& x) {
#if defined(__x86_64__) && !defined(__clang__)
    if constexpr (kVector) asm("" : "+v"(x));
#endif
  }

  /// The largest lane of numbers that are not NaN.
  static ATTN_INLINE T largest(const Vec& x) {
    if constexpr (kVector) {
      Vec all = x;
      fold_max<kLanes / 2>(all, std::make_integer_sequence<int, kLanes>());
      return all[0];
    } else {
      return x;
    }
  }

  /// The sum of all lanes.
  static ATTN_INLINE T total(const Vec& x) {
    if constexpr (kVector) {
      Vec all = x;
      fold_sum<kLanes / 2>(all, std::make_integer_sequence<int, kLanes>());
      return all[0];
    } else {
      return x;
    }
  }

  /// Transposes a square of numbers, kLanes vectors of kLanes, by exchanging off-diagonal blocks of 1, 2, 4, … (Eklundh
  /// 1972).
  static ATTN_INLINE void transpose(Vec* square) {
    if constexpr (kVector) exchange_blocks<1>(square);
  }

  /// Lane i of the first vector becomes the sum of all lanes of vector i. Half as many exchanges as a transpose needs.
  static ATTN_INLINE void sum_lanes(Vec* vectors) {
    if constexpr (kVector) sum_blocks<1>(vectors);
  }

  /// Numbers become -inf where `kept` is 0.
  static ATTN_INLINE void drop_where_zero(T* numbers, const Int* kept) {
    Vec x, infinity;
    load(x, numbers);
    splat(infinity, std::numeric_limits<T>::infinity());
    if constexpr (kVector) {
      IntVec k;
      __builtin_memcpy(&k, kept, sizeof(k));
      store(numbers, k != 0 ? x : -infinity);
    } else {
      store(numbers, *kept != 0 ? x : -infinity);
    }
  }

  /// x = e^x for x <= 0. Exactly 0 for -inf and wherever the result would be denormal; NaN stays NaN. The error is a
  /// few eps near 0 and grows with |x|, because log2(e) is one rounded number: to 10 eps at -86 in float and 45 at -696
  /// in double, three to five times that without FMA. Such weights are far below an eps of the largest one.
  static ATTN_INLINE void exp(Vec& x) {
    if constexpr (kVector) {
      using C = Exp2Constants<T>;
      constexpr T kLog2e = std::numbers::log2e_v<T>;
      const Vec shifted = x * kLog2e + C::kRound;
      const Vec f = x * kLog2e + (C::kRound - shifted);
      Vec p = f * C::kPolynomial[C::kDegree] + C::kPolynomial[C::kDegree - 1];
      ATTN_UNROLL for (int i = C::kDegree - 2; i >= 0; --i) p = p * f + C::kPolynomial[i];
      // A product, because adding to the bits of a NaN could make a number of it.
      const Vec power = (Vec)((IntVec)shifted << C::kMantissaBits), r = p * power;
      x = x < C::kSmallest ? Vec{} : r;
    } else {
      x = std::exp(x);
    }
  }

  /// x = 1 / (1 + e^-x), 0 for -inf, and `rest` = 1 - x; neither cancels. NaN stays NaN.
  static ATTN_INLINE void sigmoid(Vec& x, Vec& rest) {
    const Vec minus = -x;
    Vec small = x < minus ? x : minus;  // -|x|
    exp(small);
    const Vec large = T(1) / (T(1) + small);
    small *= large;
    rest = x < Vec{} ? large : small;
    x = x < Vec{} ? small : large;
  }

  /// x = tanh(x), within 8 units in the last place, those of the numbers that are less than 1; the sign of zero stays,
  /// and so does NaN. 13 operations and a division, a third less than detail::tanh(), which is more exact.
  static ATTN_INLINE void tanh(Vec& x) {
    if constexpr (kVector) {
      using C = TanhConstants<T>;
      // The bound stands first, so that a NaN is not replaced by it: one instruction each.
      Vec most, least;
      splat(most, C::kIsOne);
      splat(least, -C::kIsOne);
      x = most < x ? most : x;
      x = least > x ? least : x;
      const Vec square = x * x;
      Vec p = square * C::kP[C::kDegree] + C::kP[C::kDegree - 1],
          q = square * C::kQ[C::kDegree] + C::kQ[C::kDegree - 1];
      ATTN_UNROLL for (int i = C::kDegree - 2; i >= 0; --i) {
        p = p * square + C::kP[i];
        q = q * square + C::kQ[i];
      }
      x = x * p / q;
    } else {
      x = std::tanh(x);
    }
  }

 private:
  template <int kBlock>
  static ATTN_INLINE void exchange_blocks(Vec* square) {
    if constexpr (kBlock < kLanes) {
      ATTN_UNROLL for (int i = 0; i < kLanes; ++i) {
        if (!(i & kBlock)) exchange<kBlock>(square[i], square[i + kBlock], std::make_integer_sequence<int, kLanes>());
      }
      exchange_blocks<2 * kBlock>(square);
    }
  }
  template <int kBlock>
  static ATTN_INLINE void sum_blocks(Vec* vectors) {
    if constexpr (kBlock < kLanes) {
      ATTN_UNROLL for (int i = 0; i < kLanes; i += 2 * kBlock) {
        add_blocks<kBlock>(vectors[i], vectors[i + kBlock], std::make_integer_sequence<int, kLanes>());
      }
      sum_blocks<2 * kBlock>(vectors);
    }
  }
  /// a = the sums of what exchange() makes of a and b. A blend, which most units can do, takes the place of an
  /// exchange, which few can, where there are blends.
  template <int kBlock, int... i>
  static ATTN_INLINE void add_blocks(Vec& a, Vec& b, std::integer_sequence<int, i...> lanes) {
    if constexpr (Bytes >= 32) {
      const Vec other = __builtin_shufflevector(a, b, ((i & kBlock ? kLanes : 0) + (i ^ kBlock))...);
      a = __builtin_shufflevector(a, b, ((i & kBlock ? kLanes : 0) + i)...);
      a += other;
    } else {
      exchange<kBlock>(a, b, lanes);
      a += b;
    }
  }
  /// Every lane becomes the largest of all: of itself and the one `kDistance` away, then half as far.
  template <int kDistance, int... i>
  static ATTN_INLINE void fold_max(Vec& x, std::integer_sequence<int, i...> lanes) {
    const Vec other = __builtin_shufflevector(x, x, (i ^ kDistance)...);
    max_with(x, other);
    if constexpr (kDistance > 1) fold_max<kDistance / 2>(x, lanes);
  }
  template <int kDistance, int... i>
  static ATTN_INLINE void fold_sum(Vec& x, std::integer_sequence<int, i...> lanes) {
    const Vec other = __builtin_shufflevector(x, x, (i ^ kDistance)...);
    x += other;
    if constexpr (kDistance > 1) fold_sum<kDistance / 2>(x, lanes);
  }
  template <int kBlock, int... i>
  static ATTN_INLINE void exchange(Vec& a, Vec& b, std::integer_sequence<int, i...>) {
    const Vec upper = __builtin_shufflevector(a, b, ((i & kBlock) ? kLanes + (i ^ kBlock) : i)...);
    b = __builtin_shufflevector(a, b, ((i & kBlock) ? kLanes + i : (i ^ kBlock))...);
    a = upper;
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
