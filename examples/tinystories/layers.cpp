#include "layers.h"

#include <cmath>

namespace tinystories {

Matrix rms_norm(const Matrix& x, const RowView& weight) {
  constexpr float kEpsilon = 1e-5f;  // as in training
  Matrix y = x;
  for (auto row : y.rowwise()) {
    const float mean_square = row.squaredNorm() / static_cast<float>(row.size());
    row = (row / std::sqrt(mean_square + kEpsilon)).cwiseProduct(weight);
  }
  return y;
}

Matrix feed_forward(const Matrix& x, const MatrixView& w1, const MatrixView& w2, const MatrixView& w3) {
  const Matrix gate = x * w1.transpose();
  const Matrix up = x * w3.transpose();
  const Matrix inner = gate.array() / (1 + (-gate.array()).exp()) * up.array();
  return inner * w2.transpose();
}

}  // namespace tinystories
