// SIMD vectors as value types, built on the compilers' vector extension: one source for all instruction sets.
//
// The functions here are forced inline, so they use the instruction set that the `target` attribute of the surrounding
// function selects (see Compiled in core/simd/vector_sets.h). Vectors are passed by reference, because vector
// parameters have no common calling convention; a vector that is the only member of a class can be returned by value.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <type_traits>
#include <utility>

#include "attn/core/simd/scalar_math.h"
#include "attn/core/simd/vector_sets.h"
#include "attn/types.h"

// ATTN_ASSEMBLY is for functions with assembly that are inlined into kernels. clang requires a function with wide
// operands to target their instruction set, and refuses always_inline for it if a caller lacks that set. Without
// always_inline, clang inlines the function once its caller is inlined into a kernel.
//
// UBSan's check of calls through function pointers makes each function refer to itself. clang would then keep copies
// that nothing calls, compiled without a kernel's instruction set; clang 14 has no f16 conversions there to link.
#define ATTN_UNROLL _Pragma("GCC unroll 32")
#if defined(__clang__)
#define ATTN_INLINE __attribute__((always_inline, no_sanitize("function"))) inline
#define ATTN_ASSEMBLY(target) target static inline
#define ATTN_NO_UNROLL _Pragma("clang loop unroll(disable)")
#define ATTN_UNROLL_TWICE _Pragma("clang loop unroll_count(2)")
#else
#define ATTN_INLINE __attribute__((always_inline)) inline
#define ATTN_ASSEMBLY(target) static ATTN_INLINE
#define ATTN_NO_UNROLL _Pragma("GCC unroll 1")
#define ATTN_UNROLL_TWICE _Pragma("GCC unroll 2")
#endif

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class X, int n>
using Array = X[static_cast<std::size_t>(n)];

/// The integer type with the size of a lane.
template <class T>
using IntOf = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;

/// The compilers' vector with a U for each lane of a vector of T, and its form in memory: unaligned, and allowed to
/// alias the elements.
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

/// The result of comparing vectors, lane by lane.
template <class T, int Bytes>
struct Mask {
  std::conditional_t<kHasVectors<T>, typename RawVec<T, Bytes, IntOf<T>>::type, bool> raw;
};

/// A vector of `Bytes` bytes. Without an initialiser it is indeterminate; Vec{} is 0.
template <class T, int Bytes>
struct Vec {
  static constexpr bool kIsVector = kHasVectors<T>;
  static constexpr int kLanes = kIsVector ? Bytes / static_cast<int>(sizeof(T)) : 1;
  using Raw = typename RawVec<T, Bytes>::type;
  using Int = IntOf<T>;
  using IntRaw = typename RawVec<T, Bytes, Int>::type;
  using Mask = detail::Mask<T, Bytes>;

  Raw raw;

  // Uses a pointer instead of memcpy, which makes g++ 12 keep the vector on the stack.
  static ATTN_INLINE Vec load(const T* from) { return {*reinterpret_cast<const InMemory*>(from)}; }
  ATTN_INLINE void store(T* to) const { *reinterpret_cast<InMemory*>(to) = raw; }

  /// The same number in every lane. A plain vector of one number would be filled lane by lane: g++ 12 chooses the
  /// instructions before this function is inlined, where it lacks the instruction set. With AVX-512, 16 floats then
  /// took 46 instructions.
  static ATTN_INLINE Vec broadcast(T value) {
#if !defined(__clang__)
    if constexpr (kIsVector && Bytes > 16) {
      Raw first;  // only lane 0 is read
      first[0] = value;
      return {__builtin_shuffle(first, IntRaw{})};
    } else
#endif
      return {value - Raw{}};  // adding 0 would turn -0 into 0
  }

