// Feature maps, which linear attention has in place of the softmax.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/detail/linear_attention/favor_projection.h"
#include "attn/dual.h"

namespace attn {

/// The feature map that makes x + 1 of x > 0 and e^x below, in each feature (Katharopoulos et al. 2020, eq. 7).
struct Elu1Features {};
/// The feature map Elu1Features.
inline Elu1Features elu1() { return {}; }

/// The feature map max(x, 0) in each feature. A query or key without a positive number has no features; see
/// linear_attention().
struct ReluFeatures {};
/// The feature map ReluFeatures.
inline ReluFeatures relu() { return {}; }

/// The feature map that leaves queries and keys as they are, for maps of any kind that a program computes by itself.
struct IdentityFeatures {};
/// The feature map IdentityFeatures.
inline IdentityFeatures identity() { return {}; }

/// The feature map that calls a function of one number for each feature. Made by feature_map().
template <class F>
struct LambdaFeatures {
  F map;  ///< called with each feature of queries and keys
};

/// A feature map of your own, number by number: `feature_map([](auto x) { return x * x; })`. It is called with numbers
/// of the type that a call computes in, and with dual numbers for gradients (see Dual), from several threads at once.
/// Results should not be negative, and not all 0, because they are weights.
template <class F>
LambdaFeatures<F> feature_map(F map) {
  constexpr bool kTakesNumbers = std::is_invocable_v<const F&, float>;
  static_assert(
      kTakesNumbers,
      "attn::feature_map: the lambda must take a number and return its feature: [](auto x) { return x * x; }");
  return {std::move(map)};
}

/// Positive random features of the softmax, FAVOR+ (Choromanski et al. 2021, lemma 1 and section 2.4). Made by favor().
struct FavorFeatures {
  Index features;                                         ///< how many features it makes, m
  std::uint64_t seed;                                     ///< decides the draws
  std::shared_ptr<detail::FavorProjections> projections;  ///< what was drawn, for each head_dim; shared by copies
};

/// Random features with which linear_attention() estimates attention(). For w_1 .. w_m drawn from a normal
/// distribution, in orthogonal blocks of head_dim,
///
///     feature_i(x) = e^(w_i * x - |x|^2 / 2) / sqrt(m),   x = sqrt(scale) * query or key,
///
/// so that the expected product of features is e^(scale * query * key). The relative error of one weight (root of the
/// mean square, over draws) is at most
///
///     sqrt((e^(scale * |query + key|^2) - 1) / m),
///
/// and equal to it for independent w (lemma 2 there; theorem 2 for orthogonal ones): with m = 256 it is 0.16 where
/// scale * |query + key|^2 is 2, and 3.4 where it is 8. So it suits queries and keys of small norm, and no m makes up
/// for large ones.
///
/// The draws depend on `seed` and head_dim alone, and are the same for all heads. They are made by the first call and
/// kept with the map: make it once. Keys overflow where w_i * x - |x|^2 / 2 does (88 in float), which is below |w_i|^2
/// / 2, some head_dim / 2.
/// @throws std::invalid_argument unless features is positive.
inline FavorFeatures favor(Index features, std::uint64_t seed) {
  detail::require(features > 0, "favor: there must be at least one feature, asked for are ", features);
  return {features, seed, std::make_shared<detail::FavorProjections>()};
}

namespace detail {

template <class M>
constexpr bool is_feature_map = std::is_same_v<M, Elu1Features> || std::is_same_v<M, ReluFeatures> ||
                                std::is_same_v<M, IdentityFeatures> || std::is_same_v<M, FavorFeatures>;
template <class F>
constexpr bool is_feature_map<LambdaFeatures<F>> = true;

/// Says in one sentence what may stand in place of a feature map.
template <class M>
constexpr auto check_feature_map() {
  static_assert(is_feature_map<M>,
                "attn: the argument behind the value must be a feature map: attn::elu1(), relu(), identity(), "
                "favor(features, seed), or attn::feature_map(...) around a lambda");
  return is_feature_map<M>;
}

}  // namespace detail

}  // namespace attn
