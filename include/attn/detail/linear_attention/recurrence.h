// A recurrence over all heads of a call.
#pragma once

#include "attn/detail/flash/query_tiles.h"
#include "attn/detail/linear_attention/backward_loop.h"
#include "attn/detail/linear_attention/forward_loop.h"
#include "attn/parallel.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The bytes of Options::workspace that recurrence() needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const Executor& executor = executor_for(call.flops(), options.executor);
  return Workspace::needed(RecurrenceForwardLoop<T>::bytes(call), executor.concurrency());
}

/// Heads of keys and values are the tasks: each is a recurrence of its own, whoever runs it.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void recurrence(const RecurrenceCall<T>& call, const Options& options) {
  if (call.states() == 0) return;
  const VectorSet vectors = vectors_of(isa_of(options));
  const ChunkLoader<T> loader(call, recurrence_family<T>(vectors), kernel_family<T>(vectors));
  const Executor& executor = executor_for(call.flops(), options.executor);
  const Workspace workspace(RecurrenceForwardLoop<T>::bytes(call), executor.concurrency(), options.workspace);
  // A worker's memory is laid out once for a task. A task of a single token would spend much of its time on that.
  constexpr Index kTasksPerWorker = 8;
  const Index workers = executor.concurrency();
  const Index tasks = workers == 1 ? 1 : std::min(call.states(), kTasksPerWorker * workers);
  executor.run(tasks, [&](Index task, int worker) {
    RecurrenceForwardLoop<T> loop(call, loader, workspace.of(worker));
    for (Index i = call.states() * task / tasks; i < call.states() * (task + 1) / tasks; ++i)
      loop.run(i / call.problem.kv_heads, i % call.problem.kv_heads);
  });
}

/// The gradients of recurrence().
template <class T, class = include_attn_instantiate_h_in_one_unit>
void recurrence_backward(const RecurrenceBackwardCall<T>& call, const Options& options) {
  const RecurrenceCall<T>& forward = call.forward;
  if (forward.states() == 0) return;
  const VectorSet vectors = vectors_of(isa_of(options));
  const ChunkLoader<T> loader(forward, recurrence_family<T>(vectors), kernel_family<T>(vectors));
  const Executor& executor = executor_for(forward.flops(), options.executor);
  const Index states = most_states_kept(forward);
  const Workspace workspace(RecurrenceBackwardChunk<T>::bytes(forward, states), executor.concurrency(),
                            options.workspace);
  executor.run(forward.states(), [&](Index task, int worker) {
    RecurrenceBackwardLoop<T>(call, loader, workspace.of(worker), states)
        .run(task / forward.problem.kv_heads, task % forward.problem.kv_heads);
  });
}
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_backward_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const Executor& executor = executor_for(call.flops(), options.executor);
  return Workspace::needed(RecurrenceBackwardChunk<T>::bytes(call, most_states_kept(call)), executor.concurrency());
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
