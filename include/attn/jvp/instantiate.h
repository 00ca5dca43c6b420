// Lists what forward mode compiles once for each scalar type; see attn/instantiate.h.
#pragma once

#include "attn/jvp/jvp_loop.h"
#include "attn/jvp/naive_jvp.h"

#define ATTN_INSTANTIATE_JVP(T)  \
  ATTN_INSTANTIATE_ONE(, T, jvp) \
  ATTN_INSTANTIATE_ONE(, T, naive_jvp)
