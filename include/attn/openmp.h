// The executor openmp(), for programs that use OpenMP. Not part of attn.h: include it where the compiler's OpenMP flag
// is set.
#pragma once

#include <omp.h>

#include <algorithm>
#include <memory>

#include "attn/core/base/pool.h"
#include "attn/core/base/shared_call.h"
#include "attn/executor.h"

#if !defined(_OPENMP)
#error "attn/openmp.h needs the compiler's OpenMP flag (-fopenmp)"
#elif defined(ATTN_NO_THREADS)
#error "attn/openmp.h needs threads: compile without ATTN_NO_THREADS"
#endif

namespace attn {

namespace detail {

class OpenMpBackend final : public Executor::Backend {
 public:
  /// 1 inside a parallel region, whose other threads have their own work.
  int concurrency() const override { return omp_in_parallel() ? 1 : omp_get_max_threads(); }

  void run(Index tasks, TaskRef task) const override { share(concurrency(), tasks, task); }
  void run_with(int workers, double, Index tasks, TaskRef task) const override { share(workers, tasks, task); }

 private:
  /// The team always has the same size, and surplus threads do nothing, because runtimes end threads when a team
  /// shrinks and start new ones for the next team.
  void share(int workers, Index tasks, TaskRef task) const {
    const int team = concurrency();
    if (std::min<Index>({workers, team, tasks}) <= 1) return SerialBackend().run(tasks, task);
    SharedCall call(task, tasks, workers);
#pragma omp parallel num_threads(team)
    if (omp_get_thread_num() < workers) call.work(omp_get_thread_num());
    call.rethrow();
  }
};

}  // namespace detail

/// Returns an executor that runs tasks on omp_get_max_threads() threads of OpenMP, or on the calling thread alone
/// inside a parallel region.
inline Executor openmp() {
  static const Executor executor(std::make_shared<detail::OpenMpBackend>());
  return executor;
}

}  // namespace attn
