// Values computed by hand. A test that takes a default or an alignment from the library cannot detect a mistake in it;
// here every expected value is written out.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "attn/attn.h"

namespace {

using attn::Index;
using attn::Options;
using Eigen::MatrixXd;
using Eigen::VectorXd;

constexpr double kInf = std::numeric_limits<double>::infinity();

/// Checks both paths. With zero queries all kept keys have the same weight.
template <class M>
void expect_both(const MatrixXd& q, const MatrixXd& k, const MatrixXd& v, const M& mods, const Options& options,
                 const MatrixXd& out, const VectorXd& lse, double tolerance = 1e-14) {
  const auto check = [&](const auto& r, const char* path) {
    for (Index i = 0; i < out.rows(); ++i) {
      for (Index j = 0; j < out.cols(); ++j)
        EXPECT_NEAR(r.out(i, j), out(i, j), tolerance * (1 + std::abs(out(i, j)))) << path << " row " << i;
      if (lse(i) == -kInf)
        EXPECT_EQ(r.lse(i), -kInf) << path << " row " << i;
      else
        EXPECT_NEAR(r.lse(i), lse(i), tolerance) << path << " row " << i;
    }
  };
  check(attn::naive_attention(q, k, v, mods, options), "naive");
  check(attn::attention(q, k, v, mods, options), "flash");
}

TEST(Golden, DefaultScaleIsOneOverRootHeadDim) {
  // q·k = 2 ln 3, head_dim 4, so the scores are ln 3 and 0: weights 3/4 and 1/4.
  MatrixXd q(1, 4), k(2, 4), v(2, 2);
  q << 2, 0, 0, 0;
  k << std::log(3.0), 5, 5, 5, 0, -5, 5, 5;
  v << 4, 0, 0, 8;
  expect_both(q, k, v, attn::full(), {}, (MatrixXd(1, 2) << 3, 2).finished(), VectorXd::Constant(1, std::log(4.0)));
}

TEST(Golden, DefaultScaleIgnoresTheValueWidth) {
  // head_dim 1: the scale is 1 whatever v_dim is.
  MatrixXd q(1, 1), k(2, 1), v = MatrixXd::Zero(2, 9);
  q << 1;
  k << std::log(7.0), 0;
  v(0, 8) = 8;
  MatrixXd out = MatrixXd::Zero(1, 9);
  out(0, 8) = 7;
  expect_both(q, k, v, attn::full(), {}, out, VectorXd::Constant(1, std::log(8.0)));
}

TEST(Golden, GivenScaleReplacesTheDefault) {
  MatrixXd q(1, 4), k(2, 4), v(2, 1);
  q << 2, 0, 0, 0;
  k << std::log(3.0), 0, 0, 0, 0, 0, 0, 0;
  v << 10, 0;
  // scale 1: scores 2 ln 3 and 0, weights 9/10 and 1/10.
  expect_both(q, k, v, attn::full(), {.scale = 1.0}, MatrixXd::Constant(1, 1, 9),
              VectorXd::Constant(1, std::log(10.0)));
  // scale 0: all weights are equal.
  expect_both(q, k, v, attn::full(), {.scale = 0.0}, MatrixXd::Constant(1, 1, 5), VectorXd::Constant(1, std::log(2.0)));
}

/// Checks which keys each row keeps: zero queries over kv_len keys with values 1, 10, 100, … identify them from the
/// output.
template <class M>
void expect_kept(Index q_len, Index kv_len, const M& mods, const Options& options,
                 std::initializer_list<std::string> pattern) {
  MatrixXd v(kv_len, 1), out(q_len, 1);
  VectorXd lse(q_len);
  for (Index j = 0; j < kv_len; ++j) v(j, 0) = std::pow(10.0, static_cast<double>(j));
  ASSERT_EQ(static_cast<Index>(pattern.size()), q_len);
  for (Index i = 0; i < q_len; ++i) {
    const std::string& row = pattern.begin()[i];
    ASSERT_EQ(static_cast<Index>(row.size()), kv_len);
    double sum = 0, count = 0;
    for (Index j = 0; j < kv_len; ++j)
      if (row[static_cast<std::size_t>(j)] == '1') sum += v(j, 0), ++count;
    out(i, 0) = count == 0 ? 0 : sum / count;
    lse(i) = std::log(count);
  }
  expect_both(MatrixXd::Zero(q_len, 3), MatrixXd::Ones(kv_len, 3), v, mods, options, out, lse);
}

TEST(Golden, CausalAlignment) {
  expect_kept(3, 3, attn::causal(), {}, {"100", "110", "111"});
  expect_kept(2, 4, attn::causal(), {}, {"1110", "1111"});                       // the last query sees the last key
  expect_kept(2, 4, attn::causal(), {.q_offset = 0}, {"1000", "1100"});          // top-left
  expect_kept(4, 2, attn::causal(), {}, {"00", "00", "10", "11"});               // the first rows keep no key
  expect_kept(4, 2, attn::causal(), {.q_offset = 0}, {"10", "11", "11", "11"});  // top-left
  expect_kept(1, 5, attn::causal(), {}, {"11111"});                              // decoding
  expect_kept(2, 3, attn::causal(), {.q_offset = -1}, {"000", "100"});
  expect_kept(2, 3, attn::causal(), {.q_offset = 7}, {"111", "111"});
}

TEST(Golden, SlidingWindow) {
  expect_kept(4, 4, attn::sliding_window(1), {}, {"1000", "1100", "0110", "0011"});
  expect_kept(4, 4, attn::sliding_window(1, 1), {}, {"1100", "1110", "0111", "0011"});
  expect_kept(4, 4, attn::sliding_window(0), {}, {"1000", "0100", "0010", "0001"});
  expect_kept(2, 4, attn::sliding_window(1), {}, {"0110", "0011"});
  expect_kept(2, 4, attn::sliding_window(0, 2), {.q_offset = 1}, {"0111", "0011"});
}

TEST(Golden, KeyLengthsKeepTheFirstKeys) {
  expect_kept(2, 5, attn::key_lengths({3}), {}, {"11100", "11100"});
  expect_kept(2, 3, attn::key_lengths({0}), {}, {"000", "000"});
}

TEST(Golden, KeepAndDropAreOpposites) {
  attn::Tensor<bool, 1> mask({4});
  mask(1) = mask(2) = true;
  expect_kept(1, 4, attn::keep(mask), {}, {"0110"});
  expect_kept(1, 4, attn::drop(mask), {}, {"1001"});
}

TEST(Golden, MasksIntersect) {
  expect_kept(3, 4, attn::causal() | attn::key_lengths({3}) | attn::sliding_window(1, 5), {}, {"1100", "0110", "0010"});
}

TEST(Golden, TensorsAreIndexedByRowNotByPosition) {
  // A (q_len, kv_len) tensor is indexed by the call's rows, whatever q_offset is.
  attn::Tensor<bool, 2> mask({2, 3});
  mask(0, 0) = mask(1, 2) = true;
  for (Index offset : {-2, 0, 1, 50}) expect_kept(2, 3, attn::keep(mask), {.q_offset = offset}, {"100", "001"});
}

TEST(Golden, BiasIsAddedAfterTheScale) {
  attn::Tensor<double, 2> bias({1, 2});
  bias(0, 0) = std::log(3.0);
  // Scores 0 + ln 3 and 0, whatever the scale.
  for (double scale : {1.0, 0.125})
    expect_both(MatrixXd::Zero(1, 2), MatrixXd::Ones(2, 2), (MatrixXd(2, 1) << 1, 5).finished(), attn::bias(bias),
                {.scale = scale}, MatrixXd::Constant(1, 1, 2), VectorXd::Constant(1, std::log(4.0)));
}

TEST(Golden, ScoreModsApplyFromLeftToRight) {
  attn::Tensor<double, 1> bias({2});
  bias(0) = std::log(3.0);
  const MatrixXd q = MatrixXd::Zero(1, 1), k = MatrixXd::Zero(2, 1), v = (MatrixXd(2, 1) << 1, 0).finished();
  // bias, then cap 1: tanh(ln 3) = 4/5, and weights 1 / (1 + e^-0.8).
  const double capped = 1 / (1 + std::exp(-0.8));
  expect_both(q, k, v, attn::bias(bias) | attn::softcap(1), {}, MatrixXd::Constant(1, 1, capped),
              VectorXd::Constant(1, std::log(1 + std::exp(0.8))));
  // cap first: tanh(0) = 0, then + ln 3: weights 3/4.
  expect_both(q, k, v, attn::softcap(1) | attn::bias(bias), {}, MatrixXd::Constant(1, 1, 0.75),
              VectorXd::Constant(1, std::log(4.0)));
}

TEST(Golden, Softcap) {
  // scale * q·k = 2 ln 3, cap 2: 2 tanh(ln 3) = 1.6.
  const MatrixXd q = MatrixXd::Constant(1, 1, 2), k = (MatrixXd(2, 1) << std::log(3.0), 0).finished();
  expect_both(q, k, (MatrixXd(2, 1) << 1, 0).finished(), attn::softcap(2), {},
              MatrixXd::Constant(1, 1, 1 / (1 + std::exp(-1.6))), VectorXd::Constant(1, std::log(1 + std::exp(1.6))));
}

TEST(Golden, AlibiLowersScoresByDistance) {
  // slope ln 2, the query at position 2: scores -2 ln 2, -ln 2, 0, so weights 1/7, 2/7, 4/7.
  expect_both(MatrixXd::Zero(1, 1), MatrixXd::Zero(3, 1), (MatrixXd(3, 1) << 7, 70, 700).finished(),
              attn::alibi({std::log(2.0)}), {}, MatrixXd::Constant(1, 1, 421), VectorXd::Constant(1, std::log(1.75)));
}

// e^0 of the key, and e^log 2 and e^log 3 of the sinks, which have no value: the weight of the key is 1 / 6.
TEST(Golden, SinksAreAddedUp) {
  const MatrixXd zero = MatrixXd::Zero(1, 2), value = MatrixXd::Constant(1, 2, 12.0);
  expect_both(zero, zero, value, attn::sinks({std::log(2.0)}) | attn::sinks({std::log(3.0)}), {},
              MatrixXd::Constant(1, 2, 2.0), VectorXd::Constant(1, std::log(6.0)));
}

TEST(Golden, AlibiSlopes) {
  const auto expect = [](Index heads, std::initializer_list<double> exponents) {
    const std::vector<double> slopes = attn::alibi_slopes(heads);
    ASSERT_EQ(slopes.size(), exponents.size());
    for (std::size_t i = 0; i < slopes.size(); ++i)
      EXPECT_DOUBLE_EQ(slopes[i], std::exp2(-exponents.begin()[i])) << heads << " heads, slope " << i;
  };
  expect(1, {8});
  expect(4, {2, 4, 6, 8});
  expect(8, {1, 2, 3, 4, 5, 6, 7, 8});
  expect(3, {4, 8, 2});  // those for 2 heads, then every other one for 4
  expect(12, {1, 2, 3, 4, 5, 6, 7, 8, 0.5, 1.5, 2.5, 3.5});
}

TEST(Golden, NeighbouringHeadsShareAKeyHead) {
  // Four query heads on two key heads: 0 and 1 read key head 0, 2 and 3 read key head 1.
  const attn::Tensor<double, 4> q({1, 4, 1, 1}), k({1, 2, 1, 1});
  attn::Tensor<double, 4> v({1, 2, 1, 1});
  v(0, 0, 0, 0) = 10;
  v(0, 1, 0, 0) = 20;
  for (const auto& out : {attn::attention(q, k, v).out, attn::naive_attention(q, k, v).out}) {
    EXPECT_EQ(out(0, 0, 0, 0), 10);
    EXPECT_EQ(out(0, 1, 0, 0), 10);
    EXPECT_EQ(out(0, 2, 0, 0), 20);
    EXPECT_EQ(out(0, 3, 0, 0), 20);
  }
}

TEST(Golden, SelfAttentionOfThreeTokens) {
  // The textbook example: scores [[2,4,4],[4,16,12],[4,12,10]] at scale 1.
  MatrixXd x(3, 4), wk(4, 3), wq(4, 3), wv(4, 3);
  x << 1, 0, 1, 0, 0, 2, 0, 2, 1, 1, 1, 1;
  wk << 0, 0, 1, 1, 1, 0, 0, 1, 0, 1, 1, 0;
  wq << 1, 0, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1;
  wv << 0, 2, 0, 0, 3, 0, 1, 0, 3, 1, 1, 0;
  const MatrixXd q = x * wq, k = x * wk, v = x * wv;

  MatrixXd weights(3, 3), values(3, 3);
  weights << 0.063379, 0.46831, 0.46831, 6.0337e-06, 0.98201, 0.017986, 2.9539e-04, 0.88054, 0.11917;
  values << 1, 2, 3, 2, 8, 0, 2, 6, 3;
  ASSERT_EQ(v, values);
  VectorXd lse(3);  // log(e^2 + 2 e^4), log(e^4 + e^16 + e^12), log(e^4 + e^12 + e^10)
  lse << 4.758623676, 16.018155962, 12.127223442;
  const auto naive = attn::naive_attention(q, k, v, attn::full(), {.scale = 1.0});
  EXPECT_LT((naive.weights - weights).cwiseAbs().maxCoeff(), 6e-6);
  expect_both(q, k, v, attn::full(), {.scale = 1.0}, weights * values, lse, 1e-5);
}

}  // namespace
