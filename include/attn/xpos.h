// Rotary position embedding whose products also decay with distance.
#pragma once

#include "attn/rope.h"

namespace attn {

/// The scaling of an XPos.
struct XPosConfig {
  double scale_base = 512;  ///< distance over which a pair decays by its factor
  double gamma = 0.4;       ///< pair i decays by the factor zeta_i = (2i / rotary_dim + gamma) / (1 + gamma)
  Index origin = 0;         ///< the position that is not scaled
};

inline namespace ATTN_BUILT_FOR {

/// xPos (Sun et al. 2022, "A Length-Extrapolatable Transformer", section 3.2): queries and keys are rotated as by Rope
/// and also scaled. Pair i of a query at position n is multiplied by zeta_i^((n - origin) / scale_base); pair i of a
/// key at position n is divided by the same factor. The product then decays by zeta_i^(distance / scale_base), fastest
/// for the pairs that rotate fastest, so that these do not oscillate at distances that the model was not trained on. It
/// is meant for causal attention: the product with a later key would grow.
///
/// The choice of the origin does not change products, but far from the origin the factors leave the range of float:
/// after 35,000 positions for the smallest zeta, 0.2857. Choose an origin in the middle of the positions that are
/// computed together; cached keys must have been scaled with the same origin.
class XPos {
 public:
  /// @throws std::invalid_argument unless scale_base and gamma are positive and finite.
  explicit XPos(const Rope& rope, const XPosConfig& config = {}) : rope_(rope), config_(config) {
    detail::require(
        config.scale_base > 0 && config.gamma > 0 && std::isfinite(config.scale_base) && std::isfinite(config.gamma),
        "XPos: scale_base is ", config.scale_base, " and gamma is ", config.gamma,
        "; both must be positive and finite");
    const double pairs = static_cast<double>(rope.frequencies().size());
    for (std::size_t i = 0; i < rope.frequencies().size(); ++i)
      log_factors_.push_back(std::log((static_cast<double>(i) / pairs + config.gamma) / (1 + config.gamma)) /
                             config.scale_base);
  }

  /// The Rope that rotates the pairs.
  const Rope& rope() const { return rope_; }
  /// The configuration of the scaling.
  const XPosConfig& config() const { return config_; }

  /// Rotates and scales x in place, (len, head_dim) or (batch, heads, len, head_dim), of any scalar type and strides;
  /// token i is at position first + i.
  /// @throws std::invalid_argument if x has a different head_dim, before anything is written.
  template <class X>
  void rotate_query(X&& x, Index first = 0) const {
    apply(x, first, 1, 1);
  }
  /// Like rotate_query(), but for keys, which are divided by the factors.
  template <class X>
  void rotate_key(X&& x, Index first = 0) const {
    apply(x, first, -1, 1);
  }

  /// Converts the gradient with respect to rotate_query()'s result into the gradient with respect to its x.
  template <class X>
  void rotate_query_gradient(X&& x, Index first = 0) const {
    apply(x, first, 1, -1);
  }
  /// Converts the gradient with respect to rotate_key()'s result into the gradient with respect to its x.
  template <class X>
  void rotate_key_gradient(X&& x, Index first = 0) const {
    apply(x, first, -1, -1);
  }

 private:
  template <class X>
  void apply(X&& x, Index first, int exponent, int direction) const {
    using T = detail::computed_t<typename detail::Traits<std::remove_cvref_t<X>>::Scalar>;
    using Real = std::common_type_t<T, double>;
    const auto shape = detail::as_rank4(view(x)).shape();
    detail::require(shape[3] == rope_.config().head_dim, "XPos: head_dim is ", rope_.config().head_dim,
                    ", but x has shape ", shape);
    const Index len = shape[2], pairs = static_cast<Index>(log_factors_.size());
    Tensor<T, 2> cos({len, pairs}), sin({len, pairs});
    for (Index n = 0; n < len; ++n)
      for (Index i = 0; i < pairs; ++i) {
        const auto pair = static_cast<std::size_t>(i);
        const Real angle = static_cast<Real>(first + n) * static_cast<Real>(rope_.frequencies()[pair]);
        const Real factor = std::exp(static_cast<Real>(exponent * (first + n - config_.origin)) *
                                     static_cast<Real>(log_factors_[pair])) *
                            static_cast<Real>(rope_.attention_factor());
        cos(n, i) = static_cast<T>(factor * std::cos(angle));
        sin(n, i) = static_cast<T>(static_cast<Real>(direction) * factor * std::sin(angle));
      }
    rotate_by(x, cos, sin, rope_.config().pairs);
  }

  Rope rope_;
  XPosConfig config_;
  std::vector<double> log_factors_;
};

}  // namespace ATTN_BUILT_FOR

}  // namespace attn
