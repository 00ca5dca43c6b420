// When memory runs out, at any allocation, a call throws and leaves objects unchanged.
#include <dirent.h>

#include "support/allocations.h"
#include "support/executors.h"
#include "support/paged_model.h"
#include "support/ragged_call.h"

namespace attn::test {
namespace {

class RunningOut : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!memory_can_run_out()) GTEST_SKIP() << "a sanitizer replaces the heap";
  }

  /// Calls `call` with no allocation available, then one, two, …, until it succeeds, and `check` after each failure.
  /// Returns the number of allocations needed.
  template <class Call, class Check>
  static std::ptrdiff_t until_enough(const Call& call, const Check& check) {
    for (std::ptrdiff_t count = 0;; ++count) {
      if (!runs_out(count, call)) return count;
      check();
      if (HasFailure()) return count;
    }
  }
};

using Model = PagedModel<float>;

/// Three sequences that share pages of 4 tokens: 11 tokens, the first 6 of them, and all 11 followed by 5 more.
Model three_sequences() {
  Model model({.pages = 20, .page_size = 4, .kv_heads = 2, .head_dim = 5, .v_dim = 3});
  Random random(1);
  const auto tokens = [&](Index count) { return std::vector{Tokens::exact(model.sizes(), count, random)}; };
  model.append({model.add()}, tokens(11), true, Layout::bhsd);
  model.fork(0, 6);
  model.append({model.fork(0)}, tokens(5), true, Layout::bhsd);
  return model;
}

void expect_unchanged(const Model& model) {
  model.expect_sound();
  model.expect_contents();
}

using RunningOutOfPages = RunningOut;

TEST_F(RunningOutOfPages, ReleasingAllocatesNothingEvenInCopies) {
  const auto give_back = [](const char* what, Model model) {
    SCOPED_TRACE(what);
    EXPECT_FALSE(runs_out(0, [&] { model.cache.truncate(2, 3); }));
    model.sequences.at(2).truncate(3);
    expect_unchanged(model);
    for (Index id : {0, 1, 2}) {
      EXPECT_FALSE(runs_out(0, [&] { model.cache.release(id); })) << id;
      model.sequences.erase(id);
      expect_unchanged(model);
    }
    EXPECT_EQ(model.cache.free_pages(), 20);
  };
  const Model original = three_sequences();
  give_back("a copy", original);
  Model assigned({.pages = 1, .head_dim = 1});
  assigned = original;
  give_back("a copy that was assigned", assigned);
  Model copy = original;
  give_back("a copy that was moved", std::move(copy));
  Model again = original;
  assigned = std::move(again);
  give_back("a copy that was moved to another", assigned);
  give_back("the original", three_sequences());
}

TEST_F(RunningOutOfPages, FailedCallsChangeNothing) {
  const Model original = three_sequences();
  Random random(2);
  const Tokens more = Tokens::exact(original.sizes(), 9, random);
  Appended<float> nine(more);
  for (const bool of_copy : {false, true}) {
    Model model = of_copy ? original : three_sequences();
    const auto unchanged = [&] { expect_unchanged(model); };
    EXPECT_GT(until_enough([&] { model.cache.append(1, nine.k(), nine.v()); }, unchanged), 0);
    model.sequences.at(1).add(more);
    expect_unchanged(model);
    EXPECT_GT(until_enough([&] { model.cache.fork(0); }, unchanged), 0);
    model.sequences.emplace(3, model.sequences.at(0));
    expect_unchanged(model);
    EXPECT_GT(until_enough([&] { model.cache.add(); }, unchanged), 0);
    model.sequences.emplace(4, Tokens(model.sizes()));
    expect_unchanged(model);
  }
}

TEST_F(RunningOutOfPages, AssignmentIsAllOrNothing) {
  Model model = three_sequences();
  PagedKvCache<float> other({.pages = 3, .page_size = 2, .kv_heads = 1, .head_dim = 2, .rope = Rope({.head_dim = 2})});
  other.add();
  EXPECT_GT(until_enough([&] { model.cache = other; }, [&] { expect_unchanged(model); }), 3);
  EXPECT_EQ(model.cache.free_pages(), 3);
  EXPECT_EQ(model.cache.config().page_size, 2);
}

