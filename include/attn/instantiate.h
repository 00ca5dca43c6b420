// Layer 4: the loops and kernels compiled here, for units that were promised them.
#pragma once

// Whoever calls attention() compiles its loops and kernels, for each scalar that is used: most of what such a unit takes to
// compile. A program of many units has them compiled once, if it defines ATTN_EXTERN_TEMPLATES for all its units and includes
// this header in one of them.
#include "attn/attention.h"
#include "attn/detail/extern_templates.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {
ATTN_LOOPS_OF(, float)
ATTN_LOOPS_OF(, double)
ATTN_LOOPS_OF(, long double)
}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
