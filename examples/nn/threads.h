// Threads for all layers, not only attention. Work is split by its size alone, so that results are bitwise independent
// of the number of threads.
#pragma once

#include <functional>

#include <attn/attn.h>

namespace nn {

/// Sets the number of threads that all layers use from now on; the default is all cores. Must not be called while a
/// layer runs.
void set_threads(int count);
/// Sets the executor that all layers use from now on.
void set_executor(const attn::Executor& executor);

/// From now on, keeps freed memory until the program ends (glibc): each training step allocates what the last one
/// freed. By default glibc returns large blocks to the system, which must clear them before they are used again; that
/// took an eighth of a step's time.
void keep_memory();

/// Returns the options that the layers pass to attn: the threads.
const attn::Options& options();

/// Calls f(first, last) for blocks of `block` items out of 0 … count - 1, on as many threads as pay off if one item
/// takes about `nanoseconds` nanoseconds on one thread.
void for_blocks(attn::Index count, attn::Index block, double nanoseconds,
                const std::function<void(attn::Index, attn::Index)>& f);

}  // namespace nn
