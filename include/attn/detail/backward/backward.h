// The backward pass of attention, tile by tile (Dao et al. 2022, algorithm 4; Dao 2023, algorithm 2).
#pragma once

#include "attn/detail/backward/backward_loop.h"
#include "attn/detail/base/linker_hint.h"
#include "attn/isa.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Shares out the tasks of a plan.
template <class T>
Executor backward_executor(const BackwardPlan<T>& plan, const Options& options) {
  return executor_for(plan.flops_of_group() * static_cast<double>(plan.groups()), options.executor);
}

/// The most memory that a call needs. `may_round`: whether query, key and value suit the matrix unit; even then the
/// call may not use it.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index backward_bytes(const Problem& problem, const LearnedSizes& learned, const Options& options, bool may_round) {
  Index most = 0;
  for (const bool rounds : {false, may_round}) {
    const Bf16Products products = rounds ? Bf16Products::by_matrix_unit : Bf16Products::none;
    const BackwardPlan<T> plan(problem, learned, choose_kernels<T>(options, products));
    const int workers = backward_executor(plan, options).concurrency();
    const Index shared = plan.sums_bytes() + plan.groups_at_a_time(workers) * plan.group_bytes();
    most = std::max(most, Workspace::needed(plan.worker_bytes(), workers, shared));
  }
  return most;
}

/// Some groups at a time: their queries are brought in, all pairs are visited, and then the gradients that the tasks
/// have left are added up, always in the same order.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void backward(const BackwardCall<T>& call, const Options& options) {
  const BackwardPlan<T> plan(call.tensors.problem, LearnedSizes::of(call.learned, call.tensors.score),
                             backward_kernels_for(call, options));
  const BackwardLoop<T> loop(call, plan);
  const Executor executor = backward_executor(plan, options);
  const int workers = executor.concurrency();
  const Index together = plan.groups_at_a_time(workers), tasks = plan.tasks_of_group();
  const Workspace workspace(plan.worker_bytes(), workers, options.workspace,
                            plan.sums_bytes() + together * plan.group_bytes());
  const auto memory_of = [&](Index group) {
    return workspace.shared() + plan.sums_bytes() + group % std::max<Index>(together, 1) * plan.group_bytes();
  };
  const LearnedSizes& learned = plan.learned();
  auto* const sums = plan.sums(workspace.shared());
  std::fill_n(sums, learned.slots + learned.sinks, GradientSum<T>(0));
  const auto run = [&](Index group, Index task, std::byte* memory) {
    auto* own = sums;
    if (learned.learning == Learning::apart && learned.slots > 0) {
      own = plan.sums_of(memory_of(group), task);
      std::fill_n(own, learned.slots, GradientSum<T>(0));
    }
    loop.run(memory_of(group), group, task / plan.query_parts(), task % plan.query_parts(), own, memory);
  };
  for (Index first = 0; first < plan.groups(); first += together) {
    const Index groups = std::min(together, plan.groups() - first);
    const auto for_all = [&](Index of_group, const auto& visit) {
      executor.run(groups * of_group, [&](Index task, int worker) {
        visit(first + task / of_group, task % of_group, workspace.of(worker));
      });
    };
    for_all(plan.tiles_of_group(),
            [&](Index group, Index tile, std::byte* memory) { loop.prepare(memory_of(group), group, tile, memory); });
    if (learned.learning == Learning::in_turn)
      for_all(1, [&](Index group, Index, std::byte* memory) {
        for (Index task = 0; task < tasks; ++task) run(group, task, memory);
      });
    else
      for_all(tasks, run);
    for_all(plan.tiles_of_group(),
            [&](Index group, Index tile, std::byte* memory) { loop.store_queries(memory_of(group), tile, memory); });
    if (plan.query_parts() > 1)
      for_all(plan.key_tiles(),
              [&](Index group, Index tile, std::byte*) { loop.store_keys(memory_of(group), group, tile); });
    for (Index group = first; call.learned && group < first + groups; ++group) {
      for (Index task = 0; learned.learning == Learning::apart && task < tasks; ++task)
        for (Index slot = 0; slot < learned.slots; ++slot) sums[slot] += plan.sums_of(memory_of(group), task)[slot];
      for (Index tile = 0; learned.sinks > 0 && !call.accumulates && tile < plan.tiles_of_group(); ++tile)
        loop.learn_sinks(memory_of(group), tile, sums + learned.slots);
    }
  }
  if (call.learned) call.learned->add(sums, sums + learned.slots);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
