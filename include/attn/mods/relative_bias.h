// relative_bias(): a learned number for each head and distance, and the distance buckets of T5.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "attn/detail/mods/broadcast.h"
#include "attn/detail/mods/learned_mods.h"
#include "attn/detail/simd/scalar_math.h"
#include "attn/mod.h"

namespace attn {

/// A bucket for each distance -most..most. Farther distances fall into the first or the last bucket (Shaw et al. 2018,
/// section 3.2).
class ClippedDistance {
 public:
  /// @throws std::invalid_argument unless `most` is in 0..2^60.
  explicit ClippedDistance(Index most) : most_(most) {
    constexpr Index kMost = Index(1) << 60;  // so that sums of a few distances do not overflow
    detail::require(most >= 0 && most <= kMost, "ClippedDistance(", most, "): the distance must be in 0..", kMost);
  }

  /// How many buckets there are: 2 most + 1.
  Index buckets() const { return 2 * most_ + 1; }
  /// The bucket of a key that lies `distance` = kv - q after its query.
  Index operator()(Index distance) const { return std::clamp(distance, -most_, most_) + most_; }

 private:
  Index most_;
};

/// The buckets of T5 (Raffel et al. 2020, section 2.1). Half of them are one distance wide; the others widen up to
/// `max_distance`. If bidirectional, the upper half of the buckets is for keys after the query; if not, these keys
/// share bucket 0 with the query's own key.
class T5Buckets {
 public:
  /// @throws std::invalid_argument unless there are at least 2 buckets for each direction, and max_distance lies beyond
  /// the buckets that are one distance wide.
  explicit T5Buckets(Index buckets = 32, Index max_distance = 128, bool bidirectional = true)
      : buckets_(buckets), bidirectional_(bidirectional) {
    const Index each = bidirectional ? buckets / 2 : buckets, exact = each / 2;
    constexpr Index kFarthest = Index(1) << 24;  // each distance has an entry in a table
    detail::require(max_distance <= kFarthest, "T5Buckets: a max_distance of ", max_distance, " is more than ",
                    kFarthest);
    detail::require(exact > 0 && max_distance > exact && (!bidirectional || buckets % 2 == 0), "T5Buckets(", buckets,
                    ", ", max_distance,
                    "): too few buckets, an odd number of them for two directions, or a distance of at most ", exact);
    const auto octaves = [&](Index d) { return std::log2(static_cast<double>(d) / static_cast<double>(exact)); };
    for (Index d = 0; d < exact; ++d) of_distance_.push_back(d);
    for (Index d = exact; d <= max_distance; ++d) {
      const double share = octaves(d) / octaves(max_distance);
      of_distance_.push_back(std::min(exact + static_cast<Index>(share * static_cast<double>(each - exact)), each - 1));
    }
  }

  /// How many buckets there are.
  Index buckets() const { return buckets_; }
  /// The bucket of a key that lies `distance` = kv - q after its query.
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

/// The sizes of a call in which the heads are queries and the buckets are keys.
inline Problem sizes_of_buckets(const Problem& problem, Index buckets) {
  Problem sizes = problem;
  sizes.batch = sizes.heads = 1;
  sizes.q_len = problem.heads;
  sizes.kv_len = buckets;
  sizes.q_offset = sizes.kv_offset = 0;
  sizes.has_part_of_keys = false;
  return sizes;
}

/// The distances of a table with this many columns.
inline ClippedDistance clipped_distances(Index columns) {
  require(columns % 2 == 1,
          "relative_bias: a table of the distances -most..most has an odd number of columns, this one has ", columns);
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

/// Adds an element of `table` to each score: x -> x + table(head, buckets(kv - q)). It is not multiplied by scale; -inf
/// drops the pair, as in bias(). The table is anything attn::view takes, of shape (buckets) or (heads, buckets); a size
/// of 1 is broadcast. Without the argument `buckets`, the table has a number for each of the distances -most..most, and
/// farther distances count as -most or most.
///
///     attn::relative_bias(table, attn::T5Buckets(32, 128))
///
/// `buckets` is a ClippedDistance, a T5Buckets, or a type of yours with `Index buckets() const` and `Index
/// operator()(Index distance) const`. A temporary is kept alive in the mod; any other tensor is only viewed and must
/// outlive it.
/// @throws std::invalid_argument in the call, if the table does not fit.
template <class X, class Buckets>
requires(!detail::Viewable<Buckets>) auto relative_bias(X&& table, Buckets buckets) {
  return detail::bias_by_distance(detail::broadcast_tensor(std::forward<X>(table)), std::move(buckets));
}

/// relative_bias() of a table that is learned: the backward pass adds its gradient to `grad`, a tensor of the same
/// shape. Both must outlive the mod.
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

/// relative_bias() of a table that has a number for each distance -most..most, and so an odd number of them.
template <class X>
auto relative_bias(X&& table) {
  auto held = detail::broadcast_tensor(std::forward<X>(table));
  const ClippedDistance distances = detail::clipped_distances(held.columns());
  return detail::bias_by_distance(std::move(held), distances);
}

/// relative_bias() of a learned table that has a number for each distance -most..most.
template <class X, class G>
requires(detail::Viewable<std::remove_cvref_t<G>>) auto relative_bias(const X& table, G&& grad) {
  return relative_bias(table, std::forward<G>(grad),
                       detail::clipped_distances(detail::broadcast_tensor(table).columns()));
}

}  // namespace attn
