// Chooses the kernels of a backward pass by its tensors and the instruction sets of the machine.
#pragma once

#include <atomic>

#include "attn/core/backward/backward_call.h"
#include "attn/core/kernels/bf16/backward_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

#if ATTN_AMX && defined(ATTN_SOFTWARE_TILES)
BackwardKernelSet<float> software_tiles_backward_kernels();  ///< used by tests, like software_tiles_family()
#endif

#if ATTN_BF16
/// The backward kernels that go with the families for bf16.
inline BackwardKernelSet<float> bf16_backward_kernels_of([[maybe_unused]] const ChosenKernels<float>& chosen) {
  const BackwardKernelSet<float> in_float = backward_kernels<float>(VectorSet::avx512);
#if ATTN_AMX
#if defined(ATTN_SOFTWARE_TILES)
  if (chosen.on_matrix_unit() && software_tiles()) return software_tiles_backward_kernels();
#endif
  if (chosen.on_matrix_unit()) return bf16_backward_kernels<AmxPanels<AmxTiles>>(in_float);
#endif
  return bf16_backward_kernels<Bf16VectorPanels>(in_float);
}
#endif

/// Whether the rows of a tensor are finite, with Euclidean norms below 2^30. Then neither a product of two such rows,
/// nor a sum of such products multiplied by a third row, overflows in bf16 kernels, and dropped pairs need not be
/// excluded from products.
template <class T>
bool has_short_rows(const KernelFamily<T>& family, const BackwardKernelSet<T>& kernels, const DTypeView<const T>& t,
                    const Workers& workers) {
  constexpr T kMost = 0x1p60;
  std::atomic<bool> short_rows = true;
  const Index heads = t.dim(0) * t.dim(1);
  workers.run(heads, [&](Index head, int) {
    Array<T, kKeyTile * kKeyTile> packed;  // at most kKeyTile columns at a time
    for (Index i = 0; i < t.dim(2); i += kKeyTile) {
      const Index count = std::min(kKeyTile, t.dim(2) - i);
      Array<T, kKeyTile> squares = {}, part;
      by_columns(t.rows(head / t.dim(1), head % t.dim(1), i), t.dim(3), t.size_of_element(),
                 [&](Index, Index columns, const RowsToRead& from) {
                   family.pack_rows(from, count, columns, packed);
                   kernels.dot_rows({packed, columns}, {packed, columns}, count, columns, part);
                   for (Index r = 0; r < count; ++r) squares[r] += part[r];
                 });
      for (Index r = 0; r < count; ++r)
        if (!(squares[r] < kMost)) short_rows = false;  // also if NaN
    }
  });
  return short_rows;
}

template <class T>
BackwardKernelSet<T> backward_kernels_of(const ChosenKernels<T>& chosen, const Problem& problem) {
  if (problem.sigmoid_bias) {
    BackwardKernelSet<T> kernels = backward_kernels<T>(chosen.vectors);
    kernels.softmax = sigmoid_backward<T>(chosen.vectors);
    return kernels;
  }
#if ATTN_BF16
  if constexpr (std::is_same_v<T, float>)
    if (chosen.in_bf16()) return bf16_backward_kernels_of(chosen);
#endif
  return backward_kernels<T>(chosen.vectors);
}

/// The kernels of a call. Those for bf16 are used if all four tensors suit them.
template <class T>
ChosenKernels<T> backward_kernels_for(const BackwardCall<T>& call, const Options& options) {
  const CallTensors<T>& t = call.tensors;
  const ChosenKernels<T> in_full = t.kernels.choose(options, Bf16Products::none);
  const std::initializer_list<DType> dtypes = {t.q.dtype(), t.k.dtype(), t.v.dtype(), call.grad_out.dtype()};
  // With row_invariant and weight mods, the forward pass does not round either.
  if (t.score || t.problem.sigmoid_bias || t.problem.row_invariant || t.problem.changes_weights ||
      !rounds_to_bf16(t.problem, options, dtypes))
    return in_full;
  const ChosenKernels<T> rounding = t.kernels.choose(options, bf16_products(t.problem, options, dtypes));
  if (!rounding.in_bf16()) return in_full;
  const BackwardKernelSet<T> kernels = backward_kernels<T>(in_full.vectors);
  const auto size_of = [](const DTypeView<const T>& x) {
    return static_cast<double>(x.dim(0) * x.dim(1)) * static_cast<double>(x.dim(2) * x.dim(3));
  };
  const DTypeView<const T>* const tensors[] = {&t.q, &t.k, &t.v, &call.grad_out};
  for (const auto* tensor : tensors)
    if (!has_short_rows(in_full.full_precision, kernels, *tensor, Workers({size_of(*tensor)}, options.executor)))
      return in_full;
  return rounding;
}

/// Whether a backward pass computes the sums over the keys of each query itself: see BackwardLoop::sum_rows(). If there
/// are more keys in other calls, it cannot.
template <class T>
bool sums_rows(const CallTensors<T>& tensors, const DTypeView<const T>& out, bool groups, const Options& options) {
  if (options.accumulate || tensors.problem.sigmoid_bias) return false;
  if (tensors.problem.changes_weights) return true;  // `out` does not give delta
  const bool is_rounded = out.dtype() != DType::native && !tensors.problem.has_part_of_keys;
  return is_rounded || lse_is_of_other_scores(tensors, groups, options);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
