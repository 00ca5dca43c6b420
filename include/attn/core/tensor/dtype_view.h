// Tensors whose elements may be stored in fewer bits than the type of the arithmetic has.
#pragma once

#include "attn/core/tensor/dtype.h"
#include "attn/tensor.h"

namespace attn::detail {

/// Rows of a tensor: consecutive elements of a row are `column` elements apart, and consecutive rows `stride` elements.
/// Byte: std::byte, const if read only.
template <class Byte>
struct DTypeRows {
  Byte* data;
  DType dtype;
  Index stride;
  Index column;

  operator DTypeRows<const std::byte>() const { return {data, dtype, stride, column}; }
};
using RowsToRead = DTypeRows<const std::byte>;
using RowsToWrite = DTypeRows<std::byte>;

/// A tensor (batch, heads, len, dim) for arithmetic in T, stored in any type. All code below the entry points sees
/// tensors as DTypeView, so that it is compiled once per T.
template <class T>
class DTypeView {
 public:
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  using Number = std::remove_const_t<T>;
  using Shape = attn::Shape<4>;

  DTypeView() = default;

  template <class U>
  requires(std::is_same_v<computed_t<std::remove_const_t<U>>, Number>)
      DTypeView(const TensorView<U, 4>& t)  // NOLINT: another view of the same
      : data_(reinterpret_cast<Byte*>(t.data())),
        dtype_(dtype_of<std::remove_const_t<U>>),
        shape_(t.shape()),
        strides_(t.strides()) {}

  /// A view of elements for which the caller has no type.
  DTypeView(Byte* data, DType dtype, const Shape& shape, const Shape& strides)
      : data_(data), dtype_(dtype), shape_(shape), strides_(strides) {}

  /// A view from element `offset` on, with other sizes and strides.
  DTypeView part(Index offset, const Shape& shape, const Shape& strides) const {
    DTypeView of = *this;
    of.data_ += offset_of_element<T>(dtype_, offset);
    of.shape_ = shape;
    of.strides_ = strides;
    return of;
  }

  Byte* data() const { return data_; }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  Index dim(int i) const { return shape_[static_cast<std::size_t>(i)]; }
  Index stride(int i) const { return strides_[static_cast<std::size_t>(i)]; }
  Index size_of_element() const { return detail::size_of_element<T>(dtype_); }
  Index size_of_row() const { return size_of_elements<T>(dtype_, dim(3)); }  ///< if its elements are contiguous

  /// The rows of a head from `row` on.
  DTypeRows<Byte> rows(Index batch, Index head, Index row = 0) const {
    const Index offset = batch * stride(0) + head * stride(1) + row * stride(2);
    return {data_ + offset_of_element<T>(dtype_, offset), dtype_, stride(2), stride(3)};
  }

  /// One head of a tensor that is stored as T.
  auto matrix(Index batch, Index head) const {
    return TensorView<T, 4>(reinterpret_cast<T*>(data_), shape_, strides_).matrix(batch, head);
  }

 private:
  Byte* data_ = nullptr;
  DType dtype_ = DType::native;
  Shape shape_{};
  Shape strides_{};
};

/// Store and load the element at row i, column j.
template <class T>
void store_number(const RowsToWrite& rows, Index i, Index j, T x) {
  const Index offset = (i * rows.stride + j * rows.column) * size_of_element<T>(rows.dtype);
  store_number(rows.dtype, rows.data + offset, x);
}
template <class T>
T load_number(const RowsToRead& rows, Index i, Index j) {
  const Index offset = i * rows.stride + j * rows.column;
  if (rows.dtype == DType::native) return from_bytes<T>(rows.data + offset * static_cast<Index>(sizeof(T)));
  return load_other_number<T>(rows.dtype, rows.data + offset_of_element<T>(rows.dtype, offset),
                              offset % Int4::kNumbers);
}

}  // namespace attn::detail
