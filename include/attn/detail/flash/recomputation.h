// When the result of some queries is computed again.
#pragma once

#include <algorithm>

#include "attn/detail/flash/choose_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Whether the result of some queries must be computed again, in full precision, and so that dropped pairs are not even
/// multiplied. `sums` (queries) are the sums of their weights; `out` is their output in one piece of `size` numbers;
/// `dropped_any` says whether a pair may have been dropped inside a tile that was added.
///
/// A dropped pair weighs 0, and 0 times a value is 0, unless the value is not finite. Such values are rare, so they are
/// not looked for beforehand; the output shows afterwards whether there was one.
///
/// Products and sums of large numbers may be infinite in bf16 where exact ones are not, because scores are not scaled
/// yet there and weights may exceed 1. Where all scores of a query become -inf in this way, the query
/// looks as if no key were kept.
template <class T>
bool must_compute_again(const ChosenKernels<T>& kernels, bool in_bf16, bool dropped_any, const T* sums, Index queries,
                        const T* out, Index size) {
  const auto is_sound = [](T sum) { return sum > T(0) && sum < std::numeric_limits<T>::infinity(); };
  if (in_bf16 && !std::all_of(sums, sums + queries, is_sound)) return true;
  return (dropped_any || in_bf16) && !kernels.full_precision.all_finite({out, 0}, 1, size);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
