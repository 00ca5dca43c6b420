// The arguments of a recurrence's loops: the tensors of a call, its form and its runs of tokens.
#pragma once

#include "attn/core/tensor/dtype_view.h"
#include "attn/options.h"
#include "attn/recurrent/bound_features.h"
#include "attn/recurrent/token_runs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

enum class Gates : unsigned char {
  none,
  of_tokens,   ///< one per token
  of_features  ///< one per feature of each token
};

/// The states of a call in memory that outlives it: `sums` (batch, kv_heads, features, padded v_dim) and `normaliser`
/// (batch, kv_heads, padded features), both contiguous. Null if there is none.
template <class T>
struct StateMemory {
  T* sums = nullptr;
  T* normaliser = nullptr;
};

template <class T>
struct RecurrenceCall {
  const Problem& problem;
  DTypeView<const T> q, k, v;
  DTypeView<T> out;
  const BoundFeatures<T>& map;
  const TokenRuns& runs;
  bool is_causal = true;
  bool is_normalised = false;
  T scale = 1;  ///< of query * key
  Gates gates = Gates::none;
  DTypeView<const T> gate{};  ///< (batch, kv_heads, len, 1 or features)
  DTypeView<const T> beta{};  ///< (batch, kv_heads, len, 1), for the delta rule; null without it
  StateMemory<T> state{};

  /// Maximum number of tokens per chunk in the forward pass. Chunks begin where calls do, so with
  /// Options::row_invariant they are single tokens: results then do not depend on where calls begin.
  Index chunk() const { return problem.row_invariant ? 1 : kChunk; }
  bool has_delta() const { return beta.data() != nullptr; }
  Index group() const { return problem.heads / problem.kv_heads; }
  /// Number of heads of keys and values, each with its own state.
  Index states() const { return problem.batch * problem.kv_heads; }
  Index features() const { return map.features(); }
  Index row_of_features() const { return padded(features(), kRowUnit<T>); }
  Index row_of_values() const { return padded(problem.v_dim, kRowUnit<T>); }
  /// Number of elements of a state, with the padding of its rows.
  Index size_of_state() const { return features() * row_of_values(); }
  Index row_of_inputs() const { return padded(problem.head_dim, kRowUnit<T>); }
  /// The memory of state number `i` of all states.
  template <class Number>
  StateMemory<Number> state_in(const StateMemory<Number>& all, Index i) const {
    return {all.sums + i * size_of_state(), all.normaliser + i * row_of_features()};
  }

  /// Estimates the flops of all heads, erring on the high side.
  double flops() const {
    const double pairs = static_cast<double>(states()) *
                         (static_cast<double>(problem.kv_len) + static_cast<double>(group() * problem.q_len));
    return pairs * static_cast<double>(features()) * 2.0 * static_cast<double>(problem.v_dim + problem.head_dim);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
