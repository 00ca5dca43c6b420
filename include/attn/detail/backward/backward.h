// The backward pass of attention, tile by tile (Dao et al. 2022, algorithm 4; Dao 2023, algorithm 2).
#pragma once

#include "attn/detail/backward/backward_loop.h"
#include "attn/detail/base/linker_hint.h"
#include "attn/isa.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// What shares out the tasks of a plan.
template <class T>
Executor backward_executor(const BackwardPlan<T>& plan, const Options& options) {
  return executor_for(plan.flops_of_group() * static_cast<double>(plan.groups()), options.executor);
}

template <class T, class = include_attn_instantiate_h_in_one_unit>
Index backward_bytes(const Problem& problem, const Options& options) {
  const BackwardPlan<T> plan(problem, options);
  const int workers = backward_executor(plan, options).concurrency();
  return Workspace::needed(plan.worker_bytes(), workers, plan.groups_at_a_time(workers) * plan.group_bytes());
}

/// Some groups at a time: their queries are brought in, then all pairs are visited, then what tasks have left is added
/// up.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void backward(const BackwardCall<T>& call, const Options& options) {
  const BackwardPlan<T> plan(call.tensors.problem, options);
  const BackwardLoop<T> loop(call, plan);
  const Executor executor = backward_executor(plan, options);
  const int workers = executor.concurrency();
  const Index together = plan.groups_at_a_time(workers);
  const Workspace workspace(plan.worker_bytes(), workers, options.workspace, together * plan.group_bytes());
  const auto memory_of = [&](Index group) {
    return workspace.shared() + group % std::max<Index>(together, 1) * plan.group_bytes();
  };
  for (Index first = 0; first < plan.groups(); first += together) {
    const Index groups = std::min(together, plan.groups() - first);
    const auto for_all = [&](Index of_group, const auto& visit) {
      executor.run(groups * of_group, [&](Index task, int worker) {
        const Index group = first + task / of_group;
        visit(group, task % of_group, workspace.of(worker));
      });
    };
    for_all(plan.tiles_of_group(),
            [&](Index group, Index tile, std::byte* memory) { loop.prepare(memory_of(group), group, tile, memory); });
    for_all(plan.tasks_of_group(), [&](Index group, Index task, std::byte* memory) {
      loop.run(memory_of(group), group, task / plan.query_parts(), task % plan.query_parts(), memory);
    });
    for_all(plan.tiles_of_group(),
            [&](Index group, Index tile, std::byte* memory) { loop.store_queries(memory_of(group), tile, memory); });
    if (plan.query_parts() > 1)
      for_all(plan.key_tiles(),
              [&](Index group, Index tile, std::byte*) { loop.store_keys(memory_of(group), group, tile); });
  }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
