// Linear maps and their gradients against plain loops.
#include "attn/linear.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "support/executors.h"
#include "support/paths.h"
#include "support/random.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

template <class T>
RowMajor<T> drawn(Index rows, Index columns, Random& random) {
  RowMajor<T> m(rows, columns);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<T>(static_cast<float>(random.uniform(-1, 1)));
  return m;
}

/// Allowed error of a sum of `terms` terms of at most 1: that of its roundings and, for 16-bit results, that of
/// rounding a result of magnitude `largest`, which is 2^-8 of it.
template <class T>
double tolerance(Index terms, double largest) {
  const double of_sum = static_cast<double>(std::numeric_limits<Sum<T>>::epsilon()) * static_cast<double>(terms + 2);
  return of_sum * (1 + std::sqrt(static_cast<double>(terms))) + (sizeof(T) == 2 ? largest / 256 : 0);
}

template <class T>
void expect_close(const RowMajor<T>& got, const RowMajor<double>& want, Index terms) {
  ASSERT_EQ(got.rows(), want.rows());
  ASSERT_EQ(got.cols(), want.cols());
  for (Index i = 0; i < got.rows(); ++i)
    for (Index j = 0; j < got.cols(); ++j)
      ASSERT_NEAR(static_cast<double>(got(i, j)), want(i, j), tolerance<T>(terms, std::abs(want(i, j)) + 1e-3))
          << "row " << i << ", column " << j << " of " << got.rows() << " x " << got.cols();
}

/// A map with its inputs and gradients, and the results of plain loops.
template <class T>
struct Case {
  Index tokens, inputs, outputs;
  RowMajor<T> x, weight, bias, grad_y;
  RowMajor<double> y, y_without_bias, grad_x, grad_weight, grad_bias;

  Case(Index n, Index in, Index out, std::uint64_t seed) : tokens(n), inputs(in), outputs(out) {
    Random random(seed);
    x = drawn<T>(n, in, random);
    weight = drawn<T>(out, in, random);
    bias = drawn<T>(1, out, random);
    grad_y = drawn<T>(n, out, random);
    y_without_bias = grad_x = grad_weight = grad_bias = RowMajor<double>();
    y_without_bias.setZero(n, out);
    grad_x.setZero(n, in);
    grad_weight.setZero(out, in);
    grad_bias.setZero(1, out);
    y = y_without_bias;
    for (Index i = 0; i < n; ++i)
      for (Index o = 0; o < out; ++o) {
        const double g = static_cast<double>(grad_y(i, o));
        for (Index f = 0; f < in; ++f) {
          y_without_bias(i, o) += static_cast<double>(x(i, f)) * static_cast<double>(weight(o, f));
          grad_x(i, f) += g * static_cast<double>(weight(o, f));
          grad_weight(o, f) += g * static_cast<double>(x(i, f));
        }
        y(i, o) = y_without_bias(i, o) + static_cast<double>(bias(0, o));
        grad_bias(0, o) += g;
      }
  }
  auto bias_vector() const { return Eigen::Map<const Eigen::Matrix<T, Eigen::Dynamic, 1>>(bias.data(), outputs); }
};

constexpr double kUntouched = -77;

template <class T>
void check(const Case<T>& c, const Options& options = {}) {
  RowMajor<T> y = RowMajor<T>::Constant(c.tokens, c.outputs, static_cast<T>(kUntouched)), plain = y;
  linear_into(y, c.x, c.weight, c.bias_vector(), options);
  expect_close<T>(y, c.y, c.inputs + 1);
  linear_into(plain, c.x, c.weight, options);
  expect_close<T>(plain, c.y_without_bias, c.inputs);

  RowMajor<T> grad_x = RowMajor<T>::Constant(c.tokens, c.inputs, static_cast<T>(kUntouched));
  linear_gradient_into(grad_x, c.grad_y, c.weight, options);
  expect_close<T>(grad_x, c.grad_x, c.outputs);

  // Gradients of parameters are accumulated, in float if T has 16 bits.
  using S = Sum<T>;
  RowMajor<S> grad_weight = RowMajor<S>::Constant(c.outputs, c.inputs, S(0.5)), alone = grad_weight;
  Eigen::Matrix<S, Eigen::Dynamic, 1> grad_bias = Eigen::Matrix<S, Eigen::Dynamic, 1>::Constant(c.outputs, S(0.25));
  add_linear_gradients(grad_weight, grad_bias, c.x, c.grad_y, options);
  expect_close<S>(grad_weight, (c.grad_weight.array() + 0.5).matrix(), c.tokens + 1);
  expect_close<S>(grad_bias.transpose(), (c.grad_bias.array() + 0.25).matrix(), c.tokens + 1);
  add_linear_gradients(alone, c.x, c.grad_y, options);
  expect_close<S>(alone, (c.grad_weight.array() + 0.5).matrix(), c.tokens + 1);
}

