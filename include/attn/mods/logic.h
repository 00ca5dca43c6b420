// any_of(), all_of() and not_(): combinations of masks.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>

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

}  // namespace attn
