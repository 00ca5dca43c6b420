#include "backward_sweep.h"

namespace attn::test {
using Halves = ::testing::Types<Eigen::half, Eigen::bfloat16>;
INSTANTIATE_TYPED_TEST_SUITE_P(Scalar, BackwardSweep, Halves);
}  // namespace attn::test
