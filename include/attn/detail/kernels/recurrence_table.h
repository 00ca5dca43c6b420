// The kernels of recurrences compiled for each instruction set, and the choice among them at run time.
#pragma once

#include "attn/detail/base/linker_hint.h"
#include "attn/detail/kernels/gate_kernels.h"
#include "attn/detail/kernels/recurrence_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How many numbers rows of a chunk and of a state are padded to: a cache line, and so whole vectors of any instruction
/// set.
template <class T>
constexpr Index kRowUnit = kAlignment / static_cast<Index>(sizeof(T));

template <class T>
struct RecurrenceFamily {
  void (*product)(const Product<T>&);
  void (*elu1)(const Block<T>&);
  void (*relu)(const Block<T>&);
  void (*exp_less)(const Block<T>&, const T* less);
  void (*row_max)(const Block<T>&, T* max);
  void (*balance)(const Block<T>&, T* factor);
  void (*decays)(const T* gate, const Block<T>&, T* from_start);
  void (*decays_from)(Rows<T> gate, const Block<T>&);
  void (*decays_to)(Rows<T> gate, const Block<T>&);
  void (*multiply_by)(const Block<T>&, Rows<T> by);
  void (*scale_rows)(const Block<T>&, Rows<T> from, const T* factor);
  void (*subtract_from)(const Block<T>&, const T* factor, Rows<T> plus);
  void (*add_rows)(const Block<T>&, Rows<T> from, const T* factor);
  void (*add_dots)(T* sums, Rows<T> a, Rows<T> b, Index rows, Index columns);
  void (*running_sums)(const Block<T>&, Rows<T> from);
  void (*running_sums_back)(const Block<T>&, Rows<T> from);
  void (*substitute)(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end);
  void (*substitute_back)(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end);
  void (*step)(const StateStep<T>&);
  void (*near_scores)(const NearTokens<T>&, const Block<T>& scores);
  void (*near_gradients)(const NearTokens<T>&, Rows<T> grad_scores, const Block<T>& grad_query,
                         const Block<T>& grad_key, const Block<T>& grad_gate);
};

// One function of the set, as in kernel_table.h.
#define ATTN_KERNEL(name, target)         \
  template <class... Args>                \
  target static void name(Args... args) { \
    Kernels::name(args...);               \
  }

template <VectorSet, class Kernels>
struct CompiledRecurrence;
#define ATTN_COMPILED(set, target, ...)                \
  template <class Kernels>                             \
  struct CompiledRecurrence<VectorSet::set, Kernels> { \
    ATTN_KERNEL(product, target)                       \
    ATTN_KERNEL(elu1, target)                          \
    ATTN_KERNEL(relu, target)                          \
    ATTN_KERNEL(exp_less, target)                      \
    ATTN_KERNEL(row_max, target)                       \
    ATTN_KERNEL(balance, target)                       \
    ATTN_KERNEL(decays, target)                        \
    ATTN_KERNEL(decays_from, target)                   \
    ATTN_KERNEL(decays_to, target)                     \
    ATTN_KERNEL(multiply_by, target)                   \
    ATTN_KERNEL(scale_rows, target)                    \
    ATTN_KERNEL(subtract_from, target)                 \
    ATTN_KERNEL(add_rows, target)                      \
    ATTN_KERNEL(add_dots, target)                      \
    ATTN_KERNEL(running_sums, target)                  \
    ATTN_KERNEL(running_sums_back, target)             \
    ATTN_KERNEL(substitute, target)                    \
    ATTN_KERNEL(substitute_back, target)               \
    ATTN_KERNEL(step, target)                          \
    ATTN_KERNEL(near_scores, target)                   \
    ATTN_KERNEL(near_gradients, target)                \
  };
ATTN_FOR_EACH_VECTOR_SET(ATTN_COMPILED)
#undef ATTN_KERNEL
#undef ATTN_COMPILED

template <class T, VectorSet kSet>
struct RecurrenceFamilyOf {
  static constexpr int kBytes = kVectorBytes<kSet>, kRegisters = kVectorRegisters<kSet>;
  using Products = CompiledRecurrence<kSet, ProductKernels<T, kBytes, kRegisters>>;
  using Features = CompiledRecurrence<kSet, FeatureKernels<T, kBytes>>;
  using Recurrence = CompiledRecurrence<kSet, RecurrenceKernels<T, kBytes, kRegisters>>;
  using Gates = CompiledRecurrence<kSet, GateKernels<T, kBytes>>;

  static constexpr RecurrenceFamily<T> kKernels = {.product = Products::product,
                                                   .elu1 = Features::elu1,
                                                   .relu = Features::relu,
                                                   .exp_less = Features::exp_less,
                                                   .row_max = Features::row_max,
                                                   .balance = Features::balance,
                                                   .decays = Recurrence::decays,
                                                   .decays_from = Recurrence::decays_from,
                                                   .decays_to = Recurrence::decays_to,
                                                   .multiply_by = Recurrence::multiply_by,
                                                   .scale_rows = Recurrence::scale_rows,
                                                   .subtract_from = Recurrence::subtract_from,
                                                   .add_rows = Recurrence::add_rows,
                                                   .add_dots = Recurrence::add_dots,
                                                   .running_sums = Recurrence::running_sums,
                                                   .running_sums_back = Recurrence::running_sums_back,
                                                   .substitute = Recurrence::substitute,
                                                   .substitute_back = Recurrence::substitute_back,
                                                   .step = Recurrence::step,
                                                   .near_scores = Gates::near_scores,
                                                   .near_gradients = Gates::near_gradients};
};

/// The kernels for these vectors, which must be available.
template <class T>
const RecurrenceFamily<T>& recurrence_family(VectorSet vectors) {
  if constexpr (!Simd<T, 16>::kVector)
    return RecurrenceFamilyOf<T, VectorSet::generic>::kKernels;
  else
    return with_vectors(
        vectors, []<VectorSet kSet>() -> const RecurrenceFamily<T>& { return RecurrenceFamilyOf<T, kSet>::kKernels; });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
