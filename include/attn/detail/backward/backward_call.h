// What a backward pass is given, whatever the types of its mods.
#pragma once

#include "attn/detail/flash/call_tensors.h"
#include "attn/detail/mods/learned_mods.h"
#include "attn/detail/mods/score_slopes.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// One call. `tensors` has queries, keys, values, and out and lse of the forward pass; null mods: nothing is changed or
/// dropped; null slopes: no score is changed; null grad_lse: zero.
template <class T>
struct BackwardCall {
  CallTensors<T> tensors;
  DTypeView<const T> out, grad_out;
  TensorView<const T, 3> lse, grad_lse;
  LseRests<T> lse_rests;  ///< what rounding took from lse
  DTypeView<T> grad_q, grad_k, grad_v;
  const TileMods<T>* mods;
  const ScoreSlopes<T>* slopes;
  const LearnedMods<T>* learned;  ///< null: mods hold no numbers that gradients are asked for
  /// Of tensors.score, (batch, heads, q_len, head_dim): what each query adds to the gradient of its weights.
  DTypeView<T> grad_weights = {};
  /// Whether gradients are added to what stands in grad_q, grad_k and grad_v. Those of sinks are then another call's.
  bool accumulates = false;

  bool has_scores() const { return mods && mods->has_scores(); }
  T kept_factor() const { return mods ? static_cast<T>(mods->kept_factor()) : T(1); }
};

/// What gradients of numbers that mods hold take.
struct LearnedSizes {
  Index slots = 0, sinks = 0;
  Learning learning = Learning::apart;
  bool score_weights = false;  ///< whether the score has weights, with a gradient beside that of each query

  template <class T>
  static LearnedSizes of(const LearnedMods<T>* mods, const OtherScore<T>* score = nullptr) {
    LearnedSizes sizes = mods ? LearnedSizes{mods->slots(), mods->sinks(), mods->learning()} : LearnedSizes{};
    sizes.score_weights = score != nullptr;
    return sizes;
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
