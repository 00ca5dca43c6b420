// The arguments of a backward pass, independent of the types of its mods.
#pragma once

#include "attn/core/flash/call_tensors.h"
#include "attn/core/mods/learned_mods.h"
#include "attn/core/mods/tile_mods.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// One call. `tensors` has queries, keys and values; `out` and `lse` are those of the forward pass. If `mods` is null,
/// no score is changed and no pair is dropped; if `slopes` is null, no score is changed. A null grad_lse means zeros.
template <class T>
struct BackwardCall {
  CallTensors<T> tensors;
  DTypeView<const T> out, grad_out;
  TensorView<const T, 3> lse, grad_lse;
  LseRests<T> lse_rests;  ///< the parts of lse lost to rounding
  DTypeView<T> grad_q, grad_k, grad_v;
  const TileMods<T>* mods;
  const ScoreSlopes<T>* slopes;
  const LearnedMods<T>* learned;  ///< null if no gradients of mods' parameters are requested
  /// If tensors.score has weights: each query's contribution to their gradient, (batch, heads, q_len, head_dim).
  DTypeView<T> grad_weights = {};
  /// Whether gradients are added to the contents of grad_q, grad_k and grad_v. If so, the gradients of sinks are left
  /// to another call.
  bool accumulates = false;
  /// Whether the loop computes the sums over the keys of each query itself, instead of taking them from `out` and
  /// `lse`: see BackwardLoop::sum_rows().
  bool sums_rows = false;

  bool has_scores() const { return mods && mods->has_scores(); }
  T kept_factor() const { return mods ? static_cast<T>(mods->kept_factor()) : T(1); }
};

/// Sizes of the gradients of mods' parameters.
struct LearnedSizes {
  Index slots = 0, sinks = 0;
  Learning learning = Learning::apart;
  bool score_weights = false;  ///< whether the score has weights, whose gradient is stored next to that of each query

  template <class T>
  static LearnedSizes of(const LearnedMods<T>* mods, const OtherScore<T>* score = nullptr) {
    LearnedSizes sizes = mods ? LearnedSizes{mods->slots(), mods->sinks(), mods->learning()} : LearnedSizes{};
    sizes.score_weights = score != nullptr;
    return sizes;
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
