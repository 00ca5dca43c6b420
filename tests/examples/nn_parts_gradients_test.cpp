// Gradients of the parts other than attention against central differences: linear layers, norms, activations,
// embeddings, dropout, the loss.
#include "activation.h"
#include "cross_entropy.h"
#include "dropout.h"
#include "embedding.h"
#include "linear.h"
#include "nn_central_differences.h"
#include "norm.h"

namespace nn::test {
namespace {

constexpr attn::Shape<3> kShape{2, 5, 6};

TEST(NnGradients, Linear) {
  Random random(1);
  for (const bool bias : {true, false}) {
    expect_layer_gradients(Linear<double>(6, 9, bias, random));
    expect_layer_gradients(Linear<double>(6, 1, bias, random));
    expect_layer_gradients(Linear<double>(6, 7, bias, random), {3, 41, 6});  // tokens of several tiles
  }
}

TEST(NnGradients, Norm) {
  for (const NormKind kind : {NormKind::layer, NormKind::layer_without_bias, NormKind::rms}) {
    expect_layer_gradients(Norm<double>(6, kind));
    expect_layer_gradients(Norm<double>(6, kind, 0.7));         // an epsilon large enough to matter
    expect_layer_gradients(Norm<double>(6, kind), {3, 41, 6});  // rows of several blocks
    expect_layer_gradients(Norm<double>(3, kind));              // two heads per token
  }
}

TEST(NnGradients, UnitNorm) {
  for (const double epsilon : {1e-6, 0.7}) expect_layer_gradients(Norm<double>(3, NormKind::unit, epsilon));
  Random random(2);
  const States<double> y = Norm<double>(3, NormKind::unit, 0)(normal_states<double>(kShape, random));
  EXPECT_NEAR(y(1, 2, 3) * y(1, 2, 3) + y(1, 2, 4) * y(1, 2, 4) + y(1, 2, 5) * y(1, 2, 5), 1, 1e-15);
}

struct Activated : Activation<double>, NoParameters {
  using Activation::Activation;
};

TEST(NnGradients, Activations) {
  // None of the drawn values is within two steps of 0, where ReLU has no derivative.
  for (const auto kind : {ActivationKind::relu, ActivationKind::gelu, ActivationKind::swiglu})
    expect_layer_gradients(Activated(kind));
}

/// Far from 0, activations are 0 on one side and linear on the other, without overflow.
TEST(NnGradients, ActivationsOfLargeNumbers) {
  for (const auto kind : {ActivationKind::relu, ActivationKind::gelu, ActivationKind::swiglu})
    for (const double large : {50.0, 1e4, 1e100}) {
      Activation<double> activation(kind);
      States<double> x({1, 2, inputs_of(kind, 1)}), ones({1, 2, 1});
      std::fill_n(x.data(), x.size(), 1.0);
      std::fill_n(ones.data(), 2, 1.0);
      x(0, 0, 0) = large;
      x(0, 1, 0) = -large;
      const States<double> y = activation.forward(x), grad = activation.backward(ones);
      EXPECT_NEAR(y(0, 0, 0), large, large * 1e-14);
      EXPECT_NEAR(y(0, 1, 0), 0, 1e-14);
      EXPECT_NEAR(grad(0, 0, 0), 1, 1e-14);
      EXPECT_NEAR(grad(0, 1, 0), 0, 1e-14);
    }
}

TEST(NnGradients, Embedding) {
  Random random(5);
  Embedding<double> embedding(7, 4, 1, random);
  const Tokens tokens = tokens_of({{3, 0, 3}, {6, 3, 0}});  // some repeated, some unused
  expect_gradients(
      embedding, {}, [&] { return embedding.forward(tokens); },
      [&](const States<double>& grad) { embedding.backward(grad); });
}

TEST(NnGradients, EmbeddingAsOutputLayer) {
  Random random(6);
  Embedding<double> embedding(7, 4, 1, random);
  States<double> x = normal_states<double>({2, 3, 4}, random), grad_x;
  expect_gradients(
      embedding, {{"x", &x, &grad_x}}, [&] { return embedding.forward_project(x); },
      [&](const States<double>& grad) { grad_x = embedding.backward_project(grad); });
}

/// Tied input and output layers: both add to the gradient of the shared table.
TEST(NnGradients, EmbeddingTied) {
  Random random(7);
  Embedding<double> embedding(7, 4, 1, random);
  const Tokens tokens = tokens_of({{3, 0, 3}, {6, 3, 0}});
  expect_gradients(
      embedding, {}, [&] { return embedding.forward_project(embedding.forward(tokens)); },
      [&](const States<double>& grad) { embedding.backward(embedding.backward_project(grad)); });
}

TEST(NnGradients, LearnedPositions) {
  Random random(8);
  LearnedPositions<double> positions(6, 4, 1, random);
  States<double> x = normal_states<double>({2, 5, 4}, random), grad_x;
  expect_gradients(
      positions, {{"x", &x, &grad_x}},
      [&] {
        States<double> y = x;
        positions.add_to(y);
        return y;
      },
      [&](const States<double>& grad) {
        positions.backward(grad);
        grad_x = grad;
      });
}

TEST(NnGradients, CrossEntropy) {
  Random random(9);
  constexpr std::int32_t kIgnored = CrossEntropy<double>::kIgnored;
  const Tokens targets = tokens_of({{2, kIgnored, 0, 4}, {kIgnored, 4, 4, kIgnored}});
  for (const double smoothing : {0.0, 0.1, 0.8}) {
    CrossEntropy<double> loss(smoothing);
    States<double> logits = normal_states<double>({2, 4, 5}, random);
    loss.forward(logits, targets);
    const States<double> grad = loss.backward();
    const auto size = static_cast<std::size_t>(logits.size());
    expect_derivatives("logits", {logits.data(), size}, {grad.data(), size}, random,
                       [&] { return loss.forward(logits, targets); });
    for (Index f = 0; f < 5; ++f) EXPECT_EQ(grad(0, 1, f), 0) << "the gradient of an ignored target";
    EXPECT_NEAR(loss(logits, targets), loss.forward(logits, targets), 0);
  }
}

TEST(NnGradients, CrossEntropyWithoutTargets) {
  Random random(10);
  CrossEntropy<double> loss(0.1);
  EXPECT_EQ(loss.forward(normal_states<double>({1, 3, 5}, random), tokens_of({{-1, -1, -1}})), 0);
  const States<double> grad = loss.backward();
  EXPECT_TRUE(same_bits(grad, States<double>({1, 3, 5})));
}

TEST(NnGradients, CrossEntropyRefusesInvalidTargets) {
  CrossEntropy<double> loss;
  const States<double> logits({1, 2, 5});
  EXPECT_THROW(loss(logits, tokens_of({{0, 5}})), std::out_of_range);
  EXPECT_THROW(loss(logits, tokens_of({{-2, 1}})), std::out_of_range);
  EXPECT_THROW(loss(logits, tokens_of({{0, 1, 2}})), std::invalid_argument);
  EXPECT_THROW(loss(logits, tokens_of({{0}, {1}})), std::invalid_argument);
}

/// Large logits that are far apart must not overflow.
TEST(NnGradients, CrossEntropyOfLargeLogits) {
  CrossEntropy<double> loss;
  States<double> logits({1, 1, 3});
  logits(0, 0, 0) = 1e4;
  logits(0, 0, 1) = -1e4;
  EXPECT_EQ(loss.forward(logits, tokens_of({{0}})), 0);
  EXPECT_EQ(loss.forward(logits, tokens_of({{1}})), 2e4);
  const States<double> grad = loss.backward();
  EXPECT_EQ(grad(0, 0, 0), 1);
  EXPECT_EQ(grad(0, 0, 1), -1);
  EXPECT_EQ(grad(0, 0, 2), 0);
}

TEST(NnDropout, ScalesKeptValues) {
  for (const double rate : {0.1, 0.5, 0.875}) {
    Dropout<double> dropout(rate, 11);
    States<double> x({4, 100, 250});
    std::fill_n(x.data(), x.size(), 3.0);
    dropout.forward(x);
    Index dropped = 0;
    double sum = 0;
    for (Index i = 0; i < x.size(); ++i) {
      // The rate is rounded to 16 bits.
      const double y = x.data()[i];
      ASSERT_TRUE(y == 0 || std::abs(y * (1 - rate) / 3 - 1) < 2e-4) << i << ": " << y;
      dropped += y == 0;
      sum += y;
    }
    // Five standard deviations of 100,000 coin flips.
    const double n = static_cast<double>(x.size()), deviation = std::sqrt(rate * (1 - rate) / n);
    EXPECT_NEAR(static_cast<double>(dropped) / n, rate, 5 * deviation + 2e-5);
    EXPECT_NEAR(sum / n, 3, 15 * deviation / (1 - rate));
  }
}

TEST(NnDropout, BackwardUsesTheSameMask) {
  Dropout<double> dropout(0.3, 12);
  States<double> x({1, 50, 200}), first = x;
  std::fill_n(x.data(), x.size(), 1.0);
  for (int call = 0; call < 3; ++call) {
    States<double> y = x, grad = x;
    dropout.forward(y);
    dropout.backward(grad);
    EXPECT_TRUE(same_bits(y, grad)) << "both are the mask, as x and the gradient are 1";
    EXPECT_FALSE(same_bits(y, first)) << "each call draws a new mask";
    first = y;
  }

  dropout.set_calls(2);
  dropout.forward(x);
  EXPECT_TRUE(same_bits(x, first)) << "the mask of the third call again";
}

TEST(NnDropout, SeedsDetermineTheMask) {
  States<double> a({1, 1, 1000}), b;
  std::fill_n(a.data(), a.size(), 1.0);
  b = a;
  Dropout<double>(0.5, 1).forward(a);
  Dropout<double>(0.5, 2).forward(b);
  Index same = 0;
  for (Index i = 0; i < a.size(); ++i) same += a.data()[i] == b.data()[i];
  EXPECT_NEAR(static_cast<double>(same), 500, 80);  // five standard deviations
}

TEST(NnDropout, RateZeroChangesNothingAndOneIsRefused) {
  Random random(13);
  States<double> x = normal_states<double>(kShape, random);
  const States<double> before = x;
  Dropout<double> none(0, 1);
  none.forward(x);
  none.backward(x);
  EXPECT_TRUE(same_bits(x, before));
  for (const double rate : {1.0, -0.1, 2.0, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_THROW(Dropout<double>(rate, 1), std::invalid_argument) << rate;
}

}  // namespace
}  // namespace nn::test
