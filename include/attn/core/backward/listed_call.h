// The mods of a call as a backward pass over listed keys sees them.
#pragma once

#include <functional>
#include <type_traits>

#include "attn/core/backward/backward_call.h"
#include "attn/core/mods/grouping/selected_keys.h"
#include "attn/core/mods/mapped_mods.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The keys that each query of a call lists, and mods that see entries of these lists: the pair of query row i of
/// `head` and entry e of its list is Position{i, head, 0, e}.
template <class T>
class ListedCall {
 public:
  /// The mods of a batch element except the one that lists keys; see BackwardCall.
  struct Mods {
    const TileMods<T>* tile;
    const ScoreSlopes<T>* slopes;
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

/// Whether the first grouped mask of a call lists keys.
template <class Mods>
constexpr bool lists_keys() {
  if constexpr (Mods::kIsGrouped) return requires(const Mods& mods) {
      mods.grouped().gathering->by_key();
    };
  else
    return false;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
