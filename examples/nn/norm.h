// Normalisation of each token's features.
#pragma once

#include "parameter.h"

namespace nn {

/// Kinds of normalisation. Layer normalises to mean 0 and variance 1, then scales and, with a bias, shifts (LayerNorm,
/// Ba et al. 2016). RMS normalises to mean square 1, then scales (RMSNorm, Zhang & Sennrich 2019). Unit normalises to a
/// sum of squares of 1, and learns nothing. All add epsilon to the variance, the mean square or the sum of squares
/// before taking the square root.
enum class NormKind { layer, layer_without_bias, rms, unit };

/// PyTorch's nn.LayerNorm and nn.RMSNorm, over the last dimension. States with a multiple of `features` features, such
/// as those of several heads, are normalised in groups of that size, which share the weight.
template <class T>
class Norm {
 public:
  explicit Norm(Index features, NormKind kind = NormKind::layer, T epsilon = T(1e-5));

  States<T> operator()(const States<T>& x) const;
  States<T> forward(const States<T>& x);
  States<T> backward(const States<T>& grad);

  /// Visits "weight" (features) unless it is fixed, and "bias" (features) if there is a bias.
  void visit(const std::string& prefix, const Visitor<T>& visitor);

 private:
  /// Normalises all rows. `normalized` and `scales`, if not null, receive the rows before they are multiplied by the
  /// weight, and the factor of each row: 1 / standard deviation, or for RMS 1 / root mean square.
  States<T> apply(const States<T>& x, States<T>* normalized, std::vector<T>* scales) const;

  bool subtracts_mean() const { return kind_ == NormKind::layer || kind_ == NormKind::layer_without_bias; }

  NormKind kind_;
  T epsilon_;
  Learned<T, 1> weight_, bias_;
  States<T> normalized_;
  std::vector<T> scales_;
};

}  // namespace nn
