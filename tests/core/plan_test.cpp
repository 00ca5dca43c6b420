// How tokens are grouped for passes, and how a backward pass is split into tasks and memory.
#include <algorithm>
#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/paths.h"

namespace attn::test {
namespace {

using detail::kKeyTile;

Problem problem_with(Index heads, Index kv_heads, Index q_len, Index kv_len, Index dim = 16) {
  Problem p;
  p.batch = 2;
  p.heads = heads, p.kv_heads = kv_heads;
  p.q_len = q_len, p.kv_len = kv_len;
  p.head_dim = dim, p.v_dim = dim + 3;
  return p;
}

/// All pairs visited by the groups, as positions of the call.
std::multiset<std::vector<Index>> grouped_pairs(const Problem& call, const detail::Grouping& grouping) {
  std::multiset<std::vector<Index>> pairs;
  const auto visit = [&](const detail::TokenGroups& groups, const Problem& own) {
    EXPECT_GE(groups.first_query, 0);
    EXPECT_GE(groups.first_key, 0);
    for (Index group = 0; group < own.batch; ++group)
      for (Index i = 0; i < own.q_len; ++i)
        for (Index j = 0; j < own.kv_len; ++j) {
          const Position p = groups.in_call(Position{group, 0, own.q_offset + i, own.kv_offset + j});
          // The rows of the group are given by the first row and the step of its tensor views.
          EXPECT_EQ(p.q - call.first_query(groups.batch), groups.first_query + group + i * groups.q_step);
          EXPECT_EQ(p.kv - call.kv_offset, groups.first_key + group + j * groups.kv_step);
          pairs.insert({p.batch, p.q, p.kv});
        }
  };
  detail::for_each_token_groups(call, grouping, visit);
  return pairs;
}

TEST(TokenGroups, ContainEachPairOfTheirResidueOnce) {
  for (const Index step : {1, 2, 3, 7, 30})
    for (const Index q_len : {1, 5, 20})
      for (const Index kv_len : {0, 1, 6, 25})
        for (const auto& [offset, kv_offset] :
             std::vector<std::pair<Index, Index>>{{-4, 0}, {0, 0}, {9, 0}, {-4, 11}, {0, -20}, {9, 5}, {2, 3}}) {
          Problem p = problem_with(1, 1, q_len, kv_len);
          p.q_offset = offset, p.kv_offset = kv_offset;
          std::multiset<std::vector<Index>> want;
          for (Index b = 0; b < p.batch; ++b)
            for (Index q = offset; q < offset + q_len; ++q)
              for (Index kv = kv_offset; kv < kv_offset + kv_len; ++kv)
                if (((q - kv) % step + step) % step == 0) want.insert({b, q, kv});
          EXPECT_EQ(grouped_pairs(p, {step, {}}), want)
              << step << " " << q_len << " " << kv_len << " " << offset << " " << kv_offset;
        }
}

TEST(TokenGroups, SharedTokensAreSeenByAllQueries) {
  Problem p = problem_with(1, 1, 6, 20);
  p.q_offset = 14;
  std::multiset<std::vector<Index>> want;
  for (Index b = 0; b < p.batch; ++b)
    for (Index q = 14; q < 20; ++q)
      for (Index kv = 0; kv < 20; ++kv)
        if (kv % 8 >= 5 && kv % 8 < 7) want.insert({b, q, kv});
  EXPECT_EQ(grouped_pairs(p, {8, Range{5, 7}}), want);
}

TEST(TokenGroups, PayOffWhereTheyReduceTheNumberOfTiles) {
  const auto pays = [](Index tokens, Index step) {
    return detail::grouping_pays(problem_with(1, 1, tokens, tokens), {step, {}});
  };
  EXPECT_TRUE(pays(65536, 64));
  EXPECT_FALSE(pays(65536, 1));
  EXPECT_FALSE(pays(128, 64)) << "groups of two tokens do not fill a tile";
  EXPECT_TRUE(detail::grouping_pays(problem_with(1, 1, 128, 128), {64, {}, true})) << "grouping was requested";
  EXPECT_FALSE(detail::grouping_pays(problem_with(1, 1, 65536, 65536), {256, Range{0, 33}})) << "too many passes";
}

template <class T>
detail::BackwardPlan<T> plan_of(const Problem& p, Isa isa, const detail::LearnedSizes& learned = {}) {
  return {p, learned, detail::choose_kernels<T>({.isa = isa}, detail::Bf16Products::none)};
}

TEST(BackwardPlan, PartsCoverTheTilesInOrder) {
  for (const Isa isa : instruction_sets())
    for (const Index q_len : {0, 1, 300, 2100})
      for (const Index kv_len : {0, 1, 255, 256, 700, 5000}) {
        const Problem p = problem_with(6, 2, q_len, kv_len);
        const auto plan = plan_of<float>(p, isa);
        EXPECT_EQ(plan.tasks_of_group(), plan.key_parts() * plan.query_parts());
        EXPECT_LE(plan.tasks_of_group(), 8);
        const auto covers = [](Index parts, Index count, const auto& of) {
          Index next = 0;
          for (Index part = 0; part < parts; ++part) {
            EXPECT_EQ(of(part).begin, next);
            next = of(part).end;
          }
          EXPECT_EQ(next, count);
        };
        covers(plan.key_parts(), plan.key_tiles(), [&](Index part) { return plan.key_tiles_of(part); });
        covers(plan.query_parts(), plan.tiles_of_group(), [&](Index part) { return plan.query_tiles_of(part); });
        EXPECT_EQ(plan.key_tiles(), (kv_len + kKeyTile - 1) / kKeyTile);
      }
}

TEST(BackwardPlan, TilesOfAGroupContainTheQueriesOfItsHeads) {
  const Problem p = problem_with(6, 2, 130, 70);
  for (const Isa isa : instruction_sets()) {
    const auto plan = plan_of<float>(p, isa);
    std::multiset<std::vector<Index>> rows, want;
    for (Index group = 0; group < plan.groups(); ++group)
      for (Index i = 0; i < plan.tiles_of_group(); ++i) {
        const detail::QueryTile t = plan.tile(group, i);
        EXPECT_EQ(t.batch * p.kv_heads + p.kv_head(t.head), group);
        EXPECT_LE(t.rows.size(), plan.most_queries());
        for (Index row = t.rows.begin; row < t.rows.end; ++row) rows.insert({t.batch, t.head, row});
      }
    for (Index b = 0; b < p.batch; ++b)
      for (Index h = 0; h < p.heads; ++h)
        for (Index row = 0; row < p.q_len; ++row) want.insert({b, h, row});
    EXPECT_EQ(rows, want);
  }
}

// The parts of a group's memory do not overlap, and neither a group's nor a worker's memory extends past its end.
template <class T>
void expect_memory_apart(const Problem& p, const detail::LearnedSizes& learned) {
  const auto plan = plan_of<T>(p, Isa::generic, learned);
  const detail::GroupMemory<T> shared(plan, 1);
  std::vector<std::byte> memory(static_cast<std::size_t>(shared.group_bytes()) + detail::kAlignment);
  void* aligned = memory.data();
  std::size_t room = memory.size();
  auto* const group = static_cast<std::byte*>(std::align(detail::kAlignment, 1, aligned, room));
  const auto at = [&](const auto* x) { return reinterpret_cast<const std::byte*>(x) - group; };
  Index end = 0;
  for (Index i = 0; i < plan.tiles_of_group(); ++i) {
    const detail::PreparedQueries<T>& q = plan.prepare(group, 0, i);
    EXPECT_GE(at(&q), end);
    EXPECT_GE(at(q.query), at(q.added + plan.key_parts()));
    EXPECT_LT(at(q.query), at(q.grad_out));
    end = at(q.grad_query + plan.key_parts() * plan.grad_query_size());
  }
  if (plan.query_parts() > 1) {
    EXPECT_GE(at(plan.grad_key_of(group, 0)), end);
    for (Index part = 0; part + 1 < plan.query_parts(); ++part)
      EXPECT_EQ(at(plan.grad_value_of(group, part) + p.kv_len * plan.value_row()),
                at(plan.grad_key_of(group, part + 1)));
    const Index last = plan.query_parts() - 1;
    end = at(plan.grad_value_of(group, last) + p.kv_len * plan.value_row());
  }
  EXPECT_LE(end, plan.group_bytes());
  if (learned.slots > 0) {
    EXPECT_GE(at(shared.sums_of(group, 0)), end);
    end = at(shared.sums_of(group, plan.tasks_of_group() - 1) + learned.slots);
  }
  EXPECT_LE(end, shared.group_bytes());
  const auto m = plan.memory_of_worker(group);  // any address will do
  EXPECT_LE(at(m.dropped + kKeyTile * plan.most_queries()), plan.worker_bytes());
}

TEST(BackwardPlan, PartsOfMemoryDoNotOverlap) {
  for (const Index dim : {1, 16, 61})
    for (const auto& [q_len, kv_len] : {std::pair<Index, Index>{70, 90}, {600, 90}, {70, 900}, {1200, 600}})
      for (const detail::LearnedSizes& learned :
           {detail::LearnedSizes{}, detail::LearnedSizes{5, 2, detail::Learning::apart}}) {
        const Problem p = problem_with(4, 2, q_len, kv_len, dim);
        expect_memory_apart<float>(p, learned);
        expect_memory_apart<double>(p, learned);
      }
}

}  // namespace
}  // namespace attn::test
