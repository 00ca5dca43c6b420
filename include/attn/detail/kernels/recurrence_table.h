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

template <class T, VectorSet kSet>
struct RecurrenceFamilyOf {
  static constexpr int kBytes = kVectorBytes<kSet>, kRegisters = kVectorRegisters<kSet>;
  using Features = FeatureKernels<T, kBytes>;
  using Recurrence = RecurrenceKernels<T, kBytes, kRegisters>;
  using Gates = GateKernels<T, kBytes>;

  static constexpr RecurrenceFamily<T> kKernels = {
      .product = compiled<kSet, ProductKernels<T, kBytes, kRegisters>::product>,
      .elu1 = compiled<kSet, Features::elu1>,
      .relu = compiled<kSet, Features::relu>,
      .exp_less = compiled<kSet, Features::exp_less>,
      .row_max = compiled<kSet, Features::row_max>,
      .balance = compiled<kSet, Features::balance>,
      .decays = compiled<kSet, Recurrence::decays>,
      .decays_from = compiled<kSet, Recurrence::decays_from>,
      .decays_to = compiled<kSet, Recurrence::decays_to>,
      .multiply_by = compiled<kSet, Recurrence::multiply_by>,
      .scale_rows = compiled<kSet, Recurrence::scale_rows>,
      .subtract_from = compiled<kSet, Recurrence::subtract_from>,
      .add_rows = compiled<kSet, Recurrence::add_rows>,
      .add_dots = compiled<kSet, Recurrence::add_dots>,
      .running_sums = compiled<kSet, Recurrence::running_sums>,
      .running_sums_back = compiled<kSet, Recurrence::running_sums_back>,
      .substitute = compiled<kSet, Recurrence::substitute>,
      .substitute_back = compiled<kSet, Recurrence::substitute_back>,
      .step = compiled<kSet, Recurrence::step>,
      .near_scores = compiled<kSet, Gates::near_scores>,
      .near_gradients = compiled<kSet, Gates::near_gradients>};
};

/// The kernels for these vectors, which must be available.
template <class T>
const RecurrenceFamily<T>& recurrence_family(VectorSet vectors) {
  return with_vectors<T>(
      vectors, []<VectorSet kSet>() -> const RecurrenceFamily<T>& { return RecurrenceFamilyOf<T, kSet>::kKernels; });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
