// Dual numbers: what a score mod computes when its derivative is wanted.
#pragma once

#include <cmath>
#include <concepts>
#include <limits>
#include <type_traits>

#include "attn/detail/simd/scalar_math.h"

namespace attn {

/// A number and its derivative (forward-mode differentiation; Wengert 1964). Where gradients are wanted, a score mod's
/// lambda is called with one as `x`, so that nobody writes a derivative: arithmetic, comparisons (of the values), and
/// exp, log, tanh, sqrt, abs, max, min, pow, sin and cos are there. They are found by their argument: write `tanh(x)`,
/// not `std::tanh(x)`.
///
/// Where a function has no derivative, that of one side is taken: abs has slope 0 at 0; max and min have that of their
/// first argument where both are equal. X is float, double, long double, or a dual number again for second derivatives.
template <class X>
struct Dual {
  X value{};  ///< the number
  X slope{};  ///< its derivative

  constexpr Dual() = default;
  /// A number and its derivative.
  constexpr Dual(X v, X s) : value(v), slope(s) {}
  /// A constant.
  template <class C>
  requires(std::is_arithmetic_v<C>) constexpr Dual(C c) : value(static_cast<X>(c)) {}  // NOLINT: as numbers convert
  /// A constant, where numbers are dual themselves.
  constexpr Dual(const X& c) requires(!std::is_arithmetic_v<X>) : value(c) {}  // NOLINT: likewise

  /// Not to be called: does not compile, and says that the slope would be lost.
  template <class C>
  requires std::is_arithmetic_v<C>
  explicit operator C() const {
    static_assert(
        sizeof(C) == 0,
        "attn: a score mod whose gradient is wanted keeps its numbers in auto: float(x) would lose the slope");
  }

  /// Arithmetic: the result of the values, and its derivative by the rules of sums, products and quotients.
  /// @{
  constexpr Dual operator-() const { return {-value, -slope}; }
  constexpr Dual operator+() const { return *this; }

  friend constexpr Dual operator+(const Dual& a, const Dual& b) { return {a.value + b.value, a.slope + b.slope}; }
  friend constexpr Dual operator-(const Dual& a, const Dual& b) { return {a.value - b.value, a.slope - b.slope}; }
  friend constexpr Dual operator*(const Dual& a, const Dual& b) {
    return {a.value * b.value, times(a.slope, b.value) + times(b.slope, a.value)};
  }
  friend constexpr Dual operator/(const Dual& a, const Dual& b) {
    const X quotient = a.value / b.value;
    return {quotient, (a.slope - times(b.slope, quotient)) / b.value};
  }
  constexpr Dual& operator+=(const Dual& b) { return *this = *this + b; }
  constexpr Dual& operator-=(const Dual& b) { return *this = *this - b; }
  constexpr Dual& operator*=(const Dual& b) { return *this = *this * b; }
  constexpr Dual& operator/=(const Dual& b) { return *this = *this / b; }
  /// @}

  /// Compares the values.
  /// @{
  friend constexpr bool operator==(const Dual& a, const Dual& b) { return a.value == b.value; }
  friend constexpr bool operator<(const Dual& a, const Dual& b) { return a.value < b.value; }
  friend constexpr bool operator>(const Dual& a, const Dual& b) { return a.value > b.value; }
  friend constexpr bool operator<=(const Dual& a, const Dual& b) { return a.value <= b.value; }
  friend constexpr bool operator>=(const Dual& a, const Dual& b) { return a.value >= b.value; }
  /// @}

  /// The function of the value, and its derivative by the chain rule.
  /// @{
  friend Dual exp(const Dual& x) {
    using std::exp;
    const X e = exp(x.value);
    return {e, e * x.slope};
  }
  friend Dual log(const Dual& x) {
    using std::log;
    return {log(x.value), x.slope / x.value};
  }
  friend Dual tanh(const Dual& x) {
    using detail::tanh;
    const X t = tanh(x.value);
    return {t, (X(1) - t * t) * x.slope};
  }
  friend Dual sqrt(const Dual& x) {
    using std::sqrt;
    const X root = sqrt(x.value);
    return {root, x.slope / (X(2) * root)};
  }
  friend Dual sin(const Dual& x) {
    using std::cos, std::sin;
    return {sin(x.value), cos(x.value) * x.slope};
  }
  friend Dual cos(const Dual& x) {
    using std::cos, std::sin;
    return {cos(x.value), -(sin(x.value) * x.slope)};
  }
  friend constexpr Dual abs(const Dual& x) {
    return {x.value < X(0) ? -x.value : x.value, x.value < X(0) ? -x.slope : x.value > X(0) ? x.slope : X(0)};
  }
  friend constexpr Dual fabs(const Dual& x) { return abs(x); }
  friend constexpr Dual max(const Dual& a, const Dual& b) {
    return {a.value < b.value ? b.value : a.value, a.value < b.value ? b.slope : a.slope};
  }
  friend constexpr Dual min(const Dual& a, const Dual& b) {
    return {b.value < a.value ? b.value : a.value, b.value < a.value ? b.slope : a.slope};
  }
  friend constexpr Dual fmax(const Dual& a, const Dual& b) { return max(a, b); }
  friend constexpr Dual fmin(const Dual& a, const Dual& b) { return min(a, b); }
  /// @}
  /// x to a constant power, differentiated without a logarithm, so that x may be 0 or negative.
  friend Dual pow(const Dual& x, const X& y) requires(std::is_arithmetic_v<X>) { return pow(x, Dual(y)); }
  /// x to the power y, where both may move.
  friend Dual pow(const Dual& x, const Dual& y) {
    using std::log, std::pow;
    const X power = pow(x.value, y.value);
    X growth = y.value == X(0) ? X(0) : y.value * pow(x.value, y.value - X(1)) * x.slope;
    if (y.slope != X(0)) growth = growth + power * log(x.value) * y.slope;
    return {power, growth};
  }

