// Gradients under every pair of mods against differences of the loss, in double.
#include <algorithm>
#include <cmath>

#include "attn/attn.h"
#include "support/erased_rows.h"
#include "support/paths.h"

namespace attn::test {
namespace {

/// A call, and a direction in which its inputs move.
struct Line {
  explicit Line(const Sizes& s, Random& random)
      : sizes(s), at(s, random), along(s, random), grad(random.values(s.batch * s.heads * s.q_len * (s.v_dim + 1))) {}

  Sizes sizes;
  Inputs at, along;
  std::vector<double> grad;  ///< of out, then of lse

  Inputs moved(double by) const {
    const auto sum = [by](std::vector<double> x, const std::vector<double>& y) {
      for (std::size_t i = 0; i < x.size(); ++i) x[i] += by * y[i];
      return x;
    };
    return {sizes, sum(at.q, along.q), sum(at.k, along.k), sum(at.v, along.v)};
  }

  template <class M>
  double loss(const M& mods, double by) const {
    Arguments<double> a(moved(by));
    const auto r = attention(a.q.cview(), a.k.cview(), a.v.cview(), mods);
    double sum = 0;
    for (Index i = 0; i < r.out.size(); ++i) sum += grad[static_cast<std::size_t>(i)] * r.out.data()[i];
    for (Index i = 0; i < r.lse.size(); ++i)
      if (std::isfinite(r.lse.data()[i])) sum += grad[static_cast<std::size_t>(r.out.size() + i)] * r.lse.data()[i];
    return sum;
  }

  /// Compares the directional derivative of the loss, by both backward passes, with fourth-order differences.
  template <class M>
  void check(const Row<M>& row) const {
    if (::testing::Test::HasFailure()) return;
    constexpr double kStep = 2e-4;  // balances truncation, of the order kStep^4, against rounding, eps / kStep
    const auto f = [&](double steps) { return loss(row.mod, steps * kStep); };
    const double want = (8 * (f(1) - f(-1)) - (f(2) - f(-2))) / (12 * kStep);
    Arguments<double> a(at);
    if (std::isnan(want)) {
      // A score of -inf that the next mod negates is +inf, and the softmax of its row is undefined, in the definition
      // too.
      const auto defined = naive_attention(a.q.cview(), a.k.cview(), a.v.cview(), row.mod);
      EXPECT_FALSE(std::all_of(defined.out.data(), defined.out.data() + defined.out.size(), [](double x) {
        return std::isfinite(x);
      })) << row.name;
      return;
    }
    const auto r = attention(a.q.cview(), a.k.cview(), a.v.cview(), row.mod);
    Result into = r;
    std::copy_n(grad.data(), into.out.size(), into.out.data());
    std::copy_n(grad.data() + into.out.size(), into.lse.size(), into.lse.data());
    const auto g = attention_backward(into, a.q.cview(), a.k.cview(), a.v.cview(), r, row.mod),
               naive = naive_attention_backward(into, a.q.cview(), a.k.cview(), a.v.cview(), row.mod);
    const auto growth = [&](const auto& gradients) {
      double sum = 0;
      const auto add = [&](const auto& gradient, const std::vector<double>& direction) {
        for (std::size_t i = 0; i < direction.size(); ++i) sum += gradient.data()[i] * direction[i];
      };
      add(gradients.query, along.q), add(gradients.key, along.k), add(gradients.value, along.v);
      return sum;
    };
    EXPECT_NEAR(growth(g), want, 1e-8 * (1 + std::abs(want))) << row.name;
    EXPECT_NEAR(growth(naive), want, 1e-8 * (1 + std::abs(want))) << row.name << ", naive";
  }
};

TEST(BackwardPairs, AgreeWithDifferences) {
  Random random(3);
  for (int round = 0; round < 4; ++round) {  // other variants of every mod
    const Sizes sizes{2, 4, 2, 7, 9, 5, 3};
    const Line line(sizes, random);
    const ErasedRows mods = erased_rows({sizes, {}, random});
    ASSERT_GE(mods.scores.size(), 8u);
    const auto cross = [&](const auto& first, const auto& second) {
      for (const auto& a : first)
        for (const auto& b : second) line.check(a | b);
    };
    // Pairs of masks are left out: they have no derivative and combine to another mask.
    cross(mods.scores, mods.scores);
    cross(mods.scores, mods.masks);
    cross(mods.masks, mods.scores);
    cross(mods.others, mods.scores);
    cross(mods.scores, mods.others);
    cross(mods.others, mods.masks);
    cross(mods.others, mods.others);
    cross(mods.grouped, mods.scores);
  }
}

}  // namespace
}  // namespace attn::test
