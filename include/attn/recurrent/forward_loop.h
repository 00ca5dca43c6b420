// Forward pass of a recurrence. It computes chunks of tokens as matrix products, or single tokens.
#pragma once

#include "attn/recurrent/chunk_work.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The forward pass over heads of keys and values, and the query heads that share them.
template <class T>
class RecurrenceForwardLoop {
 public:
  RecurrenceForwardLoop(const RecurrenceCall<T>& call, const ChunkLoader<T>& loader, std::byte* memory,
                        bool in_segments)
      : arena_(memory), w_(call, loader, arena_, in_segments) {}

  /// `in_segments`: whether a run has several segments.
  static Index bytes(const RecurrenceCall<T>& call, bool in_segments) {
    return ChunkArena<T>::count([&](ChunkArena<T>& arena) { ChunkMemory<T>::take(arena, call, in_segments); });
  }

  void run(Index batch, Index kv_head) {
    w_.begin(batch, kv_head);
    for (const TokenRun& run : w_.call.runs.of(batch)) this->run(run);
  }

  /// Computes one run of the head that begin() has set up. A segment goes through the same steps here as in the
  /// functions below, in the same order, so that it gets the same bits.
  void run(const TokenRun& run) {
    const RecurrenceCall<T>& call = w_.call;
    if (!call.state.sums) w_.clear_state();
    const RunSegments segments(call, w_.batch, run);
    if (segments.count() == 1) return visit(run);
    const HeadState<T> total = w_.m.state;
    const SegmentSums<T>& own = w_.m.segment;
    for (Index s = 0; s < segments.count(); ++s) {
      const bool is_last = s == segments.count() - 1;
      const SegmentSums<T>* const sums = call.is_causal && is_last && !call.state.sums ? nullptr : &own;
      if (sums) own.clear(call);
      if (call.is_causal) {
        w_.m.running.copy_from(total, call);
        write_segment(segments.at(s), w_.m.running, sums);
      } else {
        add_segment(segments.at(s), own);
      }
      if (sums) own.advance(w_.kernels, call, total);
    }
    w_.m.state = total;
    if (!call.is_causal) read_all(run.rows);
  }

  void begin(Index batch, Index kv_head) { w_.begin(batch, kv_head); }
  const HeadState<T>& state() const { return w_.m.state; }
  const HeadState<T>& spare_state() const { return w_.m.running; }

  /// Computes the sums that the keys of a segment add, chunk by chunk. The segment's rows only decide where chunks
  /// begin.
  void add_segment(const TokenRun& segment, const SegmentSums<T>& sums) { visit(segment, nullptr, &sums); }
  /// Writes the outputs of a segment's rows, given the state before it, which becomes the state after it.
  void write_segment(const TokenRun& segment, const HeadState<T>& state, const SegmentSums<T>* sums = nullptr) {
    w_.m.state = state;
    visit(segment, &state, sums);
  }
  /// Writes the outputs of rows that see all keys; `state` includes these keys.
  void write_rows(Range rows, const HeadState<T>& state) {
    w_.m.state = state;
    read_all(rows);
  }

 private:
  /// Visits all chunks of a run. Keys are added to the given states, or to the head's if none is given. Given a segment
  /// without a running state, it only adds keys and computes no outputs.
  void visit(const TokenRun& run, const HeadState<T>* running = nullptr, const SegmentSums<T>* segment = nullptr) {
    const RecurrenceCall<T>& call = w_.call;
    running_ = running, segment_ = segment;
    const bool adds_only = segment && !running;
    for_each_chunk(run, call.problem.first_query_among_keys(w_.batch), call.is_causal, call.state.sums != nullptr,
                   call.chunk(), [&](const TokenChunk& chunk) {
                     if (call.problem.row_invariant && !chunk.keys.empty())
                       step(chunk);
                     else if (chunk.rows.empty() || (adds_only && !chunk.keys.empty()))
                       add(chunk.keys);
                     else if (adds_only)
                       return;
                     else if (chunk.keys.empty())
                       read(chunk.rows);
                     else if (chunk.tokens() == 1 && !in_segments())
                       step(chunk);
                     else
                       run_chunk(chunk);
                   });
  }
  bool in_segments() const { return running_ || segment_; }
  void add_to_state() {
    if (in_segments())
      w_.add_to_states(running_, segment_);
    else
      w_.add_to_state();
  }

  void read_all(Range rows) {
    const Index most = w_.call.chunk();
    for (Index r = rows.begin; r < rows.end; r += most) read({r, std::min(r + most, rows.end)});
  }

  void add(Range keys) {
    w_.load_keys(keys, false);
    add_to_state();
  }

