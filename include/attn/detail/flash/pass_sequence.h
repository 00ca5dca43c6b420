// The passes of a call. Most calls have one. Where a mask groups tokens, there is one for near keys and some for the
// groups; where it gathers keys, there are some over the gathered ones.
#pragma once

#include <algorithm>
#include <functional>
#include <type_traits>
#include <utility>

#include "attn/detail/base/ranges.h"
#include "attn/detail/flash/call_tensors.h"
#include "attn/detail/mods/grouping/gathered_mask.h"
#include "attn/detail/mods/grouping/regrouped_mods.h"
#include "attn/detail/mods/tile_mods.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The tensors of `t` as those of a call of its own: of_queries() and of_keys() say which part of each that has.
template <class T, class OfQueries, class OfKeys>
CallTensors<T> tensors_of(const CallTensors<T>& t, const Problem& problem, const OfQueries& of_queries,
                          const OfKeys& of_keys) {
  CallTensors<T> part{.out = of_queries(t.out),
                      .lse = of_queries(t.lse),
                      .q = of_queries(t.q),
                      .k = of_keys(t.k),
                      .v = of_keys(t.v),
                      .problem = problem,
                      .kernels = t.kernels};
  part.score = t.score;
  part.lse_rests = t.lse_rests;
  return part;
}

/// The tensors of some groups as those of a call of its own, in which each group is a batch element and its tokens are
/// the rows.
template <class T>
CallTensors<T> tensors_of(const CallTensors<T>& t, const TokenGroups& groups, const Problem& problem) {
  // Rows of one group are `step` rows apart, and the next group begins one row later. The stride of a single row is
  // left alone, because the product could overflow.
  const auto view = [&]<class View>(const View& of, Index heads, Index first, Index rows, Index step) {
    if (of.data() == nullptr) return of;
    typename View::Shape shape = of.shape(), strides = of.strides();
    shape[0] = problem.batch, shape[1] = heads, shape[2] = rows;
    strides[0] = of.stride(2);
    strides[2] = rows > 1 ? of.stride(2) * step : of.stride(2);
    return of.part(rows == 0 ? 0 : groups.batch * of.stride(0) + first * of.stride(2), shape, strides);
  };
  const auto of_queries = [&](const auto& of) {
    return view(of, problem.heads, groups.first_query, problem.q_len, groups.q_step);
  };
  const auto of_keys = [&](const DTypeView<const T>& of) {
    return view(of, problem.kv_heads, groups.first_key, problem.kv_len, groups.kv_step);
  };
  return tensors_of(t, problem, of_queries, of_keys);
}

/// The tensors of gathered tokens as those of a call of its own, in which each text is a batch element.
template <class T>
CallTensors<T> tensors_of(const CallTensors<T>& t, const GatheredTokens& tokens, const Problem& problem) {
  const auto of_queries = [&]<class View>(const View& of) {
    if (of.data() == nullptr) return of;
    typename View::Shape shape = of.shape(), strides = of.strides();
    shape[0] = problem.batch, shape[1] = problem.heads;
    strides[0] = 0;
    if (!tokens.q.exists()) shape[2] = problem.q_len, strides[0] = tokens.rows_of_text * of.stride(2);
    strides[1] = of.stride(1) * tokens.head_step;
    return of.part(tokens.batch * of.stride(0) + tokens.first_head * of.stride(1), shape, strides);
  };
  const auto of_keys = [&](const DTypeView<const T>& of) {
    typename DTypeView<const T>::Shape shape = of.shape(), strides = of.strides();
    shape[0] = problem.batch, strides[0] = 0, shape[2] = problem.kv_len;
    return KvRows<T>(of.part(tokens.batch * of.stride(0), shape, strides), tokens.kv);
  };
  CallTensors<T> gathered = tensors_of(t, problem, of_queries, of_keys);
  gathered.q_list = tokens.q;
  gathered.most_queries = tokens.most_queries;
  return gathered;
}

