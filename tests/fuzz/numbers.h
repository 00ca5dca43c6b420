// The scalars, and tensors of them in guarded memory with random strides.
#pragma once

#include <algorithm>
#include <array>
#include <limits>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include <attn/attn.h>

#include "case.h"

namespace fuzz {

using attn::Shape;
using attn::Tensor;
using attn::TensorView;

#if ATTN_HAS_FLOAT16
/// The compiler's own binary16, without its warning that ISO C++ lacks the type.
__extension__ typedef _Float16 Float16;
#endif

/// The scalar in which the library computes with T.
template <class T>
using Computed = std::conditional_t<sizeof(T) == 2, float, T>;

/// The oracle's scalar for T: 29 more bits than float, or the widest type.
template <class T>
using Exact = std::conditional_t<std::is_same_v<Computed<T>, float>, double, long double>;

/// The relative and absolute error of rounding a value to T; 0 for the scalars in which the library computes: the error
/// bound of sums includes their rounding.
template <class T>
struct Rounding {
  static constexpr bool kNarrow = !std::is_same_v<T, Computed<T>>;
#if ATTN_HAS_FLOAT16
  static constexpr bool kHalf = std::is_same_v<T, Eigen::half> || std::is_same_v<T, Float16>;
#else
  static constexpr bool kHalf = std::is_same_v<T, Eigen::half>;
#endif
  static constexpr double relative = !kNarrow ? 0 : kHalf ? 0x1p-11 : 0x1p-8;
  static constexpr double absolute = kHalf ? 0x1p-25 : 0;
};

template <class T>
const char* name_of() {
  if (std::is_same_v<T, float>) return "float";
  if (std::is_same_v<T, double>) return "double";
  if (std::is_same_v<T, long double>) return "long";
  if (std::is_same_v<T, Eigen::half>) return "half";
  if (std::is_same_v<T, Eigen::bfloat16>) return "bf16";
  return Rounding<T>::kHalf ? "_Float16" : "__bf16";
}

template <class T>
T number(long double x) {
  return static_cast<T>(static_cast<Computed<T>>(x));
}

/// A tensor's role in a call: inputs may repeat elements, by strides of 0.
enum class Role { input, output };

/// A tensor with random strides, whose first or last element is next to a guard page. Gaps contain NaN, or another
/// pattern.
template <class T>
class Guard4 {
 public:
  Guard4(Random& r, const Shape<4>& shape, Role role) {
    std::array<std::size_t, 4> order = {0, 1, 2, 3};  // of the strides, largest first
    const Index kind = r.from(0, 99);
    if (kind >= 40 && kind < 65) order = {0, 2, 1, 3};  // (batch, len, heads, dim)
    if (kind >= 65 && kind < 78) order = {0, 1, 3, 2};  // column-major heads
    if (kind >= 78)
      for (std::size_t i = 3; i > 0; --i)
        std::swap(order[i], order[static_cast<std::size_t>(r.from(0, static_cast<Index>(i)))]);
    const bool gaps = r.percent(45), reverses = r.percent(15), repeats = role == Role::input && r.percent(12);
    Shape<4> strides{};
    Index step = gaps && r.percent(25) ? r.from(2, 3) : 1, before = 0, after = 0;
    for (std::size_t i = 4; i-- > 0;) {
      const std::size_t d = order[i];
      strides[d] = step;
      if (repeats && r.percent(30)) {
        strides[d] = 0;
        continue;
      }
      if (gaps && i < 3 && r.percent(50)) step += r.from(0, 9);
      const bool reversed = reverses && r.percent(40);
      strides[d] = reversed ? -step : step;
      const Index reach = std::max<Index>(shape[d] - 1, 0) * step;
      (reversed ? before : after) += reach;
      step = step * std::max<Index>(shape[d], 1);
    }
    const Index size = shape[0] * shape[1] * shape[2] * shape[3];
    const Index count = size == 0 ? 0 : before + after + 1;
    pattern_ = role == Role::input || r.percent(50) ? 0xff : 0xa5;  // 0xff: NaN in every scalar
    memory_ = Guarded(static_cast<std::size_t>(count) * sizeof(T), r.percent(50), pattern_);
    view_ = {reinterpret_cast<T*>(memory_.data()) + (size == 0 ? 0 : before), shape, strides};
  }

  const TensorView<T, 4>& view() const { return view_; }
  TensorView<const T, 4> input() const { return view_; }
  const Shape<4>& shape() const { return view_.shape(); }
  void finish() const { memory_.forbid_writing(); }

  /// Sets every element to f(batch, head, row, column).
  template <class F>
  void fill(const F& f) {
    each([&](Index b, Index h, Index i, Index c) { view_(b, h, i, c) = number<T>(f(b, h, i, c)); });
  }

  template <class F>
  void each(const F& f) const {
    for (Index b = 0; b < view_.dim(0); ++b)
      for (Index h = 0; h < view_.dim(1); ++h)
        for (Index i = 0; i < view_.dim(2); ++i)
          for (Index c = 0; c < view_.dim(3); ++c) f(b, h, i, c);
  }

  /// Checks that the memory between the elements is unchanged.
  void check_gaps(const char* what) const {
    const auto count = memory_.size() / sizeof(T);
    const T* const first = reinterpret_cast<const T*>(memory_.data());
    std::vector<bool> ours(count, false);
    if (view_.size() > 0)
      each([&](Index b, Index h, Index i, Index c) {
        ours[static_cast<std::size_t>(&view_(b, h, i, c) - first)] = true;
      });
    for (std::size_t i = 0; i < count; ++i)
      for (std::size_t byte = 0; !ours[i] && byte < sizeof(T); ++byte)
        if (memory_.data()[i * sizeof(T) + byte] != std::byte{pattern_})
          fail(what, ": a gap was written, element ", i, " of memory for ", count);
    if (!memory_.is_untouched_around(pattern_)) fail(what, ": memory around it was written");
  }

 private:
  unsigned char pattern_;
  Guarded memory_;
  TensorView<T, 4> view_;
};

/// Any view, packed, in the oracle's scalar.
template <class R, class T, int Rank>
std::vector<R> packed(const TensorView<T, Rank>& view) {
  using Plain = std::remove_const_t<T>;
  const Tensor<Plain, Rank> copy{TensorView<const Plain, Rank>(view)};
  std::vector<R> all(static_cast<std::size_t>(copy.size()));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<R>(static_cast<Computed<Plain>>(copy.data()[i]));
  return all;
}

}  // namespace fuzz
