// The mods of a whole call, as seen by a part of it (some of its queries and keys, in separate memory).
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/bound_mods.h"
#include "attn/core/mods/mapped_mods.h"
#include "attn/mpi/token_layout.h"

namespace attn::detail {

/// The position of a part in the call: the tokens of its queries and keys, its query heads (all if empty), and whether
/// it is the first part for its queries. Sinks belong to the first part.
struct Place {
  Progression q, kv;
  Range heads = {};
  bool is_first = true;
};

/// A learned logit of sinks, as some of the heads see it.
template <class Logit>
struct PlacedLogit {
  static constexpr bool kIsLearned = true;

  double operator()(Index head) const { return whole(gradient.heads.begin + head); }

  const Logit& whole;
  struct Gradient {
    /// Adds the sums of each head of the part.
    template <class Sum>
    void add(const Sum* sums) const {
      std::vector<Sum> of_all(static_cast<std::size_t>(all_heads), Sum(0));
      std::copy(sums, sums + heads.size(), of_all.begin() + heads.begin);
      whole.gradient.add(of_all.data());
    }

    const Logit& whole;
    Range heads;
    Index all_heads;
  } gradient;
};

/// Maps row numbers of a part to the call; see MappedMods.
struct PlaceInCall {
  Index q_first, q_step, kv_first, kv_step, first_head;

  Position in_call(const Position& p) const {
    return {p.batch, head_in_call(p.head), q_first + q_step * p.q, kv_first + kv_step * p.kv};
  }
  Index head_in_call(Index head) const { return first_head + head; }
  PairGrid grid(const Tile& t) const {
    return {in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin}), q_step, kv_step};
  }
  Range kv_numbers(const Range& kv, const Tile&) const {
    return {ceil_div(kv.begin - kv_first, kv_step), ceil_div(kv.end - kv_first, kv_step)};
  }
};

/// A batch element's mods on a part. Masks that group tokens or gather keys are evaluated pair by pair, within the
/// limits of their own hints. Sinks belong to the first part.
template <class Own>
class PlacedElement : public MappedMods<Own, PlaceInCall> {
 public:
  PlacedElement(const Own& own, const PlaceInCall& in_call, const Place& place, Index all_heads)
      : MappedMods<Own, PlaceInCall>(own, in_call),
        heads_(place.heads.empty() ? Range{0, all_heads} : place.heads),
        all_heads_(all_heads),
        is_first_(place.is_first) {}

  const PlacedElement& of(Index) const { return *this; }

  double sink(Index head) const {
    return is_first_ ? MappedMods<Own, PlaceInCall>::sink(head) : -std::numeric_limits<double>::infinity();
  }
  /// A sink learns from each query once, however the query's keys are split into parts.
  template <class Visit>
  void each_learned(const Visit& visit) const {
    MappedMods<Own, PlaceInCall>::each_learned([&]<class Mod>(const Mod& mod) {
      if constexpr (!is_sink<Mod>) {
        visit(mod);
      } else if (is_first_) {
        using Logit = std::remove_cvref_t<decltype(mod.logit)>;
        visit(SinkMod<PlacedLogit<Logit>>{{}, {mod.logit, {mod.logit, heads_, all_heads_}}});
      }
    });
  }

 private:
  Range heads_;
  Index all_heads_;
  bool is_first_;
};

/// The PlacedElement of each batch element. `mods` must outlive this object, and so must `whole`, the sizes that `mods`
/// are bound to.
template <class Mods>
class PlacedMods {
  using Own = std::remove_cvref_t<decltype(std::declval<const Mods&>().of(0))>;

 public:
  static constexpr bool kHasScores = Mods::kHasScores;
  static constexpr bool kHasMasks = Mods::kHasMasks;
  static constexpr bool kIsOpaque = Mods::kIsOpaque;
  static constexpr bool kHasSinks = Mods::kHasSinks;
  static constexpr bool kHasWeights = Mods::kHasWeights;
  static constexpr bool kHasDropout = Mods::kHasDropout;
  static constexpr bool kIsGrouped = false;
  static constexpr bool kLearns = Mods::kLearns;

  PlacedMods(const Mods& mods, const Problem& whole, const Place& place) : mods_(mods), whole_(whole), place_(place) {}

  PlacedElement<Own> of(Index batch) const {
    // If there are no batch elements or tokens, no pair is queried, but sinks and factors may be.
    const bool exists = batch < whole_.batch;
    const PlaceInCall in_call{(exists ? whole_.first_query(batch) : 0) + place_.q.first, place_.q.step,
                              whole_.kv_offset + place_.kv.first, place_.kv.step, place_.heads.begin};
    return {mods_.of(batch), in_call, place_, whole_.heads};
  }

 private:
  const Mods& mods_;
  const Problem& whole_;
  Place place_;
};

}  // namespace attn::detail
