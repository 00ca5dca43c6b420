// A recurrence over all heads of a call.
#pragma once

#include <algorithm>
#include <vector>

#include "attn/core/base/compiled_once.h"
#include "attn/core/flash/query_tiles.h"
#include "attn/parallel.h"
#include "attn/recurrent/backward_loop.h"
#include "attn/recurrent/forward_loop.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Divides a call into tasks: heads, or segments of them.
template <class T>
class RecurrencePlan {
 public:
  RecurrencePlan(const RecurrenceCall<T>& call, const Options& options)
      : call_(call), workers_({call.flops()}, options.executor), most_segments_(most_segments(call)) {
    // If threads share a head, segments of a causal call are computed twice: first the sums that they add, which are a
    // third of the work, and then their outputs. That pays if a third of the threads would be idle otherwise.
    shares_heads_ = most_segments_ > 1 && 3 * call.states() <= 2 * workers_.count();
  }

  const Workers& workers() const { return workers_; }
  bool has_segments() const { return most_segments_ > 1; }
  /// Whether threads share heads, because there are too few heads.
  bool shares_heads() const { return shares_heads_; }

  /// Bytes of a worker's memory.
  Index bytes() const { return RecurrenceForwardLoop<T>::bytes(call_, has_segments()); }
  /// Bytes of the sums of all segments.
  Index shared_bytes() const {
    if (!shares_heads_) return 0;
    const auto lay_out = [&](ChunkArena<T>& arena) {
      for_each_run([&](Index, Index, const TokenRun&, const RunSegments& segments) {
        for (Index s = 0; segments.count() > 1 && s < segments.count(); ++s) SegmentSums<T>::take(arena, call_);
      });
    };
    return ChunkArena<T>::count(lay_out);
  }

  /// Calls visit(batch, kv_head, run, segments) for the runs of all heads.
  template <class Visit>
  void for_each_run(const Visit& visit) const {
    for (Index b = 0; b < call_.problem.batch; ++b)
      for (Index h = 0; h < call_.problem.kv_heads; ++h)
        for (const TokenRun& run : call_.runs.of(b)) visit(b, h, run, RunSegments(call_, b, run));
  }

 private:
  const RecurrenceCall<T>& call_;
  Workers workers_;
  Index most_segments_;
  bool shares_heads_;
};

/// Returns the size in bytes of the Options::workspace that recurrence() needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const auto needed = [&](const RecurrenceCall<T>& c) {
    const RecurrencePlan<T> plan(c, options);
    return Workspace::needed(plan.bytes(), plan.workers().count(), plan.shared_bytes());
  };
  // A call with the caller's state needs no memory for its own, but also processes keys that no row sees, which may
  // make more segments. This returns the larger of the two sizes; the state here is neither read nor written.
  RecurrenceCall<T> with_state = call, without = call;
  T number;
  with_state.state = {&number, &number}, without.state = {};
  return std::max(needed(with_state), needed(without));
}
ATTN_COMPILED_ONCE(recurrence_bytes)

