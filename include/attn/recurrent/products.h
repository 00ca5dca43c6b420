// Matrix products of blocks of rows, in terms of the kernel that takes pointers and strides.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/recurrent/recurrence_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The left factor of a product: rows, or transposed rows.
template <class T>
struct LeftFactor {
  const T* data;
  Index row, step;  ///< strides: element (i, s) is data[i * row + s * step]

  LeftFactor(Rows<T> rows) : data(rows.data), row(rows.stride), step(1) {}
  LeftFactor(const Block<T>& rows) : LeftFactor(Rows<T>(rows)) {}

  LeftFactor transposed() const {
    LeftFactor factor = *this;
    std::swap(factor.row, factor.step);
    return factor;
  }
};

/// Computes to = before * to + left * right, where `right` has `steps` rows; see Product.
template <class T>
void matrix_product(const RecurrenceFamily<T>& kernels, const Block<T>& to, std::type_identity_t<LeftFactor<T>> left,
                    std::type_identity_t<Rows<T>> right, Index steps, std::type_identity_t<T> before = 0,
                    Steps taken = Steps::all) {
  kernels.product({to.data, to.stride, left.data, left.row, left.step, right.data, right.stride, to.rows, to.columns,
                   steps, before, taken});
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
