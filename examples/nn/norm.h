// Normalisation of each token's features.
#pragma once

#include "parameter.h"

namespace nn {

/// Which normalisation: to mean 0 and variance 1, then scaled and, with a bias, shifted (LayerNorm, Ba et al. 2016); or
/// to mean square 1, then scaled (RMSNorm, Zhang & Sennrich 2019). Both add epsilon to the variance, or mean square,
/// before they take its root.
enum class NormKind { layer, layer_without_bias, rms };

/// nn.LayerNorm and nn.RMSNorm of PyTorch, over the last dimension.
template <class T>
class Norm {
 public:
  explicit Norm(Index features, NormKind kind = NormKind::layer, T epsilon = T(1e-5));

  States<T> operator()(const States<T>& x) const;
  States<T> forward(const States<T>& x);
  States<T> backward(const States<T>& grad);

  /// Visits "weight" (features), and "bias" (features) if there is one.
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  /// Normalises some rows. Where wanted, also gives them before they are scaled, and 1 / standard deviation of each.
  States<T> apply(const States<T>& x, States<T>* normalized, std::vector<T>* scales) const;

  NormKind kind_;
  T epsilon_;
  Learned<T, 1> weight_, bias_;
  States<T> normalized_;
  std::vector<T> scales_;
};

}  // namespace nn
