// The executor openmp(), for programs that use OpenMP. Not part of attn.h: include it where the compiler's OpenMP flag
// is set.
#pragma once

#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>

#include "attn/executor.h"

#if !defined(_OPENMP)
#error "attn/openmp.h needs the compiler's OpenMP flag (-fopenmp)"
#endif

namespace attn {

namespace detail {

class OpenMpBackend final : public Executor::Backend {
 public:
  /// 1 inside a parallel region, whose other threads have work of their own.
  int concurrency() const override { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

  void run(Index tasks, TaskRef task) const override {
    std::exception_ptr error;
    std::atomic<bool> stop{false};
    const int threads = static_cast<int>(std::min<Index>(concurrency(), tasks));
#pragma omp parallel for schedule(dynamic, 1) num_threads(std::max(threads, 1))
    for (Index i = 0; i < tasks; ++i) {
      if (stop) continue;  // an exception must not leave the region
      try {
        task(i, threads > 1 ? omp_get_thread_num() : 0);
      } catch (...) {
#pragma omp critical(attn_error)
        if (!stop.exchange(true)) error = std::current_exception();
      }
    }
    if (error) std::rethrow_exception(error);
  }
};

}  // namespace detail

/// The threads of OpenMP, as many as omp_get_max_threads() says; inside a parallel region the calling thread alone.
inline Executor openmp() {
  static const Executor executor(std::make_shared<detail::OpenMpBackend>());
  return executor;
}

}  // namespace attn
