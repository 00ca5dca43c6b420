// Feature maps, which replace the softmax in linear attention.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/dual.h"
#include "attn/recurrent/favor_projection.h"

namespace attn {

/// The feature map elu(x) + 1: x + 1 for x > 0, otherwise e^x, in each feature (Katharopoulos et al. 2020, eq. 7).
struct Elu1Features {};
/// Returns the feature map elu(x) + 1.
inline Elu1Features elu1() { return {}; }

/// The feature map max(x, 0) in each feature. All features of a query or key without a positive element are 0; see
/// linear_attention().
struct ReluFeatures {};
/// Returns the feature map max(x, 0).
inline ReluFeatures relu() { return {}; }

/// The feature map that leaves queries and keys unchanged, for programs that compute the features themselves.
struct IdentityFeatures {};
/// Returns the feature map that leaves queries and keys unchanged.
inline IdentityFeatures identity() { return {}; }

/// The feature map that applies a function to each feature. Returned by feature_map().
template <class F>
struct LambdaFeatures {
  F map;  ///< called with each feature of queries and keys
};

/// Returns a feature map that applies your own function to each feature: `feature_map([](auto x) { return x * x; })`.
/// The function is called with values of the type that attention is computed in, and with dual numbers for gradients
/// (see Dual), from several threads at once. Its results act as weights, so none should be negative and not all should
/// be 0.
template <class F>
LambdaFeatures<F> feature_map(F map) {
  constexpr bool kTakesNumbers = std::is_invocable_v<const F&, float>;
  static_assert(
      kTakesNumbers,
      "attn::feature_map: the lambda must take a number and return its feature: [](auto x) { return x * x; }");
  return {std::move(map)};
}

/// Positive random features of the softmax, FAVOR+ (Choromanski et al. 2021, lemma 1 and section 2.4). Returned by
/// favor().
struct FavorFeatures {
  Index features;                                         ///< the number of features, m
  std::uint64_t seed;                                     ///< seed of the random draws
  std::shared_ptr<detail::FavorProjections> projections;  ///< the vectors drawn for each head_dim; shared by copies
};

/// Returns random features with which linear_attention() estimates attention(). For w_1 .. w_m drawn from a normal
/// distribution, in orthogonal blocks of head_dim,
///
///     feature_i(x) = e^(w_i * x - |x|^2 / 2) / sqrt(m),   x = sqrt(scale) * query or key,
///
/// so that the expected product of features is e^(scale * query * key). The relative error of one weight (root mean
/// square over draws) is at most
///
///     sqrt((e^(scale * |query + key|^2) - 1) / m),
///
/// with equality for independent w (lemma 2 of the paper; theorem 2 for orthogonal w). With m = 256, this bound is 0.16
/// if scale * |query + key|^2 is 2, and 3.4 if it is 8. So the estimate suits queries and keys of small norm; no m
/// compensates for large norms.
///
/// The draws depend only on `seed` and head_dim, and are the same for all heads. The first call makes the draws, and
/// the map stores them, so create the map once. Features of keys overflow if e^(w_i * x - |x|^2 / 2) does (an exponent
/// above 88 in float); the exponent is at most |w_i|^2 / 2, about head_dim / 2.
/// @throws std::invalid_argument unless features is positive.
inline FavorFeatures favor(Index features, std::uint64_t seed) {
  detail::require(features > 0, "favor: features must be positive, but is ", features);
  return {features, seed, std::make_shared<detail::FavorProjections>()};
}

namespace detail {

template <class M>
constexpr bool is_feature_map = std::is_same_v<M, Elu1Features> || std::is_same_v<M, ReluFeatures> ||
                                std::is_same_v<M, IdentityFeatures> || std::is_same_v<M, FavorFeatures>;
template <class F>
constexpr bool is_feature_map<LambdaFeatures<F>> = true;
template <class M>
concept FeatureMap = is_feature_map<M>;

/// Fails to compile unless M is a feature map, with a message that lists them.
template <class M>
constexpr auto check_feature_map() {
  static_assert(is_feature_map<M>,
                "attn: the argument after the value must be a feature map: attn::elu1(), relu(), identity(), "
                "favor(features, seed), or a lambda wrapped in attn::feature_map(...)");
  return is_feature_map<M>;
}

}  // namespace detail

}  // namespace attn
