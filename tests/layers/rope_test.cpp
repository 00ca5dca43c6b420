// Rotary position embedding: results by hand, reference values from the published formulas, and properties.
#include <algorithm>
#include <cmath>
#include <limits>

#include "support/refused.h"

namespace attn::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

template <class T>
Tensor<T, 4> random_tensor(const Shape<4>& shape, unsigned seed) {
  std::srand(seed);
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(Eigen::internal::random<float>(-1, 1));
  return t;
}

template <class T>
double difference(const Tensor<T, 4>& a, const Tensor<T, 4>& b) {
  double largest = 0;
  for (Index i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i])));
  return largest;
}

// Angles 3 and 0.03, computed separately.
TEST(Rope, ByHand) {
  Eigen::RowVector4d x(1, 2, 3, 4);
  Rope({.head_dim = 4, .pairs = RopePairs::interleaved}).rotate(x, 3);
  EXPECT_TRUE(x.isApprox(
      Eigen::RowVector4d(-1.27223251272018, -1.8388649851410237, 2.87866810043698, 4.088186635603437), 1e-15));
  x = {1, 2, 3, 4};
  Rope({.head_dim = 4}).rotate(x, 3);
  EXPECT_TRUE(x.isApprox(
      Eigen::RowVector4d(-1.413352520780047, 1.8791180666879925, -2.828857481741469, 4.058191135400942), 1e-15));
}

// Reference values from an independent program written from the publications.
TEST(Rope, Frequencies) {
  const auto expect = [](const RopeConfig& config, const std::vector<std::pair<std::size_t, double>>& wanted) {
    const Rope rope(config);
    ASSERT_EQ(rope.frequencies().size(), static_cast<std::size_t>(config.head_dim / 2));
    for (const auto& [i, want] : wanted) EXPECT_NEAR(rope.frequencies()[i] / want, 1, 1e-12) << i;
  };
  expect({.head_dim = 64}, {{0, 1}, {8, 0.1}, {16, 0.01}, {24, 0.001}});
  expect({.head_dim = 64, .scaling = RopeScaling::linear, .factor = 4}, {{0, 0.25}, {8, 0.025}, {16, 0.0025}});
  expect({.head_dim = 64, .scaling = RopeScaling::ntk, .factor = 4},
         {{0, 1}, {1, 0.7170983281048126}, {16, 0.004889442681677164}, {31, 3.3338035804083106e-05}});
  expect({.head_dim = 128, .base = 500000, .scaling = RopeScaling::llama3, .factor = 8, .trained_length = 8192},
         {{0, 1},
          {20, 0.016560440080994446},
          {28, 0.003211445994752591},
          {32, 0.0005248461609929547},
          {35, 9.556212353964683e-05},
          {40, 3.428102195952591e-05},
          {63, 3.068925988914511e-07}});
  const RopeConfig yarn{.head_dim = 64, .scaling = RopeScaling::yarn, .factor = 16, .trained_length = 4096};
  expect(yarn, {{0, 1},
                {8, 0.1},
                {12, 0.027061799207210167},
                {16, 0.005673076923076923},
                {20, 0.0008817889629315672},
                {31, 8.334508951020775e-06}});
  // Borders past the slowest pair are clamped to dim - 1, although there are only dim / 2 pairs.
  expect({.head_dim = 64, .scaling = RopeScaling::yarn, .factor = 16, .trained_length = 131072},
         {{22, 0.001778279410038923},
          {25, 0.0005876574813518763},
          {28, 0.0001793984441826292},
          {31, 4.680147334034743e-05}});
  expect({.head_dim = 64,
          .base = 100,
          .scaling = RopeScaling::yarn,
          .factor = 16,
          .trained_length = 131072,
          .beta_fast = 4096},
         {{11, 0.2053525026457146}, {16, 0.09098557692307693}, {24, 0.024211188335664154}, {31, 0.007383942498254709}});
  EXPECT_NEAR(Rope(yarn).attention_factor(), 1.2772588722239782, 1e-15);
  EXPECT_EQ(Rope({.head_dim = 64}).attention_factor(), 1);
  RopeConfig given = yarn;
  given.attention_factor = 1.5;
  EXPECT_EQ(Rope(given).attention_factor(), 1.5);
  // cos and sin are multiplied by the factor, which shows at position 0.
  Eigen::RowVectorXd x = Eigen::RowVectorXd::Ones(64);
  Rope(given).rotate(x);
  EXPECT_TRUE(x.isApprox(Eigen::RowVectorXd::Constant(64, 1.5)));
}