template <class T>
class LinearOf : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, Eigen::bfloat16, Eigen::half>;
TYPED_TEST_SUITE(LinearOf, Scalars);

/// Up to 16 tokens use the decoding kernels, more use tiles; from 512 tokens a gradient takes several products.
TYPED_TEST(LinearOf, PlainLoops) {
  std::uint64_t seed = 0;
  for (const Index tokens : {1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 100})
    for (const auto& [inputs, outputs] : {std::pair<Index, Index>{1, 1}, {3, 5}, {64, 33}, {65, 130}, {16, 1}}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(inputs) + " -> " + std::to_string(outputs));
      check(Case<TypeParam>(tokens, inputs, outputs, ++seed));
    }
  for (const Index tokens : {255, 256, 257, 511, 512, 513, 1100}) check(Case<TypeParam>(tokens, 9, 7, ++seed));
  check(Case<TypeParam>(300, 130, 70, ++seed));  // several blocks of inputs and of outputs
  check(Case<TypeParam>(2049, 20, 3, ++seed));
}

TYPED_TEST(LinearOf, EveryInstructionSet) {
  for (const Isa isa : sets_for<TypeParam>())
    for (const auto& [tokens, inputs, outputs] : {std::array<Index, 3>{300, 67, 35}, {40, 128, 33}, {5, 70, 9}}) {
      SCOPED_TRACE(testing::Message() << to_string(isa) << ", " << tokens << " tokens");
      check(Case<TypeParam>(tokens, inputs, outputs, 11), {.isa = isa});
    }
}

TYPED_TEST(LinearOf, Rank3) {
  using T = TypeParam;
  const Case<T> c(3 * 7, 12, 10, 1);
  const auto tensor_of = [](const RowMajor<T>& rows) {
    Tensor<T, 3> t({3, 7, rows.cols()});
    std::copy_n(rows.data(), rows.size(), t.data());
    return t;
  };
  const Tensor<T, 3> x = tensor_of(c.x), grad_y = tensor_of(c.grad_y);
  Tensor<T, 2> weight({10, 12});
  Tensor<T, 1> bias({10});
  std::copy_n(c.weight.data(), weight.size(), weight.data());
  std::copy_n(c.bias.data(), bias.size(), bias.data());
  Tensor<T, 3> y({3, 7, 10}), grad_x({3, 7, 12});
  RowMajor<T> of_matrix(21, 10), grad_of_matrix(21, 12);
  const auto same = [](const auto& a, const auto& b) { return std::equal(a.data(), a.data() + a.size(), b.data()); };

  linear_into(y, x, weight, bias);
  linear_into(of_matrix, c.x, c.weight, c.bias_vector());
  EXPECT_TRUE(same(y, of_matrix));
  linear_into(y, x, weight);
  linear_into(of_matrix, c.x, c.weight);
  EXPECT_TRUE(same(y, of_matrix));
  linear_gradient_into(grad_x, grad_y, weight);
  linear_gradient_into(grad_of_matrix, c.grad_y, c.weight);
  EXPECT_TRUE(same(grad_x, grad_of_matrix));

  Tensor<Sum<T>, 2> grad_weight({10, 12});
  Tensor<Sum<T>, 1> grad_bias({10});
  add_linear_gradients(grad_weight, grad_bias, x, grad_y);
  expect_close<Sum<T>>(Eigen::Map<const RowMajor<Sum<T>>>(grad_weight.data(), 10, 12), c.grad_weight, 21);
  expect_close<Sum<T>>(Eigen::Map<const RowMajor<Sum<T>>>(grad_bias.data(), 1, 10), c.grad_bias, 21);
}

