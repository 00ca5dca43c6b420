// Instantiates the thread pool; see attn/instantiate.h.
#pragma once

#include "attn/types.h"

#ifndef ATTN_NO_THREADS
#include "attn/core/base/thread_pool.h"

namespace attn::detail {

// Each instantiate_*.h header includes this one. If a program includes such headers in several units, the linker keeps
// one copy of these functions.
template std::shared_ptr<const Executor::Backend> make_pool<>(int, double);
template int usable_cpus<>();

}  // namespace attn::detail
#endif
