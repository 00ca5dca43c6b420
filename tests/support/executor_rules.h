// Requirements on every executor.
#pragma once

#include <atomic>
#include <vector>

#include "attn/executor.h"

#include <gtest/gtest.h>

namespace attn::test {

/// Expects that every task runs once, and that tasks of the same worker never overlap.
inline void expect_every_task_once(const Executor& executor) {
  const int workers = executor.concurrency();  // inside a task, concurrency() may be 1
  for (Index tasks : {0, 1, 2, 5, 1000}) {
    std::vector<std::atomic<int>> runs(static_cast<std::size_t>(tasks));
    std::vector<std::atomic<int>> inside(static_cast<std::size_t>(workers));
    std::atomic<bool> overlap{false};
    executor.run(tasks, [&](Index task, int worker) {
      ASSERT_TRUE(worker >= 0 && worker < workers);
      auto& count = inside[static_cast<std::size_t>(worker)];
      if (++count != 1) overlap = true;
      ++runs[static_cast<std::size_t>(task)];
      --count;
    });
    EXPECT_FALSE(overlap);
    for (const auto& n : runs) EXPECT_EQ(n, 1);
  }
}

}  // namespace attn::test
