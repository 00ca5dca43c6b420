// Compiles the pool of threads; see attn/instantiate.h.
#pragma once

#include "attn/detail/base/thread_pool.h"

namespace attn::detail {

// Each header instantiate_*.h includes this. Where a program has them in several units, the linker keeps one of these.
template std::shared_ptr<const Executor::Backend> make_pool<>(int, double);
template int usable_cpus<>();

}  // namespace attn::detail
