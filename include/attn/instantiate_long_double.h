// Compiles the loops and kernels for long double; see attn/instantiate.h.
#pragma once

#include "attn/core/instantiate.h"
#include "attn/jvp/instantiate.h"
#include "attn/layers/instantiate.h"
#include "attn/recurrent/instantiate.h"

namespace attn::detail::inline ATTN_BUILT_FOR {
ATTN_INSTANTIATE_CORE(long double)
ATTN_INSTANTIATE_LAYERS(long double)
ATTN_INSTANTIATE_RECURRENT(long double)
ATTN_INSTANTIATE_JVP(long double)
}  // namespace attn::detail::inline ATTN_BUILT_FOR