TEST(Rope, NegativePositionsInvertAndZeroIsTheIdentity) {
  for (const auto pairs : {RopePairs::halves, RopePairs::interleaved}) {
    const Rope rope({.head_dim = 16, .pairs = pairs});
    const auto x = random_tensor<double>({2, 3, 5, 16}, 1);
    auto y = x;
    const std::vector<Index> zeros(5, 0);
    rope.rotate(y, zeros);
    EXPECT_EQ(difference(x, y), 0);
    rope.rotate(y, 1000);
    EXPECT_GT(difference(x, y), 0.5);
    const std::vector<Index> back{-1000, -1001, -1002, -1003, -1004};
    rope.rotate(y, back);
    EXPECT_LT(difference(x, y), 1e-13);
  }
}

/// Attention over rotated queries and keys depends only on distances.
TEST(Rope, OnlyDistancesMatter) {
  for (const auto scaling :
       {RopeScaling::none, RopeScaling::linear, RopeScaling::ntk, RopeScaling::yarn, RopeScaling::llama3}) {
    const Rope rope({.head_dim = 16, .rotary_dim = 12, .scaling = scaling, .factor = 4, .trained_length = 64});
    const auto q = random_tensor<double>({1, 4, 7, 16}, 2), k = random_tensor<double>({1, 2, 20, 16}, 3),
               v = random_tensor<double>({1, 2, 20, 8}, 4);
    const auto at = [&](Index first) {
      auto turned_q = q, turned_k = k;
      rope.rotate(turned_q, first + 13);
      rope.rotate(turned_k, first);
      return attention(turned_q, turned_k, v, causal()).out;
    };
    EXPECT_LT(difference(at(0), at(5000)), 1e-10);
    EXPECT_GT(difference(at(0), attention(q, k, v, causal()).out), 1e-3);
  }
}

TEST(Rope, RotatesOnlyTheFirstFeatures) {
  const Rope rope({.head_dim = 10, .rotary_dim = 4});
  const auto x = random_tensor<float>({2, 2, 3, 10}, 5);
  auto y = x, first = Tensor<float, 4>({2, 2, 3, 4});
  rope.rotate(y, 7);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h) {
      EXPECT_TRUE((y.matrix(b, h).rightCols(6).array() == x.matrix(b, h).rightCols(6).array()).all());
      first.matrix(b, h) = x.matrix(b, h).leftCols(4);
    }
  Rope({.head_dim = 4}).rotate(first, 7);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h) EXPECT_EQ(y.matrix(b, h).leftCols(4), first.matrix(b, h));
}

template <class S>
void expect_rounded_once(double eps) {
  const Rope rope({.head_dim = 8, .pairs = RopePairs::interleaved});
  const auto x = random_tensor<S>({2, 2, 3, 8}, 6);
  Tensor<double, 4> exact(x.shape());
  for (Index i = 0; i < x.size(); ++i) exact.data()[i] = static_cast<double>(static_cast<float>(x.data()[i]));
  rope.rotate(exact, 100);
  auto got = x;
  rope.rotate(got, 100);
  for (Index i = 0; i < x.size(); ++i)
    EXPECT_NEAR(static_cast<double>(static_cast<float>(got.data()[i])), exact.data()[i], eps * 1.5) << i;
}

TEST(Rope, SixteenBitFloatsAreRoundedOnce) {
  expect_rounded_once<Eigen::half>(0x1p-11);
  expect_rounded_once<Eigen::bfloat16>(0x1p-8);
}

