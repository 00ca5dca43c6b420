// Lists what recurrences compile once for each scalar type; see
// attn/instantiate.h.
#pragma once

#include "attn/recurrent/conv_loops.h"
#include "attn/recurrent/naive_recurrence.h"
#include "attn/recurrent/recurrence.h"

#define ATTN_INSTANTIATE_RECURRENT(T)                  \
  ATTN_INSTANTIATE_ONE(, T, recurrence)                \
  ATTN_INSTANTIATE_ONE(, T, recurrence_bytes)          \
  ATTN_INSTANTIATE_ONE(, T, recurrence_backward)       \
  ATTN_INSTANTIATE_ONE(, T, recurrence_backward_bytes) \
  ATTN_INSTANTIATE_ONE(, T, naive_recurrence)          \
  ATTN_INSTANTIATE_ONE(, T, conv)                      \
  ATTN_INSTANTIATE_ONE(, T, conv_backward)             \
  ATTN_INSTANTIATE_ONE(, T, naive_conv)
