// Positional encodings: results by hand, reference values from the published formulas, and properties.
#include <algorithm>
#include <cmath>

#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
Tensor<T, 4> random_tensor(const Shape<4>& shape, unsigned seed) {
  std::srand(seed);
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(Eigen::internal::random<double>(-1, 1));
  return t;
}

template <class X>
double difference(const X& a, const X& b) {
  double largest = 0;
  for (Index i = 0; i < a.size(); ++i)
    largest = std::max(largest, std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i])));
  return largest;
}

/// The sum of a * b.
double product(const Tensor<double, 4>& a, const Tensor<double, 4>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) sum += a.data()[i] * b.data()[i];
  return sum;
}

// sin(3), cos(3), sin(0.03) and cos(0.03), computed separately.
TEST(SinusoidalPositions, ByHand) {
  const double row[] = {0.1411200080598672, -0.9899924966004454, 0.02999550020249566, 0.9995500337489875};
  const auto interleaved = sinusoidal_positions<double>(4, 4);
  const auto halves = sinusoidal_positions<double>(1, 4, {.first = 3, .pairs = RopePairs::halves});
  for (Index c = 0; c < 4; ++c) {
    EXPECT_NEAR(interleaved(3, c), row[c], 1e-15);
    EXPECT_NEAR(halves(0, c % 2 * 2 + c / 2), row[c], 1e-15);
    EXPECT_EQ(interleaved(0, c), c % 2);
  }
  EXPECT_NEAR(sinusoidal_positions(2, 4, {.base = 100})(1, 2), std::sin(0.1), 1e-7);
}

// A shift rotates each pair by Rope's angles.
TEST(SinusoidalPositions, ShiftsAreRotations) {
  auto rows = sinusoidal_positions<double>(5, 12, {.first = 2});
  const auto later = sinusoidal_positions<double>(5, 12, {.first = 9});
  Eigen::MatrixXd rotated(5, 12);
  // Rope maps (x, y) to (x cos - y sin, …); sinusoids are (sin, cos), which rotates in the other direction.
  for (Index i = 0; i < 5; ++i)
    for (Index c = 0; c < 12; c += 2) rotated(i, c) = rows(i, c + 1), rotated(i, c + 1) = rows(i, c);
  const Rope rope({.head_dim = 12, .pairs = RopePairs::interleaved});
  for (Index i = 0; i < 5; ++i) rope.rotate(rotated.row(i), 7);
  for (Index i = 0; i < 5; ++i)
    for (Index c = 0; c < 12; c += 2) {
      EXPECT_NEAR(rotated(i, c), later(i, c + 1), 1e-14);
      EXPECT_NEAR(rotated(i, c + 1), later(i, c), 1e-14);
    }
}

TEST(LearnedPositions, ByHand) {
  Eigen::MatrixXf table(3, 2), x = Eigen::MatrixXf::Ones(4, 2);
  table << 1, 2, 3, 4, 5, 6;
  add_positions(x, table, std::vector<Index>{2, 0, 0, 1});
  Eigen::MatrixXf wanted(4, 2);
  wanted << 6, 7, 2, 3, 2, 3, 4, 5;
  EXPECT_EQ(x, wanted);
  Eigen::MatrixXf grad(4, 2), of_table = Eigen::MatrixXf::Constant(3, 2, 10);
  grad << 1, 2, 30, 40, 500, 600, 7000, 8000;
  add_position_gradients(of_table, grad, std::vector<Index>{2, 0, 0, 1});
  Eigen::MatrixXf sums(3, 2);
  sums << 540, 650, 7010, 8010, 11, 12;
  EXPECT_EQ(of_table, sums);
}

// Batches of tokens at consecutive or given positions, 16-bit tables, and any strides.
TEST(LearnedPositions, BatchesOfAnyTypeAndLayout) {
  Tensor<float, 3> x({2, 3, 4}), same({2, 3, 4}), apart({2, 3, 4});
  for (auto* t : {&x, &same, &apart}) std::fill_n(&(*t)(1, 0, 0), 12, 100.0f);
  Tensor<Eigen::half, 2> table({9, 4});
  for (Index i = 0; i < table.size(); ++i) table.data()[i] = static_cast<Eigen::half>(static_cast<float>(i));
  add_positions(x, table, 5);
  add_positions(same, table, std::vector<Index>{5, 6, 7, 5, 6, 7});
  add_positions(apart, table, std::vector<Index>{5, 6, 7, 0, 1, 2});
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 3; ++i)
      for (Index c = 0; c < 4; ++c) {
        ASSERT_EQ(x(b, i, c), static_cast<float>(b * 100 + (5 + i) * 4 + c));
        ASSERT_EQ(apart(b, i, c), static_cast<float>(b * 100 + (b == 0 ? 5 + i : i) * 4 + c));
      }
  EXPECT_EQ(difference(x, same), 0);
  Tensor<float, 2> grad({9, 4}), other({9, 4});
  add_position_gradients(grad, x, 5);
  const Tensor<float, 3> columns = [&] {
    Tensor<float, 3> transposed({2, 4, 3});
    for (Index b = 0; b < 2; ++b)
      for (Index i = 0; i < 3; ++i)
        for (Index c = 0; c < 4; ++c) transposed(b, c, i) = x(b, i, c);
    return transposed;
  }();
  add_position_gradients(other, columns.permute(0, 2, 1), std::vector<Index>{5, 6, 7});
  EXPECT_EQ(grad(6, 1), 2 * (6 * 4 + 1) + 100);
  EXPECT_EQ(grad(4, 1), 0);
  EXPECT_EQ(difference(grad, other), 0);
}

