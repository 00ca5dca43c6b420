// What a softmax over some keys leaves, and how two of them become one.
#pragma once

#include <cmath>
#include <limits>

#include "attn/isa.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The largest score of some keys, and the sum of e^(score - max) over them (Milakov & Gimelshein 2018, section 3).
/// Whatever is summed up with such weights, an output too, is relative to `max`. -inf and 0: there is no key.
template <class T>
struct SoftmaxState {
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  T max = -kInfinity;
  T sum = T(0);

  /// Of one key with this score, or of all keys that have this log-sum-exp; of none for -inf.
  static SoftmaxState of(T score) { return {score, score == -kInfinity ? T(0) : T(1)}; }
  /// Of all keys that have the log-sum-exp lse + rest.
  static SoftmaxState of(T lse, T rest) { return rest == T(0) ? of(lse) : SoftmaxState{lse, std::exp(rest)}; }

  /// What is relative to `max` times this is relative to `max_of_all`, which is no less. 0 where there is no key.
  static T factor(T max, T max_of_all) { return std::exp(max - (max_of_all == -kInfinity ? T(0) : max_of_all)); }
  T factor_in(const SoftmaxState& all) const { return factor(max, all.max); }

  friend bool operator==(const SoftmaxState&, const SoftmaxState&) = default;

  /// Over the keys of both, which have none in common.
  friend SoftmaxState merged(const SoftmaxState& a, const SoftmaxState& b) {
    SoftmaxState all{a.max < b.max ? b.max : a.max};
    all.sum = a.sum * a.factor_in(all) + b.sum * b.factor_in(all);
    return all;
  }

  /// The natural log of the sum of e^score.
  T lse() const { return sum == T(0) ? -kInfinity : max + std::log(sum); }
  /// What rounding took from lse() (Knuth, The Art of Computer Programming, 4.2.2, theorem A).
  T lse_rest() const {
    if (sum == T(0)) return 0;
    const T log_sum = std::log(sum), lse = max + log_sum, added = lse - max,
            rest = (max - (lse - added)) + (log_sum - added);
    return std::isfinite(rest) ? rest : T(0);
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