/// Temporary views can be written to, and views of const elements can be read.
TEST(Linear, TakesViews) {
  const Case<double> c(5, 4, 3, 2);
  std::vector<double> y(15, kUntouched);
  linear_into(TensorView<double, 2>(y.data(), {5, 3}), TensorView<const double, 2>(c.x.data(), {5, 4}),
              TensorView<const double, 2>(c.weight.data(), {3, 4}));
  expect_close<double>(Eigen::Map<RowMajor<double>>(y.data(), 5, 3), c.y_without_bias, 4);
}

TEST(Linear, BiasesMayBeRowsColumnsOrLists) {
  const Case<float> c(5, 4, 3, 2);
  const Eigen::RowVectorXf row = c.bias;
  const Eigen::ArrayXf array = row.transpose().array();
  const std::vector<float> list(row.data(), row.data() + 3);
  const auto check = [&](const auto& bias) {
    RowMajor<float> y(5, 3);
    linear_into(y, c.x, c.weight, bias);
    expect_close<float>(y, c.y, 5);
  };
  check(row), check(array), check(list), check(c.bias);
  RowMajor<float> of_weight = RowMajor<float>::Zero(3, 4);
  Eigen::RowVectorXf of_row = Eigen::RowVectorXf::Zero(3);
  std::vector<float> of_list(3);
  add_linear_gradients(of_weight, of_row, c.x, c.grad_y);
  add_linear_gradients(of_weight, of_list, c.x, c.grad_y);
  expect_close<float>(of_row, c.grad_bias, 6);
  for (Index i = 0; i < 3; ++i) EXPECT_EQ(of_list[static_cast<std::size_t>(i)], of_row(i));
  RowMajor<float> y(5, 3);
  expect_refused("a matrix as bias", {"bias must be a vector", "3 rows", "4 columns"},
                 [&] { linear_into(y, c.x, c.weight, c.weight); });
}

TYPED_TEST(LinearOf, ThreadsDoNotChangeResults) {
  using T = TypeParam;
  for (const Index tokens : {2, 16, 40, 700}) {
    const Case<T> c(tokens, 130, 190, static_cast<std::uint64_t>(tokens));
    const auto results = [&](int threads) {
      const Options options{.executor = eager_threads(threads)};
      RowMajor<T> y(tokens, 190), grad_x(tokens, 130);
      RowMajor<Sum<T>> grad_weight = RowMajor<Sum<T>>::Zero(190, 130);
      Eigen::Matrix<Sum<T>, Eigen::Dynamic, 1> grad_bias = Eigen::Matrix<Sum<T>, Eigen::Dynamic, 1>::Zero(190);
      linear_into(y, c.x, c.weight, c.bias_vector(), options);
      linear_gradient_into(grad_x, c.grad_y, c.weight, options);
      add_linear_gradients(grad_weight, grad_bias, c.x, c.grad_y, options);
      std::vector<float> all;
      const auto add = [&](const auto& m) {
        for (Index i = 0; i < m.size(); ++i) all.push_back(static_cast<float>(m.data()[i]));
      };
      add(y), add(grad_x), add(grad_weight), add(grad_bias);
      return all;
    };
    const auto one = results(1);
    for (const int threads : {2, 3, 5}) EXPECT_TRUE(one == results(threads)) << tokens << " tokens, " << threads;
  }
}

