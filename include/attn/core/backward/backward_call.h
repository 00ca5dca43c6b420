// The arguments of a backward pass, independent of the types of its mods, and those of one over listed keys.
#pragma once

#include <functional>
#include <type_traits>

#include "attn/core/flash/call_tensors.h"
#include "attn/core/mods/grouping/selected_keys.h"
#include "attn/core/mods/learned_mods.h"
#include "attn/core/mods/mapped_mods.h"
#include "attn/core/mods/tile_mods.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The keys that each query of a call lists, and mods that see entries of these lists: the pair of query row i of
/// `head` and entry e of its list is Position{i, head, 0, e}.
template <class T>
class ListedCall {
 public:
  /// The mods of a batch element except the one that lists keys; see BackwardCall.
  struct Mods {
    const TileMods<T>* tile;
    const ModSlopes<T>* slopes;
    const LearnedMods<T>* learned;
  };
  using Use = std::function<void(const Mods&)>;

  virtual ~ListedCall() = default;

  virtual const ListGathering& gathering() const = 0;
  virtual void with_mods(Index batch, const Use& use) const = 0;
};

/// The ListedCall of `mods`, to which it keeps a reference. `ModsAsSeen` is BackwardMods.
template <class T, class Mods, template <class, class> class ModsAsSeen>
class ListedCallOf final : public ListedCall<T> {
 public:
  ListedCallOf(const Mods& mods, const Problem& problem) : mods_(mods), problem_(problem) {}

  const ListGathering& gathering() const override { return *mods_.grouped().gathering; }

  void with_mods(Index batch, const typename ListedCall<T>::Use& use) const override {
    const auto others = mods_.of(batch).without_grouped();
    const MappedMods own(others, gathering().tokens(problem_, batch));  // all listed keys are kept
    const ModsAsSeen<T, std::remove_const_t<decltype(own)>> seen(own, problem_);
    use({seen.tile(), seen.slopes(), seen.learned()});
  }

 private:
  const Mods& mods_;
  const Problem& problem_;
};

/// One call. `tensors` has queries, keys and values; `out` and `lse` are those of the forward pass. If `mods` is null,
/// nothing is changed and no pair is dropped; if `slopes` is null, no score and no weight is changed. A null grad_lse
/// means zeros.
template <class T>
struct BackwardCall {
  CallTensors<T> tensors;
  DTypeView<const T> out, grad_out;
  TensorView<const T, 3> lse, grad_lse;
  LseRests<T> lse_rests;  ///< the parts of lse lost to rounding
  DTypeView<T> grad_q, grad_k, grad_v;
  const TileMods<T>* mods;
  const ModSlopes<T>* slopes;
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