TEST_F(RunningOut, InACacheChangesNothing) {
  const TokenSizes sizes{2, 5, 3};
  Random random(3);
  const std::vector<Tokens> tokens{Tokens::exact(sizes, 5, random), Tokens::exact(sizes, 7, random),
                                   Tokens::exact(sizes, 2, random)};
  KvCache<float> cache({.batch = 3, .kv_heads = 2, .capacity = 8, .head_dim = 5, .v_dim = 3});
  Appended<float> given(concatenated(tokens));
  cache.append(given.k(), given.v(), {5, 7, 2});
  const auto unchanged = [&] { EXPECT_TRUE(holds(cache, tokens)); };
  unchanged();
  KvCache<float> copy = cache;
  EXPECT_GT(until_enough(
                [&] {
                  copy.append(given.k(), given.v(), {5, 7, 2});
                },
                [&] { EXPECT_TRUE(holds(copy, tokens)); }),
            1);
  EXPECT_GT(until_enough([&] { cache.reserve(100); }, unchanged), 0);
  unchanged();
  const KvCache<float> other({.batch = 1, .head_dim = 4, .rope = Rope({.head_dim = 4})});
  copy = cache;
  EXPECT_GT(until_enough([&] { copy = other; }, [&] { EXPECT_TRUE(holds(copy, tokens)); }), 1);
  EXPECT_EQ(copy.config().head_dim, 4);
  EXPECT_GT(until_enough([&] { cache.reorder({1, 2, 0}); }, unchanged), 0);
  EXPECT_TRUE(holds(cache, {tokens[1], tokens[2], tokens[0]}));
}

TEST_F(RunningOut, WhileAddingSequencesKeepsTheExistingOnes) {
  const Model model = three_sequences();
  KvView<float> batch = model.cache.view({1});
  const std::vector<Index> lost(1000, 9), table(model.cache.table(2).begin(), model.cache.table(2).end());
  for (std::ptrdiff_t count = 0; runs_out(count, [&] { batch.add(lost, 4000); }); ++count) EXPECT_EQ(batch.size(), 1);
  batch.add(table, model.cache.length(2));
  ASSERT_EQ(batch.size(), 3);
  Tensor<float, 4> q({1, 2, 1, 5});
  std::fill_n(q.data(), q.size(), 1.0f);
  const auto got = attention(ragged(q, {0, 0, 1}), batch).out, expected = attention(q, model.cache.view({2})).out;
  for (Index i = 0; i < expected.size(); ++i) EXPECT_EQ(got.data()[i], expected.data()[i]);
}

TEST_F(RunningOut, InARopeChangesNothing) {
  Rope rope({.head_dim = 4});
  const Rope larger({.head_dim = 64});
  EXPECT_EQ(until_enough([&] { rope = larger; },
                         [&] {
                           EXPECT_EQ(rope.config().head_dim, 4);
                           EXPECT_EQ(rope.frequencies().size(), 2u);
                         }),
            1);
  EXPECT_EQ(rope.frequencies().size(), 32u);
}

/// The number of threads of this process.
int threads_running() {
  DIR* const folder = opendir("/proc/self/task");
  int count = 0;
  while (const dirent* entry = readdir(folder)) count += entry->d_name[0] != '.';
  closedir(folder);
  return count;
}

TEST_F(RunningOut, WhileStartingThreadsLeavesNone) {
  const int before = threads_running();
  std::optional<Executor> executor;
  EXPECT_GT(until_enough([&] { executor = threads(4); }, [&] { EXPECT_EQ(threads_running(), before); }), 5);
  std::atomic<Index> sum{0};
  executor->run(100, [&](Index task, int) { sum += task; });
  EXPECT_EQ(sum, 4950);
  executor.reset();
  EXPECT_EQ(threads_running(), before);
}

TEST_F(RunningOut, InACallDoesNotAffectTheNextOne) {
  Random random(4);
  // Enough features that even tiles of narrow vectors exceed the stack's 32 KiB.
  const Eigen::MatrixXf q = Eigen::MatrixXf::Random(90, 128), k = Eigen::MatrixXf::Random(200, 128);
  const Tensor<float, 1> b({200});
  const auto mods = bias(b) | strided_sparse(3);
  const Eigen::MatrixXf expected = attention(q, k, k, mods).out;
  for (const Executor& executor : {serial(), eager_threads(3)}) {
    Eigen::MatrixXf out = Eigen::MatrixXf::Constant(90, 128, 7);
    EXPECT_GT(until_enough([&] { attention_into(out, q, k, k, mods, {.executor = executor}); }, [] {}), 0);
    EXPECT_EQ(out, expected);
  }
}

}  // namespace
}  // namespace attn::test
