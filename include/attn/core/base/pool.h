// Executor backends: the calling thread alone, and the library's own pool.
#pragma once

#include <memory>

#include "attn/core/base/compiled_once.h"
#include "attn/executor.h"

namespace attn::detail {

class SerialBackend final : public Executor::Backend {
 public:
  int concurrency() const override { return 1; }
  void run(Index tasks, TaskRef task) const override {
    for (Index i = 0; i < tasks; ++i) task(i, 0);
  }
};

/// Time that a woken thread must save for the wake-up to pay off. A wake-up costs the caller 2 to 10 µs, and the thread
/// runs 5 to 50 µs later, depending on the machine.
constexpr double kMicrosecondsToWake = 15;

#ifdef ATTN_NO_THREADS
inline std::shared_ptr<const Executor::Backend> make_pool(int, double) { return std::make_shared<SerialBackend>(); }
inline int usable_cpus() { return 1; }
#else
// The pool itself is in thread_pool.h. Units that define ATTN_EXTERN_TEMPLATES leave it, and the standard headers for
// threads, to the unit that compiles loops and kernels.

/// Makes a ThreadPool and throws as its constructor does.
template <class = include_attn_instantiate_h_in_one_unit>
std::shared_ptr<const Executor::Backend> make_pool(int workers, double spin_microseconds);
/// Returns the number of processors that this process may keep busy at the same time.
template <class = include_attn_instantiate_h_in_one_unit>
int usable_cpus();
#endif

}  // namespace attn::detail
