// How mods combine, the arguments they see, and the tensors they keep alive.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <tuple>
#include <vector>

#include "attn/attn.h"
#include "attn/core/base/sync.h"

namespace attn {
namespace {

using Eigen::MatrixXf;

Tensor<float, 4> ones(const Shape<4>& shape) {
  Tensor<float, 4> t(shape);
  std::fill_n(t.data(), t.size(), 1.f);
  return t;
}

template <class M>
void expect_same(const M& a, const auto& b) {
  const MatrixXf q = MatrixXf::Random(20, 4), k = MatrixXf::Random(30, 4), v = MatrixXf::Random(30, 4);
  EXPECT_EQ(attention(q, k, v, a).out, attention(q, k, v, b).out);
  EXPECT_EQ(naive_attention(q, k, v, a).out, naive_attention(q, k, v, b).out);
}

TEST(Mods, FullAndEmptyModsAreNeutral) {
  expect_same(causal(), full() | causal() | full());
  expect_same(causal(), Mods<>() | causal());
  expect_same(Mods<>(), full());
}

TEST(Mods, GroupingDoesNotMatter) {
  const auto a = causal();
  const auto b = sliding_window(5);
  const auto c = softcap(2);
  const auto d = score_mod([](auto x, auto p) { return x + static_cast<decltype(x)>(p.kv % 3); });
  expect_same((a | c) | (d | b), a | (c | (d | b)));
  expect_same(a | b | c | d, c | d | b | a);  // masks may be anywhere
}

TEST(Mods, PositionsAreAbsoluteAndEveryPairIsVisited) {
  const auto q = ones({2, 4, 3, 2}), k = ones({2, 2, 5, 2}), v = ones({2, 2, 5, 2});
  using Where = std::tuple<Index, Index, Index, Index>;
  for (const Index offset : {2, 0, -3, 100}) {
    std::set<Where> seen_mask, seen_score;
    const auto note = [](std::set<Where>& seen, const Position& p) { seen.emplace(p.batch, p.head, p.q, p.kv); };
    const auto mods = mask_mod([&](const Position& p) { return note(seen_mask, p), true; }) |
                      score_mod([&](auto x, const Position& p) { return note(seen_score, p), x; });
    std::set<Where> all;
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 4; ++h)
        for (Index i = 0; i < 3; ++i)
          for (Index j = 0; j < 5; ++j) all.emplace(b, h, offset + i, j);
    const Options options{.q_offset = offset, .executor = serial()};  // the sets take one position at a time
    attention(q, k, v, mods, options);
    EXPECT_EQ(seen_mask, all);  // every pair, and no other position
    EXPECT_EQ(seen_score, all);
    seen_mask.clear();
    naive_attention(q, k, v, mods, options);
    EXPECT_EQ(seen_mask, all);
  }
}

TEST(Mods, ScoreModsSeeScaledScoresInTheScalarOfTheCall) {
  const auto check = [](auto scalar) {
    using T = decltype(scalar);
    using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;
    const Matrix q = Matrix::Constant(2, 4, T(3)), k = Matrix::Constant(2, 4, T(5)), v = Matrix::Ones(2, 1);
    std::atomic<int> calls{0};
    const auto seen = score_mod([&](auto x, const Position&) {
      static_assert(std::is_same_v<decltype(x), T> || std::is_same_v<decltype(x), float>);
      EXPECT_NEAR(static_cast<double>(x), 3 * 5 * 4 * 0.5, 1e-5);
      ++calls;
      return x;
    });
    attention(q, k, v, seen);
    naive_attention(q, k, v, seen);
    EXPECT_GE(calls, 8);
  };
  check(1.f);
  check(1.0);
  check(1.0L);
}

TEST(Mods, BindModSeesTheCall) {
  const auto q = ones({2, 6, 3, 8}), k = ones({2, 3, 5, 8}), v = ones({2, 3, 5, 7});
  Problem seen;
  const auto spy = bind_mod([&seen](const Problem& c) {
    seen = c;
    return full();
  });
  attention(q, k, v, spy | causal(), {.scale = 0.25, .q_offset = -1});
  EXPECT_EQ(seen.batch, 2);
  EXPECT_EQ(seen.heads, 6);
  EXPECT_EQ(seen.kv_heads, 3);
  EXPECT_EQ(seen.q_len, 3);
  EXPECT_EQ(seen.kv_len, 5);
  EXPECT_EQ(seen.head_dim, 8);
  EXPECT_EQ(seen.v_dim, 7);
  EXPECT_EQ(seen.scale, 0.25);
  EXPECT_EQ(seen.q_offset, -1);
  naive_attention(q, k, v, spy);
  EXPECT_EQ(seen.q_offset, 2);
}

TEST(Mods, OneObjectServesCallsOfDifferentSizes) {
  const auto mods = causal() | sliding_window(3) | softcap(5);
  for (Index n : {1, 7, 50}) {
    const MatrixXf x = MatrixXf::Random(n, 4);
    EXPECT_LT((attention(x, x, x, mods).out - naive_attention(x, x, x, mods).out).cwiseAbs().maxCoeff(), 1e-5f);
  }
}

TEST(Mods, TemporariesStayAlive) {
  const MatrixXf x = MatrixXf::Random(6, 4);
  const auto make = [](bool value) {
    Tensor<bool, 2> kept({6, 6});
    for (Index i = 0; i < 6; ++i) kept(i, i) = value;
    return keep(std::move(kept));
  };
  const auto diagonal = make(true);
  const auto nothing = make(false);  // reuses memory that a dangling view would still point to
  EXPECT_LT((attention(x, x, x, diagonal).out - x).cwiseAbs().maxCoeff(), 1e-6f);
  EXPECT_TRUE(attention(x, x, x, nothing).out.isZero(0));

  const auto biased = bias(MatrixXf::Constant(6, 6, -1.f) + 100 * MatrixXf::Identity(6, 6));  // an expression
  EXPECT_LT((attention(x, x, x, biased).out - x).cwiseAbs().maxCoeff(), 1e-6f);
  const auto copy = biased;
  EXPECT_LT((attention(x, x, x, copy | causal()).out - x).cwiseAbs().maxCoeff(), 1e-6f);
}

TEST(Mods, OtherTensorsAreViewed) {
  const MatrixXf x = MatrixXf::Random(6, 4);
  Eigen::Matrix<bool, Eigen::Dynamic, Eigen::Dynamic> kept(6, 6);
  kept.setConstant(false);
  const auto mod = keep(kept);
  EXPECT_TRUE(attention(x, x, x, mod).out.isZero(0));
  for (Index i = 0; i < 6; ++i) kept(i, i) = true;
  EXPECT_LT((attention(x, x, x, mod).out - x).cwiseAbs().maxCoeff(), 1e-6f);
}

TEST(Mods, KeyLengthsFromAnyRange) {
  const auto q = ones({3, 1, 2, 2}), k = ones({3, 1, 4, 2}), v = ones({3, 1, 4, 2});
  const std::vector<int> ints{0, 2, 4};
  const Eigen::VectorXi vector = (Eigen::VectorXi(3) << 0, 2, 4).finished();
  const auto expected = attention(q, k, v, key_lengths({0, 2, 4})).lse;
  for (const auto& lse : {attention(q, k, v, key_lengths(ints)).lse, attention(q, k, v, key_lengths(vector)).lse,
                          attention(q, k, v, key_lengths(std::vector<Index>{0, 2, 4})).lse})
    for (Index b = 0; b < 3; ++b) EXPECT_EQ(lse(b, 0, 1), expected(b, 0, 1));
}

TEST(Mods, TensorsOfOtherScalarsAreBiases) {
  const Eigen::MatrixXd x = Eigen::MatrixXd::Random(5, 3);
  const MatrixXf added = MatrixXf::Random(5, 5);
  const Eigen::MatrixXd wide = added.cast<double>();
  EXPECT_EQ(attention(x, x, x, bias(added)).out, attention(x, x, x, bias(wide)).out);
}

}  // namespace
}  // namespace attn
