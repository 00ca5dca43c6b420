// causal_conv1d(): against its definition, in parts, gradients against central differences, NaN, threads, errors.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "recurrent_paths.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T, int kRank>
Tensor<T, kRank> random_of(Random& random, const Shape<kRank>& shape) {
  Tensor<T, kRank> t(shape);
  std::copy_n(as<T>(random.values(t.size(), 1)).data(), t.size(), t.data());
  return t;
}

template <class T>
struct Conv {
  Conv(std::uint64_t seed, Index batch, Index len, Index channels, Index width)
      : random(seed),
        x(random_of<T, 3>(random, {batch, len, channels})),
        grad_out(random_of<T, 3>(random, {batch, len, channels})),
        state(random_of<T, 3>(random, {batch, width - 1, channels})),
        grad_state(random_of<T, 3>(random, {batch, width - 1, channels})),
        weight(random_of<T, 2>(random, {channels, width})),
        bias(random_of<T, 1>(random, {channels})) {}
  Random random;
  Tensor<T, 3> x, grad_out, state, grad_state;
  Tensor<T, 2> weight;
  Tensor<T, 1> bias;

  /// Output (b, t, c), by the definition.
  LongReal expected(Index b, Index t, Index c, bool has_state, bool silu) const {
    const Index width = weight.dim(1);
    LongReal y = bias(c);
    for (Index i = 0; i < width; ++i) {
      const Index from = t - (width - 1) + i;
      if (from >= 0)
        y += LongReal(weight(c, i)) * LongReal(x(b, from, c));
      else if (has_state)
        y += LongReal(weight(c, i)) * LongReal(state(b, width - 1 + from, c));
    }
    return silu ? y / (1 + std::exp(-y)) : y;
  }
};

template <class T>
struct CausalConv : testing::Test {};
using Scalars = testing::Types<float, double, long double>;
TYPED_TEST_SUITE(CausalConv, Scalars);

TYPED_TEST(CausalConv, IsItsDefinition) {
  using T = TypeParam;
  for (Index width = 2; width <= 8; ++width)
    for (const Index channels : {1, 7, 64, 140})
      for (const Index len : {0, 1, 3, 32, 70})
        for (const bool silu : {false, true}) {
          const Conv<T> in(1, 2, len, channels, width);
          const Index length = len / 2;
          for (const Isa isa : instruction_sets()) {
            const ConvOptions o{.silu = silu, .lengths = {length, len}, .executor = serial(), .isa = isa};
            Tensor<T, 3> state = in.state;
            const auto out = causal_conv1d(in.x, in.weight, in.bias, o),
                       on = causal_conv1d(state, in.x, in.weight, in.bias, o),
                       naive = naive_causal_conv1d(in.x, in.weight, in.bias, o);
            const T bound = 40 * std::numeric_limits<T>::epsilon();
            for (Index b = 0; b < 2; ++b)
              for (Index t = 0; t < len; ++t)
                for (Index c = 0; c < channels; ++c) {
                  const bool is_padding = b == 0 && t >= length;
                  const auto want = static_cast<T>(is_padding ? 0 : in.expected(b, t, c, false, silu)),
                             after = static_cast<T>(is_padding ? 0 : in.expected(b, t, c, true, silu));
                  ASSERT_LE(std::abs(out(b, t, c) - want), bound)
                      << width << ", " << channels << ", " << len << ": " << t;
                  ASSERT_LE(std::abs(naive(b, t, c) - want), bound);
                  ASSERT_LE(std::abs(on(b, t, c) - after), bound)
                      << width << ", " << channels << ", " << len << ": " << t;
                }
            for (Index b = 0; b < 2; ++b)
              for (Index i = 0; i < width - 1; ++i)
                for (Index c = 0; c < channels; ++c) {
                  const Index token = (b == 0 ? length : len) - (width - 1) + i;
                  ASSERT_EQ(state(b, i, c), token < 0 ? in.state(b, width - 1 + token, c) : in.x(b, token, c));
                }
          }
        }
}

