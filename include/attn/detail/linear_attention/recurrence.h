// A recurrence over all heads of a call.
#pragma once

#include "attn/detail/flash/query_tiles.h"
#include "attn/detail/linear_attention/forward_loop.h"
#include "attn/parallel.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The bytes of Options::workspace that recurrence() needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const Executor& executor = executor_for(call.flops(), options.executor);
  return Workspace::needed(ForwardLoop<T>::bytes(call), executor.concurrency());
}

/// Heads of keys and values are the tasks: each is a recurrence of its own, whoever runs it.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void recurrence(const RecurrenceCall<T>& call, const Options& options) {
  if (call.states() == 0) return;
  const VectorSet vectors = vectors_of(isa_of(options));
  const ChunkLoader<T> loader(call, recurrence_family<T>(vectors), kernel_family<T>(vectors));
  const Executor& executor = executor_for(call.flops(), options.executor);
  const Workspace workspace(ForwardLoop<T>::bytes(call), executor.concurrency(), options.workspace);
  // A worker's memory is laid out once for a task, which a single token of a head would feel.
  constexpr Index kTasksPerWorker = 8;
  const Index workers = executor.concurrency();
  const Index tasks = workers == 1 ? 1 : std::min(call.states(), kTasksPerWorker * workers);
  executor.run(tasks, [&](Index task, int worker) {
    ForwardLoop<T> loop(call, loader, workspace.of(worker));
    for (Index i = call.states() * task / tasks; i < call.states() * (task + 1) / tasks; ++i)
      loop.run(i / call.problem.kv_heads, i % call.problem.kv_heads);
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