TEST(Rope, AnyStridesAndPositions) {
  const Rope rope({.head_dim = 6});
  const auto x = random_tensor<float>({2, 3, 4, 6}, 7);
  const std::vector<Index> positions{0, 5, 5, 9, 1000000, 2, -3, 4};
  // Token by token, as matrices of one row.
  auto want = x;
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 3; ++h)
      for (Index i = 0; i < 4; ++i) {
        auto row = want.matrix(b, h).row(i);
        rope.rotate(row, positions[static_cast<std::size_t>(b * 4 + i)]);
      }
  auto in_place = x;
  rope.rotate(in_place, positions);
  EXPECT_EQ(difference(in_place, want), 0);
  std::vector<float> memory(2 * 3 * 4 * 6, -1);
  const auto by_token = bshd(memory.data(), 2, 4, 3, 6);
  rope.rotate_into(by_token, x, positions);
  EXPECT_EQ(difference(Tensor<float, 4>(TensorView<const float, 4>(by_token)), want), 0);
  // One list of positions for all batch elements.
  auto shared = x, each = x;
  const std::vector<Index> once{3, 1, 4, 1}, twice{3, 1, 4, 1, 3, 1, 4, 1};
  rope.rotate(shared, once);
  rope.rotate(each, twice);
  EXPECT_EQ(difference(shared, each), 0);
}

TEST(Rope, ByGivenAngles) {
  const auto x = random_tensor<float>({2, 3, 4, 6}, 8);
  const Rope rope({.head_dim = 6, .rotary_dim = 4, .pairs = RopePairs::interleaved});
  Tensor<float, 2> cos({4, 2}), sin({4, 2});
  Tensor<float, 3> cos_of_each({2, 4, 2}), sin_of_each({2, 4, 2});
  for (Index i = 0; i < 4; ++i)
    for (Index j = 0; j < 2; ++j) {
      const double angle = static_cast<double>(11 + i) * rope.frequencies()[static_cast<std::size_t>(j)];
      cos(i, j) = cos_of_each(0, i, j) = cos_of_each(1, i, j) = static_cast<float>(std::cos(angle));
      sin(i, j) = sin_of_each(0, i, j) = sin_of_each(1, i, j) = static_cast<float>(std::sin(angle));
    }
  auto want = x, got = x, got_of_each = x;
  rope.rotate(want, 11);
  rotate_by(got, cos, sin, RopePairs::interleaved);
  rotate_by(got_of_each, cos_of_each.view(), sin_of_each.view(), RopePairs::interleaved);
  EXPECT_EQ(difference(got, want), 0);
  EXPECT_EQ(difference(got_of_each, want), 0);
}

TEST(Rope, ByGivenAnglesOfMatrices) {
  Eigen::MatrixXf x = Eigen::MatrixXf::Random(3, 4), y = x, cos(3, 2), sin(3, 2);
  const Rope rope({.head_dim = 4});
  for (Index i = 0; i < 3; ++i)
    for (Index j = 0; j < 2; ++j) {
      cos(i, j) =
          static_cast<float>(std::cos(static_cast<double>(i) * rope.frequencies()[static_cast<std::size_t>(j)]));
      sin(i, j) =
          static_cast<float>(std::sin(static_cast<double>(i) * rope.frequencies()[static_cast<std::size_t>(j)]));
    }
  rotate_by(x, cos, sin);
  rope.rotate(y);
  EXPECT_EQ(x, y);
}

TEST(Rope, FrequenciesOfTheCaller) {
  const auto x = random_tensor<double>({1, 2, 3, 8}, 9);
  const Rope scaled({.head_dim = 8, .scaling = RopeScaling::linear, .factor = 3});
  const Rope given({.head_dim = 8}, scaled.frequencies());
  auto a = x, b = x;
  scaled.rotate(a, 77);
  given.rotate(b, 77);
  EXPECT_EQ(difference(a, b), 0);
  const std::vector<double> three(3, 1), not_finite{1, 1, kNaN, 1};
  expect_refused("too few", {"3", "4"}, [&] { Rope({.head_dim = 8}, three); });
  expect_refused("NaN", {"frequency 2", "nan"}, [&] { Rope({.head_dim = 8}, not_finite); });
  expect_refused("twice", {}, [&] { Rope(scaled.config(), scaled.frequencies()); });
}

TEST(Rope, UnroundedBorders) {
  RopeConfig config{.head_dim = 64, .scaling = RopeScaling::yarn, .factor = 16, .trained_length = 4096};
  const Rope rounded(config);
  config.round_borders = false;
  const Rope plain(config);
  // The rounded borders are 10 and 23, the unrounded ones 10.47 and 22.51.
  EXPECT_EQ(plain.frequencies()[10], std::pow(10000, -20.0 / 64));
  EXPECT_NE(plain.frequencies()[11], rounded.frequencies()[11]);
  EXPECT_NEAR(plain.frequencies()[11] /
                  (std::pow(10000, -22.0 / 64) *
                   (1 - 15.0 / 16 * (11 - 10.472240810318025) / (22.513440636877274 - 10.472240810318025))),
              1, 1e-12);
}

