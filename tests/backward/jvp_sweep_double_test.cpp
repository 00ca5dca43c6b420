#include "jvp_sweep.h"

namespace attn::test {
using Doubles = ::testing::Types<double, long double>;
INSTANTIATE_TYPED_TEST_SUITE_P(Scalar, JvpSweep, Doubles);
}  // namespace attn::test
