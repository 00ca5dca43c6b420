// Layer 2: keys and values in the layout that the kernels read.
#pragma once

#include <algorithm>

#include "attn/tensor.h"

namespace attn::detail {

/// Copies the rows of a matrix of any strides behind each other. Sixteen rows at a time, so that a column-major matrix
/// is read in whole cache lines and written to few.
template <class T>
void copy_rows(const T* from, Index row_stride, Index column_stride, Index rows, Index columns, T* to) {
  constexpr Index kBlock = 16;
  for (Index first = 0; first < rows; first += kBlock) {
    const Index last = std::min(first + kBlock, rows);
    for (Index c = 0; c < columns; ++c)
      for (Index r = first; r < last; ++r) to[r * columns + c] = from[r * row_stride + c * column_stride];
  }
}

/// The same tensor with the elements of a row next to each other: itself, or a copy kept in `storage`. What is
/// broadcast over batch or heads is copied once.
template <class T>
TensorView<const T, 4> with_unit_stride(const TensorView<const T, 4>& t, Tensor<T, 4>& storage) {
  if (t.stride(3) == 1 || t.size() == 0) return t;
  Shape<4> shape = t.shape();
  for (std::size_t i = 0; i < 2; ++i)
    if (t.strides()[i] == 0) shape[i] = 1;
  storage = Tensor<T, 4>::uninitialized(shape);
  Shape<4> strides = storage.view().strides();
  for (Index b = 0; b < shape[0]; ++b)
    for (Index h = 0; h < shape[1]; ++h)
      copy_rows(t.data() + b * t.stride(0) + h * t.stride(1), t.stride(2), t.stride(3), t.dim(2), t.dim(3),
                storage.data() + b * strides[0] + h * strides[1]);
  for (std::size_t i = 0; i < 2; ++i)
    if (t.strides()[i] == 0) strides[i] = 0;
  return {storage.data(), t.shape(), strides};
}

}  // namespace attn::detail