  /// Computes the outputs of rows that see the state and no further keys. In gated forms such rows come after the last
  /// token, and their outputs are 0.
  void read(Range rows) {
    each_head(rows, [&](Rows<T> query, const Block<T>& to) {
      if (w_.call.is_normalised)
        w_.read_state(query, to);
      else
        for (Index i = 0; i < to.rows; ++i) std::fill_n(to.row(i), to.columns, T(0));
    });
  }

  void run_chunk(const TokenChunk& chunk) {
    w_.load_keys(chunk.keys, true);
    each_head(chunk.rows, [&](Rows<T> query, const Block<T>& to) {
      w_.read_decayed_state(query, to);
      for (const Term<T>& t : w_.terms()) {
        w_.compute_scores(query, to.rows, t, w_.m.scores);
        w_.add_seen_values(t, to);
      }
      if (w_.call.is_normalised)
        w_.kernels.add_dots(w_.m.numbers, query, w_.m.key_sums, to.rows, w_.m.key_sums.columns);
    });
    add_to_state();
  }

  /// Computes one token without matrix products, which would have single rows. If the token has no row of queries, the
  /// output is not needed.
  void step(const TokenChunk& chunk) {
    ChunkMemory<T>& m = w_.m;
    const RecurrenceCall<T>& call = w_.call;
    const bool by_feature = call.gates == Gates::of_features;
    w_.load_rows(chunk.keys, true);
    const auto advance = [&](const T* query, T* to) {
      w_.kernels.step({m.state.sums.data, m.state.sums.stride, call.features(), m.state.sums.columns,
                       m.gates.decay(by_feature), by_feature ? 1 : 0, w_.key().data, m.terms[0].value.data, query, to,
                       call.scale, call.has_reads() ? w_.reader.data : nullptr,
                       call.has_reads() && !call.has_beta() ? m.terms[1].key.data : nullptr, m.gates.written[0]});
      if (call.is_normalised) w_.add_normaliser(m.state, w_.key().data);
    };
    // A step that reads the state computes the output of its query from the state before the update, unlike
    // read_state(). With row_invariant, a head's bits must not depend on its place among those that share a key head,
    // so all heads use read_state().
    const bool reads_later = chunk.rows.empty() || (call.problem.row_invariant && call.has_reads());
    if (reads_later) advance(w_.key().data, m.out.data);
    if (chunk.rows.empty()) return;
    bool is_first = !reads_later;
    const auto compute = [&](Rows<T> query, const Block<T>& to) {
      if (is_first) {
        advance(query.data, to.data);
        is_first = false;
      } else {
        w_.read_state(query, to);
        if (call.scale != T(1)) w_.kernels.scale(to, call.scale, to, {});
      }
    };
    each_head(chunk.rows, compute, false);
  }

  /// Calls compute(queries, destination of their outputs) for some rows of each query head, and stores the outputs for
  /// the caller, divided by their normalisers. A normaliser is that of the state plus m.numbers, as compute() left it.
  /// Unless `scaled`, compute() multiplies by the scale.
  template <class Compute>
  void each_head(Range rows, const Compute& compute, bool scaled = true) {
    const Index first = w_.first_head();
    for (Index head = first; head < first + w_.call.group(); ++head) {
      const Rows<T> query = w_.load_queries(head, rows.begin, rows.size(), scaled);
      const Block<T> to = output(head, rows);
      if (w_.call.is_normalised) std::fill_n(w_.m.numbers, rows.size(), T(0));
      compute(query, to);
      if (w_.call.is_normalised) {
        w_.compute_inverse_normalisers(query, rows.size());
        w_.kernels.scale(to, w_.m.numbers, to, {});
      }
      if (to.data == w_.m.out.data)
        w_.loader.store(to, to.rows, w_.call.problem.v_dim, w_.call.out.rows(w_.batch, head, rows.begin));
    }
  }

  /// Returns where rows of the output are computed: in the caller's memory if kernels can write there, otherwise in a
  /// copy.
  Block<T> output(Index head, Range range) const {
    const RowsToWrite rows = w_.call.out.rows(w_.batch, head, range.begin);
    const Index columns = w_.call.row_of_values();
    if (rows.dtype == DType::native && rows.column == 1 && columns == w_.call.problem.v_dim)
      return {reinterpret_cast<T*>(rows.data), rows.stride, range.size(), columns};
    return w_.m.out.from(0, range.size());
  }

  ChunkArena<T> arena_;
  ChunkWork<T> w_;
  const HeadState<T>* running_ = nullptr;
  const SegmentSums<T>* segment_ = nullptr;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