TEST(LearnedPositions, BadInput) {
  Eigen::MatrixXf x = Eigen::MatrixXf::Constant(4, 2, kUntouched), table(3, 2), wide(3, 5);
  expect_refused("too few", {"3", "4"}, [&] { add_positions(x, table, std::vector<Index>{0, 1, 2}); });
  expect_refused("past the table", {"3", "3 rows"}, [&] { add_positions(x, table); });
  expect_refused("before it", {"-1"}, [&] { add_positions(x, table, -1); });
  expect_refused("features", {"2", "5"}, [&] { add_positions(x, wide, std::vector<Index>(4)); });
  expect_refused("features", {"2", "5"}, [&] { add_position_gradients(wide, x, std::vector<Index>(4)); });
  expect_refused("past the table", {"3", "3 rows"}, [&] { add_position_gradients(table, x); });
  EXPECT_EQ(x, Eigen::MatrixXf::Constant(4, 2, kUntouched));
  expect_refused("odd", {"dim is 3"}, [] { sinusoidal_positions(2, 3); });
  expect_refused("length", {"-2"}, [] { sinusoidal_positions(-2, 4); });
  expect_refused("base", {"base", "is 1"}, [] { sinusoidal_positions(2, 4, {.base = 1}); });
}

// Reference values from an independent program written from the publications.
TEST(RopeScalings, DynamicNtkAndLongRope) {
  const Rope dynamic(
      {.head_dim = 64, .scaling = RopeScaling::dynamic_ntk, .factor = 2, .trained_length = 2048, .length = 8192});
  EXPECT_EQ(dynamic.frequencies()[0], 1);
  EXPECT_NEAR(dynamic.frequencies()[1] / 0.7042693252165533, 1, 1e-12);
  EXPECT_NEAR(dynamic.frequencies()[16] / 0.0036628603951234535, 1, 1e-12);
  EXPECT_NEAR(dynamic.frequencies()[31] / 1.905030617376177e-05, 1, 1e-12);
  const Rope plain({.head_dim = 64}),
      within({.head_dim = 64, .scaling = RopeScaling::dynamic_ntk, .factor = 2, .trained_length = 99, .length = 99});
  EXPECT_EQ(plain, within);
  EXPECT_EQ(dynamic.attention_factor(), 1);

  const RopeConfig config{.head_dim = 4, .scaling = RopeScaling::longrope, .factor = 32, .trained_length = 4096};
  const Rope longrope(config, std::vector<double>{1, 5});
  EXPECT_EQ(longrope.frequencies()[0], 1);
  EXPECT_NEAR(longrope.frequencies()[1], 0.002, 1e-17);
  EXPECT_NEAR(longrope.attention_factor(), 1.1902380714238083, 1e-14);
  RopeConfig shorter = config;
  shorter.factor = 1;
  EXPECT_EQ(Rope(shorter, std::vector<double>{1, 5}).attention_factor(), 1);
  RopeConfig given = config;
  given.attention_factor = 1.5;
  EXPECT_EQ(Rope(given, std::vector<double>{1, 5}).attention_factor(), 1.5);

  expect_refused("no factors", {"longrope needs rotary_dim / 2 factors"}, [&] { Rope{config}; });
  expect_refused("too many", {"3 factors", "2 pairs"}, [&] { Rope(config, std::vector<double>{1, 2, 3}); });
  expect_refused("zero", {"factor 1", "is 0"}, [&] { Rope(config, std::vector<double>{1, 0}); });
  expect_refused("no length", {"trained_length is 0"},
                 [] { Rope({.head_dim = 4, .scaling = RopeScaling::dynamic_ntk, .length = 7}); });
  expect_refused("negative length", {"-7"},
                 [] { Rope({.head_dim = 4, .scaling = RopeScaling::dynamic_ntk, .trained_length = 9, .length = -7}); });
}

