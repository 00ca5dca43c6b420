// The backward pass of a call whose queries list their keys.
#pragma once

#include "attn/detail/backward/listed_loop.h"
#include "attn/detail/base/linker_hint.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T>
Executor listed_executor(const ListedPlan<T>& plan, const Options& options) {
  return executor_for(plan.flops(), options.executor);
}

/// The memory that such a call needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index listed_backward_bytes(const Problem& problem, const LearnedSizes& learned, const ListGathering& gathering,
                            const Options& options) {
  const ListedPlan<T> plan(problem, learned, gathering, options);
  const int workers = listed_executor(plan, options).concurrency();
  return Workspace::needed(plan.worker_bytes(), workers,
                           plan.sums_bytes() + plan.groups_at_a_time(workers) * plan.group_bytes());
}

/// Some groups at a time, as backward() takes them: first their queries, then their keys.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void listed_backward(const BackwardCall<T>& call, const ListedCall<T>& listed, const Options& options) {
  const ListedPlan<T> plan(call.tensors.problem, LearnedSizes::of(call.learned), listed.gathering(), options);
  const ListedLoop<T> loop(call, listed, plan);
  const Executor executor = listed_executor(plan, options);
  const int workers = executor.concurrency();
  const Index together = plan.groups_at_a_time(workers), tasks = plan.query_tasks();
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
    loop.run_queries(memory_of(group), group, plan.queries_of(task), own, memory);
  };
  for (Index first = 0; first < plan.groups(); first += together) {
    const Index groups = std::min(together, plan.groups() - first);
    const auto for_all = [&](Index of_group, const auto& visit) {
      executor.run(groups * of_group, [&](Index task, int worker) {
        visit(first + task / of_group, task % of_group, workspace.of(worker));
      });
    };
    if (learned.learning == Learning::in_turn)
      for_all(1, [&](Index group, Index, std::byte* memory) {
        for (Index task = 0; task < tasks; ++task) run(group, task, memory);
      });
    else
      for_all(tasks, run);
    for_all(plan.key_tasks(), [&](Index group, Index task, std::byte* memory) {
      loop.run_keys(memory_of(group), group, plan.keys_of(task), memory);
    });
    for (Index group = first; call.learned && group < first + groups; ++group) {
      for (Index task = 0; learned.learning == Learning::apart && task < tasks; ++task)
        for (Index slot = 0; slot < learned.slots; ++slot) sums[slot] += plan.sums_of(memory_of(group), task)[slot];
      if (learned.sinks > 0 && !call.accumulates) loop.learn_sinks(memory_of(group), group, sums + learned.slots);
    }
  }
  if (call.learned) call.learned->add(sums, sums + learned.slots);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
