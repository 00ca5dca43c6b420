// Executors for tests.
#pragma once

#include <memory>

#include "attn/parallel.h"

namespace attn::test {

/// Uses all threads for every call, however small, to test that small calls are split correctly.
class EagerThreads final : public Executor::Backend {
 public:
  explicit EagerThreads(int workers) : pool_(threads(workers)) {}

  int concurrency() const override { return pool_.concurrency(); }
  int workers_for(double) const override { return concurrency(); }
  void run(Index tasks, TaskRef task) const override { pool_.run(tasks, task); }

 private:
  Executor pool_;
};

inline Executor eager_threads(int workers) { return Executor(std::make_shared<EagerThreads>(workers)); }

}  // namespace attn::test
