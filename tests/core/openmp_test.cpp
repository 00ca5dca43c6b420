// Programs that use OpenMP: as the executor, and around calls.
#include "attn/openmp.h"

#include <atomic>
#include <stdexcept>

#include "support/executor_rules.h"
#include "support/paths.h"

// Clang's OpenMP runtime never frees the stacks of a team whose size changes; g++ uses a different runtime.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libomp.so"; }

namespace attn::test {
namespace {

TEST(OpenMp, GivesTheSameBits) {
  Random random(1);
  const Inputs in({2, 4, 2, 100, 120, 16, 16}, random);
  Arguments<float> a(in);
  const auto expected = flash(a, causal(), {.executor = serial()});
  for (int threads : {1, 2, 5}) {
    omp_set_num_threads(threads);
    EXPECT_EQ(openmp().concurrency(), threads);
    EXPECT_TRUE(same_bits(expected, flash(a, causal(), {.executor = openmp()})));
  }
}

TEST(OpenMp, RunsEveryTaskOnce) {
  for (int threads : {1, 3}) {
    omp_set_num_threads(threads);
    expect_every_task_once(openmp());
  }
}

TEST(OpenMp, AnExceptionReachesTheCaller) {
  omp_set_num_threads(3);
  EXPECT_THROW(openmp().run(50,
                            [](Index task, int) {
                              if (task == 7) throw std::runtime_error("7");
                            }),
               std::runtime_error);
  std::atomic<int> ran{0};
  openmp().run(5, [&](Index, int) { ++ran; });
  EXPECT_EQ(ran, 5);
}

TEST(OpenMp, ACallInsideAParallelRegionUsesOneThread) {
  omp_set_num_threads(2);
  std::atomic<int> elsewhere{0}, tasks{0};
#pragma omp parallel for
  for (int i = 0; i < 4; ++i)
    for (const Executor& executor : {openmp(), threads(), threads(3)})
      executor.run(5, [&, caller = std::this_thread::get_id()](Index, int worker) {
        elsewhere += std::this_thread::get_id() != caller || worker != 0;
        ++tasks;
      });
  EXPECT_EQ(elsewhere, 0);
  EXPECT_EQ(tasks, 4 * 3 * 5);
}

}  // namespace
}  // namespace attn::test
