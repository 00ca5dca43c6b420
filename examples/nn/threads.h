// Threads for what lies between the attentions, too. Work is cut by its size alone, so that any number of threads gives
// the same bits.
#pragma once

#include <functional>

#include <attn/attn.h>

namespace nn {

/// Sets how many threads all layers use from now on; at first it is all cores. Not to be called while a layer runs.
void set_threads(int count);
/// The same with any executor.
void set_executor(const attn::Executor& executor);

/// Keeps memory that is freed with the program from now on (glibc): each training step allocates what the last one
/// freed. By default glibc returns large pieces to the system, which must clear them before it gives them out again;
/// that took an eighth of a step's time.
void keep_memory();

/// What the layers pass to attn: the threads.
const attn::Options& options();

/// Calls f(first, last) for blocks of `block` numbers out of 0 … count - 1, on as many threads as pay for themselves
/// where each number takes one thread about so many nanoseconds.
void for_blocks(attn::Index count, attn::Index block, double nanoseconds,
                const std::function<void(attn::Index, attn::Index)>& f);

}  // namespace nn
