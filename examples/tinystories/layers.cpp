#include "layers.h"

#include <cmath>

namespace tinystories {

Matrix linear(const Matrix& x, const MatrixView& weight, const attn::Options& options) {
  Matrix y(x.rows(), weight.rows());
  attn::linear_into(y, x, weight, options);
  return y;
}

// Eigen's sums and functions of whole matrices have other bits at the ends of vectors, so rows and elements are visited
// one by one.

Matrix rms_norm(const Matrix& x, const RowView& weight) {
  constexpr float kEpsilon = 1e-5f;  // as in training
  Matrix y(x.rows(), x.cols());
  for (Index i = 0; i < x.rows(); ++i) {
    double squares = 0;
    for (Index c = 0; c < x.cols(); ++c) squares += static_cast<double>(x(i, c)) * static_cast<double>(x(i, c));
    const auto mean_square = static_cast<float>(squares / static_cast<double>(x.cols()));
    const float factor = 1 / std::sqrt(mean_square + kEpsilon);
    for (Index c = 0; c < x.cols(); ++c) y(i, c) = x(i, c) * factor * weight(c);
  }
  return y;
}

Matrix feed_forward(const Matrix& x, const MatrixView& w1, const MatrixView& w2, const MatrixView& w3,
                    const attn::Options& options) {
  Matrix inner = linear(x, w1, options);
  const Matrix up = linear(x, w3, options);
  for (Index i = 0; i < inner.size(); ++i) {
    float& gate = inner.data()[i];
    gate = gate / (1 + std::exp(-gate)) * up.data()[i];
  }
  return linear(inner, w2, options);
}

}  // namespace tinystories
