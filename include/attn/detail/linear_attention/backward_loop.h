// The backward pass of a recurrence: chunks from the last to the first, each with the state in front of it, which a
// forward pass has kept.
#pragma once

#include "attn/detail/linear_attention/backward_chunk.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The gradients of one head of keys and values at a time, and of the query heads that share it.
template <class T>
class RecurrenceBackwardLoop {
 public:
  RecurrenceBackwardLoop(const RecurrenceBackwardCall<T>& call, const ChunkLoader<T>& loader, std::byte* memory,
                         const KeptOfRun& kept)
      : call_(call), chunk_(call, loader, memory, kept), w_(chunk_.work()), m_(chunk_.memory()) {}

  void run(Index batch, Index kv_head) {
    w_.begin(batch, kv_head);
    clear_gradients();
    for (const TokenRun& run : w_.call.runs.of(batch)) run_back(run);
  }

 private:
  /// Keys that no row sees, and rows that see nothing, have gradients of 0.
  void clear_gradients() {
    const auto clear = [&](const DTypeView<T>& t, Index head) {
      if (!t.data()) return;
      const RowsToWrite rows = t.rows(w_.batch, head);
      for (Index i = 0; i < t.dim(2); ++i)
        for (Index c = 0; c < t.dim(3); ++c) store_number(rows, i, c, T(0));
    };
    for (const DTypeView<T>* t : {&call_.grad_k, &call_.grad_v, &call_.grad_gate, &call_.grad_beta})
      clear(*t, w_.kv_head);
    for (Index g = 0; g < w_.call.group(); ++g) clear(call_.grad_q, w_.first_head() + g);
  }

  void run_back(const TokenRun& run) {
    const bool goes_on = call_.grad_state.sums != nullptr;  // behind the call
    begin_state();
    Index states = 0, chunks = 0;
    bool is_new = true;  // whether the state has changed since one was kept
    for_each_chunk(run, w_.call.problem.first_query_among_keys(w_.batch), w_.call.is_causal, goes_on,
                   [&](const TokenChunk& chunk) {
                     if (!chunk.rows.empty() && is_new) keep(states++);
                     is_new = !chunk.keys.empty();
                     m_.chunks[chunks++] = {chunk, states - 1};
                     if (chunk.keys.empty()) return;
                     w_.load_keys(chunk.keys, false);
                     w_.add_to_state();
                   });
    begin_gradient();
    bool is_seen = goes_on;  // by rows of the chunks behind
    while (chunks-- > 0) {
      const KeptChunk& c = m_.chunks[chunks];
      if (!c.tokens.rows.empty())
        restore(c.state);
      else if (!is_seen)
        continue;
      chunk_.run(c.tokens);
      is_seen = true;
    }
    if (goes_on) hand_on_gradient();
  }

  /// The state in front of the first token.
  void begin_state() {
    w_.clear_state();
    if (!call_.before.sums) return;
    std::copy_n(call_.before.sums + first_number(), w_.call.size_of_state(), w_.m.state.sums.data);
    std::copy_n(call_.before.normaliser + first_of_normaliser(), w_.call.row_of_features(), w_.m.state.normaliser);
  }
  /// The gradient of the state behind the last token.
  void begin_gradient() {
    std::fill_n(m_.grad_state.data, w_.call.size_of_state(), T(0));
    std::fill_n(m_.grad_normaliser, w_.call.row_of_features(), T(0));
    if (!call_.grad_state.sums) return;
    std::copy_n(call_.grad_state.sums + first_number(), w_.call.size_of_state(), m_.grad_state.data);
    if (w_.call.is_normalised)
      std::copy_n(call_.grad_state.normaliser + first_of_normaliser(), w_.call.row_of_features(), m_.grad_normaliser);
  }
  void hand_on_gradient() {
    std::copy_n(m_.grad_state.data, w_.call.size_of_state(), call_.grad_state.sums + first_number());
    std::copy_n(m_.grad_normaliser, w_.call.row_of_features(), call_.grad_state.normaliser + first_of_normaliser());
  }
  /// Where the state of the present head begins in the memory of all states.
  Index first_number() const { return w_.head_number() * w_.call.size_of_state(); }
  Index first_of_normaliser() const { return w_.head_number() * w_.call.row_of_features(); }

  void keep(Index state) {
    const Block<T>& s = w_.m.state.sums;
    T* const to = m_.states.row(state);
    std::copy_n(s.data, s.rows * s.stride, to);
    std::copy_n(w_.m.state.normaliser, w_.call.row_of_features(), to + s.rows * s.stride);
  }
  void restore(Index state) {
    const Block<T>& s = w_.m.state.sums;
    const T* const from = m_.states.row(state);
    std::copy_n(from, s.rows * s.stride, s.data);
    std::copy_n(from + s.rows * s.stride, w_.call.row_of_features(), w_.m.state.normaliser);
  }

  const RecurrenceBackwardCall<T>& call_;
  RecurrenceBackwardChunk<T> chunk_;
  ChunkWork<T>& w_;
  RecurrenceBackwardMemory<T>& m_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
