// What runs the tasks of a call: serial(), threads(), or an executor of your own.
#pragma once

#include <memory>

#include "attn/detail/base/check.h"
#include "attn/detail/base/pool.h"
#ifndef ATTN_EXTERN_TEMPLATES  // see attn/instantiate.h
#include "attn/detail/base/thread_pool.h"
#endif

namespace attn {

/// Runs everything on the calling thread.
inline Executor serial() {
  static const Executor executor(std::make_shared<detail::SerialBackend>());
  return executor;
}

/// A pool of `workers` threads, counting the caller. Make it once: the pool lives as long as a copy of the executor
/// does.
/// @throws std::invalid_argument unless workers is positive; std::bad_alloc, or std::system_error if the operating
/// system has no more threads. No thread is left running then.
inline Executor threads(int workers) {
  detail::require(workers > 0, "threads(", workers, "): there must be at least one worker, the caller");
  return workers == 1 ? serial() : Executor(detail::make_pool(workers));
}

/// Runs tasks on the threads of a pool that the program already has, and on the caller. The pool must outlive all
/// calls.
inline Executor threads(Eigen::ThreadPoolInterface& pool) { return Executor(detail::make_pool(pool)); }

/// The pool of the process: as many workers as the machine has hardware threads, started at first use.
inline Executor threads() {
  static const Executor pool = threads(detail::hardware_threads());
  return pool;
}

inline const Executor::Backend& Executor::backend() const { return backend_ ? *backend_ : *threads().backend_; }

namespace detail {

/// The executor for work of `flops` flops: the one asked for, or, if none was, the calling thread for little work and
/// all cores for more. Waking a thread takes about 10 µs, in which a core does more than a million flops.
inline const Executor& executor_for(double flops, const Executor& asked) {
  constexpr double kFlopsWorthSharing = 2e6;
  static const Executor alone = serial();
  return asked.is_default() && flops < kFlopsWorthSharing ? alone : asked;
}

}  // namespace detail

}  // namespace attn
