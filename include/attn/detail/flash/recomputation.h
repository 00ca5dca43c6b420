// When the result of some queries is computed again.
#pragma once

#include <algorithm>

#include "attn/detail/flash/choose_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Must the result of some queries be computed again, with full precision, and what is dropped not even multiplied?
/// `sums` (queries) are those of their weights, `out` their output in one piece, `size` numbers; `dropped_any`: may a
/// pair have been dropped inside of a tile that was added?
///
/// A dropped pair weighs 0, and 0 times a value is 0, unless that value is not finite. That is rare, so it is found out
/// afterwards, from what became of the output.
///
/// The matrix unit's products and sums of large numbers may be infinite where exact ones are not: those of scores are
/// not scaled yet, and weights are not below 1. Where all scores of a query are -inf by that, it looks as if no key
/// were kept.
template <class T>
bool must_compute_again(const ChosenKernels<T>& kernels, bool on_matrix_unit, bool dropped_any, const T* sums,
                        Index queries, const T* out, Index size) {
  const auto is_sound = [](T sum) { return sum > T(0) && sum < std::numeric_limits<T>::infinity(); };
  if (on_matrix_unit && !std::all_of(sums, sums + queries, is_sound)) return true;
  return (dropped_any || on_matrix_unit) && !kernels.full_precision.all_finite({out, 0}, 1, size);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
