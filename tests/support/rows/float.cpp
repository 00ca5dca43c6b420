#include "rows_of.h"

namespace attn::test {
ATTN_TEST_ROWS_OF(float)
ATTN_TEST_ROWS_OF(Eigen::half)
ATTN_TEST_ROWS_OF(Eigen::bfloat16)
}  // namespace attn::test
