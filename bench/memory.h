// Peak heap memory of calls, counted in the allocator.
#pragma once

#include <cstddef>
#include <functional>

namespace bench {

/// Whether allocations are counted in this build: not under sanitizers, which have their own allocator, nor without
/// glibc.
bool memory_is_counted();

/// Returns the peak number of heap bytes during `call`, minus those at its start, over all threads. 0 if they are not
/// counted.
///
/// The call runs on a new thread, so that workspaces which a library keeps per thread are counted too.
std::ptrdiff_t extra_memory(const std::function<void()>& call);

}  // namespace bench
