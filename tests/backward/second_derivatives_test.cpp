// Naive gradients on dual numbers: their directional derivative is a second derivative.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/random.h"

namespace Eigen {
template <>
struct NumTraits<attn::Dual<double>> : GenericNumTraits<attn::Dual<double>> {
  enum { IsInteger = 0, IsSigned = 1, IsComplex = 0, RequireInitialization = 1 };
};
}  // namespace Eigen

namespace attn::test {
namespace {

using D = Dual<double>;
using Matrix = detail::RowMajor<double>;
using Moving = detail::RowMajor<D>;

struct Case {
  Matrix q, k, v, grad_out, dq, dk, dv;

  explicit Case(Random& random) {
    const auto drawn = [&](Index rows, Index columns) {
      return Matrix(Matrix::NullaryExpr(rows, columns, [&] { return random.uniform(-1, 1); }));
    };
    q = drawn(9, 3), k = drawn(12, 3), v = drawn(12, 2), grad_out = drawn(9, 2);
    dq = drawn(9, 3), dk = drawn(12, 3), dv = drawn(12, 2);
  }

  template <class M>
  void check(const M& mods) const {
    constexpr double kStep = 1e-5;
    const auto at = [&](double by) {
      const Matrix q1 = q + by * dq, k1 = k + by * dk, v1 = v + by * dv;
      return naive_attention_backward(grad_out, q1, k1, v1, mods);
    };
    const auto above = at(kStep), below = at(-kStep);

    const auto moving = [](const Matrix& x, const Matrix& direction) {
      Moving m(x.rows(), x.cols());
      for (Index i = 0; i < x.size(); ++i) m.data()[i] = D(x.data()[i], direction.data()[i]);
      return m;
    };
    const detail::CheckedCall call(q, k, v, mods, Options());
    Moving grad_q(9, 3), grad_k = Moving::Zero(12, 3), grad_v = Moving::Zero(12, 2);
    const Eigen::Array<D, Eigen::Dynamic, 1> grad_lse = Eigen::Array<D, Eigen::Dynamic, 1>::Zero(9);
    detail::naive_head_backward<D>(moving(q, dq), moving(k, dk), moving(v, dv), moving(grad_out, Matrix::Zero(9, 2)),
                                   grad_lse, detail::naive_mods<D>(call.mods, call.problem),
                                   detail::naive_slopes<D>(call.mods, call.problem), nullptr, nullptr, call.problem, 0,
                                   0, grad_q, grad_k, grad_v);
    const auto compare = [&](const Moving& got, const Matrix& higher, const Matrix& lower, const char* what) {
      for (Index i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got.data()[i].slope, (higher.data()[i] - lower.data()[i]) / (2 * kStep), 1e-8) << what << " " << i;
    };
    compare(grad_q, above.query, below.query, "query");
    compare(grad_k, above.key, below.key, "key");
    compare(grad_v, above.value, below.value, "value");
  }
};

TEST(SecondDerivatives, AgreeWithDifferencesOfGradients) {
  Random random(3);
  const Case c(random);
  c.check(causal());
  c.check(softcap(2) | sinks({0.5}));
  c.check(score_mod([](auto x, auto p) { return tanh(x * x) - sqrt(x + 20) * (1 + 0.1 * double(p.kv)); }) | causal());
}

}  // namespace
}  // namespace attn::test
