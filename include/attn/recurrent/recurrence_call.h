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

/// One rule covers all recurrent forms. With the state S (features, v_dim) of a head,
///
///     S_t = diag(e^gate_t) * S_(t - 1) + b_t * (a_tᵀ * S_(t - 1)) + key_t * value_tᵀ,   out_t = scale * S_tᵀ * query_t
///
/// where the forms differ in the following:
///
///     linear attention    no gate, a or b; keys and queries are features, and a normaliser divides the output
///     gated attention     no a or b; the gate has one value per token (RetNet, Mamba-2) or per feature (GLA)
///     gated delta rule    a = e^gate * k, b = -beta * k, key = beta * k, with a gate per token (gated DeltaNet) or per
///                         feature (Kimi delta attention, KDA)
///     DPLR delta rule     any a and b (RWKV-7, GDN-2): the transition is diagonal plus low rank
///
/// The delta rule's two products with k are computed as one, k * (beta * (value - aᵀ * S)).
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
  DTypeView<const T> gate{};    ///< (batch, kv_heads, len, 1 or features)
  DTypeView<const T> beta{};    ///< (batch, kv_heads, len, 1), for the gated delta rule; null in other forms
  DTypeView<const T> a{}, b{};  ///< (batch, kv_heads, len, features), for the DPLR delta rule; null in other forms
  StateMemory<T> state{};

  /// Maximum number of tokens per chunk in the forward pass. Chunks begin where calls do, so with
  /// Options::row_invariant they are single tokens: results then do not depend on where calls begin.
  Index chunk() const { return problem.row_invariant ? 1 : kChunk; }
  bool has_beta() const { return beta.data() != nullptr; }
  /// Whether tokens read the state before they change it.
  bool has_reads() const { return has_beta() || a.data() != nullptr; }
  /// Number of products of a key and a value that a token adds to the state.
  int terms() const { return a.data() ? 2 : 1; }
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
