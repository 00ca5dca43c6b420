// Shapes of tensors.
#pragma once

#include <array>
#include <span>

#include "attn/core/base/check.h"
#include "attn/types.h"

namespace attn {

template <int Rank>
using Shape = std::array<Index, static_cast<std::size_t>(Rank)>;

namespace detail {

// Invalid sizes are rejected later. Until then their product may wrap around, which does no harm.
constexpr Index wrapping_product(Index a, Index b) {
  return static_cast<Index>(static_cast<std::size_t>(a) * static_cast<std::size_t>(b));
}

template <int Rank>
constexpr Index product(const Shape<Rank>& shape) {
  Index n = 1;
  for (Index d : shape) n = wrapping_product(n, d);
  return n;
}

template <int Rank>
constexpr Shape<Rank> row_major_strides(const Shape<Rank>& shape) {
  Shape<Rank> strides{};
  Index step = 1;
  for (std::size_t i = Rank; i-- > 0;) {
    strides[i] = step;
    step = wrapping_product(step, shape[i]);
  }
  return strides;
}

/// Returns the sizes `wanted` for a tensor of shape `from`. One of them may be -1; it is inferred from the others.
/// @throws std::invalid_argument unless both shapes have the same number of elements.
template <int Rank>
Shape<Rank> reshaped(Shape<Rank> wanted, std::span<const Index> from) {
  Index elements = 1, others = 1, *left = nullptr;
  for (const Index d : from) elements *= d;
  const Shape<Rank> asked = wanted;
  bool fits = true;
  for (Index& d : wanted) {
    require(d >= 0 || (d == -1 && !left), "reshape to ", asked, ": sizes must not be negative, except for one -1");
    if (d == -1)
      left = &d;
    else
      fits &= !__builtin_mul_overflow(others, d, &others);
  }
  fits &= left ? others > 0 && elements % others == 0 : others == elements;
  require(fits, "reshape of ", from, " to ", asked, ": there are ", elements, " elements",
          left ? ", not a multiple of " : ", not ", others);
  if (left) *left = elements / others;
  return wanted;
}

/// @throws std::invalid_argument if a size is negative, or the number of bytes overflows.
template <int Rank>
void check_sizes(const Shape<Rank>& shape, std::size_t element) {
  Index bytes = static_cast<Index>(element);
  bool overflow = false, empty = false;
  for (std::size_t i = 0; i < Rank; ++i) {
    require(shape[i] >= 0, "the size of dimension ", i, " of a tensor must not be negative, but is ", shape[i]);
    overflow = __builtin_mul_overflow(bytes, shape[i], &bytes) || overflow;
    empty = empty || shape[i] == 0;
  }
  require(!overflow || empty, "a tensor of shape ", shape, " has too many bytes to count");
}

}  // namespace detail

}  // namespace attn
