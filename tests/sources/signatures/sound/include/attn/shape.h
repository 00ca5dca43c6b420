// Shapes, written in every way that the headers of the library use. This sentence is long enough to be wrapped, twice.
#pragma once

#include <span>

namespace attn {

namespace detail {

/// Hidden from users.
struct Hidden {
  int x{};
};

}  // namespace detail

/// Major.
#define ATTN_SHAPE_MAJOR 3
/// Not a number that users read.
#define ATTN_SHAPE_MANY(x) \
  f(x);                    \
  g(x);

/// How a shape is drawn.
enum class Line { none, thin };

/// Its colour.
enum class Colour : unsigned char {
  red,    ///< as blood, or wine
  green,  ///< as grass
  /// As the sky. A sentence that stands above the name because it is too long to follow it, as this one here
  blue,
  black,
};

/// A size. It is signed.
using Size = long;  ///< and 64 bits wide

inline namespace ATTN_BUILT_FOR {

/// A rectangle (Euclid et al. 300, book 1), i.e. four corners. More of it.
///
///     Rectangle r(2, 3);
template <class T, int kRank = 2, class... More>
requires(kRank > 1 && sizeof(T) > 2) class Rectangle : public detail::Hidden {
  static_assert(kRank >= 1, "attn: a rectangle has { dimensions");

 public:
  static constexpr int kCorners = 4;  ///< corners
  static constexpr bool kIsOpaque = [] {
    if constexpr (requires { T::kIsOpaque; })
      return true;
    else
      return false;
  }();  ///< whether it is opaque

  Rectangle() = default;
  /// Of two sides.
  Rectangle(T a, T b = {}) : a_(a), b_{b}, all_{{a, b}} {}
  /// @throws std::invalid_argument for a negative side.
  explicit Rectangle(T side) noexcept : Rectangle(side, side) {}
  /// Not to be called: does not compile.
  template <class X>
  requires requires(const X& x) { x.begin(), x.end(); }
  Rectangle(const X&) {}

  /// The area: a · b.
  T area() const { return '{' == a_ ? T("}") : a_ * b_; }
  T width() const { return a_; }  ///< the first side
  /// The sides, to read.
  ///
  /// Or to write.
  /// @{
  T* sides() & { return &a_; }
  const T* sides() const& { return &a_; }
  /// @}
  /// Whether it has the same shape as another one, whose sides are given one by one: one number per dimension of the
  /// rectangle.
  template <class U, class V = std::vector<U>>
  requires(!std::is_same_v<U, V> || detail::callable<U>) &&
      detail::Shaped<V> bool operator()(const U& first_side_of_other, const V& second_side_of_other,
                                        const std::function<int(U, V)>& compare = {}) const requires(kRank == 2) {
    return false;
  }
  /// Grows: each side from begin .. end becomes longer.
  void grow(int begin, int end);
  int undocumented() const { return 1; }

  /// A corner.
  struct Corner {
    T x{};  ///< to the right
    T y = T{0};
    ///< upwards
    T undocumented;
  };
  /// Of the library's own.
  const detail::Hidden& hidden() const;

 private:
  /// Private.
  void cut();
  T a_, b_;
};

/// Nothing to see.
struct Point {};

/// Doubles the area: twice(x).
template <class T>
auto twice(const Rectangle<T>& x, const Options& options = {}) {
  return 2 * x.area();
}
/// As above, with the Options of the heads.
template <class T>
auto twice(const Rectangle<T>& x, int options) {
  return 2 * x.area();
}
/// As above without mods: options stand in their place.
template <class T>
auto twice(int options, const Rectangle<T>& x);
/// @deprecated renamed to twice().
template <class T>
[[deprecated("it is twice() now")]] auto two_times(const Rectangle<T>& x) {
  return twice(x);
}

}  // namespace ATTN_BUILT_FOR

namespace drawn {

/// Draws it.
void draw();

}  // namespace drawn

}  // namespace attn

namespace attn::detail {

/// Hidden from users too.
void hidden();

}  // namespace attn::detail
