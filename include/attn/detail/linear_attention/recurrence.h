// A recurrence over all heads of a call.
#pragma once

#include <algorithm>
#include <vector>

#include "attn/detail/flash/query_tiles.h"
#include "attn/detail/linear_attention/backward_loop.h"
#include "attn/detail/linear_attention/forward_loop.h"
#include "attn/parallel.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How the heads of a call, or segments of them, become tasks.
template <class T>
class RecurrencePlan {
 public:
  RecurrencePlan(const RecurrenceCall<T>& call, const Options& options)
      : call_(call), workers_({call.flops()}, options.executor), most_segments_(most_segments(call)) {
    // Segments of a causal call are computed twice where threads share a head: first what they add, which is a third
    // of the work, and then their outputs. That pays where a third of the threads would have nothing to do otherwise.
    shares_heads_ = most_segments_ > 1 && 3 * call.states() <= 2 * workers_.count();
  }

  const Workers& workers() const { return workers_; }
  bool has_segments() const { return most_segments_ > 1; }
  /// Whether threads share heads, because there are not enough of these.
  bool shares_heads() const { return shares_heads_; }

  /// A worker's memory.
  Index bytes() const { return RecurrenceForwardLoop<T>::bytes(call_, has_segments()); }
  /// The sums of all segments.
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

/// The bytes of Options::workspace that recurrence() needs.
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const auto needed = [&](const RecurrenceCall<T>& c) {
    const RecurrencePlan<T> plan(c, options);
    return Workspace::needed(plan.bytes(), plan.workers().count(), plan.shared_bytes());
  };
  // A call with the caller's state needs no memory for its own, but also takes in keys that no row sees, which may make
  // more segments. Both are counted; the state here is neither read nor written.
  RecurrenceCall<T> with_state = call, without = call;
  T number;
  with_state.state = {&number, &number}, without.state = {};
  return std::max(needed(with_state), needed(without));
}

/// Few heads of long runs: the sums of their segments are formed side by side, added up in order, and then outputs are
/// written side by side.
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
    std::size_t segment;  ///< whose state it sees
    bool is_whole_run;    ///< the only segment of its run
  };
  std::vector<Segment> segments;
  std::vector<std::size_t> firsts;  // segments of runs
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
    // Nobody sees what the last one adds but a state of the caller's, or rows behind all keys.
    if (!call.is_causal || !s.is_last || call.state.sums) loop.add_segment(s.tokens, s.sums);
  });
  // The sums of a segment make way for the state in front of it, or behind it where rows see all keys.
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

/// Heads of keys and values are the tasks: each is a recurrence of its own, whoever runs it. Where there are too few of
/// them for the threads, segments are.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void recurrence(const RecurrenceCall<T>& call, const Options& options) {
  if (call.states() == 0) return;
  const VectorSet vectors = vectors_of(isa_of(options));
  const ChunkLoader<T> loader(call, recurrence_family<T>(vectors), kernel_family<T>(vectors));
  const RecurrencePlan<T> plan(call, options);
  const Workers& workers = plan.workers();
  const Workspace workspace(plan.bytes(), workers.count(), options.workspace, plan.shared_bytes());
  if (plan.shares_heads()) return recurrence_in_segments(call, plan, loader, workspace);
  // A worker's memory is laid out once for a task. A task of a single token would spend much of its time on that.
  constexpr Index kTasksPerWorker = 8;
  const Index tasks = workers.count() == 1 ? 1 : std::min(call.states(), kTasksPerWorker * workers.count());
  workers.run(tasks, [&](Index task, int worker) {
    RecurrenceForwardLoop<T> loop(call, loader, workspace.of(worker), plan.has_segments());
    for (Index i = call.states() * task / tasks; i < call.states() * (task + 1) / tasks; ++i)
      loop.run(i / call.problem.kv_heads, i % call.problem.kv_heads);
  });
}

/// The gradients of recurrence(). Nothing is allocated once something has been written, so that a gradient of a state
/// is handed on whole or not at all.
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
template <class T, class = include_attn_instantiate_h_in_one_unit>
Index recurrence_backward_bytes(const RecurrenceCall<T>& call, const Options& options) {
  const Workers workers({call.flops()}, options.executor);
  return Workspace::needed(RecurrenceBackwardLoop<T>::bytes(call, most_kept(call)), workers.count());
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