TEST(Rope, EmptyTensors) {
  Tensor<float, 4> none({2, 3, 0, 8});
  Rope({.head_dim = 8}).rotate(none, 5);
  Tensor<float, 4> no_batch({0, 3, 2, 8});
  Rope({.head_dim = 8}).rotate(no_batch, std::vector<Index>{1, 2});
}

TEST(Rope, BadInput) {
  expect_refused("head_dim", {"0"}, [] { Rope({}); });
  expect_refused("odd", {"7"}, [] { Rope({.head_dim = 7}); });
  expect_refused("odd part", {"3", "8"}, [] { Rope({.head_dim = 8, .rotary_dim = 3}); });
  expect_refused("too many", {"10", "8"}, [] { Rope({.head_dim = 8, .rotary_dim = 10}); });
  expect_refused("negative", {"-2"}, [] { Rope({.head_dim = 8, .rotary_dim = -2}); });
  constexpr Index kHuge = std::numeric_limits<Index>::max() - 1;
  expect_refused("more than a table holds", {"9223372036854775806"}, [] { Rope({.head_dim = kHuge}); });
  Rope({.head_dim = kHuge, .rotary_dim = 4});  // must not throw
  expect_refused("base", {"0.5"}, [] { Rope({.head_dim = 8, .base = 0.5}); });
  expect_refused("factor", {"-3"}, [] { Rope({.head_dim = 8, .factor = -3}); });
  expect_refused("no length", {"trained_length is 0"},
                 [] { Rope({.head_dim = 8, .scaling = RopeScaling::llama3, .factor = 8}); });
  expect_refused("no length", {"trained_length is 0"},
                 [] { Rope({.head_dim = 8, .scaling = RopeScaling::yarn, .factor = 8}); });
  expect_refused("borders", {"4", "2"}, [] {
    Rope({.head_dim = 8,
          .scaling = RopeScaling::llama3,
          .trained_length = 9,
          .low_freq_factor = 4,
          .high_freq_factor = 2});
  });
  expect_refused("borders", {"7", "3"}, [] {
    Rope({.head_dim = 8, .scaling = RopeScaling::yarn, .trained_length = 9, .beta_fast = 3, .beta_slow = 7});
  });

  const Rope rope({.head_dim = 8});
  Tensor<float, 4> x({2, 3, 4, 8}), other({2, 3, 4, 6}), longer({2, 3, 5, 8});
  std::fill_n(other.data(), other.size(), kUntouched);
  expect_refused("x", {"8", "(2, 3, 4, 6)"}, [&] { rope.rotate(other, 0); });
  expect_refused("out", {"(2, 3, 4, 8)", "(2, 3, 5, 8)"}, [&] { rope.rotate_into(longer, x, 0); });
  expect_refused("positions", {"5", "2", "4"}, [&] { rope.rotate(x, std::vector<Index>(5)); });
  float one_row[8] = {};
  const TensorView<float, 4> repeated(one_row, {1, 3, 1, 8}, {0, 0, 0, 1});
  expect_refused("repeated", {"(1, 3, 1, 8)", "stride of 0"}, [&] { rope.rotate(repeated, 1); });
  expect_refused("factor of attention", {"-1"}, [] {
    Rope({.head_dim = 8, .scaling = RopeScaling::yarn, .factor = 8, .trained_length = 9, .attention_factor = -1});
  });
  expect_refused("factor of attention without yarn", {"2", "yarn"},
                 [] { Rope({.head_dim = 8, .attention_factor = 2}); });
  const Tensor<float, 2> cos({4, 4}), sin({4, 3}), wide({4, 5}), of_others({3, 4});
  expect_refused("sin", {"(4, 4)", "(4, 3)"}, [&] { rotate_by(x, cos, sin); });
  expect_refused("wide", {"(4, 5)", "8"}, [&] { rotate_by(x, wide, wide); });
  expect_refused("tokens", {"(3, 4)", "(2, 3, 4, 8)"}, [&] { rotate_by(x, of_others, of_others); });
  for (Index i = 0; i < other.size(); ++i) ASSERT_EQ(other.data()[i], kUntouched);
}

}  // namespace
}  // namespace attn::test
