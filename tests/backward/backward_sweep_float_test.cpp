#include "backward_sweep.h"

namespace attn::test {
INSTANTIATE_TYPED_TEST_SUITE_P(Scalar, BackwardSweep, float);
}  // namespace attn::test
