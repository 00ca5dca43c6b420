// Explicit instantiations of the loops and kernels, declared here and compiled in one unit by attn/instantiate.h.
#pragma once

#include "attn/detail/backward/backward.h"
#include "attn/detail/flash/flash.h"
#include "attn/detail/forward_mode/jvp.h"
#include "attn/detail/kernels/additive_kernels.h"
#include "attn/detail/linear_attention/naive_recurrence.h"
#include "attn/detail/linear_attention/recurrence.h"
#include "attn/detail/naive/naive_jvp.h"

/// All templates that do not depend on the types of mods. `keyword` is `extern` for declarations, empty for
/// definitions.
#define ATTN_LOOPS_OF(keyword, T)                                                                                      \
  keyword template const KernelFamily<T>& kernel_family<T>(VectorSet);                                                 \
  keyword template const KernelFamily<T>& kernel_family<T, false>(VectorSet);                                          \
  keyword template const KernelFamily<T>& sigmoid_family<T>(VectorSet);                                                \
  keyword template const KernelFamily<T>& sigmoid_family<T, false>(VectorSet);                                         \
  keyword template KernelFamily<T> additive_family<T>(VectorSet);                                                      \
  keyword template OtherScore<T>::AddGradients additive_gradients<T>(VectorSet);                                       \
  keyword template ChosenKernels<T> choose_kernels<T>(const Options&, Bf16Products);                                   \
  keyword template ChosenKernels<T> choose_kernels<T, false>(const Options&, Bf16Products);                            \
  keyword template void run_passes<T>(std::span<const Pass<T>>, const Options&, std::span<std::byte>);                 \
  keyword template Index bytes_of_passes<T>(std::span<const Pass<T>>, const Options&);                                 \
  keyword template void explain_passes<T>(std::span<const Pass<T>>, const Options&, Explanation&);                     \
  keyword template void naive<T>(const DTypeView<T>&, const TensorView<T, 3>&, const KeptLseRests<T>&,                 \
                                 const DTypeView<T>&, const DTypeView<const T>&, const DTypeView<const T>&,            \
                                 const DTypeView<const T>&, const NaiveMods<T>&, const Problem&, const Executor&);     \
  keyword template BackwardKernelSet<T> backward_kernels<T>(VectorSet);                                                \
  keyword template void backward<T>(const BackwardCall<T>&, const Options&);                                           \
  keyword template Index backward_bytes<T>(const Problem&, const LearnedSizes&, const KernelChoice<T>&,                \
                                           const Options&, bool);                                                      \
  keyword template void listed_backward<T>(const BackwardCall<T>&, const ListedCall<T>&, const Options&);              \
  keyword template Index listed_backward_bytes<T>(const Problem&, const LearnedSizes&, const ListGathering&,           \
                                                  const KernelChoice<T>&, const Options&);                             \
  keyword template void naive_backward<T>(                                                                             \
      const DTypeView<T>&, const DTypeView<T>&, const DTypeView<T>&, const DTypeView<const T>&,                        \
      const TensorView<const T, 3>&, const DTypeView<const T>&, const DTypeView<const T>&, const DTypeView<const T>&,  \
      const NaiveMods<T>&, const NaiveSlopes<T>&, const LearnedMods<T>*, const Problem&, const Executor&);             \
  keyword template void jvp<T>(const JvpCall<T>&, const Options&);                                                     \
  keyword template void naive_jvp<T>(const DTypeView<T>&, const DTypeView<T>&, const InputViews<T>&,                   \
                                     const InputViews<T>&, const NaiveMods<T>&, const NaiveSlopes<T>&, const Problem&, \
                                     const Executor&);                                                                 \
  keyword template void recurrence<T>(const RecurrenceCall<T>&, const Options&);                                       \
  keyword template Index recurrence_bytes<T>(const RecurrenceCall<T>&, const Options&);                                \
  keyword template void recurrence_backward<T>(const RecurrenceBackwardCall<T>&, const Options&);                      \
  keyword template Index recurrence_backward_bytes<T>(const RecurrenceCall<T>&, const Options&);                       \
  keyword template void naive_recurrence<T>(const RecurrenceCall<T>&, const Executor&);

namespace attn::detail::inline ATTN_BUILT_FOR {
ATTN_LOOPS_OF(extern, float)
ATTN_LOOPS_OF(extern, double)
ATTN_LOOPS_OF(extern, long double)
}  // namespace attn::detail::inline ATTN_BUILT_FOR