  /// a * b + c, rounded once if the instruction set has FMA. clang fuses the two operations if they are in one
  /// expression. (Its contract(fast) fuses across functions, but not across a sanitizer's checks, and then the bits of
  /// a sum depend on the code around it.) g++ 13 fuses them in one copy of a loop but not in another, so g++ gets a
  /// builtin. Subtracting 0 copies a number into all lanes and changes no bit; g++ 12 turns the subtraction into one
  /// instruction only if it is an argument of the builtin.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi"  // the builtins return vectors, until this function is inlined
  template <class Factor>
  static ATTN_INLINE Vec multiply_add(const Raw& a, const Factor& b, const Raw& c) {
#if ATTN_X86 && !defined(__clang__)
    if constexpr (!kFitsRegister<Bytes>)
      return multiply_add_halves(a, b - Raw{}, c);
    else if constexpr (std::is_same_v<T, float> && Bytes == 32)
      return {__builtin_ia32_vfmaddps256(a, b - Raw{}, c)};
    else if constexpr (std::is_same_v<T, double> && Bytes == 32)
      return {__builtin_ia32_vfmaddpd256(a, b - Raw{}, c)};
    else if constexpr (std::is_same_v<T, float> && Bytes == 64)
      return {__builtin_ia32_vfmaddps512_mask(a, b - Raw{}, c, -1, kCurrentRounding)};
    else if constexpr (std::is_same_v<T, double> && Bytes == 64)
      return {__builtin_ia32_vfmaddpd512_mask(a, b - Raw{}, c, 0xff, kCurrentRounding)};
    else
#elif defined(__wasm_relaxed_simd__)
    if constexpr (std::is_same_v<T, float>)
      return {__builtin_wasm_relaxed_madd_f32x4(a, b - Raw{}, c)};
    else if constexpr (std::is_same_v<T, double>)
      return {__builtin_wasm_relaxed_madd_f64x2(a, b - Raw{}, c)};
    else
#endif
      return {a * b + c};
  }
#pragma GCC diagnostic pop

  /// Like multiply_add(), for scalars. With plain operators, the compiler might or might not fuse product and sum.
  static ATTN_INLINE T multiply_add_one(T a, T b, T c) {
    return multiply_add(broadcast(a).raw, b, broadcast(c).raw).first();
  }

  /// A product that is not rounded yet: added to a sum, it becomes one multiply_add().
  template <class Factor>
  struct Product {
    Raw a;
    Factor b;
    ATTN_INLINE operator Vec() const { return {a * b}; }
    ATTN_INLINE void store(T* to) const { Vec(*this).store(to); }
    friend ATTN_INLINE Vec operator+(const Product& x, const Product& y) { return multiply_add(x.a, x.b, y.a * y.b); }
    friend ATTN_INLINE Vec operator+(const Product& x, const Vec& sum) { return multiply_add(x.a, x.b, sum.raw); }
    friend ATTN_INLINE Vec operator+(const Vec& sum, const Product& x) { return multiply_add(x.a, x.b, sum.raw); }
    friend ATTN_INLINE Vec operator-(const Product& x, const Vec& sum) { return multiply_add(x.a, x.b, -sum.raw); }
    friend ATTN_INLINE Vec operator-(const Vec& sum, const Product& x) { return multiply_add(-x.a, x.b, sum.raw); }
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
  /// The larger in every lane; b where either is NaN.
  friend ATTN_INLINE Vec max(const Vec& a, const Vec& b) { return {a.raw > b.raw ? a.raw : b.raw}; }

  /// This vector with 0 in the lanes where `kept` is 0; in the others it must be -1. Unlike select(), it can be used
  /// after a branch: g++ 12 crashes at -O1 if the result of a comparison of 64-byte vectors depends on a branch.
  ATTN_INLINE Vec zeroed_unless(const Int* kept) const {
    if constexpr (kIsVector) {
      IntRaw bits;
      __builtin_memcpy(&bits, kept, sizeof(bits));
      return {(Raw)((IntRaw)raw & bits)};
    } else {
      return {*kept ? raw : T(0)};
    }
  }

  /// Makes reads from `next` follow the computation of this vector. Otherwise g++ for ARM moves a loop's loads before
  /// its products, and then spills sums for lack of registers. Emits no instruction.
  template <class Pointer>
  ATTN_INLINE void form_before([[maybe_unused]] Pointer& next) {
#if ATTN_NEON && defined(__aarch64__) && !defined(__clang__)
    if constexpr (kIsVector) asm("" : "+w"(raw), "+r"(next));
#endif
  }

