// Gradients through a mask and a custom lambda, in linear memory: checked against central differences, and used to fit
// queries, keys and values to a target. The directional derivative is checked too.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include <attn/attn.h>

namespace {

using Matrix = Eigen::MatrixXd;

/// Returns the largest difference between `grad` and central differences of `loss`, over all elements of `x`.
template <class Loss>
double largest_difference(Matrix& x, const Matrix& grad, const Loss& loss) {
  constexpr double kStep = 1e-4;  // near the cube root of the rounding error, the best for central differences
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
  // Large enough for several tiles of queries and of keys, some of them across the diagonal.
  Matrix q = Matrix::Random(60, 4), k = Matrix::Random(100, 4), v = Matrix::Random(100, 3);
  const Matrix target = Matrix::Random(60, 3);
  // The lambda is written once; gradients call it with dual numbers.
  const auto penalty = attn::score_mod(
      [](auto x, auto p) { return 2 * tanh(x) - 0.3 * log(1.0 + std::abs(static_cast<double>(p.q - p.kv))); });
  const auto mods = penalty | attn::causal();
  const attn::Options options{.scale = 0.7};

  const auto loss = [&] { return 0.5 * (attn::attention(q, k, v, mods, options).out - target).squaredNorm(); };
  const auto gradients = [&] {
    const auto r = attn::attention(q, k, v, mods, options);
    const Matrix grad_out = r.out - target;
    return attn::attention_backward(grad_out, q, k, v, r, mods, options);
  };
  const auto grad = gradients();
  const double largest = std::max({largest_difference(q, grad.query, loss), largest_difference(k, grad.key, loss),
                                   largest_difference(v, grad.value, loss)});

  // Along its gradient, the loss grows by the gradient's squared norm; forward mode computes this without a backward
  // pass.
  const auto jvp = attn::attention_jvp(q, k, v, grad.query, grad.key, grad.value, mods, options);
  const double growth = (jvp.out - target).cwiseProduct(jvp.tangent).sum(),
               square = grad.query.squaredNorm() + grad.key.squaredNorm() + grad.value.squaredNorm();

  const double before = loss();
  for (int step = 0; step < 50; ++step) {
    const auto g = gradients();
    q -= 0.5 * g.query;
    k -= 0.5 * g.key;
    v -= 0.5 * g.value;
  }
  const double after = loss();

  std::cout << "gradients of " << q.size() + k.size() + v.size() << " elements\n"
            << "loss " << before << ", after 50 steps " << after << '\n'
            << "growth of the loss along its gradient " << growth << ", the gradient squared " << square << '\n'
            << "the largest difference from central differences " << largest << '\n';
  if (!(largest < 1e-7) || !(std::abs(growth - square) < 1e-10 * square) || !(after < before / 2)) {
    std::cerr << "gradients: wrong gradients\n";
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
