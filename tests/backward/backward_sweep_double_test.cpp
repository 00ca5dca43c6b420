#include "backward_sweep.h"

namespace attn::test {
INSTANTIATE_TYPED_TEST_SUITE_P(Scalar, BackwardSweep, double);
}  // namespace attn::test
