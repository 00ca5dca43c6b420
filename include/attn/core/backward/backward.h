// The backward pass of attention, tile by tile (Dao et al. 2022, algorithm 4; Dao 2023, algorithm 2), or over the keys
// that queries list.
#pragma once

#include <algorithm>
#include <cstddef>

#include "attn/core/backward/backward_loop.h"
#include "attn/core/backward/listed_loop.h"
#include "attn/core/base/compiled_once.h"
#include "attn/core/flash/query_tiles.h"
#include "attn/isa.h"
#include "attn/options.h"
#include "attn/parallel.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The memory that workers share: the sums of the gradients of mods' parameters over all tasks, and the memory of the
/// few groups processed at a time. A group has the memory that its plan lays out, followed by the sums of each task if
/// tasks have separate sums.
template <class T>
class GroupMemory {
 public:
  using Sum = GradientSum<T>;

  template <class Plan>
  GroupMemory(const Plan& plan, int workers)
      : learned_(plan.learned()), bytes_of_plan_(plan.group_bytes()), tasks_(plan.tasks_of_group()) {
    together_ = has_own_sums() ? plan.groups_at_a_time(workers) : std::min<Index>(plan.groups(), 1);
  }

  Index groups_at_a_time() const { return together_; }
  /// Whether tasks have separate sums.
  bool has_own_sums() const { return learned_.learning == Learning::apart; }

  Index bytes() const { return sums_bytes() + together_ * group_bytes(); }
  Index group_bytes() const { return bytes_of_plan_ + tasks_ * task_bytes(); }

  Sum* sums(std::byte* memory) const { return reinterpret_cast<Sum*>(memory); }
  std::byte* group(std::byte* memory, Index group) const {
    return memory + sums_bytes() + group % std::max<Index>(together_, 1) * group_bytes();
  }
  Sum* sums_of(std::byte* group_memory, Index task) const {
    return reinterpret_cast<Sum*>(group_memory + bytes_of_plan_ + task * task_bytes());
  }

 private:
  Index sums_bytes() const { return bytes_of(learned_.slots + learned_.sinks); }
  Index task_bytes() const { return has_own_sums() ? bytes_of(learned_.slots) : 0; }
  static Index bytes_of(Index sums) { return padded(sums * static_cast<Index>(sizeof(Sum)), kAlignment); }

  LearnedSizes learned_;
  Index bytes_of_plan_, tasks_, together_;
};

/// Bytes of memory that a plan needs with as many workers as its flops justify.
template <class T, class Plan>
Index backward_bytes_of(const Plan& plan, const Options& options) {
  const int workers = Workers({plan.flops()}, options.executor).count();
  return Workspace::needed(plan.worker_bytes(), workers, GroupMemory<T>(plan, workers).bytes());
}

/// Runs a backward pass on a few groups at a time, to bound its memory. For each such set of groups it calls `before`,
/// loop.run() for all tasks, and then `after`. It sums the parameter gradients of the tasks in a fixed order, so
/// results do not depend on threads. `before` and `after` get for_all(count, visit), which calls visit(group_memory,
/// group, i, worker_memory) for i in 0..`count` - 1 of each group, distributed over the workers.
template <class T, class Plan, class Loop, class Before, class After>
void run_groups(const BackwardCall<T>& call, const Plan& plan, const Loop& loop, const Options& options,
                const Before& before, const After& after) {
  const Workers workers({plan.flops()}, options.executor);
  const GroupMemory<T> memory(plan, workers.count());
  const Workspace workspace(plan.worker_bytes(), workers.count(), options.workspace, memory.bytes());
  const Index together = memory.groups_at_a_time(), tasks = plan.tasks_of_group();
  const auto memory_of = [&](Index group) { return memory.group(workspace.shared(), group); };
  const LearnedSizes& learned = plan.learned();
  auto* const sums = memory.sums(workspace.shared());
  std::fill_n(sums, learned.slots + learned.sinks, GradientSum<T>(0));
  const auto run = [&](std::byte* group_memory, Index group, Index task, std::byte* worker_memory) {
    auto* own = sums;
    if (memory.has_own_sums() && learned.slots > 0) {
      own = memory.sums_of(group_memory, task);
      std::fill_n(own, learned.slots, GradientSum<T>(0));
    }
    loop.run(group_memory, group, task, own, worker_memory);
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
      for_all(1, [&](std::byte* group_memory, Index group, Index, std::byte* worker_memory) {
        for (Index task = 0; task < tasks; ++task) run(group_memory, group, task, worker_memory);
      });
    else
      for_all(tasks, run);
    after(for_all);
    for (Index group = first; call.learned && group < first + groups; ++group) {
      for (Index task = 0; memory.has_own_sums() && task < tasks; ++task) {
        const auto* const own = memory.sums_of(memory_of(group), task);
        for (Index slot = 0; slot < learned.slots; ++slot) sums[slot] += own[slot];
      }
      if (learned.sinks > 0 && !call.accumulates) loop.learn_sinks(memory_of(group), group, sums + learned.slots);
    }
  }
  if (call.learned) call.learned->add(sums, sums + learned.slots);
}

