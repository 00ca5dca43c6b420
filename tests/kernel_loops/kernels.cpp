// The kernels of every instruction set, whose machine code loops.awk counts. Not run.
#include "attn/cache/cached_kernels.h"
#include "attn/cache/dot_kernels.h"
#include "attn/core/kernels/bf16/backward_kernels.h"
#include "attn/core/kernels/kernel_table.h"

namespace attn::detail {

template <class T, VectorSet kSet>
constexpr const KernelFamily<T>* kOf = &FamilyOf<T, kSet, true>::kKernels;

struct AllKernels {
  const KernelFamily<float>* of_float[5];
  const KernelFamily<double>* of_double[3];
  BackwardKernelSet<float> (*backward)(VectorSet);
  BackwardKernelSet<double> (*backward_of_double)(VectorSet);
  BackwardKernelSet<float> (*backward_of_bf16[2])(BackwardKernelSet<float>);
  const DotKernels<float>* (*dots)(VectorSet);
  const KernelFamily<float>& (*cached[5])(VectorSet);
};
extern const AllKernels all_kernels;
const AllKernels all_kernels = {
    {kOf<float, VectorSet::generic>, kOf<float, VectorSet::avx2>, kOf<float, VectorSet::avx512>,
     &kBf16VectorFamily<true>, &kAmxFamily<true>},
    {kOf<double, VectorSet::generic>, kOf<double, VectorSet::avx2>, kOf<double, VectorSet::avx512>},
    backward_kernels<float>,
    backward_kernels<double>,
    {bf16_backward_kernels<Bf16VectorPanels>, bf16_backward_kernels<AmxPanels<AmxTiles>>},
    dot_kernels,
    {cached_family<DType::i8>, cached_family<DType::f8_e4m3>, cached_family<DType::f8_e5m2>, cached_family<DType::i4>,
     cached_family<DType::i4_asymmetric>}};

}  // namespace attn::detail
