// How much memory a call takes: the heap of this process, counted.
#pragma once

#include <cstddef>
#include <functional>

namespace bench {

/// Whether allocations are counted in this build. They are not under sanitizers, which bring an allocator of their own,
/// and not without glibc.
bool memory_is_counted();

/// The most bytes on the heap during `call`, beyond those at its start, from all threads. 0 if they are not counted.
///
/// The call runs on a thread of its own, so that workspaces which a library keeps per thread are counted too instead of
/// being found ready.
std::ptrdiff_t extra_memory(const std::function<void()>& call);

}  // namespace bench
