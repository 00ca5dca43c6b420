// The state of a softmax over some keys, and the merging of two such states.
#pragma once

#include <cmath>
#include <limits>

#include "attn/isa.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The largest score of some keys, and the sum of e^(score - max) over them (Milakov & Gimelshein 2018, section 3).
/// Sums with these weights, such as outputs, are relative to `max`. Without keys, `max` is -inf and `sum` is 0.
template <class T>
struct SoftmaxState {
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  T max = -kInfinity;
  T sum = T(0);

  /// The state of one key with this score, or of keys with this log-sum-exp; for -inf, the state without keys.
  static SoftmaxState of(T score) { return {score, score == -kInfinity ? T(0) : T(1)}; }
  /// The state of keys whose log-sum-exp is lse + rest.
  static SoftmaxState of(T lse, T rest) { return rest == T(0) ? of(lse) : SoftmaxState{lse, std::exp(rest)}; }

  /// The factor that rescales sums from `max` to `max_of_all`, which must be at least `max`. 0 without keys.
  static T factor(T max, T max_of_all) { return std::exp(max - (max_of_all == -kInfinity ? T(0) : max_of_all)); }
  T factor_in(const SoftmaxState& all) const { return factor(max, all.max); }

  friend bool operator==(const SoftmaxState&, const SoftmaxState&) = default;

  /// The state over the keys of both, which must be disjoint.
  friend SoftmaxState merged(const SoftmaxState& a, const SoftmaxState& b) {
    SoftmaxState all{a.max < b.max ? b.max : a.max};
    all.sum = a.sum * a.factor_in(all) + b.sum * b.factor_in(all);
    return all;
  }

  /// The natural log of the sum of e^score.
  T lse() const { return sum == T(0) ? -kInfinity : max + std::log(sum); }
  /// The part of lse() lost to rounding (Knuth, The Art of Computer Programming, 4.2.2, theorem A).
  T lse_rest() const {
    if (sum == T(0)) return 0;
    const T log_sum = std::log(sum), lse = max + log_sum, added = lse - max,
            rest = (max - (lse - added)) + (log_sum - added);
    return std::isfinite(rest) ? rest : T(0);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