  /// Keeps the vector in a register from here on. Otherwise g++, when it tunes for AMD's Zen (-march=native there),
  /// loads a vector again for each product in loops that are already limited by loads. Emits no instruction.
  ATTN_INLINE void keep_in_register() {
#if defined(__x86_64__) && !defined(__clang__)
    if constexpr (kIsVector && kFitsRegister<Bytes>) asm("" : "+v"(raw));
#endif
  }

  /// Prevents the compiler from moving later code before this point. Otherwise g++ orders the products of a block by
  /// columns, and rows are not read in memory order: rows of 64 floats were read from memory at 0.74 times the speed.
  /// Call it on a copy of a sum, not on an element of an array, which g++ would store. Emits no instruction.
  ATTN_INLINE void keep_order() {
#if defined(__x86_64__) && !defined(__clang__)
    if constexpr (kIsVector && kFitsRegister<Bytes>) asm volatile("" : "+v"(raw));
#endif
  }

  /// The lanes 1, 0, 3, 2, …
  ATTN_INLINE Vec neighbours_exchanged() const { return exchanged<1>(kAllLanes); }

  /// The first lane.
  ATTN_INLINE T first() const {
    if constexpr (kIsVector)
      return raw[0];
    else
      return raw;
  }
  /// The largest lane; no lane may be NaN.
  ATTN_INLINE T largest() const { return fold<kLanes / 2, true>(*this, kAllLanes).first(); }
  /// The sum of all lanes.
  ATTN_INLINE T total() const { return fold<kLanes / 2, false>(*this, kAllLanes).first(); }

  /// Transposes a square of kLanes vectors by exchanging off-diagonal blocks of 1, 2, 4, … (Eklundh 1972).
  static ATTN_INLINE void transpose(Vec* square) { exchange_blocks<1>(square); }

  /// Returns the sum of all lanes of vector i in lane i. The kLanes vectors are overwritten. Takes half as many
  /// exchanges as a transpose.
  static ATTN_INLINE Vec sum_lanes(Vec* vectors) {
    sum_blocks<1>(vectors);
    return vectors[0];
  }

  /// e^x for x <= 0. Exactly 0 for -inf and wherever the result would be denormal; NaN stays NaN. The error is a few
  /// eps near 0 and grows with |x|, because log2(e) is rounded: it reaches 10 eps at -86 in float and 45 eps at -696 in
  /// double. Without FMA, it is three to five times as large. Weights with errors that large are far below an eps of
  /// the largest weight.
  friend ATTN_INLINE Vec exp(const Vec& x) {
    if constexpr (kIsVector) {
      using C = Exp2Constants<T>;
      constexpr T kLog2e = std::numbers::log2e_v<T>;
      const Raw shifted = multiply_add(x.raw, kLog2e, C::kRound - Raw{}).raw,
                f = multiply_add(x.raw, kLog2e, C::kRound - shifted).raw;
      Raw p = multiply_add(f, C::kPolynomial[C::kDegree], C::kPolynomial[C::kDegree - 1] - Raw{}).raw;
      ATTN_UNROLL for (int i = C::kDegree - 2; i >= 0; --i) p = multiply_add(p, f, C::kPolynomial[i] - Raw{}).raw;
      // Multiplies instead of adding to the exponent's bits, which could turn a NaN into a number.
      const Raw power = (Raw)((IntRaw)shifted << C::kMantissaBits), r = p * power;
      return {x.raw < C::kSmallest ? Raw{} : r};
    } else {
      return {std::exp(x.raw)};
    }
  }

  /// 1 / (1 + e^-x), which is 0 for -inf, and 1 minus that, both without cancellation. NaN stays NaN.
  struct Sigmoid {
    Vec value, rest;
  };
  friend ATTN_INLINE Sigmoid sigmoid(const Vec& x) {
    const Vec minus = -x, small = exp(select(x < minus, x, minus));  // e^-|x|
    const Vec large = T(1) / (small + T(1)), rest = small * large;
    return {select(x < Vec{}, rest, large), select(x < Vec{}, large, rest)};
  }

