// Building blocks of a shifted call: scalars, tensors, constants of rows and keys, masks.
#pragma once

#include <cmath>
#include <string>
#include <type_traits>
#include <vector>

#include <attn/attn.h>

#include "shifted_oracle.h"

namespace fuzz::shifted {

using attn::Options;
using attn::Position;
using attn::Tensor;
using attn::TensorView;

/// The scalar in which the library computes with X.
template <class X>
using Computed = std::conditional_t<sizeof(X) == 2, float, X>;
template <class X>
constexpr bool kIsNarrow = !std::is_same_v<X, Computed<X>>;
template <class X>
constexpr bool kIsHalf = std::is_same_v<X, Eigen::half>;
/// The error of storing a value: relative, and absolute for values in the denormal range.
struct Rounding {
  double relative = 0, absolute = 0;
};
template <class X>
constexpr Rounding kRounding = !kIsNarrow<X> ? Rounding{std::numeric_limits<Computed<X>>::epsilon() / 2, 0}
                               : kIsHalf<X>  ? Rounding{0x1p-11, 0x1p-25}
                                             : Rounding{0x1p-8, 0};
template <class X>
std::string name() {
  if (std::is_same_v<X, float>) return "float";
  if (std::is_same_v<X, double>) return "double";
  return kIsHalf<X> ? "half" : "bf16";
}
template <class X>
X narrowed(Wide x) {
  return static_cast<X>(static_cast<Computed<X>>(x));
}
template <class X>
Wide widened(X x) {
  return static_cast<Wide>(static_cast<Computed<X>>(x));
}
/// Any tensor or view, packed.
template <class X>
std::vector<Wide> elements_of(const X& tensor) {
  const auto v = attn::view(tensor);
  std::vector<Wide> all;
  all.reserve(static_cast<std::size_t>(v.size()));
  constexpr int kRank = std::remove_cvref_t<decltype(v)>::kRank;
  if constexpr (kRank == 1) {
    for (Index i = 0; i < v.dim(0); ++i) all.push_back(widened(v(i)));
  } else if constexpr (kRank == 3) {
    for (Index b = 0; b < v.dim(0); ++b)
      for (Index h = 0; h < v.dim(1); ++h)
        for (Index i = 0; i < v.dim(2); ++i) all.push_back(widened(v(b, h, i)));
  } else {
    for (Index b = 0; b < v.dim(0); ++b)
      for (Index h = 0; h < v.dim(1); ++h)
        for (Index i = 0; i < v.dim(2); ++i)
          for (Index c = 0; c < v.dim(3); ++c) all.push_back(widened(v(b, h, i, c)));
  }
  return all;
}

/// (batch, heads, len, dim) in its own memory; the heads of a token may be contiguous.
template <class X>
class Numbers {
 public:
  Numbers(const attn::Shape<4>& shape, bool heads_last)
      : memory_(static_cast<std::size_t>(shape[0] * shape[1] * shape[2] * shape[3])) {
    const Index row = heads_last ? shape[1] * shape[3] : shape[3], head = heads_last ? shape[3] : shape[2] * shape[3];
    view_ = {memory_.data(), shape, {shape[1] * shape[2] * shape[3], head, row, 1}};
  }
  Numbers(const Numbers&) = delete;
  /// Draws the elements in order, and returns them as rounded.
  template <class Draw>
  std::vector<Wide> fill(const Draw& draw) {
    for (Index b = 0; b < view_.dim(0); ++b)
      for (Index h = 0; h < view_.dim(1); ++h)
        for (Index i = 0; i < view_.dim(2); ++i)
          for (Index c = 0; c < view_.dim(3); ++c) view_(b, h, i, c) = narrowed<X>(draw(h, i, c));
    return elements_of(view_);
  }
  TensorView<const X, 4> in() const { return view_; }
  /// Keys begin..end.
  TensorView<const X, 4> rows(Index begin, Index end) const {
    auto shape = view_.shape();
    shape[2] = end - begin;
    return TensorView<const X, 4>(view_.data() + begin * view_.stride(2), shape, view_.strides());
  }

 private:
  std::vector<X> memory_;
  TensorView<X, 4> view_;
};

/// The constants of a call: one per row, or per key, or one for all.
template <class T>
struct Constants {
  attn::Shape<4> shape{1, 1, 1, 1};
  std::vector<T> x;

  T at(Index b, Index h, Index i, Index j) const {
    const Index where[] = {b, h, i, j};
    Index n = 0;
    for (std::size_t d = 0; d < 4; ++d) n = n * shape[d] + (shape[d] == 1 ? 0 : where[d]);
    return x[static_cast<std::size_t>(n)];
  }
  TensorView<const T, 4> view() const { return TensorView<const T, 4>(x.data(), shape); }
};

/// Caps a score and then shifts it. A named type instead of a lambda, so that it is compiled once.
template <class T>
struct Shift {
  const Constants<T>* constants;
  double cap;
  Index q_offset;

  template <class X>
  X operator()(X x, const Position& p) const {
    using std::tanh;
    if (cap != 0) {
      const X c(static_cast<T>(cap));
      x = c * tanh(x / c);
    }
    return x + X(constants->at(p.batch, p.head, p.q - q_offset, p.kv));
  }
};

enum class MaskKind { all, causal, window, scattered };
struct Mask {
  MaskKind kind = MaskKind::all;
  Index left = 0;

  bool operator()(const Position& p) const {
    switch (kind) {
      case MaskKind::causal:
        return p.kv <= p.q;
      case MaskKind::window:
        return p.kv <= p.q && p.kv >= p.q - left;
      case MaskKind::scattered:
        return static_cast<std::uint64_t>(p.q * 7919 + p.kv * 104729 + p.head * 31) * 0x9e3779b97f4a7c15u >> 62 != 0;
      default:
        return true;
    }
  }
};

}  // namespace fuzz::shifted
