// any_of(), all_of(), not_() and by_batch(): combinations of masks.
#pragma once

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/bound_mods.h"

namespace attn {

namespace detail {

/// The coverage hints of several masks, combined into one.
template <class Combine, class... Bound>
struct CombinedCoverage {
  static constexpr bool kIsOpaque = (Bound::kIsOpaque || ...);
  std::tuple<Bound...> masks;

  Coverage operator()(const Tile& t) const {
    return std::apply([&](const auto&... m) { return Combine::coverage(m.coverage(t)...); }, masks);
  }
};

/// Combines masks that are bound to a call into one. `Combine` defines how to combine their predicates, coverages and
/// key ranges.
template <class Combine, class... Bound>
auto combined(const Bound&... masks) {
  static_assert((has_only_masks<Bound> && ...),
                "attn::any_of, all_of, not_: the arguments must be masks; add score mods and sinks with |");
  const std::tuple<Bound...> all(masks...);
  return mask_mod(
      [all](const Position& p) {
        return std::apply([&](const auto&... m) { return Combine::keep(m.keep(p)...); }, all);
      },
      CombinedCoverage<Combine, Bound...>{all},
      [all](const Tile& t) {
        return std::apply([&](const auto&... m) { return Combine::kv_range(t.kv, m.kv_range(t)...); }, all);
      });
}

template <class Combine, class... M>
auto combined_mask(M... masks) {
  static_assert(sizeof...(M) > 0, "attn::any_of, all_of: pass at least one mask");
  static_assert((check_mods<M>() && ...));
  return bind_mod([masks = std::tuple<M...>(std::move(masks)...)](const Problem& problem) {
    return std::apply([&](const auto&... m) { return combined<Combine>(bind(m, problem)...); }, masks);
  });
}

struct Any {
  template <class... Kept>
  static bool keep(Kept... kept) {
    return bool((kept | ...));  // evaluates all masks, so that a loop over pairs has no branch
  }
  template <class... C>
  static Coverage coverage(C... c) {
    return std::max({c...});
  }
  template <class... R>
  static Range kv_range(Range, R... ranges) {
    Range all{};
    for (const Range& r : {ranges...}) all = hull(all, r);
    return all;
  }
};

struct All {
  template <class... Kept>
  static bool keep(Kept... kept) {
    return bool((kept & ...));
  }
  template <class... C>
  static Coverage coverage(C... c) {
    return std::min({c...});
  }
  template <class... R>
  static Range kv_range(Range all, R... ranges) {
    ((all = intersect(all, ranges)), ...);
    return all;
  }
};

struct Not {
  static bool keep(bool kept) { return !kept; }
  static Coverage coverage(Coverage c) {
    return c == Coverage::all ? Coverage::none : c == Coverage::none ? Coverage::all : Coverage::some;
  }
  static Range kv_range(Range all, Range) { return all; }
};

/// The masks of a call's batch elements, from batch element `first` on.
template <class Bound>
struct MasksByBatch {
  static constexpr bool kIsOpaque = Bound::kIsOpaque;
  std::shared_ptr<const std::vector<Bound>> masks;
  Index first;

  const Bound& of(Index batch) const { return (*masks)[static_cast<std::size_t>(batch - first)]; }
  Coverage operator()(const Tile& t) const { return of(t.batch).coverage(t); }
};

}  // namespace detail

/// Keeps the pairs that at least one of the masks keeps: their union. (Masks joined with | intersect.)
///
///     any_of(sliding_window(1), global_tokens({0})):  1 1 1 1
///                                                     1 1 0 0
///                                                     1 1 1 0
///                                                     1 0 1 1
template <class... M>
auto any_of(M... masks) {
  return detail::combined_mask<detail::Any>(std::move(masks)...);
}

/// Keeps the pairs that all of the masks keep, as `a | b` does, but as a single mask: any_of(all_of(a, b), c).
///
///     all_of(causal(), not_(sliding_window(1))):  0 0 0 0
///                                                 0 0 0 0
///                                                 1 0 0 0
///                                                 1 1 0 0
template <class... M>
auto all_of(M... masks) {
  return detail::combined_mask<detail::All>(std::move(masks)...);
}

/// Keeps the pairs that the mask drops.
///
///     not_(causal()):  0 1 1
///                      0 0 1
///                      0 0 0
template <class M>
auto not_(M mask) {
  return detail::combined_mask<detail::Not>(std::move(mask));
}

/// Gives each batch element, or each sequence of a cache, its own mask: element b keeps the pairs that masks[b] keeps.
/// Tiles cost what they cost with that mask alone. Masks of any kind will do, if all have the same type.
///
///     by_batch(std::vector{documents({0, 0, 1, 1}), documents({0, 1, 1, 1})})   // element 0, element 1
///
/// @throws std::invalid_argument from the attention call, unless there is one mask per batch element; and what the
/// masks throw.
template <class M>
auto by_batch(std::vector<M> masks) {
  static_assert(detail::check_mods<M>());
  return bind_mod([masks = std::move(masks)](const Problem& problem) {
    using Bound = decltype(detail::bind(masks[0], problem));
    static_assert(detail::has_only_masks<Bound>, "attn::by_batch: the arguments must be masks");
    const Index given = static_cast<Index>(masks.size());
    detail::require(given == problem.batch, "by_batch has ", given, " masks for a batch of ", problem.batch,
                    "; give one per batch element");
    // Of a cache, each sequence is bound alone, because sequences have different lengths.
    const Index first = problem.sequence.value_or(0), end = problem.sequence ? first + 1 : given;
    std::vector<Bound> bound;
    bound.reserve(static_cast<std::size_t>(end - first));
    for (Index b = first; b < end; ++b) bound.push_back(detail::bind(masks[static_cast<std::size_t>(b)], problem));
    const detail::MasksByBatch<Bound> all{std::make_shared<const std::vector<Bound>>(std::move(bound)), first};
    return mask_mod([all](const Position& p) { return all.of(p.batch).keep(p); }, all,
                    [all](const Tile& t) { return all.of(t.batch).kv_range(t); });
  });
}

}  // namespace attn
