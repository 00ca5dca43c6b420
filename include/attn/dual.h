// Dual numbers, for differentiating score mods.
#pragma once

#include <cmath>
#include <limits>
#include <type_traits>

#include "attn/core/simd/scalar_math.h"

namespace attn {

/// A number and its derivative (forward-mode differentiation; Wengert 1964). To compute gradients, the lambda of a
/// score mod is called with a Dual as `x`, so it needs no hand-written derivative. Arithmetic, comparisons (of the
/// values), exp, log, tanh, sqrt, abs, max, min, pow, sin and cos are supported. The functions are found by
/// argument-dependent lookup: write `tanh(x)`, not `std::tanh(x)`.
///
/// Where a function is not differentiable, the slope is a convention: abs has slope 0 at 0, and max and min of equal
/// values have the slope of their first argument. X is float, double or long double, or another Dual for second
/// derivatives.
template <class X>
struct Dual {
  X value{};  ///< the number
  X slope{};  ///< its derivative

  constexpr Dual() = default;
  /// A number and its derivative.
  constexpr Dual(X v, X s) : value(v), slope(s) {}
  /// A constant.
  template <class C>
  requires(std::is_arithmetic_v<C>) constexpr Dual(C c) : value(static_cast<X>(c)) {}  // NOLINT: implicit on purpose
  /// A constant, where X is itself a Dual.
  constexpr Dual(const X& c) requires(!std::is_arithmetic_v<X>) : value(c) {}  // NOLINT: see above

  /// Not to be called: fails to compile, with a message that says that the derivative would be lost.
  template <class C>
  requires std::is_arithmetic_v<C>
  explicit operator C() const {
    static_assert(sizeof(C) == 0,
                  "attn: converting attn::Dual to a plain number loses the derivative; in a mod that is "
                  "differentiated, use auto instead of float or double");
  }

  /// Arithmetic on the values, with derivatives by the sum, product and quotient rules.
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

  /// Applies the function to the value, and the chain rule to the slope.
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
  /// Raises x to a constant power. The derivative needs no logarithm, so x may be 0 or negative.
  friend Dual pow(const Dual& x, const X& y) requires(std::is_arithmetic_v<X>) { return pow(x, Dual(y)); }
  /// Raises x to the power y, where both may vary.
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

  /// Multiplies a slope by a number, in products and quotients. A slope of 0, such as that of a constant, contributes
  /// nothing even if the number is infinite, as with a score of -inf that softcap() makes finite again.
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

/// Overload for dual numbers; see the one for plain numbers.
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

// If a score lambda calls std::tanh(x), these overloads fail to compile with a message that says what to write instead.
// The standard forbids adding overloads to namespace std, but these take a type of this library and never compile, so
// no program can come to depend on them. With `using std::tanh; tanh(x)` the functions above are preferred, because
// they are not templates.
namespace std {
#define ATTN_NOT_OF_STD(name, ...)                                                                    \
  template <class X>                                                                                  \
  constexpr attn::Dual<X> name(__VA_ARGS__) {                                                         \
    static_assert(sizeof(X) == 0, "attn: a mod that is differentiated must call " #name               \
                                  "(x) without std::, so that the overload for attn::Dual is found"); \
    return {};                                                                                        \
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

/// The limits of the value's type: a lambda may query the infinity of its score type.
template <class X>
struct std::numeric_limits<attn::Dual<X>> : std::numeric_limits<X> {
  static constexpr attn::Dual<X> min() noexcept { return std::numeric_limits<X>::min(); }
  static constexpr attn::Dual<X> lowest() noexcept { return std::numeric_limits<X>::lowest(); }
  static constexpr attn::Dual<X> max() noexcept { return std::numeric_limits<X>::max(); }
  static constexpr attn::Dual<X> epsilon() noexcept { return std::numeric_limits<X>::epsilon(); }
  static constexpr attn::Dual<X> infinity() noexcept { return std::numeric_limits<X>::infinity(); }
  static constexpr attn::Dual<X> quiet_NaN() noexcept { return std::numeric_limits<X>::quiet_NaN(); }
};
