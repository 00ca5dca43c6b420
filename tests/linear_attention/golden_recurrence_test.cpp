// Recurrent forms on results computed by hand, independent of the library and of the tests' oracle.
#include <gtest/gtest.h>

#include <cmath>

#include "attn/attn.h"

namespace attn::test {
namespace {

using Matrix = Eigen::MatrixXd;

Matrix rows(std::initializer_list<std::initializer_list<double>> numbers) { return Matrix(numbers); }

void expect_rows(const Matrix& got, const Matrix& want) {
  ASSERT_EQ(got.rows(), want.rows());
  ASSERT_EQ(got.cols(), want.cols());
  for (Index i = 0; i < got.rows(); ++i)
    for (Index j = 0; j < got.cols(); ++j) EXPECT_NEAR(got(i, j), want(i, j), 1e-14) << i << ", " << j;
}

// The features under relu are (1, 0), (0, 2) and (1, 1) for queries and (2, 0), (1, 1) for keys, so the weights are
//
//     2  1        values  4  0        results  3    2/3    (2 * 4 + 1 * 1) / 3 and 1 * 2 / 3
//     0  2                1  2                 1    2      key 2 alone
//     2  2                                     2.5  1      half of each key
TEST(RecurrenceGolden, LinearAttentionByHand) {
  const Matrix q = rows({{1, -3}, {-1, 2}, {1, 1}}), k = rows({{2, -1}, {1, 1}}), v = rows({{4, 0}, {1, 2}});
  expect_rows(linear_attention(q, k, v, relu()).out, rows({{3, 2.0 / 3}, {1, 2}, {2.5, 1}}));
  // The last query sees the last key, the first query sees none.
  expect_rows(linear_attention(q, k, v, relu(), causal()).out, rows({{0, 0}, {0, 0}, {2.5, 1}}));
  expect_rows(linear_attention(q, k, v, relu(), causal(), {.q_offset = 0}).out, rows({{4, 0}, {1, 2}, {2.5, 1}}));
}

// elu + 1 of 0 is 1 and of -ln 2 is 1 / 2: weights 1 / 2 + 1 and 1 + 1 / 2.
TEST(RecurrenceGolden, Elu1ByHand) {
  const double half = -std::log(2.0);
  const Matrix q = rows({{0, 0}}), k = rows({{half, 0}, {1, half}}), v = rows({{8}, {4}});
  // Features (1, 1) and (1/2, 1), (2, 1/2): weights 1.5 and 2.5.
  expect_rows(linear_attention(q, k, v, elu1()).out, rows({{(1.5 * 8 + 2.5 * 4) / 4}}));
}

// The state is a single number: 2, then 2 / 2 + 3 = 4, then 4 / 4 + 1 = 2; the queries are 1, 2, 3 and the scale is 10.
TEST(RecurrenceGolden, GatesByHand) {
  const Matrix q = rows({{1}, {2}, {3}}), k = rows({{1}, {1}, {1}}), v = rows({{2}, {3}, {1}});
  const Eigen::VectorXd gate = (Eigen::VectorXd(3) << -9, std::log(0.5), std::log(0.25)).finished();
  expect_rows(gated_attention(q, k, v, gate, {.scale = 10}).out, rows({{20}, {80}, {60}}));
  // With a decay of 1/2 everywhere: 2, 4, 3.
  expect_rows(gated_attention(q, k, v, decay_per_head({std::log(0.5)}), {.scale = 10}).out, rows({{20}, {80}, {90}}));
}

// Each feature has its own gate: the first keeps its state, the second halves it.
TEST(RecurrenceGolden, FeatureGatesByHand) {
  const Matrix q = rows({{1, 1}, {1, 1}}), k = rows({{1, 2}, {0, 1}}), v = rows({{4}, {1}});
  const Matrix gate = rows({{0, 0}, {0, std::log(0.5)}});
  // State (4, 8), then (4, 4 + 1).
  expect_rows(gated_attention(q, k, v, gate, {.scale = 1}).out, rows({{12}, {9}}));
}

// With beta = 1 and keys of length 1, a key's new value replaces its old one: (1, 0) -> 5, then (0, 1) -> 7, then (1,
// 0) -> 3. A beta of 1/2 goes halfway, and the gate halves the previous state.
TEST(RecurrenceGolden, DeltaRuleByHand) {
  const Matrix q = rows({{1, 1}, {1, 1}, {1, 10}, {1, 10}}), k = rows({{1, 0}, {0, 1}, {1, 0}, {0, 1}}),
               v = rows({{5}, {7}, {3}, {11}});
  const Eigen::VectorXd gate = (Eigen::VectorXd(4) << 0, 0, 0, std::log(0.5)).finished(),
                        beta = (Eigen::VectorXd(4) << 1, 1, 1, 0.5).finished();
  // States (5, 0), (5, 7), (3, 7), then halved (1.5, 3.5) and 3.5 + (11 - 3.5) / 2 = 7.25.
  expect_rows(gated_delta_rule(q, k, v, gate, beta, {.scale = 1}).out, rows({{5}, {12}, {73}, {74}}));
}

TEST(RecurrenceGolden, DefaultScale) {
  const Matrix q = rows({{1, 1, 1, 1}}), k = q, v = rows({{3}});
  expect_rows(gated_attention(q, k, v, decay_per_head({0})).out, rows({{6}}));
}

TEST(RecurrenceGolden, RetentionDecay) {
  const auto decays = retention_decay(3).log_decays;
  ASSERT_EQ(decays.size(), 3u);
  EXPECT_NEAR(std::exp(decays[0]), 31.0 / 32, 1e-15);
  EXPECT_NEAR(std::exp(decays[2]), 127.0 / 128, 1e-15);
}

// One feature and two keys, with values 1 and 3. If the second weight is w times the first, out = (1 + 3 w) / (1 + w),
// whose derivative with respect to w is 2 / (1 + w)^2.
TEST(RecurrenceGolden, GradientsByHand) {
  const Matrix q = rows({{2}}), k = rows({{1}, {3}}), v = rows({{1}, {3}}), one = rows({{1}});
  const auto g = linear_attention_backward(one, q, k, v, relu());
  // Weights 2 and 6: w = 3. d out / d k_2 = 2 / 16, d out / d k_1 = -3 times that.
  expect_rows(g.key, rows({{-3.0 / 8}, {1.0 / 8}}));
  expect_rows(g.value, rows({{0.25}, {0.75}}));
  expect_rows(g.query, rows({{0}}));

  // out_2 = q (d k_1 v_1 + k_2 v_2). With d = 1/2 and (q, k_1, v_1, k_2, v_2) = (2, 3, 5, 7, 11) it is 2 (7.5 + 77) =
  // 169.
  const Matrix q2 = rows({{0}, {2}}), k2 = rows({{3}, {7}}), v2 = rows({{5}, {11}}), last = rows({{0}, {1}});
  const Eigen::VectorXd gate = (Eigen::VectorXd(2) << -4, std::log(0.5)).finished();
  EXPECT_NEAR(gated_attention(q2, k2, v2, gate, {.scale = 1}).out(1, 0), 169, 1e-12);
  const auto gated = gated_attention_backward(last, q2, k2, v2, gate, {.scale = 1});
  expect_rows(gated.query, rows({{0}, {84.5}}));
  expect_rows(gated.key, rows({{5}, {22}}));
  expect_rows(gated.value, rows({{3}, {14}}));
  expect_rows(gated.log_gate, rows({{0}, {15}}));

  // The delta rule with k = 1: s_1 = b_1 v_1 and s_2 = d s_1 (1 - b_2) + b_2 v_2. With b = (1, 1/4), d = 1/2 and v =
  // (8, 12), s_2 = 3 + 3 = 6.
  const Matrix k3 = rows({{1}, {1}}), v3 = rows({{8}, {12}}), q3 = rows({{0}, {1}});
  const Eigen::VectorXd beta = (Eigen::VectorXd(2) << 1, 0.25).finished();
  EXPECT_NEAR(gated_delta_rule(q3, k3, v3, gate, beta, {.scale = 1}).out(1, 0), 6, 1e-12);
  const auto delta = gated_delta_rule_backward(last, q3, k3, v3, gate, beta, {.scale = 1});
  expect_rows(delta.value, rows({{0.375}, {0.25}}));
  expect_rows(delta.log_gate, rows({{0}, {3}}));
  expect_rows(delta.beta, rows({{3}, {8}}));
}

}  // namespace
}  // namespace attn::test
