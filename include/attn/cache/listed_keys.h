// The keys in pages that a select() lists for the queries of a sequence, read in place of all keys.
#pragma once

#include <memory>
#include <vector>

#include "attn/core/base/fixed_vector.h"
#include "attn/core/flash/passes_of_call.h"
#include "attn/core/mods/grouping/selected_keys.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The passes of a sequence over the keys that its mods list, and what they refer to.
template <class T, class Mods>
class ListedKeysOfPages {
 public:
  /// The most passes that a sequence has: query heads that share keys may have separate lists.
  static Index most_passes(Index heads, Index kv_heads) {
    return std::max<Index>(heads / std::max<Index>(kv_heads, 1), 1);
  }

  /// Adds the passes over `tensors`, one sequence, unless it takes less time to visit all keys.
  /// @returns whether it added them.
  bool add_passes(const CallTensors<T>& tensors, const Mods& mods, bool resumes, FixedVector<Pass<T>>& passes) {
    const ListGathering* gathering = mods.grouped().gathering;
    Problem call = tensors.problem;
    call.sequence = tensors.first_batch;
    parts_.clear();
    // The end of a tile may show entries of the next list, which must not be keys that only another sequence has.
    if (gathering->lists().batch > 1) {
      own_.reset(new OwnLists(gathering->lists().of_element(tensors.first_batch)));
      gathering = &own_->gathering;
    }
    if (call.row_invariant || !gathering->pays(call)) return false;
    gathering->for_each(call, [&](const GatheredTokens& tokens, const auto& far, const Problem& problem) {
      const Part& part = *parts_.emplace_back(std::make_unique<Part>(tensors, mods, tokens, far, problem));
      passes.add(Pass<T>{part.tensors, part.tile_mods.get(), resumes, tensors});
    });
    return true;
  }

 private:
  /// A pass, and what it refers to.
  struct Part {
    using Others = decltype(std::declval<const Mods&>().of(0).without_grouped());
    using Far = decltype(within_list(std::declval<const GatheredTokens&>()));
    using Mapped = MappedMods<Others, GatheredTokens, Far>;

    Part(const CallTensors<T>& of, const Mods& given, const GatheredTokens& tokens, const Far& within,
         const Problem& sizes)
        : problem(sizes),
          others(given.of(tokens.batch).without_grouped()),
          far(within),
          mods(others, tokens, far),
          tile_mods(mods),
          tensors(tensors_of(of, tokens, problem)) {}
    Part(const Part&) = delete;  // its members refer to each other

    Problem problem;
    Others others;
    Far far;
    Mapped mods;
    TileModsIfAny<T, Mapped> tile_mods;
    CallTensors<T> tensors;
  };

  struct OwnLists {
    explicit OwnLists(KeyLists of) : lists(std::move(of)) {}

    KeyLists lists;
    ListGathering gathering{lists};
  };

  std::unique_ptr<OwnLists> own_;  // those of this sequence, if sequences have separate lists
  std::vector<std::unique_ptr<Part>> parts_;
};

/// Sequences whose mods list no keys.
template <class T, class Mods>
requires(!lists_keys<Mods>()) class ListedKeysOfPages<T, Mods> {
 public:
  static Index most_passes(Index, Index) { return 1; }
  bool add_passes(const CallTensors<T>&, const Mods&, bool, FixedVector<Pass<T>>&) { return false; }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