/// For a few heads with long runs: computes the sums of their segments in parallel, accumulates them in order, and then
/// writes outputs in parallel.
template <class T>
void recurrence_in_segments(const RecurrenceCall<T>& call, const RecurrencePlan<T>& plan, const ChunkLoader<T>& loader,
                            const Workspace& workspace) {
  struct Segment {
    Index batch, kv_head;
    TokenRun tokens;
    SegmentSums<T> sums;
    bool is_last;
  };
  struct Output {
    Index batch, kv_head;
    TokenRun tokens;
    std::size_t segment;  ///< index of the segment whose state these rows see
    bool is_whole_run;    ///< whether it is the only segment of its run
  };
  std::vector<Segment> segments;
  std::vector<std::size_t> firsts;  // first segment of each run
  std::vector<Output> outputs;
  ChunkArena<T> arena(workspace.shared());
  plan.for_each_run([&](Index b, Index h, const TokenRun& run, const RunSegments& of) {
    if (of.count() == 1) return outputs.push_back({b, h, run, 0, true});
    firsts.push_back(segments.size());
    for (Index s = 0; s < of.count(); ++s) {
      if (call.is_causal) outputs.push_back({b, h, of.at(s), segments.size(), false});
      segments.push_back({b, h, of.at(s), SegmentSums<T>::take(arena, call), s == of.count() - 1});
    }
    for (Index r = run.rows.begin; r < run.rows.end && !call.is_causal; r += kSegment)
      outputs.push_back({b, h, {{r, std::min(r + kSegment, run.rows.end)}, {}}, segments.size() - 1, false});
  });
  const auto each = [&](std::size_t tasks, const auto& use) {
    plan.workers().run(static_cast<Index>(tasks), [&](Index task, int worker) {
      RecurrenceForwardLoop<T> loop(call, loader, workspace.of(worker), true);
      use(loop, static_cast<std::size_t>(task));
    });
  };
  each(segments.size(), [&](RecurrenceForwardLoop<T>& loop, std::size_t i) {
    const Segment& s = segments[i];
    loop.begin(s.batch, s.kv_head);
    s.sums.clear(call);
    // The sums of the last segment are needed only for a state of the caller, or for rows that see all keys.
    if (!call.is_causal || !s.is_last || call.state.sums) loop.add_segment(s.tokens, s.sums);
  });
  // The sums of a segment are replaced by the state before it, or by the state after it if rows see all keys.
  each(firsts.size(), [&](RecurrenceForwardLoop<T>& loop, std::size_t i) {
    const Segment* s = segments.data() + firsts[i];
    loop.begin(s->batch, s->kv_head);
    const HeadState<T>&state = loop.state(), &before = loop.spare_state();
    if (!call.state.sums) state.clear(call);
    for (bool is_last = false; !is_last; ++s) {
      is_last = s->is_last;
      before.copy_from(state, call);
      s->sums.advance(loader.kernels(), call, state);
      s->sums.sums.copy_from(call.is_causal ? before : state, call);
    }
  });
  each(outputs.size(), [&](RecurrenceForwardLoop<T>& loop, std::size_t i) {
    const Output& o = outputs[i];
    loop.begin(o.batch, o.kv_head);
    if (o.is_whole_run)
      loop.run(o.tokens);
    else if (call.is_causal)
      loop.write_segment(o.tokens, segments[o.segment].sums.sums);
    else
      loop.write_rows(o.tokens.rows, segments[o.segment].sums.sums);
  });
}

/// Computes a recurrence. Heads of keys and values are independent, and a task computes one or more of them. If there
/// are too few heads for the threads, segments are the tasks.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void recurrence(const RecurrenceCall<T>& call, const Options& options) {
  if (call.states() == 0) return;
  const VectorSet vectors = vectors_of(isa_of(options));
  const ChunkLoader<T> loader(call, recurrence_family<T>(vectors), kernel_family<T>(vectors));
  const RecurrencePlan<T> plan(call, options);
  const Workers& workers = plan.workers();
  const Workspace workspace(plan.bytes(), workers.count(), options.workspace, plan.shared_bytes());
  if (plan.shares_heads()) return recurrence_in_segments(call, plan, loader, workspace);
  // A worker's memory is laid out once per task. That would take much of the time of a task with a single token, so a
  // task has several heads if there are many.
  constexpr Index kTasksPerWorker = 8;
  const Index tasks = workers.count() == 1 ? 1 : std::min(call.states(), kTasksPerWorker * workers.count());
  workers.run(tasks, [&](Index task, int worker) {
    RecurrenceForwardLoop<T> loop(call, loader, workspace.of(worker), plan.has_segments());
    for (Index i = call.states() * task / tasks; i < call.states() * (task + 1) / tasks; ++i)
      loop.run(i / call.problem.kv_heads, i % call.problem.kv_heads);
  });
}
ATTN_COMPILED_ONCE(recurrence)

/// Computes the gradients of recurrence(). All memory is allocated before anything is written, so that the gradient of
/// a state is returned completely or not at all.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void recurrence_backward(const RecurrenceBackwardCall<T>& call, const Options& options) {
  const RecurrenceCall<T>& forward = call.forward;
  if (forward.states() == 0) return;
  const VectorSet vectors = vectors_of(isa_of(options));
  const ChunkLoader<T> loader(forward, recurrence_family<T>(vectors), kernel_family<T>(vectors));
  const Workers workers({forward.flops()}, options.executor);
  const KeptOfRun kept = most_kept(forward);
  const Workspace workspace(RecurrenceBackwardLoop<T>::bytes(forward, kept), workers.count(), options.workspace);
  workers.run(forward.states(), [&](Index task, int worker) {
    RecurrenceBackwardLoop<T>(call, loader, workspace.of(worker), kept)
        .run(task / forward.problem.kv_heads, task % forward.problem.kv_heads);
  });
}
ATTN_COMPILED_ONCE(recurrence_backward)
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_backward_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const Workers workers({call.flops()}, options.executor);
  return Workspace::needed(RecurrenceBackwardLoop<T>::bytes(call, most_kept(call)), workers.count());
}
ATTN_COMPILED_ONCE(recurrence_backward_bytes)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