/// Calls visit(groups, problem) for all groups of a call. Neighbouring groups of equal sizes come together.
inline void for_each_token_groups(const Problem& call, const Grouping& g,
                                  const std::function<void(const TokenGroups&, const Problem&)>& visit) {
  const auto rows_from = [](Index first, Index len, Index step) {
    return first < len ? ceil_div(len - first, step) : 0;
  };
  Problem problem = call;
  problem.q_offsets = {};
  // Begins with the keys of a group: sets their number and offset, and returns their first row.
  const auto begin_keys = [&](Index group) {
    const Index first = floor_mod(group - call.kv_offset, g.step);
    problem.kv_len = rows_from(first, call.kv_len, g.step);
    problem.kv_offset = floor_div(call.kv_offset + first, g.step);
    return first;
  };
  for (Index batch = 0; batch < call.batch; ++batch) {
    const Index first_query = call.first_query(batch);
    if (g.shared) {
      problem.q_offset = first_query;
      problem.batch = 1;
      for (Index group = g.shared->begin; group < g.shared->end; ++group) {
        const Index first_key = begin_keys(group);
        if (problem.kv_len > 0) visit(TokenGroups{batch, 1, 0, g.step, group, 0, first_key}, problem);
      }
      continue;
    }
    const Index step = g.step, begun = std::min(step, call.q_len);  // groups that have a query
    for (Index first = 0; first < begun; first += problem.batch) {
      const Index group = floor_mod(first_query + first, step), first_key = begin_keys(group);
      problem.q_offset = floor_div(first_query + first, step);
      problem.q_len = rows_from(first, call.q_len, step);
      // Groups come together until the numbers within a group, of queries or of keys, begin anew, or until a group has
      // one query or one key less.
      const Index same_queries = call.q_len - (problem.q_len - 1) * step - first,
                  same_keys = problem.kv_len == 0 ? step : call.kv_len - (problem.kv_len - 1) * step - first_key;
      problem.batch = std::min({begun - first, step - group, step - first_key, same_queries, same_keys});
      visit(TokenGroups{batch, step, group, step, group, first, first_key}, problem);
    }
  }
}

/// Whether grouping saves work: the groups must have clearly fewer tiles than neighbouring tokens have with a far pair
/// in them. Short groups do not fill a tile, and where the step is long, many tiles of neighbours have no far pair.
/// Each pass over the same rows rounds them once more, so the passes must not be many.
inline bool grouping_pays(const Problem& call, const Grouping& g) {
  if (g.always) return true;
  constexpr Index kQueries = 48;  // of a float tile with AVX-512
  const auto tiles = [](Index queries, Index keys) {
    return static_cast<double>(ceil_div(queries, kQueries)) * static_cast<double>(ceil_div(keys, kKeyTile));
  };
  const Index keys = call.kv_len / g.step + 1;
  constexpr Index kMostPasses = 32;
  if (g.shared && g.shared->size() > kMostPasses) return false;
  const double grouped = g.shared
                             ? static_cast<double>(g.shared->size()) * tiles(call.q_len, keys)
                             : static_cast<double>(std::min(g.step, call.q_len)) * tiles(call.q_len / g.step + 1, keys);
  // A tile of neighbours has a far pair if one of `reach` neighbouring tokens is in one.
  const Index reach = kKeyTile + (g.shared ? g.shared->size() : kQueries);
  const double far =
      tiles(call.q_len, call.kv_len) * std::min(1.0, static_cast<double>(reach) / static_cast<double>(g.step));
  return 3 * grouped < 2 * far;
}

/// Whether the mask that groups tokens, the first that does, gathers keys.
template <class Mods>
constexpr bool gathers_keys() {
  if constexpr (Mods::kIsGrouped)
    return is_gathered<std::remove_cvref_t<decltype(std::declval<Mods>().grouped())>>;
  else
    return false;
}

