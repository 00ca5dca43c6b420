// relative_bias(): a bias for each head and distance, and the distance buckets of T5.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attn/core/mods/learned_mods.h"
#include "attn/core/simd/scalar_math.h"

namespace attn {

/// One bucket per distance in -most..most; distances outside this range fall into the first or last bucket (Shaw et al.
/// 2018, section 3.2).
class ClippedDistance {
 public:
  /// @throws std::invalid_argument unless `most` is in 0..2^60 (32-bit targets: 2^28).
  explicit ClippedDistance(Index most) : most_(most) {
    detail::require(most >= 0 && most <= detail::kLargestIndex, "ClippedDistance(", most,
                    "): the distance must be in 0..", detail::kLargestIndex);
  }

  /// Returns the number of buckets, 2 * most + 1.
  Index buckets() const { return 2 * most_ + 1; }
  /// Returns the bucket of a key at `distance` = kv - q from its query.
  Index operator()(Index distance) const { return std::clamp(distance, -most_, most_) + most_; }

 private:
  Index most_;
};

/// The buckets of T5 (Raffel et al. 2020, section 2.1). If bidirectional, the lower half of the buckets is for keys at
/// or before the query and the upper half for keys after it; otherwise keys after the query share bucket 0 with its own
/// key. In each direction, half of the buckets hold a single distance each; the others are spaced logarithmically up to
/// `max_distance`, and the last also holds all greater distances.
class T5Buckets {
 public:
  /// @throws std::invalid_argument unless each direction has the same number of buckets, at least 2, and max_distance
  /// is beyond the single-distance buckets and at most 2^24.
  explicit T5Buckets(Index buckets = 32, Index max_distance = 128, bool bidirectional = true)
      : buckets_(buckets), bidirectional_(bidirectional) {
    const Index each = bidirectional ? buckets / 2 : buckets, exact = each / 2;
    constexpr Index kFarthest = Index(1) << 24;  // each distance has an entry in a table
    detail::require(max_distance <= kFarthest, "T5Buckets: max_distance must be at most ", kFarthest, ", but is ",
                    max_distance);
    detail::require(exact > 0 && max_distance > exact && (!bidirectional || buckets % 2 == 0), "T5Buckets(", buckets,
                    ", ", max_distance,
                    "): too few buckets, an odd number of buckets for two directions, or a max_distance of at most ",
                    exact);
    const auto octaves = [&](Index d) { return std::log2(static_cast<double>(d) / static_cast<double>(exact)); };
    for (Index d = 0; d < exact; ++d) of_distance_.push_back(d);
    for (Index d = exact; d <= max_distance; ++d) {
      const double share = octaves(d) / octaves(max_distance);
      of_distance_.push_back(std::min(exact + static_cast<Index>(share * static_cast<double>(each - exact)), each - 1));
    }
  }

  /// Returns the number of buckets.
  Index buckets() const { return buckets_; }
  /// Returns the bucket of a key at `distance` = kv - q from its query.
  Index operator()(Index distance) const {
    const Index last = static_cast<Index>(of_distance_.size()) - 1;
    const Index away = bidirectional_ ? std::abs(distance) : std::max<Index>(-distance, 0);
    const Index bucket = of_distance_[static_cast<std::size_t>(std::min(away, last))];
    return bidirectional_ && distance > 0 ? bucket + buckets_ / 2 : bucket;
  }

 private:
  Index buckets_;
  bool bidirectional_;
  std::vector<Index> of_distance_;
};

namespace detail {

/// Returns the sizes for checking and indexing a table (1, 1, heads, buckets). Heads take the place of queries, and
/// buckets that of keys.
inline Problem sizes_of_buckets(const Problem& problem, Index buckets) {
  return {.q_len = problem.heads, .kv_len = buckets};
}

/// Returns the buckets of a table with this many columns.
inline ClippedDistance clipped_distances(Index columns) {
  require(columns % 2 == 1,
          "relative_bias: a table for the distances -most..most must have an odd number of columns, but has ", columns);
  return ClippedDistance{columns / 2};
}

template <class T, class Buckets>
auto bias_by_distance(BroadcastTensor<T> held, Buckets buckets) {
  return bind_mod([held = std::move(held), buckets = std::move(buckets)](const Problem& problem) {
    const auto table =
        held.over(sizes_of_buckets(problem, buckets.buckets()), "relative_bias", "(1, 1, heads, buckets)");
    return score_mod([table, &buckets](auto x, const Position& p) {
      return biased(x, static_cast<decltype(x)>(table(Position{0, 0, p.head, buckets(p.kv - p.q)})));
    });
  });
}

}  // namespace detail

/// Adds an element of `table` to each score: x -> x + table(head, buckets(kv - q)). The element is not multiplied by
/// `scale`; -inf drops the pair, as in bias(). The table may be anything attn::view accepts, of shape (buckets) or
/// (heads, buckets); dimensions of size 1 are broadcast. Without the argument `buckets`, the table has one element per
/// distance in -most..most, and distances outside this range are clamped to it.
///
///     attn::relative_bias(table, attn::T5Buckets(32, 128))
///
/// `buckets` is a ClippedDistance, a T5Buckets, or your own type with `Index buckets() const` and `Index
/// operator()(Index distance) const`. The mod keeps a temporary table alive; any other table is only viewed and must
/// outlive the mod.
/// @throws std::invalid_argument from the attention call, if the table does not fit.
template <class X, class Buckets>
requires(!detail::Viewable<Buckets>) auto relative_bias(X&& table, Buckets buckets) {
  return detail::bias_by_distance(detail::broadcast_tensor(std::forward<X>(table)), std::move(buckets));
}

/// relative_bias() of a learned table: the backward pass adds its gradient to `grad`, a tensor of the same shape. Both
/// tensors must outlive the mod.
template <class X, class G, class Buckets>
requires(detail::Viewable<std::remove_cvref_t<G>>) auto relative_bias(const X& table, G&& grad, Buckets buckets) {
  auto held = detail::broadcast_tensor(table);
  auto gradient = detail::gradient_tensor(std::forward<G>(grad), "relative_bias");
  return bind_mod([held = std::move(held), gradient, buckets = std::move(buckets)](const Problem& problem) {
    const Problem sizes = detail::sizes_of_buckets(problem, buckets.buckets());
    held.check_gradient(gradient, "relative_bias");
    const auto place = [&buckets](const Position& p) { return Position{0, 0, p.head, buckets(p.kv - p.q)}; };
    const auto numbers = held.over(sizes, "relative_bias", "(1, 1, heads, buckets)");
    const auto slots = gradient.slots_of_pairs(sizes);
    return detail::learned_score([](auto x, auto b, const Position&) { return detail::biased(x, b); },
                                 [slots, place](const Position& p) { return slots(place(p)); },
                                 [numbers, place](const Position& p) { return numbers(place(p)); }, gradient, false);
  });
}

/// relative_bias() of a table with one element per distance in -most..most, and hence an odd number of columns.
template <class X>
auto relative_bias(X&& table) {
  auto held = detail::broadcast_tensor(std::forward<X>(table));
  const ClippedDistance distances = detail::clipped_distances(held.shape[3]);
  return detail::bias_by_distance(std::move(held), distances);
}

/// relative_bias() of a learned table with one element per distance in -most..most.
template <class X, class G>
requires(detail::Viewable<std::remove_cvref_t<G>>) auto relative_bias(const X& table, G&& grad) {
  return relative_bias(table, std::forward<G>(grad),
                       detail::clipped_distances(detail::broadcast_tensor(table).shape[3]));
}

}  // namespace attn
