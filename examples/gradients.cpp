// Gradients in linear memory: the weights of a call are computed again tile by tile, and each tile adds its share.
// Checked against central differences of the loss sum(grad_out * out).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include <attn/attn.h>

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Gradients {
  Matrix query, key, value;
};

/// With w the weights and s the scores, out = w v: the gradient of w is grad_out vᵀ, that of a row of s is
/// w * (grad_w - sum(w * grad_w)), and sum(w * grad_w) of a row is sum(grad_out * out). For masks and mods that add to
/// scores: others, softcap() say, would multiply grad_s by their derivative.
template <class Mods>
Gradients attention_gradients(const Matrix& grad_out, const Matrix& q, const Matrix& k, const Matrix& v, double scale,
                              const Mods& mods) {
  const auto [out, lse] = attn::attention(q, k, v, mods, {.scale = scale});
  Matrix grad_q = Matrix::Zero(q.rows(), q.cols());
  Matrix grad_k = Matrix::Zero(k.rows(), k.cols());
  Matrix grad_v = Matrix::Zero(v.rows(), v.cols());
  const Eigen::VectorXd dot = grad_out.cwiseProduct(out).rowwise().sum();
  const auto add_tile = [&](const auto& tile) {
    const auto rows = [&](auto& m) { return m.middleRows(tile.rows.begin, tile.rows.size()); };
    const auto keys = [&](auto& m) { return m.middleRows(tile.keys.begin, tile.keys.size()); };
    const Matrix w = tile.weights.matrix(), grad_w = rows(grad_out) * keys(v).transpose();
    const Matrix grad_s = scale * w.cwiseProduct(grad_w.colwise() - rows(dot));
    keys(grad_v) += w.transpose() * rows(grad_out);
    keys(grad_k) += grad_s.transpose() * rows(q);
    rows(grad_q) += grad_s * keys(k);
  };
  attn::for_each_weight_tile(q, k, lse, mods, add_tile, {.scale = scale});
  return {grad_q, grad_k, grad_v};
}

/// The largest difference between `grad` and central differences of `loss` by each element of `x`.
template <class Loss>
double largest_difference(Matrix& x, const Matrix& grad, const Loss& loss) {
  constexpr double kStep = 1e-4;  // near the cube root of the rounding error: the best for central differences
  double largest = 0;
  for (Eigen::Index i = 0; i < x.size(); ++i) {
    const double here = x.data()[i];
    x.data()[i] = here + kStep;
    const double above = loss();
    x.data()[i] = here - kStep;
    const double below = loss();
    x.data()[i] = here;
    largest = std::max(largest, std::abs((above - below) / (2 * kStep) - grad.data()[i]));
  }
  return largest;
}

}  // namespace

int main() {
  // More than one tile of queries and of keys; some tiles lie across the diagonal.
  Matrix q = Matrix::Random(60, 4), k = Matrix::Random(100, 4), v = Matrix::Random(100, 3);
  const Matrix grad_out = Matrix::Random(60, 3);
  const double scale = 0.7;
  const auto mods = attn::alibi({0.1}) | attn::causal();

  const Gradients grad = attention_gradients(grad_out, q, k, v, scale, mods);

  const auto loss = [&] { return grad_out.cwiseProduct(attn::attention(q, k, v, mods, {.scale = scale}).out).sum(); };
  const double largest = std::max({largest_difference(q, grad.query, loss), largest_difference(k, grad.key, loss),
                                   largest_difference(v, grad.value, loss)});
  std::cout << "gradients of " << q.size() + k.size() + v.size() << " numbers, the largest "
            << std::max(
                   {grad.query.cwiseAbs().maxCoeff(), grad.key.cwiseAbs().maxCoeff(), grad.value.cwiseAbs().maxCoeff()})
            << "\nthe largest difference from central differences " << largest << '\n';
  if (!(largest < 1e-7)) {
    std::cerr << "gradients: they are wrong\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
