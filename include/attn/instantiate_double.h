// Compiles the loops and kernels for double; see attn/instantiate.h.
#pragma once

#include "attn/detail/base/instantiate_pool.h"
#include "attn/detail/extern_templates.h"

namespace attn::detail::inline ATTN_BUILT_FOR {
ATTN_LOOPS_OF(, double)
}  // namespace attn::detail::inline ATTN_BUILT_FOR