  /// The hyperbolic tangent, within 8 units in the last place; near 1, these are the units of numbers below 1. NaN and
  /// the sign of zero are preserved. Takes 13 operations and a division, a third less than detail::tanh(), which is
  /// more accurate.
  friend ATTN_INLINE Vec tanh(const Vec& x) {
    if constexpr (kIsVector) {
      using C = TanhConstants<T>;
      // The bound is the first operand of each select, so that a NaN passes through. Each select is one instruction.
      const Vec most = broadcast(C::kIsOne), least = broadcast(-C::kIsOne), below = select(most < x, most, x);
      const Raw y = select(least > below, least, below).raw, square = y * y;
      Raw p = multiply_add(square, C::kP[C::kDegree], C::kP[C::kDegree - 1] - Raw{}).raw,
          q = multiply_add(square, C::kQ[C::kDegree], C::kQ[C::kDegree - 1] - Raw{}).raw;
      ATTN_UNROLL for (int i = C::kDegree - 2; i >= 0; --i) {
        p = multiply_add(p, square, C::kP[i] - Raw{}).raw;
        q = multiply_add(q, square, C::kQ[i] - Raw{}).raw;
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

  /// The rounding argument of g++'s AVX-512 builtins that means the current mode (_MM_FROUND_CUR_DIRECTION).
  static constexpr int kCurrentRounding = 4;

  /// multiply_add() of a vector that does not fit a register.
  static ATTN_INLINE Vec multiply_add_halves(const Raw& a, const Raw& b, const Raw& c) {
    using Half = Vec<T, Bytes / 2>;
    Array<Half, 2> x, y, z;
    __builtin_memcpy(x, &a, Bytes);
    __builtin_memcpy(y, &b, Bytes);
    __builtin_memcpy(z, &c, Bytes);
    for (int h : {0, 1}) z[h] = Half::multiply_add(x[h].raw, y[h].raw, z[h].raw);
    Vec sum;
    __builtin_memcpy(&sum, z, Bytes);
    return sum;
  }

  template <int kBlock, int... i>
  ATTN_INLINE Vec exchanged(std::integer_sequence<int, i...>) const {
    return {__builtin_shufflevector(raw, raw, (i ^ kBlock)...)};
  }

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
  /// a = the sum of a and b after exchange(). Instruction sets with blends use one in place of a shuffle, because more
  /// execution units can blend than shuffle.
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

  /// Sets every lane to the maximum or sum of all: combines each lane with the one `kDistance` away, then with the one
  /// half as far away, and so on.
  template <int kDistance, bool kLargest, int... i>
  static ATTN_INLINE Vec fold(const Vec& x, std::integer_sequence<int, i...> lanes) {
    if constexpr (kDistance > 0) {
      const Vec other = x.template exchanged<kDistance>(lanes);
      if constexpr (kLargest)
        return fold<kDistance / 2, kLargest>(max(x, other), lanes);
      else
        return fold<kDistance / 2, kLargest>(x + other, lanes);
    } else {
      return x;
    }
  }
};

/// sum += x for scalars or vectors; `rest` accumulates the parts lost to rounding (Knuth, The Art of Computer
/// Programming, volume 2, section 4.2.2, theorem B).
template <class X>
ATTN_INLINE void add_exactly(X& sum, X& rest, const X& x) {
  const X all = sum + x, added = all - sum;
  rest += (sum - (all - added)) + (x - added);
  sum = all;
}
/// Adds the rest to its sum. If the sum is not finite, the rest is NaN and is ignored.
template <class X>
ATTN_INLINE void add_rest(X& sum, const X& rest) {
  if constexpr (std::is_arithmetic_v<X>)
    sum = rest - rest == X(0) ? sum + rest : sum;
  else
    sum = select(rest - rest == X{}, sum + rest, sum);
}

/// Sets the elements of one vector in memory to -inf where `kept` is 0.
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

}  // namespace attn::detail::inline ATTN_BUILT_FOR