// Two pairs for the row and two for the column; the token is in row 3, column 5.
TEST(RopeAxes, AxialByHand) {
  const RopeAxes axial({.head_dim = 8, .sections = {2, 2}});
  Eigen::RowVectorXd x(8), wanted(8);
  x << 1, 2, 3, 4, 5, 6, 7, 8;
  wanted << -1.6955925368997815, 1.8191270662830012, 7.5634564790316485, 3.5951676874144383, -4.8088424749423595,
      6.0572912028989165, -0.8911375257468315, 8.189918760242444;
  const Index position[] = {3, 5};
  axial.rotate(x, TensorView<const Index, 2>(position, {2, 1}));
  EXPECT_TRUE(x.isApprox(wanted, 1e-14)) << x;
}

// The pairs' axes are 0, 1, 2 and 0 again, at positions 7, 3 and 5.
TEST(RopeAxes, InterleavedByHand) {
  const RopeAxes mrope({.head_dim = 8,
                        .sections = {2, 1, 1},
                        .pairs = RopePairs::interleaved,
                        .own_frequencies = false,
                        .interleaved = true});
  Eigen::RowVectorXd x(8), wanted(8);
  x << 1, 2, 3, 4, 5, 6, 7, 8;
  wanted << -0.5600709430942735, 2.1647911074053985, 1.6839286407314598, 4.707906576486443, 4.693876286350761,
      6.242397408723189, 6.943828958032504, 8.048803600634646;
  const int position[] = {7, 3, 5};
  mrope.rotate(x, TensorView<const int, 2>(position, {3, 1}));
  EXPECT_TRUE(x.isApprox(wanted, 1e-14)) << x;
}

// Qwen2-VL's sections: if all positions of a token are equal, as in text, the result is Rope's.
TEST(RopeAxes, EqualPositionsMatchRope) {
  const auto x = random_tensor<float>({2, 3, 7, 128}, 1);
  Tensor<Index, 3> positions({3, 2, 7});
  std::vector<Index> each;
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 7; ++i) {
      each.push_back(b * 100 + i * i);
      for (Index a = 0; a < 3; ++a) positions(a, b, i) = each.back();
    }
  for (const bool interleaved : {false, true}) {
    auto by_axes = x, by_rope = x;
    RopeAxes(
        {.head_dim = 128, .sections = {16, 24, 24}, .base = 1e6, .own_frequencies = false, .interleaved = interleaved})
        .rotate(by_axes, positions);
    Rope({.head_dim = 128, .base = 1e6}).rotate(by_rope, each);
    EXPECT_EQ(difference(by_axes, by_rope), 0);
  }
}

TEST(RopeAxes, OnlyDistancesInTheGridMatter) {
  const RopeAxes axial({.head_dim = 12, .sections = {2, 3}});  // two features are not rotated
  const auto q = random_tensor<double>({1, 1, 12, 12}, 2), k = random_tensor<double>({1, 1, 12, 12}, 3);
  const auto grid = grid_positions({3, 4});
  const auto dots = [&](Index rows, Index columns) {
    auto turned_q = q, turned_k = k;
    auto moved = grid;
    for (Index t = 0; t < 12; ++t) moved(0, t) += rows, moved(1, t) += columns;
    axial.rotate(turned_q, moved);
    axial.rotate(turned_k, moved);
    for (Index t = 0; t < 12; ++t)
      for (Index c = 10; c < 12; ++c) EXPECT_EQ(turned_q(0, 0, t, c), q(0, 0, t, c));
    return Eigen::MatrixXd(turned_q.matrix(0, 0) * turned_k.matrix(0, 0).transpose());
  };
  EXPECT_TRUE(dots(0, 0).isApprox(dots(50, -7), 1e-13));
  EXPECT_FALSE(dots(0, 0).isApprox(Eigen::MatrixXd(q.matrix(0, 0) * k.matrix(0, 0).transpose()), 1e-3));
  EXPECT_EQ(grid(0, 7), 1);
  EXPECT_EQ(grid(1, 7), 3);
}

// <grad, rotate(x)> = <rotate_gradient(grad), x>, as for every linear map.
TEST(RopeAxes, GradientsUseTheTransposedMap) {
  const RopeAxes axial({.head_dim = 8, .sections = {1, 3}, .pairs = RopePairs::interleaved});
  const auto x = random_tensor<double>({2, 3, 6, 8}, 4), grad = random_tensor<double>({2, 3, 6, 8}, 5);
  auto rotated = x, back = grad;
  axial.rotate(rotated, grid_positions({2, 3}));
  axial.rotate_gradient(back, grid_positions({2, 3}));
  EXPECT_NEAR(product(grad, rotated), product(back, x), 1e-12);
}