TYPED_TEST(CausalConv, PartsHaveTheBitsOfTheWhole) {
  using T = TypeParam;
  for (const Index width : {2, 4, 8}) {
    const Conv<T> in(2, 2, 100, 37, width);
    const ConvOptions o{.silu = true};
    const auto whole = causal_conv1d(in.x, in.weight, in.bias, o);
    for (const std::vector<Index>& lengths : {std::vector<Index>(100, 1), {1, 2, 31, 66}, {64, 36}}) {
      Tensor<T, 3> state({2, width - 1, 37});
      Index at = 0;
      for (const Index n : lengths) {
        const auto part = causal_conv1d(state, in.x.view().slice(1, at, at + n), in.weight, in.bias, o);
        for (Index b = 0; b < 2; ++b)
          for (Index t = 0; t < n; ++t)
            for (Index c = 0; c < 37; ++c) ASSERT_EQ(part(b, t, c), whole(b, at + t, c)) << width << ": " << at + t;
        at += n;
      }
    }
  }
}

/// The loss depends on the outputs and on the state after the call.
TEST(CausalConvGradients, CentralDifferences) {
  using T = long double;
  for (const Index width : {2, 5, 8})
    for (const Index len : {1, 3, 32, 67})
      for (const bool silu : {false, true}) {
        Conv<T> in(3, 2, len, 5, width);
        const ConvOptions o{.silu = silu, .lengths = {len, len / 2}, .executor = serial()};
        const auto loss = [&] {
          Tensor<T, 3> state = in.state;
          const auto out = causal_conv1d(state, in.x, in.weight, in.bias, o);
          T sum = 0;
          for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * in.grad_out.data()[i];
          for (Index i = 0; i < state.size(); ++i) sum += state.data()[i] * in.grad_state.data()[i];
          return sum;
        };
        Tensor<T, 3> grad_state = in.grad_state;
        const auto g = causal_conv1d_backward(in.state, grad_state, in.grad_out, in.x, in.weight, in.bias, o);
        const auto check = [&](const char* name, auto& at, const auto& grad) {
          for (Index i = 0; i < at.size(); ++i) {
            const T before = at.data()[i], step = 1e-6L;
            at.data()[i] = before + step;
            const T above = loss();
            at.data()[i] = before - step;
            const T below = loss();
            at.data()[i] = before;
            ASSERT_NEAR(static_cast<double>(grad.data()[i]), static_cast<double>((above - below) / (2 * step)), 1e-9)
                << name << ' ' << i << ", width " << width << ", " << len << " tokens";
          }
        };
        check("x", in.x, g.x), check("weight", in.weight, g.weight), check("bias", in.bias, g.bias);
        check("state", in.state, grad_state);
      }
}

TEST(CausalConvGradients, ThreadsSetsAndMissingBiases) {
  const Conv<double> in(4, 3, 90, 300, 4);
  const auto one = causal_conv1d_backward(in.grad_out, in.x, in.weight, in.bias, {.silu = true, .executor = serial()});
  for (const Isa isa : instruction_sets()) {
    const ConvOptions o{.silu = true, .executor = eager_threads(3), .isa = isa};
    const auto g = causal_conv1d_backward(in.grad_out, in.x, in.weight, in.bias, o);
    for (Index i = 0; i < g.x.size(); ++i) ASSERT_NEAR(g.x.data()[i], one.x.data()[i], 1e-13);
    for (Index i = 0; i < g.weight.size(); ++i) ASSERT_NEAR(g.weight.data()[i], one.weight.data()[i], 1e-12);
  }
  const auto more =
      causal_conv1d_backward(in.grad_out, in.x, in.weight, in.bias, {.silu = true, .executor = eager_threads(3)});
  EXPECT_TRUE(same_bits(plain(one.x), plain(more.x)) && same_bits(plain(one.weight), plain(more.weight)));
  Tensor<double, 1> zeros({300});
  EXPECT_TRUE(same_bits(plain(causal_conv1d(in.x, in.weight, no_bias)), plain(causal_conv1d(in.x, in.weight, zeros))));
  const auto without = causal_conv1d_backward(in.grad_out, in.x, in.weight, no_bias);
  EXPECT_EQ(without.bias.size(), 0);
  EXPECT_TRUE(same_bits(plain(without.x), plain(causal_conv1d_backward(in.grad_out, in.x, in.weight, zeros).x)));
}

