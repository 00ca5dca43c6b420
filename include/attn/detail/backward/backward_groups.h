// Runs the groups of heads of a backward pass, dense or over listed keys.
#pragma once

#include <algorithm>
#include <cstddef>

#include "attn/detail/backward/backward_call.h"
#include "attn/detail/flash/query_tiles.h"
#include "attn/options.h"
#include "attn/parallel.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Bytes of memory that a plan needs with this many workers.
template <class Plan>
Index backward_bytes_of(const Plan& plan, int workers) {
  return Workspace::needed(plan.worker_bytes(), workers,
                           plan.sums_bytes() + plan.groups_at_a_time(workers) * plan.group_bytes());
}

/// Runs a backward pass on a few groups at a time, to bound its memory. For each such set of groups it calls `before`,
/// loop.run() for all tasks, and then `after`. It sums the parameter gradients of the tasks in a fixed order, so
/// results do not depend on threads. `before` and `after` get for_all(count, visit), which calls visit(group_memory,
/// group, i, worker_memory) for i in 0..`count` - 1 of each group, distributed over the workers.
template <class T, class Plan, class Loop, class Before, class After>
void run_groups(const BackwardCall<T>& call, const Plan& plan, const Loop& loop, const Workers& workers,
                const Options& options, const Before& before, const After& after) {
  const Index together = plan.groups_at_a_time(workers.count()), tasks = plan.tasks_of_group();
  const Workspace workspace(plan.worker_bytes(), workers.count(), options.workspace,
                            plan.sums_bytes() + together * plan.group_bytes());
  const auto memory_of = [&](Index group) {
    return workspace.shared() + plan.sums_bytes() + group % std::max<Index>(together, 1) * plan.group_bytes();
  };
  const LearnedSizes& learned = plan.learned();
  auto* const sums = plan.sums(workspace.shared());
  std::fill_n(sums, learned.slots + learned.sinks, GradientSum<T>(0));
  const auto run = [&](std::byte* group_memory, Index group, Index task, std::byte* memory) {
    auto* own = sums;
    if (learned.learning == Learning::apart && learned.slots > 0) {
      own = plan.sums_of(group_memory, task);
      std::fill_n(own, learned.slots, GradientSum<T>(0));
    }
    loop.run(group_memory, group, task, own, memory);
  };
  for (Index first = 0; first < plan.groups(); first += together) {
    const Index groups = std::min(together, plan.groups() - first);
    const auto for_all = [&](Index count, const auto& visit) {
      workers.run(groups * count, [&](Index i, int worker) {
        const Index group = first + i / count;
        visit(memory_of(group), group, i % count, workspace.of(worker));
      });
    };
    before(for_all);
    if (learned.learning == Learning::in_turn)
      for_all(1, [&](std::byte* group_memory, Index group, Index, std::byte* memory) {
        for (Index task = 0; task < tasks; ++task) run(group_memory, group, task, memory);
      });
    else
      for_all(tasks, run);
    after(for_all);
    for (Index group = first; call.learned && group < first + groups; ++group) {
      for (Index task = 0; learned.learning == Learning::apart && task < tasks; ++task) {
        const auto* const own = plan.sums_of(memory_of(group), task);
        for (Index slot = 0; slot < learned.slots; ++slot) sums[slot] += own[slot];
      }
      if (learned.sinks > 0 && !call.accumulates) loop.learn_sinks(memory_of(group), group, sums + learned.slots);
    }
  }
  if (call.learned) call.learned->add(sums, sums + learned.slots);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