/// A token whose gradient is 0, such as padding, adds nothing, even if its input is NaN or infinite.
TYPED_TEST(LinearOf, TokensWithoutGradientAddNothing) {
  using T = TypeParam;
  for (const auto& [tokens, dropped] : {std::pair<Index, Index>{3, 1}, {40, 38}, {600, 598}, {600, 255}, {600, 256}}) {
    Case<T> c(tokens, 6, 5, 3);
    c.grad_y.row(dropped).setZero();
    Case<T> clean = c;
    clean.x.row(dropped).setZero();
    for (Index f = 0; f < 6; ++f)
      c.x(dropped, f) =
          static_cast<T>(f % 2 == 0 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity());
    using Vector = Eigen::Matrix<Sum<T>, Eigen::Dynamic, 1>;
    RowMajor<Sum<T>> got = RowMajor<Sum<T>>::Zero(5, 6), want = got, alone = got;
    Vector bias = Vector::Zero(5), want_bias = bias;
    add_linear_gradients(got, bias, c.x, c.grad_y);
    add_linear_gradients(alone, c.x, c.grad_y);
    add_linear_gradients(want, want_bias, clean.x, clean.grad_y);
    EXPECT_TRUE((got.array() == want.array()).all() && (bias.array() == want_bias.array()).all()) << tokens;
    expect_close<Sum<T>>(alone, want.template cast<double>(), tokens);
  }
}

/// NaN in one token does not reach other tokens' outputs.
TEST(Linear, KeepsTokensApart) {
  for (const Index tokens : {4, 40}) {
    Case<float> c(tokens, 6, 5, 4);
    c.x(1, 3) = std::numeric_limits<float>::quiet_NaN();
    RowMajor<float> y(tokens, 5);
    linear_into(y, c.x, c.weight);
    for (Index i = 0; i < tokens; ++i)
      for (Index o = 0; o < 5; ++o) EXPECT_EQ(std::isnan(y(i, o)), i == 1) << i;
  }
}

TEST(Linear, ZeroTokens) {
  const Tensor<float, 3> x({2, 0, 6}), grad_y({2, 0, 5});
  Tensor<float, 3> y({2, 0, 5}), grad_x({2, 0, 6});
  Tensor<float, 2> weight({5, 6}), grad_weight({5, 6});
  Tensor<float, 1> bias({5}), grad_bias({5});
  std::fill_n(grad_weight.data(), 30, kUntouched);
  std::fill_n(grad_bias.data(), 5, kUntouched);
  EXPECT_NO_THROW(linear_into(y, x, weight, bias));
  EXPECT_NO_THROW(linear_into(y, x, weight));
  EXPECT_NO_THROW(linear_gradient_into(grad_x, grad_y, weight));
  add_linear_gradients(grad_weight, grad_bias, x, grad_y);
  add_linear_gradients(grad_weight, x, grad_y);
  for (Index i = 0; i < 30; ++i) EXPECT_EQ(grad_weight.data()[i], static_cast<float>(kUntouched));
  for (Index i = 0; i < 5; ++i) EXPECT_EQ(grad_bias.data()[i], static_cast<float>(kUntouched));
}

/// A map without outputs, or without inputs: the bias alone.
TEST(Linear, ZeroFeatures) {
  const RowMajor<float> x(3, 0), weight(2, 0);
  RowMajor<float> y = RowMajor<float>::Constant(3, 2, float(kUntouched));
  const Eigen::Vector2f bias(4, 5);
  linear_into(y, x, weight, bias);
  for (Index i = 0; i < 3; ++i) EXPECT_EQ(y(i, 0) + y(i, 1), 9) << i;
  RowMajor<float> none(3, 0), grad_x = RowMajor<float>::Constant(3, 2, float(kUntouched));
  linear_into(none, RowMajor<float>(3, 2), RowMajor<float>(0, 2));
  linear_gradient_into(grad_x, none, RowMajor<float>(0, 2));
  EXPECT_EQ(grad_x.cwiseAbs().sum(), 0) << "a sum over no outputs";
  RowMajor<float> grad_weight(2, 0), of_none(0, 2);
  Eigen::Vector2f grad_bias(1, 2);
  add_linear_gradients(grad_weight, grad_bias, x, RowMajor<float>(RowMajor<float>::Constant(3, 2, 10)));
  EXPECT_EQ(grad_bias, Eigen::Vector2f(31, 32));
  add_linear_gradients(of_none, RowMajor<float>(3, 2), none);
}

}  // namespace
}  // namespace attn::test
