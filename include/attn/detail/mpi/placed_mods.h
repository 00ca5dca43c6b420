// The mods of a whole call as a part of it sees them: some queries and keys that lie in memory of their own.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "attn/detail/base/ranges.h"
#include "attn/detail/mods/call_mods.h"
#include "attn/detail/mpi/token_layout.h"

namespace attn::detail {

/// Where the rows of a part lie in the call: the tokens of its queries and keys, its query heads (none: it has all of
/// them), and whether it is the first that its queries meet. Sinks belong to the first.
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
    /// Adds what was added up for each head of the part.
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

/// A batch element's mods as a path sees them when it works on a part, in place of BoundMods. Positions are row numbers
/// of the part. Masks that group tokens or gather keys are asked pair by pair, as their own hints say.
template <class Own>
class PlacedElement {
 public:
  static constexpr bool kHasScores = Own::kHasScores;
  static constexpr bool kHasMasks = Own::kHasMasks;
  static constexpr bool kIsOpaque = Own::kIsOpaque;
  static constexpr bool kHasSinks = Own::kHasSinks;
  static constexpr bool kHasDropout = Own::kHasDropout;
  static constexpr bool kLearns = Own::kLearns;

  /// `first_query` and `first_key`: the positions of row 0 of the whole call, `all_heads` the number of its heads.
  PlacedElement(const Own& own, const Place& place, Index first_query, Index first_key, Index all_heads)
      : own_(own),
        q_first_(first_query + place.q.first),
        q_step_(place.q.step),
        kv_first_(first_key + place.kv.first),
        kv_step_(place.kv.step),
        heads_(place.heads.empty() ? Range{0, all_heads} : place.heads),
        all_heads_(all_heads),
        is_first_(place.is_first) {}

  template <class X>
  X score(X x, const Position& p) const {
    return own_.score(x, in_call(p));
  }
  bool keep(const Position& p) const { return own_.keep(in_call(p)); }
  long double weight_factor(const Position& p) const { return own_.weight_factor(in_call(p)); }
  long double kept_factor() const { return own_.kept_factor(); }
  template <class Visit>
  void each_dropout(const Visit& visit) const {
    own_.each_dropout(visit);
  }
  double sink(Index head) const {
    return is_first_ ? own_.sink(heads_.begin + head) : -std::numeric_limits<double>::infinity();
  }
  PairGrid grid(const Tile& t) const {
    return {in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin}), q_step_, kv_step_};
  }

  /// The mods are also asked about what lies between the pairs. Where they say none or all, it is true of the pairs.
  Coverage coverage(const Tile& tile) const {
    if constexpr (Own::kHasMasks) return own_.coverage(in_call(tile));
    return Coverage::all;
  }
  Range kv_range(const Tile& tile) const {
    if (!Own::kHasMasks || tile.q.empty() || tile.kv.empty()) return tile.kv;
    const Range visited = own_.kv_range(in_call(tile));
    return intersect(tile.kv,
                     {ceil_div(visited.begin - kv_first_, kv_step_), ceil_div(visited.end - kv_first_, kv_step_)});
  }

  template <class T, class Add>
  T learn(T x, T grad, const Position& p, const Add& add) const {
    return own_.learn(x, grad, in_call(p), add);
  }
  /// A sink learns from each query once, whatever parts its keys come in.
  template <class Visit>
  void each_learned(const Visit& visit) const {
    own_.each_learned([&]<class Mod>(const Mod& mod) {
      if constexpr (!is_sink<Mod>) {
        visit(mod);
      } else if (is_first_) {
        using Logit = std::remove_cvref_t<decltype(mod.logit)>;
        visit(SinkMod<PlacedLogit<Logit>>{{mod.logit, {mod.logit, heads_, all_heads_}}});
      }
    });
  }

 private:
  Position in_call(const Position& p) const {
    return {p.batch, heads_.begin + p.head, q_first_ + q_step_ * p.q, kv_first_ + kv_step_ * p.kv};
  }
  /// The smallest tile of the whole call that has all pairs of a tile of the part; it has others between them. Neither
  /// range may be empty.
  Tile in_call(const Tile& t) const {
    const Position first = in_call(Position{t.batch, t.head, t.q.begin, t.kv.begin}),
                   last = in_call(Position{t.batch, t.head, t.q.end - 1, t.kv.end - 1});
    return {t.batch, first.head, {first.q, last.q + 1}, {first.kv, last.kv + 1}};
  }

  const Own& own_;
  Index q_first_, q_step_, kv_first_, kv_step_;
  Range heads_;
  Index all_heads_;
  bool is_first_;
};

/// The PlacedElements of all batch elements. `mods` and `whole`, the sizes that they are bound to, must outlive it.
template <class Mods>
class PlacedMods {
  using Own = std::remove_cvref_t<decltype(std::declval<const Mods&>().of(0))>;

 public:
  static constexpr bool kHasScores = Mods::kHasScores;
  static constexpr bool kHasMasks = Mods::kHasMasks;
  static constexpr bool kIsOpaque = Mods::kIsOpaque;
  static constexpr bool kHasSinks = Mods::kHasSinks;
  static constexpr bool kHasDropout = Mods::kHasDropout;
  static constexpr bool kIsGrouped = false;
  static constexpr bool kLearns = Mods::kLearns;

  PlacedMods(const Mods& mods, const Problem& whole, const Place& place) : mods_(mods), whole_(whole), place_(place) {}

  PlacedElement<Own> of(Index batch) const {
    // Without batch elements or tokens nobody asks about a pair, but sinks and factors may be asked for.
    const bool exists = batch < whole_.batch;
    return {mods_.of(batch), place_, exists ? whole_.first_query(batch) : 0, whole_.kv_offset, whole_.heads};
  }

 private:
  const Mods& mods_;
  const Problem& whole_;
  Place place_;
};

}  // namespace attn::detail
