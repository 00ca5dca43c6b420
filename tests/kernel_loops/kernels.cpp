// The kernels of floats for every instruction set, whose machine code loops.awk counts. Not run.
#include "attn/core/kernels/backward_kernels.h"
#include "attn/core/kernels/kernel_table.h"

namespace attn::detail {

struct AllKernels {
  const KernelFamily<float>* family;
  BackwardKernelSet<float> (*backward)(VectorSet);
};
extern const AllKernels all_kernels[];
const AllKernels all_kernels[] = {
    {&FamilyOf<float, VectorSet::generic, true>::kKernels, &backward_kernels<float>},
    {&FamilyOf<float, VectorSet::avx2, true>::kKernels, nullptr},
    {&FamilyOf<float, VectorSet::avx512, true>::kKernels, nullptr},
};

}  // namespace attn::detail