/// The maximum number of bytes of memory that a call may need. `may_round`: whether query, key and value suit the
/// kernels for bf16; the call may run without them even then.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index backward_bytes(const Problem& problem, const LearnedSizes& learned, const KernelChoice<T>& kernels,
                     const Options& options, bool may_round) {
  Index most = 0;
  for (const bool rounds : {false, may_round}) {
    const Bf16Products products = rounds ? Bf16Products::by_any : Bf16Products::none;
    const BackwardPlan<T> plan(problem, learned, kernels.choose(options, products));
    most = std::max(most, backward_bytes_of<T>(plan, options));
  }
  return most;
}
ATTN_COMPILED_ONCE(backward_bytes)

/// Runs a backward pass over tiles: prepares queries, visits all pairs, and then sums the tasks' gradients, always in
/// the same order.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void backward(const BackwardCall<T>& call, const Options& options) {
  const BackwardPlan<T> plan(call.tensors.problem, LearnedSizes::of(call.learned, call.tensors.score),
                             backward_kernels_for(call, options));
  const BackwardLoop<T> loop(call, plan);
  const auto prepare = [&](const auto& for_all) {
    for_all(plan.tiles_of_group(), [&](std::byte* group_memory, Index group, Index tile, std::byte* memory) {
      loop.prepare(group_memory, group, tile, memory);
    });
  };
  const auto store = [&](const auto& for_all) {
    for_all(plan.tiles_of_group(), [&](std::byte* group_memory, Index, Index tile, std::byte* memory) {
      loop.store_queries(group_memory, tile, memory);
    });
    if (plan.query_parts() > 1)
      for_all(plan.key_tiles(), [&](std::byte* group_memory, Index group, Index tile, std::byte*) {
        loop.store_keys(group_memory, group, tile);
      });
  };
  run_groups(call, plan, loop, options, prepare, store);
}
ATTN_COMPILED_ONCE(backward)

/// Bytes of memory that a backward pass over listed keys needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index listed_backward_bytes(const Problem& problem, const LearnedSizes& learned, const ListGathering& gathering,
                            const KernelChoice<T>& kernels, const Options& options) {
  const ListedPlan<T> plan(problem, learned, gathering, kernels.choose(options, Bf16Products::none));
  return backward_bytes_of<T>(plan, options);
}
ATTN_COMPILED_ONCE(listed_backward_bytes)

/// Runs a backward pass over listed keys: first the queries, then the keys.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void listed_backward(const BackwardCall<T>& call, const ListedCall<T>& listed, const Options& options) {
  const ListedPlan<T> plan(call.tensors.problem, LearnedSizes::of(call.learned), listed.gathering(),
                           call.tensors.kernels.choose(options, Bf16Products::none));
  const ListedLoop<T> loop(call, listed, plan);
  const auto run_keys = [&](const auto& for_all) {
    for_all(plan.key_tasks(), [&](std::byte* group_memory, Index group, Index task, std::byte* memory) {
      loop.run_keys(group_memory, group, task, memory);
    });
  };
  run_groups(
      call, plan, loop, options, [](const auto&) {}, run_keys);
}
ATTN_COMPILED_ONCE(listed_backward)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
