// What the backward pass of a recurrence is given, and the memory that it works in.
#pragma once

#include "attn/detail/linear_attention/chunk_work.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T>
struct RecurrenceBackwardCall {
  const RecurrenceCall<T>& forward;  ///< its output and state are not used
  DTypeView<const T> grad_out;
  DTypeView<T> grad_q, grad_k, grad_v;
  DTypeView<T> grad_gate{}, grad_beta{};  ///< shaped as gate and beta; null where there are none
  StateMemory<const T> before{};          ///< the state that the call began with; null: 0
  /// The gradient of the state behind the call, which becomes that of the state before it. Null: the loss depends on
  /// neither.
  StateMemory<T> grad_state{};
};

/// A worker's memory for one head of keys and values, in addition to that of the forward pass.
template <class T>
struct RecurrenceBackwardMemory {
  Block<T> states;      ///< (states kept, features * v_dim + features)
  Block<T> grad_state;  ///< (features, v_dim): of the state behind the present chunk, then of that before it
  T* grad_normaliser;   ///< (features)
  Block<T> turned;      ///< (v_dim, features): a state or its gradient, transposed
  T* columns;           ///< (v_dim, tokens): values transposed
  Block<T> grad_out, grad_value, grad_key, grad_query, seen, sums, faded, grad_raw, grad_scores, grad_gates;
  T* numbers;   ///< (tokens)
  T* entering;  ///< (tokens): of a token gate, what its decay since before the chunk makes of the loss
  T* leaving;   ///< (tokens): likewise its decay up to the end of the chunk
  T* gates;     ///< (tokens)
  T* ones;      ///< (tokens)

  static RecurrenceBackwardMemory take(Pieces<T>& pieces, const RecurrenceCall<T>& call, Index states) {
    const Index in = call.row_of_inputs(), f = call.row_of_features(), v = call.row_of_values();
    const bool by_feature = call.gates == Gates::of_features;
    RecurrenceBackwardMemory m;
    m.states = pieces.take(states, call.features() * v + f);
    m.grad_state = pieces.take(call.features(), v);
    m.grad_normaliser = pieces.take(f);
    m.turned = pieces.take(v, f);
    m.columns = pieces.take(v * kChunk);
    m.grad_out = pieces.take(kChunk, v);
    m.grad_value = pieces.take(kChunk, v);
    for (Block<T>* rows : {&m.grad_key, &m.grad_query, &m.seen, &m.sums, &m.faded}) *rows = pieces.take(kChunk, f);
    m.grad_raw = pieces.take(kChunk, in);
    m.grad_scores = pieces.take(kChunk, kChunk);
    m.grad_gates = pieces.take(by_feature ? kChunk : 0, f);
    for (T** numbers : {&m.numbers, &m.entering, &m.leaving, &m.gates, &m.ones}) *numbers = pieces.take(kChunk);
    return m;
  }
};

/// The states that the backward pass keeps of a run of a head's tokens: one in front of each chunk that has queries, or
/// one for all rows that see the same. So memory grows with the length of a run, by features * v_dim numbers for each
/// 64 tokens. Runs follow one another in the same memory.
template <class T>
Index most_states_kept(const RecurrenceCall<T>& call) {
  Index most = 0;
  for (Index b = 0; b < call.problem.batch; ++b)
    for (const TokenRun& run : call.runs.of(b)) {
      Index kept = 2;  // in front of the rows before all keys, and of those behind them
      for_each_chunk(run, call.problem.first_query_among_keys(b), call.is_causal, false,
                     [&](const TokenChunk& chunk) { kept += !chunk.keys.empty() && !chunk.rows.empty(); });
      most = std::max(most, kept);
    }
  return most;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
