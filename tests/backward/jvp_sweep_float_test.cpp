#include "jvp_sweep.h"

namespace attn::test {
using Floats = ::testing::Types<float, Eigen::bfloat16>;
INSTANTIATE_TYPED_TEST_SUITE_P(Scalar, JvpSweep, Floats);
}  // namespace attn::test
