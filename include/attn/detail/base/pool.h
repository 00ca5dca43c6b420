// Executor backends: the calling thread alone, and factories of thread pools.
#pragma once

#include <memory>

#include "attn/detail/base/linker_hint.h"
#include "attn/executor.h"

namespace Eigen {
class ThreadPoolInterface;
}

namespace attn::detail {

class SerialBackend final : public Executor::Backend {
 public:
  int concurrency() const override { return 1; }
  void run(Index tasks, TaskRef task) const override {
    for (Index i = 0; i < tasks; ++i) task(i, 0);
  }
};

// The pool itself is in thread_pool.h. It takes as long to read as a third of Eigen/Core, so units that define
// ATTN_EXTERN_TEMPLATES leave it to the unit that compiles loops and kernels.

/// @throws as PoolBackend does.
template <class = include_attn_instantiate_h_in_one_unit>
std::shared_ptr<const Executor::Backend> make_pool(int workers);
template <class = include_attn_instantiate_h_in_one_unit>
std::shared_ptr<const Executor::Backend> make_pool(Eigen::ThreadPoolInterface& pool);
template <class = include_attn_instantiate_h_in_one_unit>
int hardware_threads();

}  // namespace attn::detail
