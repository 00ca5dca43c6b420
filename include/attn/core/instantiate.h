// Lists what the core compiles once for each scalar type; see attn/instantiate.h.
#pragma once

#include "attn/core/backward/backward.h"
#include "attn/core/flash/flash.h"
#include "attn/core/naive/naive.h"
#include "attn/core/naive/naive_backward.h"
#ifndef ATTN_NO_THREADS
#include "attn/core/base/thread_pool.h"

namespace attn::detail {

// Each instantiate_*.h header includes this one. If a program includes such headers in several units, the linker keeps
// one copy of these functions.
template std::shared_ptr<const Executor::Backend> make_pool<>(int, double);
template int usable_cpus<>();

}  // namespace attn::detail
#endif

#define ATTN_INSTANTIATE_CORE(T)                   \
  ATTN_INSTANTIATE_ONE(, T, kernel_family)         \
  ATTN_INSTANTIATE_ONE(, T, kernel_family, false)  \
  ATTN_INSTANTIATE_ONE(, T, sigmoid_family)        \
  ATTN_INSTANTIATE_ONE(, T, sigmoid_family, false) \
  ATTN_INSTANTIATE_ONE(, T, choose_kernels)        \
  ATTN_INSTANTIATE_ONE(, T, choose_kernels, false) \
  ATTN_INSTANTIATE_ONE(, T, run_passes)            \
  ATTN_INSTANTIATE_ONE(, T, bytes_of_passes)       \
  ATTN_INSTANTIATE_ONE(, T, explain_passes)        \
  ATTN_INSTANTIATE_ONE(, T, naive)                 \
  ATTN_INSTANTIATE_ONE(, T, backward_kernels)      \
  ATTN_INSTANTIATE_ONE(, T, backward)              \
  ATTN_INSTANTIATE_ONE(, T, backward_bytes)        \
  ATTN_INSTANTIATE_ONE(, T, listed_backward)       \
  ATTN_INSTANTIATE_ONE(, T, listed_backward_bytes) \
  ATTN_INSTANTIATE_ONE(, T, naive_backward)