TEST(RopeAxes, BadInput) {
  expect_refused("no sections", {"0 sections", "8"}, [] { RopeAxes({.head_dim = 8}); });
  expect_refused("empty section", {"sections[1]", "is 0"}, [] { RopeAxes({.head_dim = 8, .sections = {1, 0}}); });
  expect_refused("too many", {"5 pairs", "8"}, [] { RopeAxes({.head_dim = 8, .sections = {2, 3}}); });
  expect_refused("base", {"0.5"}, [] { RopeAxes({.head_dim = 8, .sections = {2, 2}, .base = 0.5}); });
  const RopeAxes axial({.head_dim = 8, .sections = {2, 2}});
  Tensor<float, 4> x({2, 3, 6, 8}), other({2, 3, 6, 6});
  const Tensor<Index, 3> of_others({2, 3, 6});
  expect_refused("head_dim", {"8", "(2, 3, 6, 6)"}, [&] { axial.rotate(other, grid_positions({2, 3})); });
  expect_refused("tokens", {"(2, 8)", "(2, 3, 6, 8)"}, [&] { axial.rotate(x, grid_positions({2, 4})); });
  expect_refused("axes", {"(3, 6)", "2 positions"}, [&] { axial.rotate(x, grid_positions({1, 2, 3})); });
  expect_refused("batch", {"(2, 3, 6)", "(2, 3, 6, 8)"}, [&] { axial.rotate(x, of_others); });
  expect_refused("grid", {"dimension 1", "-2"}, [] { grid_positions({3, -2}); });
  expect_refused("grid", {"1099511627776"}, [] { grid_positions({2, Index(1) << 40}); });
}

// At position 300 the pairs rotate by 300 and 3 radians, and decay by 0.2857 and 0.6429 to the power 300 / 512.
TEST(XPos, ByHand) {
  const XPos xpos(Rope({.head_dim = 4, .pairs = RopePairs::interleaved}));
  Eigen::RowVector4d q(1, 2, 3, 4), k(1, 2, 3, 4);
  xpos.rotate_query(q, 300);
  xpos.rotate_key(k, 300);
  EXPECT_TRUE(q.isApprox(
      Eigen::RowVector4d(0.9490912462738407, -0.5010596670879301, -2.728285664357467, -2.7299471560159776), 1e-13));
  EXPECT_TRUE(k.isApprox(
      Eigen::RowVector4d(4.119909794697877, -2.175049699666078, -4.5788423618217005, -4.581630819236256), 1e-13));
}

TEST(XPos, OnlyDistancesMatter) {
  const Rope rope({.head_dim = 8, .rotary_dim = 6});
  const auto q = random_tensor<double>({1, 1, 5, 8}, 6), k = random_tensor<double>({1, 1, 5, 8}, 7);
  const auto dots = [&](Index first, Index origin) {
    const XPos xpos(rope, {.scale_base = 64, .origin = origin});
    auto turned_q = q, turned_k = k;
    xpos.rotate_query(turned_q, first);
    xpos.rotate_key(turned_k, first);
    return Eigen::MatrixXd(turned_q.matrix(0, 0) * turned_k.matrix(0, 0).transpose());
  };
  EXPECT_TRUE(dots(0, 0).isApprox(dots(1000, 0), 1e-11));
  EXPECT_TRUE(dots(0, 0).isApprox(dots(0, 100), 1e-11));
  // At distance 0 the product is that of Rope.
  auto by_rope = q;
  rope.rotate(by_rope, 0);
  EXPECT_NEAR(dots(0, 0)(3, 3), q.matrix(0, 0).row(3).dot(k.matrix(0, 0).row(3)), 1e-12);
}

TEST(XPos, GradientsUseTheTransposedMap) {
  const XPos xpos(Rope({.head_dim = 8}), {.scale_base = 16, .origin = 3});
  const auto x = random_tensor<double>({2, 3, 6, 8}, 8), grad = random_tensor<double>({2, 3, 6, 8}, 9);
  auto q = x, k = x, grad_q = grad, grad_k = grad;
  xpos.rotate_query(q, 4);
  xpos.rotate_query_gradient(grad_q, 4);
  EXPECT_NEAR(product(grad, q), product(grad_q, x), 1e-11);
  xpos.rotate_key(k, 4);
  xpos.rotate_key_gradient(grad_k, 4);
  EXPECT_NEAR(product(grad, k), product(grad_k, x), 1e-11);
}

TEST(XPos, BadInput) {
  const Rope rope({.head_dim = 8});
  expect_refused("scale_base", {"scale_base is 0"}, [&] { XPos(rope, {.scale_base = 0}); });
  expect_refused("gamma", {"gamma is -1"}, [&] { XPos(rope, {.gamma = -1}); });
  Tensor<float, 4> other({2, 3, 4, 6});
  expect_refused("head_dim", {"8", "(2, 3, 4, 6)"}, [&] { XPos(rope).rotate_query(other); });
}

}  // namespace
}  // namespace attn::test
