// Partition of a call: queries into tiles and blocks, keys into splits, a pass into tasks; and the workers' memory.
#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention.h"
#include "support/paths.h"

namespace attn::test {
namespace {

using detail::kKeyTile;

const detail::KernelFamily<float>& family_of(Isa isa) { return detail::kernel_family<float>(detail::vectors_of(isa)); }

Problem problem_of(Index batch, Index heads, Index kv_heads, Index q_len, Index kv_len) {
  Problem p;
  p.batch = batch;
  p.heads = heads;
  p.kv_heads = kv_heads;
  p.q_len = q_len;
  p.kv_len = kv_len;
  p.head_dim = p.v_dim = 16;
  return p;
}

TEST(Partitions, TilesCoverTheQueriesInOrder) {
  for (const Isa isa : instruction_sets())
    for (const bool single : {false, true})
      for (Index q_len = 0; q_len < 200; ++q_len) {
        const auto& family = family_of(isa);
        const detail::QueryTiles<float> tiles(family, q_len, single);
        const Index lanes = single ? 1 : family.by_vectors[0].queries;
        Index next = 0, fewest = q_len, most = 0;
        for (Index tile = 0; tile < tiles.count(); ++tile) {
          const Range rows = tiles.rows(tile);
          ASSERT_EQ(rows.begin, next) << to_string(isa) << " " << q_len;
          ASSERT_FALSE(rows.empty());
          ASSERT_LE(rows.size(), tiles.most_queries());
          if (tile + 1 < tiles.count()) {
            ASSERT_EQ(rows.size() % lanes, 0);
            fewest = std::min(fewest, rows.size());
            most = std::max(most, rows.size());
          }
          ASSERT_GE(family.set_for(rows.size()).queries, rows.size());
          next = rows.end;
        }
        ASSERT_EQ(next, q_len);
        ASSERT_LE(most - fewest, tiles.count() > 1 ? lanes : 0) << "heights differ by more than a vector";
      }
}

TEST(Partitions, BlocksContainEachTileOnceAndShareAKeyHead) {
  const auto& family = family_of(Isa::generic == best_isa() ? Isa::generic : instruction_sets().front());
  for (const Index most : {1, 3, 16, 100})
    for (const Index q_len : {1, 60, 500}) {
      const Problem p = problem_of(2, 6, 2, q_len, 10);
      const detail::QueryTiles<float> tiles(family, q_len, false);
      const detail::QueryBlocks<float> blocks(p, tiles, most);
      std::set<std::vector<Index>> seen;
      for (Index b = 0; b < blocks.count(); ++b) {
        ASSERT_GE(blocks.size(b), 1);
        ASSERT_LE(blocks.size(b), std::min(most, blocks.most_tiles()));
        for (Index i = 0; i < blocks.size(b); ++i) {
          const detail::QueryTile t = blocks.at(b, i);
          EXPECT_EQ(t.batch, blocks.at(b, 0).batch);
          EXPECT_EQ(p.kv_head(t.head), p.kv_head(blocks.at(b, 0).head));
          EXPECT_EQ(t.rows, tiles.rows(t.tile));
          EXPECT_TRUE(seen.insert({t.batch, t.head, t.tile}).second) << "twice";
        }
      }
      EXPECT_EQ(static_cast<Index>(seen.size()), p.batch * p.heads * tiles.count());
    }
}

TEST(Partitions, SplitsCoverTheKeysInWholeTiles) {
  for (const Index kv_len : {0, 1, 63, 64, 1024, 2047, 2048, 5000, 100000})
    for (const Index blocks : {1, 2, 5, 64, 1000}) {
      const detail::KvSplits<float> splits(problem_of(1, 1, 1, 1, kv_len), blocks, 16);
      Index next = 0;
      for (Index s = 0; s < splits.count(); ++s) {
        const Range keys = splits.keys(s);
        ASSERT_EQ(keys.begin, next);
        ASSERT_EQ(keys.begin % kKeyTile, 0);
        ASSERT_GE(keys.size(), splits.count() > 1 ? 15 * kKeyTile : 0) << "too short to be worth a task";
        next = keys.end;
      }
      ASSERT_EQ(next, kv_len);
      ASSERT_LE(splits.count() * blocks, std::max<Index>(64, blocks));
      ASSERT_EQ(splits.bytes() % detail::kAlignment, 0);
    }
}

/// Two queries over several splits of the keys, with partial results that merge to known values.
TEST(Partitions, SplitsMergeToTheWhole) {
  constexpr Index kRows = 2, kDim = 16;
  const detail::KvSplits<double> splits(problem_of(1, 1, 1, 1, 8192), 1, kRows);
  ASSERT_GT(splits.count(), 4);
  std::vector<std::byte> room(static_cast<std::size_t>(splits.bytes()) + detail::kAlignment);
  std::byte* const memory = detail::checked_workspace(room, splits.bytes()).data();
  // For query 0 split s has one key, with score s and value s; for query 1 only split 3 has a key.
  double sum = 0, out = 0;
  for (Index s = 0; s < splits.count(); ++s) {
    const double score = static_cast<double>(s), infinity = std::numeric_limits<double>::infinity();
    double max[] = {score, s == 3 ? 7 : -infinity}, one[] = {1, s == 3 ? 1.0 : 0.0};
    std::vector<double> values(kRows * kDim, score);
    if (s != 3) std::fill(values.begin() + kDim, values.end(), 0);
    detail::TileMemory<double> m{};
    m.max = max;
    m.sum = one;
    m.out = values.data();
    splits.store_partial(m, kRows, s, memory);
    const double weight = std::exp(score - static_cast<double>(splits.count() - 1));
    sum += weight;
    out += weight * score;
  }
  const detail::TileMemory<double> all = splits.merged(kRows, memory);
  EXPECT_EQ(all.max[0], static_cast<double>(splits.count() - 1));
  EXPECT_NEAR(all.sum[0], sum, 1e-14);
  EXPECT_NEAR(all.out[0], out, 1e-13);
  EXPECT_NEAR(all.out[kDim - 1], out, 1e-13);
  EXPECT_EQ(all.max[1], 7);
  EXPECT_EQ(all.sum[1], 1);
  EXPECT_EQ(all.out[kDim], 3);
}

/// Tensors of a call that is never executed, and its pass.
struct Call {
  Call(const Problem& p, Isa isa)
      : problem(p),
        q({p.batch, p.heads, p.q_len, p.head_dim}),
        k({p.batch, p.kv_heads, p.kv_len, p.head_dim}),
        tensors{q.view(),
                {},
                q.view(),
                detail::DTypeView<const float>(k.view()),
                detail::DTypeView<const float>(k.view()),
                problem,
                detail::kKernelChoice<float>},
        pass({tensors}, detail::choose_kernels<float>({.isa = isa}, detail::Bf16Products::none), tensors.kv_bytes()) {}
  const Problem problem;
  Tensor<float, 4> q, k;
  detail::CallTensors<float> tensors;
  detail::PassTasks<float> pass;
};

TEST(Partitions, TasksContainEachBlockOnceForAnyNumberOfWorkers) {
  for (const Isa isa : instruction_sets())
    for (const Index q_len : {1, 4, 5, 300})
      for (const Index kv_len : {0, 100, 3000}) {
        const Call call(problem_of(2, 4, 2, q_len, kv_len), isa);
        for (const Index workers : {1, 2, 7, 64}) {
          const auto partition = call.pass.partition(workers);
          SCOPED_TRACE(std::string(to_string(isa)) + ", " + std::to_string(workers) + " workers");
          ASSERT_EQ(partition.tasks % partition.splits, 0);
          const Index groups = partition.tasks / partition.splits;
          EXPECT_GE(groups * partition.per_task, partition.blocks.count());
          EXPECT_LT((groups - 1) * partition.per_task, partition.blocks.count()) << "a task has no block";
          EXPECT_EQ(partition.splits, call.pass.partition(1).splits) << "results would depend on the workers";
          EXPECT_EQ(partition.bytes % detail::kAlignment, 0);
          EXPECT_EQ(partition.partials % detail::kAlignment, 0);
          EXPECT_EQ(partition.partials > 0, partition.splits > 1);
          EXPECT_EQ(partition.merges(), partition.splits > 1 ? partition.blocks.count() : 0);
        }
      }
}

TEST(Partitions, NoWorkGivesNoTasks) {
  const Call call(problem_of(0, 2, 1, 5, 5), instruction_sets().front());
  EXPECT_EQ(call.pass.partition(3).tasks, 0);
}

}  // namespace
}  // namespace attn::test