/// Whether a pass over near keys comes before those over groups.
template <class Mods>
constexpr bool has_near_part() {
  if constexpr (Mods::kIsGrouped && !gathers_keys<Mods>())
    return !std::is_same_v<std::remove_cvref_t<decltype(std::declval<Mods>().grouped().near)>, NoHint>;
  else
    return false;
}

/// The passes of a call without the types of its mods, which are the caller's, so that the loops behind it are compiled
/// once for each scalar.
template <class T>
class PassSequence {
 public:
  using Visit = std::function<void(const CallTensors<T>&, const TileMods<T>* mods, bool resumes)>;

  virtual ~PassSequence() = default;

  /// Whether a pass goes on from what an earlier one leaves in out and lse.
  virtual bool resume(const Problem& problem) const = 0;

  /// Calls visit() for each pass over the rows of the output, in order. A pass that resumes adds to what stands in out
  /// and lse; the first one does so where the call `goes_on`. Null mods: nothing is changed or dropped.
  virtual void for_each(const CallTensors<T>& tensors, bool goes_on, const Visit& visit) const = 0;

  /// The mods of a single pass over everything. Null: nothing is changed or dropped.
  virtual const TileMods<T>* in_one() const = 0;
};

/// The passes of a call with these mods, to which it keeps a reference.
template <class T, class Mods>
class PassSequenceOf final : public PassSequence<T> {
 public:
  explicit PassSequenceOf(const Mods& mods) : mods_(mods), tile_mods_(mods) {}
  PassSequenceOf(const PassSequenceOf&) = delete;

  bool resume(const Problem& problem) const override {
    if constexpr (has_near_part<Mods>()) return grouping_pays(problem, mods_.grouped().grouping);
    return false;
  }

  void for_each(const CallTensors<T>& tensors, bool goes_on,
                const typename PassSequence<T>::Visit& visit) const override {
    if constexpr (!Mods::kIsGrouped) {
      visit(tensors, in_one(), goes_on);
    } else if constexpr (gathers_keys<Mods>()) {
      const auto& mask = mods_.grouped();
      if (!mask.gathers(tensors.problem)) return visit(tensors, in_one(), goes_on);
      mask.gathering->for_each(
          tensors.problem, [&](const GatheredTokens& tokens, const auto& far, const Problem& problem) {
            const auto others = mods_.of(tokens.batch).without_grouped();
            pass(tensors_of(tensors, tokens, problem), RegroupedMods(far, others, tokens), goes_on, visit);
          });
    } else {
      const auto& mask = mods_.grouped();
      if (!grouping_pays(tensors.problem, mask.grouping)) return visit(tensors, in_one(), goes_on);
      constexpr bool kHasNear = has_near_part<Mods>();
      if constexpr (kHasNear) pass(tensors, mods_.with_near_part(), goes_on, visit);
      const auto group_pass = [&](const TokenGroups& groups, const Problem& problem) {
        const Tile all{0, 0, {problem.q_offset, problem.q_offset + problem.q_len}, problem.keys()};
        if (kHasNear && mask.far.kv_range(all).empty()) return;
        // The sinks stay among the others: a pass that resumes does not count them again.
        const auto others = mods_.of(groups.batch).without_grouped();
        pass(tensors_of(tensors, groups, problem), RegroupedMods(mask.far, others, groups), kHasNear || goes_on, visit);
      };
      for_each_token_groups(tensors.problem, mask.grouping, std::cref(group_pass));
    }
  }

  const TileMods<T>* in_one() const override { return of(tile_mods_); }

 private:
  template <class PassMods>
  static const TileMods<T>* of(const TileModsOf<T, PassMods>& mods) {
    return &mods;
  }
  static const TileMods<T>* of(const NoTileMods&) { return nullptr; }

  template <class PassMods>
  static void pass(const CallTensors<T>& tensors, const PassMods& mods, bool resumes,
                   const typename PassSequence<T>::Visit& visit) {
    const TileModsIfAny<T, PassMods> tile_mods(mods);
    visit(tensors, of(tile_mods), resumes);
  }

  const Mods& mods_;
  TileModsIfAny<T, Mods> tile_mods_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
