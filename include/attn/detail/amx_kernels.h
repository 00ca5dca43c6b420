// Layer 2: tiles of queries on the matrix unit for bf16.
#pragma once

#include "attn/detail/kernel_set.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {
#if ATTN_AMX
inline const KernelFamily<float>& kAmxFamily = kernel_family<float>(Isa::avx512);
#endif
}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