/// NaN reaches no earlier token, no other channel and no other sequence; padding is not read.
TEST(CausalConvProperties, NaNStaysInItsChannel) {
  const Conv<float> clean(5, 2, 80, 70, 4);
  Conv<float> in = clean;
  in.x(0, 40, 3) = std::numeric_limits<float>::quiet_NaN();
  const auto want = causal_conv1d(clean.x, clean.weight, clean.bias), got = causal_conv1d(in.x, in.weight, in.bias);
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 80; ++t)
      for (Index c = 0; c < 70; ++c) {
        const bool hears = b == 0 && c == 3 && t >= 40 && t < 44;
        ASSERT_EQ(std::isnan(got(b, t, c)), hears) << t << ", " << c;
        if (!hears) {
          ASSERT_EQ(got(b, t, c), want(b, t, c));
        }
      }
  const ConvOptions o{.lengths = {40, 80}};
  EXPECT_TRUE(same_bits(plain(causal_conv1d(in.x, in.weight, in.bias, o)),
                        plain(causal_conv1d(clean.x, clean.weight, clean.bias, o))));
  EXPECT_TRUE(same_bits(plain(causal_conv1d_backward(in.grad_out, in.x, in.weight, in.bias, o).weight),
                        plain(causal_conv1d_backward(in.grad_out, clean.x, clean.weight, clean.bias, o).weight)));
}

/// 16-bit inputs are computed in float and rounded once; views may have any strides.
TEST(CausalConvProperties, TypesAndStrides) {
  const Conv<float> in(6, 2, 50, 30, 3);
  Tensor<Eigen::half, 3> x({2, 50, 30});
  Tensor<float, 3> rounded({2, 50, 30});
  for (Index i = 0; i < x.size(); ++i) {
    x.data()[i] = static_cast<Eigen::half>(in.x.data()[i]);
    rounded.data()[i] = static_cast<float>(x.data()[i]);
  }
  const auto got = causal_conv1d(x, in.weight, in.bias);
  const auto want = causal_conv1d(rounded, in.weight, in.bias);
  for (Index i = 0; i < x.size(); ++i) ASSERT_EQ(got.data()[i], static_cast<Eigen::half>(want.data()[i]));
  Tensor<float, 3> transposed({2, 30, 50}), out({2, 30, 50});
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 50; ++t)
      for (Index c = 0; c < 30; ++c) transposed(b, c, t) = rounded(b, t, c);
  const auto turned = [](auto& t) { return TensorView<float, 3>(t.data(), {2, 50, 30}, {1500, 1, 50}); };
  const Eigen::MatrixXf weight = in.weight.matrix();  // column-major
  causal_conv1d_into(turned(out), turned(transposed), weight, in.bias);
  for (Index b = 0; b < 2; ++b)
    for (Index t = 0; t < 50; ++t)
      for (Index c = 0; c < 30; ++c) ASSERT_EQ(out(b, c, t), want(b, t, c));
}

TEST(CausalConvProperties, RefusesBadArguments) {
  Conv<float> in(7, 2, 9, 6, 4);
  const Tensor<float, 2> narrow({6, 1}), other({5, 4});
  const Tensor<float, 1> short_bias({5});
  Tensor<float, 3> short_state({2, 4, 6}), out({2, 9, 5});
  expect_refused("width", {"width of 1", "2 to 8"}, [&] { causal_conv1d(in.x, narrow, in.bias); });
  expect_refused("weight", {"(5, 4)", "(6, 4)"}, [&] { causal_conv1d(in.x, other, in.bias); });
  expect_refused("bias", {"5 elements", "6 channels"}, [&] { causal_conv1d(in.x, in.weight, short_bias); });
  expect_refused("lengths", {"1 lengths", "2 sequences"},
                 [&] { causal_conv1d(in.x, in.weight, in.bias, {.lengths = {3}}); });
  expect_refused("length", {"10", "9 tokens"}, [&] { causal_conv1d(in.x, in.weight, in.bias, {.lengths = {3, 10}}); });
  expect_refused("state", {"(2, 4, 6)", "(2, 3, 6)"}, [&] { causal_conv1d(short_state, in.x, in.weight, in.bias); });
  expect_refused("out", {"(2, 9, 5)", "(2, 9, 6)"}, [&] { causal_conv1d_into(out, in.x, in.weight, in.bias); });
  expect_refused("in place", {"out", "x"}, [&] { causal_conv1d_into(in.x, in.x, in.weight, in.bias); });
  expect_refused("grad_out", {"grad_out", "(2, 9, 5)"}, [&] { causal_conv1d_backward(out, in.x, in.weight, in.bias); });
  expect_refused("one state", {"grad_state"},
                 [&] { causal_conv1d_backward(in.state, in.state, in.grad_out, in.x, in.weight, in.bias); });
}

}  // namespace
}  // namespace attn::test
