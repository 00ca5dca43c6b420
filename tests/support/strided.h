// Tensors in every memory layout, filled and read by index arithmetic that is independent of the library.
#pragma once

#include <array>
#include <vector>

#include "attn/tensor.h"
#include "random.h"

namespace attn::test {

enum class Layout {
  bhsd,       ///< row-major
  bshd,       ///< heads of one token are contiguous
  dim_major,  ///< column-major matrices: the inner stride is the length
  gaps,       ///< every stride larger than necessary, inner stride 3
  reversed,   ///< all strides negative
  repeated,   ///< one batch element and head, stride 0 for all others; for inputs only
  repeated_dim_major
};
constexpr Layout kOutputLayouts[] = {Layout::bhsd, Layout::bshd, Layout::dim_major, Layout::gaps, Layout::reversed};
constexpr Layout kInputLayouts[] = {Layout::bhsd,     Layout::bshd,     Layout::dim_major,         Layout::gaps,
                                    Layout::reversed, Layout::repeated, Layout::repeated_dim_major};

inline bool is_repeated(Layout layout) { return layout == Layout::repeated || layout == Layout::repeated_dim_major; }

/// Copies the elements of the first batch element and head of a row-major vector to all others, as a repeated layout
/// requires.
inline void repeat_first(std::vector<double>& values, Index parts) {
  if (parts == 0) return;
  const std::size_t part = values.size() / static_cast<std::size_t>(parts);
  for (std::size_t i = part; i < values.size(); ++i) values[i] = values[i - part];
}

template <class T>
class Strided {
 public:
  using Shape = std::array<Index, 4>;

  Strided(Layout layout, const Shape& shape) : shape_(shape) {
    const auto [batch, heads, len, dim] = shape;
    switch (layout) {
      case Layout::bhsd:
        strides_ = {heads * len * dim, len * dim, dim, 1};
        break;
      case Layout::bshd:
        strides_ = {len * heads * dim, dim, heads * dim, 1};
        break;
      case Layout::dim_major:
        strides_ = {heads * len * dim, len * dim, 1, len};
        break;
      case Layout::gaps: {
        const Index row = 3 * dim + 2, head = (len + 1) * row + 1;
        strides_ = {heads * head + 5, head, row, 3};
        break;
      }
      case Layout::reversed:
        strides_ = {-heads * len * dim, -len * dim, -dim, -1};
        break;
      case Layout::repeated:
        strides_ = {0, 0, dim, 1};
        break;
      case Layout::repeated_dim_major:
        strides_ = {0, 0, 1, len};
        break;
    }
    Index low = 0, high = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      const Index reach = std::max<Index>(shape[i] - 1, 0) * strides_[i];
      (reach < 0 ? low : high) += reach;
    }
    first_ = -low;
    memory_.assign(static_cast<std::size_t>(high - low + 1), kUntouched);
  }

  Strided(Layout layout, const Shape& shape, const std::vector<double>& values) : Strided(layout, shape) {
    std::size_t i = 0;
    each([&](T& x) { x = static_cast<T>(values[i++]); });
  }

  attn::TensorView<T, 4> view() { return {&memory_[static_cast<std::size_t>(first_)], shape_, strides_}; }
  attn::TensorView<const T, 4> cview() { return view(); }

  /// The elements in logical order.
  std::vector<T> read() {
    std::vector<T> values;
    each([&](T& x) { values.push_back(x); });
    return values;
  }

  /// Whether only elements were ever written.
  bool gaps_untouched() {
    std::vector<T> kept = memory_;
    each([&](T& x) { x = kUntouched; });
    const bool untouched = std::all_of(memory_.begin(), memory_.end(), [](T x) { return x == kUntouched; });
    memory_ = kept;
    return untouched;
  }

 private:
  static inline const T kUntouched = T(-77.0f);

  template <class F>
  void each(F f) {
    for (Index b = 0; b < shape_[0]; ++b)
      for (Index h = 0; h < shape_[1]; ++h)
        for (Index i = 0; i < shape_[2]; ++i)
          for (Index j = 0; j < shape_[3]; ++j)
            f(memory_[static_cast<std::size_t>(first_ + b * strides_[0] + h * strides_[1] + i * strides_[2] +
                                               j * strides_[3])]);
  }

  Shape shape_;
  Shape strides_{};
  Index first_ = 0;
  std::vector<T> memory_;
};

}  // namespace attn::test
