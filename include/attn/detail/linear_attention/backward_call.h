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

/// A chunk of a run, and the state in front of it among those that are kept.
struct KeptChunk {
  TokenChunk tokens;
  Index state;
};

/// How much of a run a worker keeps.
struct KeptOfRun {
  Index states;
  Index chunks;
};

/// A worker's memory for one head of keys and values, in addition to that of the forward pass.
template <class T>
struct RecurrenceBackwardMemory {
  KeptChunk* chunks;    ///< (chunks kept)
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

  static RecurrenceBackwardMemory take(ChunkArena<T>& arena, const RecurrenceCall<T>& call, const KeptOfRun& kept) {
    const Index in = call.row_of_inputs(), f = call.row_of_features(), v = call.row_of_values();
    const bool by_feature = call.gates == Gates::of_features;
    RecurrenceBackwardMemory m;
    m.chunks = arena.template take_as<KeptChunk>(kept.chunks);
    arena.align();
    m.states = take_block(arena, kept.states, call.features() * v + f);
    m.grad_state = take_block(arena, call.features(), v);
    m.grad_normaliser = arena.take(f);
    m.turned = take_block(arena, v, f);
    m.columns = arena.take(v * kChunk);
    m.grad_out = take_block(arena, kChunk, v);
    m.grad_value = take_block(arena, kChunk, v);
    for (Block<T>* rows : {&m.grad_key, &m.grad_query, &m.seen, &m.sums, &m.faded})
      *rows = take_block(arena, kChunk, f);
    m.grad_raw = take_block(arena, kChunk, in);
    m.grad_scores = take_block(arena, kChunk, kChunk);
    m.grad_gates = take_block(arena, by_feature ? kChunk : 0, f);
    for (T** numbers : {&m.numbers, &m.entering, &m.leaving, &m.gates}) *numbers = arena.take(kChunk);
    return m;
  }
};

/// What the backward pass keeps of a run of a head's tokens, at most: its chunks, and a state in front of each that has
/// queries, or one for all rows that see the same. So memory grows with the length of a run, by features * v_dim
/// numbers for each 64 tokens. Runs follow one another in the same memory.
///
/// Keys behind the last row are counted as if their gradients were wanted, which a state behind the call makes so.
template <class T>
KeptOfRun most_kept(const RecurrenceCall<T>& call) {
  KeptOfRun most{0, 0};
  for (Index b = 0; b < call.problem.batch; ++b)
    for (const TokenRun& run : call.runs.of(b)) {
      KeptOfRun kept{2, 0};  // states in front of the rows before all keys, and of those behind them
      for_each_chunk(run, call.problem.first_query_among_keys(b), call.is_causal, true, [&](const TokenChunk& chunk) {
        kept.states += !chunk.keys.empty() && !chunk.rows.empty();
        ++kept.chunks;
      });
      most = {std::max(most.states, kept.states), std::max(most.chunks, kept.chunks)};
    }
  return most;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
