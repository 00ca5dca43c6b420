#include "rows_of.h"

namespace attn::test {
ATTN_TEST_ROWS_OF(long double)
}  // namespace attn::test