 private:
  template <class Y>
  friend struct Dual;

  /// A slope times a number, in products and quotients. A constant's slope, 0, adds nothing even where the number is
  /// infinite: a score of -inf, say, that softcap() makes finite again.
  static constexpr X times(const X& slope, const X& number) { return is_zero(slope) ? X(0) : slope * number; }
  static constexpr bool is_zero(const X& x) {
    if constexpr (std::is_arithmetic_v<X>)
      return x == X(0);
    else
      return X::is_zero(x.value) && X::is_zero(x.slope);
  }
};

/// Deduces X from the number and its derivative.
template <class X>
Dual(X, X) -> Dual<X>;

namespace detail {

template <class X>
constexpr bool is_dual = false;
template <class X>
constexpr bool is_dual<Dual<X>> = true;

/// See the function of plain numbers.
template <class X>
Dual<X> tanh(const Dual<X>& x) {
  const X t = detail::tanh(x.value);
  return {t, (X(1) - t * t) * x.slope};
}
template <class X>
Dual<X> biased(const Dual<X>& x, const Dual<X>& b) {
  return {biased(x.value, b.value), x.slope + b.slope};
}

}  // namespace detail
}  // namespace attn

// Those who write std::tanh(x) in a score lambda learn here what to write instead. The standard reserves namespace std
// for itself; these functions take a type of ours and never compile, so that no program can come to depend on them.
// Where a lambda says `using std::tanh; tanh(x)`, the functions above are preferred, because they are no templates.
namespace std {
#define ATTN_NOT_OF_STD(name, ...)                                                                                \
  template <class X>                                                                                              \
  constexpr attn::Dual<X> name(__VA_ARGS__) {                                                                     \
    static_assert(sizeof(X) == 0, "attn: a score mod whose gradient is wanted must write " #name                  \
                                  "(x), without std:: before it: then the function for attn::Dual is found too"); \
    return {};                                                                                                    \
  }
ATTN_NOT_OF_STD(exp, const attn::Dual<X>&)
ATTN_NOT_OF_STD(log, const attn::Dual<X>&)
ATTN_NOT_OF_STD(tanh, const attn::Dual<X>&)
ATTN_NOT_OF_STD(sqrt, const attn::Dual<X>&)
ATTN_NOT_OF_STD(sin, const attn::Dual<X>&)
ATTN_NOT_OF_STD(cos, const attn::Dual<X>&)
ATTN_NOT_OF_STD(abs, const attn::Dual<X>&)
ATTN_NOT_OF_STD(fabs, const attn::Dual<X>&)
ATTN_NOT_OF_STD(fmax, const attn::Dual<X>&, const attn::Dual<X>&)
ATTN_NOT_OF_STD(fmin, const attn::Dual<X>&, const attn::Dual<X>&)
ATTN_NOT_OF_STD(pow, const attn::Dual<X>&, const attn::Dual<X>&)
ATTN_NOT_OF_STD(pow, const attn::Dual<X>&, const X&)
#undef ATTN_NOT_OF_STD
}  // namespace std

/// The limits of the value: a lambda may ask for the infinity of the scores that it is given.
template <class X>
struct std::numeric_limits<attn::Dual<X>> : std::numeric_limits<X> {
  static constexpr attn::Dual<X> min() noexcept { return std::numeric_limits<X>::min(); }
  static constexpr attn::Dual<X> lowest() noexcept { return std::numeric_limits<X>::lowest(); }
  static constexpr attn::Dual<X> max() noexcept { return std::numeric_limits<X>::max(); }
  static constexpr attn::Dual<X> epsilon() noexcept { return std::numeric_limits<X>::epsilon(); }
  static constexpr attn::Dual<X> infinity() noexcept { return std::numeric_limits<X>::infinity(); }
  static constexpr attn::Dual<X> quiet_NaN() noexcept { return std::numeric_limits<X>::quiet_NaN(); }
};
