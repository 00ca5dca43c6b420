// Lists what layers compile once for each scalar type; see attn/instantiate.h.
#pragma once

#include "attn/layers/additive_kernels.h"

#define ATTN_INSTANTIATE_LAYERS(T)           \
  ATTN_INSTANTIATE_ONE(, T, additive_family) \
  ATTN_INSTANTIATE_ONE(, T, additive_gradients)
