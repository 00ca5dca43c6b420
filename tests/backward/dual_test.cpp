// Dual numbers: every operation against finite differences, and lambdas evaluated on them.
#include "attn/dual.h"

#include <functional>

#include <gtest/gtest.h>

#include "attn/attn.h"

namespace attn::test {
namespace {

/// Compares f of a dual number with finite differences of f of doubles.
template <class F>
void expect_slope(const char* name, const F& f, std::initializer_list<double> at) {
  for (double x : at) {
    const double h = 1e-5, slope = (f(x + h) - f(x - h)) / (2 * h);
    const Dual<double> y = f(Dual<double>(x, 3));
    EXPECT_NEAR(y.value, f(x), 1e-14 * std::max(1.0, std::abs(y.value))) << name << " at " << x;
    EXPECT_NEAR(y.slope, 3 * slope, 1e-7 * std::max(1.0, std::abs(slope))) << name << " at " << x;
  }
}

TEST(Dual, ConstantSlopesDoNotMakeInfinitiesNaN) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  using D = Dual<double>;
  EXPECT_EQ((D(-kInf, 1) * D(2)).slope, 2);
  EXPECT_EQ((D(2) * D(-kInf, 0)).slope, 0);
  EXPECT_EQ((D(-kInf, 1) / D(4)).slope, 0.25);
  const D capped = softcap(0.5).score(D(-kInf, 1), Position{});
  EXPECT_EQ(capped.value, -0.5);
  EXPECT_EQ(capped.slope, 0);
  // A slope of 0 may itself have a slope: the second derivative of x * x at 0.
  using DD = Dual<D>;
  const DD x(D(0, 1), D(1, 0));
  EXPECT_EQ((x * x).slope.slope, 2);
}

template <class X>
void expect_powers() {
  using std::pow;
  const Dual<X> x(X(3), X(1));
  EXPECT_EQ(pow(x, 2.0).slope, X(6));
  EXPECT_EQ(pow(x, 2.0f).slope, X(6));
  EXPECT_EQ(pow(x, 2).slope, X(6));
  EXPECT_NEAR(pow(2.0f, x).slope, X(8 * std::log(2.0)), X(1e-5));
}
TEST(Dual, PowOverloadsCoexistWithStdPow) {
  expect_powers<float>();
  expect_powers<double>();
  using D = Dual<double>;
  const Dual<D> x(D(3, 1), D(1, 0));
  using std::pow;
  EXPECT_EQ(pow(x, 3.0).slope.slope, 18);
}

TEST(Dual, EveryOperationHasTheRightSlope) {
  using std::abs, std::cos, std::exp, std::fabs, std::log, std::max, std::min, std::pow, std::sin, std::sqrt, std::tanh;
  const auto points = {-2.5, -0.3, 0.2, 0.9, 4.0};
  const auto positive = {0.1, 0.9, 4.0};
  expect_slope(
      "+", [](auto x) { return x + 2 + x; }, points);
  expect_slope(
      "-", [](auto x) { return 2 - x - 1.5f - -x * 3; }, points);
  expect_slope(
      "*", [](auto x) { return x * x * 0.5f; }, points);
  expect_slope(
      "/", [](auto x) { return (1 + x) / (x * x + 2); }, points);
  expect_slope(
      "assignments",
      [](auto x) {
        auto y = x;
        y *= x, y += 1, y -= 3 * x, y /= 2;
        return y;
      },
      points);
  expect_slope(
      "exp", [](auto x) { return exp(x); }, points);
  expect_slope(
      "log", [](auto x) { return log(x); }, positive);
  expect_slope(
      "tanh", [](auto x) { return tanh(x); }, points);
  expect_slope(
      "sqrt", [](auto x) { return sqrt(x); }, positive);
  expect_slope(
      "sin", [](auto x) { return sin(x); }, points);
  expect_slope(
      "cos", [](auto x) { return cos(x); }, points);
  expect_slope(
      "abs", [](auto x) { return abs(x) + fabs(x * 2); }, points);
  expect_slope(
      "max", [](auto x) { return max(x, decltype(x)(0.5)); }, points);
  expect_slope(
      "min", [](auto x) { return min(x, decltype(x)(0.5)); }, points);
  expect_slope(
      "constant exponent", [](auto x) { return pow(x, decltype(x)(3)); }, points);
  expect_slope(
      "exponent", [](auto x) { return pow(x, x); }, positive);
  expect_slope(
      "constant base", [](auto x) { return pow(decltype(x)(1.7), x); }, points);
  expect_slope(
      "branch", [](auto x) { return x > 0.3   ? x * x
                                    : x <= -1 ? -x
                                              : x * 2; }, points);
}

TEST(Dual, SlopesAtKinks) {
  const Dual<double> zero(0, 1), constant(0);
  EXPECT_EQ(abs(zero).slope, 0);
  EXPECT_EQ(max(zero, constant).slope, 1);
  EXPECT_EQ(max(constant, zero).slope, 0);
  EXPECT_EQ(pow(zero, Dual<double>(2)).slope, 0);
  EXPECT_EQ(pow(zero, Dual<double>(0)).value, 1);
}

TEST(Dual, NestedDualNumbersAreSecondDerivatives) {
  using D2 = Dual<Dual<double>>;
  const D2 x(Dual<double>(0.7, 1), Dual<double>(1, 0));
  const D2 y = x * x * x + exp(x) / x;
  const double e = std::exp(0.7);
  EXPECT_NEAR(y.slope.slope, 6 * 0.7 + e * (1 / 0.7 - 2 / 0.49 + 2 / 0.343), 1e-12);
}

/// The README's lambdas and others, through a whole call: gradients of sum(out * w) against differences of the
/// definition.
template <class M>
void expect_differences(const char* name, const M& mods) {
  SCOPED_TRACE(name);
  std::srand(7);
  Eigen::MatrixXd x[3] = {Eigen::MatrixXd::Random(9, 4), Eigen::MatrixXd::Random(13, 4),
                          Eigen::MatrixXd::Random(13, 3)};
  const Eigen::MatrixXd w = Eigen::MatrixXd::Random(9, 3);
  const auto loss = [&] { return naive_attention(x[0], x[1], x[2], mods).out.cwiseProduct(w).sum(); };
  const auto g = attention_backward(w, x[0], x[1], x[2], attention(x[0], x[1], x[2], mods), mods);
  const Eigen::MatrixXd* const gradients[] = {&g.query, &g.key, &g.value};
  for (int t = 0; t < 3; ++t)
    for (Index i = 0; i < x[t].size(); ++i) {
      double& number = x[t].data()[i];
      const double before = number, h = 1e-5;
      number = before + h;
      const double above = loss();
      number = before - h;
      const double below = loss();
      number = before;
      EXPECT_NEAR(gradients[t]->data()[i], (above - below) / (2 * h), 1e-8) << "argument " << t << " element " << i;
    }
}

TEST(Dual, LambdasAreDifferentiated) {
  expect_differences("slope", score_mod([s = 0.5f](auto x, auto p) { return x - s * float(p.q - p.kv); }));
  expect_differences("parity", mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; }));
  expect_differences("both", mask_mod([](auto p) { return (p.q + p.kv) % 3 != 0; }) |
                                 score_mod([](auto x, auto p) { return x * x * 0.3 + tanh(x) * double(p.kv) * 0.1; }) |
                                 softcap(2) | sliding_window(6, 4));
  expect_differences("named functions", score_mod([](auto x, auto) {
                       using std::abs, std::max;
                       return exp(-x * x) + sin(x) * abs(x) + max(x, decltype(x)(0));
                     }));
  expect_differences("derivative given", score_mod([](auto x, auto p) { return x * x * double(p.kv + 1) * 0.1; },
                                                   [](auto x, auto p) { return 2 * x * double(p.kv + 1) * 0.1; }) |
                                             softcap(1));
  expect_differences("sinks", sinks({0.3}) | temperature({0.7}));
}

TEST(Dual, HasNumericLimits) {
  using Limits = std::numeric_limits<Dual<float>>;
  EXPECT_EQ(Limits::infinity().value, std::numeric_limits<float>::infinity());
  EXPECT_EQ(Limits::lowest().value, std::numeric_limits<float>::lowest());
  EXPECT_EQ(Limits::infinity().slope, 0);
}

}  // namespace
}  // namespace attn::test
