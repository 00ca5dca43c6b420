// The flash path over sequences of different lengths at once.
#pragma once

#include <cmath>
#include <span>

#include "attn/detail/base/fixed_vector.h"
#include "attn/detail/flash/flash.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// One sequence of several: its tensors, which are a batch of one, and its mods, as a single pass applies them.
template <class T>
struct Sequence {
  CallTensors<T> tensors;
  const TileMods<T>* mods;
};

/// Calls use(task list, executor, scheduled passes) with the sequences of a call, each as one pass. The longest tasks
/// come first, so that no worker ends long after the others. How the keys of a sequence are split does not depend on
/// the other sequences, and neither does its result.
template <class T, class Use>
void with_sequences(std::span<const Sequence<T>> sequences, const Options& options, const Use& use) {
  FixedVector<FlashPass<T>> calls(static_cast<Index>(sequences.size()));
  double flops = 0, kv_bytes = 0;
  for (const Sequence<T>& s : sequences) kv_bytes += s.tensors.kv_bytes();
  for (const Sequence<T>& s : sequences)
    flops += calls.add(s.tensors, s.mods, kernels_for(s.tensors, options), options.accumulate, kv_bytes).flops();
  const Executor& executor = executor_for(flops, options.executor);
  FixedVector<ScheduledPass<T>> cut(static_cast<Index>(sequences.size()));
  // A sequence is cut for twice the workers that its share of the work keeps busy, not for all workers: larger tasks
  // read memory in longer runs.
  const double workers = executor.concurrency();
  for (const FlashPass<T>& call : calls.all()) {
    const double share = flops > 0 ? call.flops() / flops : 1;
    cut.add(call, static_cast<Index>(std::clamp(std::ceil(2 * share * workers), 1.0, workers)));
  }
  const std::span scheduled = cut.all();
  const auto of_task = [](const ScheduledPass<T>& s) {
    return s.pass->flops() / static_cast<double>(std::max<Index>(s.partition.tasks, 1));
  };
  if (scheduled.size() > 1)
    std::stable_sort(scheduled.begin(), scheduled.end(),
                     [&](const auto& a, const auto& b) { return of_task(a) > of_task(b); });
  use(TaskList<T>(scheduled), executor, std::span<const ScheduledPass<T>>(scheduled));
}

template <class T, class = include_attn_instantiate_h_in_one_unit>
void flash_sequences(std::span<const Sequence<T>> sequences, const Options& options) {
  with_sequences(sequences, options, [&](const TaskList<T>& run, const Executor& executor, const auto&) {
    run.run(executor, options.workspace);
  });
}

template <class T, class = include_attn_instantiate_h_in_one_unit>
Index sequences_workspace_bytes(std::span<const Sequence<T>> sequences, const Options& options) {
  Index bytes = 0;
  with_sequences(sequences, options, [&](const TaskList<T>& run, const Executor& executor, const auto&) {
    bytes = run.workspace_bytes(executor.concurrency());
  });
  return bytes;
}

template <class T, class = include_attn_instantiate_h_in_one_unit>
Explanation sequences_explanation(std::span<const Sequence<T>> sequences, const Options& options) {
  Explanation e;
  e.ignored_isa = ignored_isa(options);
  with_sequences(sequences, options, [&](const TaskList<T>& run, const Executor& executor, const auto& scheduled) {
    for (const ScheduledPass<T>& s : scheduled) s.pass->explain(s.partition, e);
    e.passes = std::min(e.passes, 1);
    explain_tasks(run, executor, e);
    e.workspace_bytes = run.workspace_bytes(executor.concurrency());
  });
  return e;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
