// Compiles the loops and kernels for float and 16-bit floats; see attn/instantiate.h.
#pragma once

#include "attn/core/instantiate.h"
#include "attn/jvp/instantiate.h"
#include "attn/layers/instantiate.h"
#include "attn/recurrent/instantiate.h"

namespace attn::detail::inline ATTN_BUILT_FOR {
ATTN_INSTANTIATE_CORE(float)
ATTN_INSTANTIATE_LAYERS(float)
ATTN_INSTANTIATE_RECURRENT(float)
ATTN_INSTANTIATE_JVP(float)
}  // namespace attn::detail::inline ATTN_BUILT_FOR
