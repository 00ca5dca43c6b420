// AdamW, clipping and the schedule against PyTorch's formulas, and positions against results by hand.
#include "adamw.h"
#include "embedding.h"
#include "nn_numbers.h"
#include "nn_reference.h"
#include "schedule.h"
#include "threads.h"

namespace nn::test {
namespace {

/// A model with a weight and a bias.
struct WeightAndBias {
  Learned<double, 2> weight{{3, 5}};
  Learned<double, 1> bias{{7}};

  explicit WeightAndBias(std::uint64_t seed) { draw_parameters<double>(*this, seed); }
  void visit(const std::string& prefix, const Visitor<double>& visitor) {
    weight.visit(prefix + "weight", visitor);
    bias.visit(prefix + "bias", visitor);
  }
};

std::vector<double> copy_of(std::span<const double> numbers) { return {numbers.begin(), numbers.end()}; }

void draw_gradients(const std::vector<Parameter<double>>& parameters, Random& random) {
  for (const Parameter<double>& p : parameters)
    for (double& g : p.gradient) g = random.normal();
}

/// Gradients of many magnitudes, and one that is 0 for some steps, so that its second moment becomes small.
TEST(NnAdamW, MatchesPyTorch) {
  for (const AdamWConfig& config :
       {AdamWConfig{}, AdamWConfig{.beta1 = 0.8, .beta2 = 0.95, .epsilon = 1e-3, .weight_decay = 0.3},
        AdamWConfig{.weight_decay = 0}}) {
    WeightAndBias model(1);
    const auto parameters = parameters_of<double>(model);
    AdamW<double> optimizer(config);
    std::vector<reference::AdamW> references(2);
    std::vector<std::vector<double>> want;
    for (std::size_t i = 0; i < 2; ++i) {
      references[i].beta1 = config.beta1;
      references[i].beta2 = config.beta2;
      references[i].eps = config.epsilon;
      references[i].weight_decay = i == 0 ? config.weight_decay : 0;  // biases do not decay
      want.push_back(copy_of(parameters[i].values));
    }
    Random random(2);
    for (int step = 0; step < 8; ++step) {
      draw_gradients(parameters, random);
      parameters[0].gradient[0] = step < 4 ? 0 : 1e-6;
      parameters[1].gradient[1] *= 1e5;
      const double rate = 0.1 / (1 + step);
      for (std::size_t i = 0; i < 2; ++i) {
        references[i].lr = rate;
        references[i].step(want[i], copy_of(parameters[i].gradient));
      }
      optimizer.step(parameters, rate);
      for (std::size_t i = 0; i < 2; ++i)
        for (std::size_t j = 0; j < want[i].size(); ++j)
          ASSERT_NEAR(parameters[i].values[j], want[i][j], 1e-12 * (1 + std::abs(want[i][j])))
              << parameters[i].name << ", element " << j << " after step " << step;
    }
    EXPECT_EQ(optimizer.steps(), 8);
  }
}

/// The first step equals the learning rate for any gradient, plus the decay.
TEST(NnAdamW, FirstStepByHand) {
  WeightAndBias model(3);
  const auto parameters = parameters_of<double>(model);
  const std::vector<double> weight = copy_of(parameters[0].values), bias = copy_of(parameters[1].values);
  for (const Parameter<double>& p : parameters) std::fill(p.gradient.begin(), p.gradient.end(), -400.0);
  AdamW<double> optimizer({.weight_decay = 0.5});
  optimizer.step(parameters, 0.01);
  for (std::size_t i = 0; i < weight.size(); ++i) EXPECT_NEAR(parameters[0].values[i], weight[i] * 0.995 + 0.01, 1e-12);
  for (std::size_t i = 0; i < bias.size(); ++i) EXPECT_NEAR(parameters[1].values[i], bias[i] + 0.01, 1e-12);
}

/// Moments and the number of steps suffice for a checkpoint: training continues with the same bits.
TEST(NnAdamW, ContinuesFromItsMoments) {
  WeightAndBias model(4), other(5);
  const auto parameters = parameters_of<double>(model), others = parameters_of<double>(other);
  AdamW<double> optimizer, resumed;
  Random random(6);
  for (int step = 0; step < 3; ++step) {
    draw_gradients(parameters, random);
    optimizer.step(parameters, 0.01);
  }
  std::vector<std::string> names;
  std::vector<std::vector<double>> moments;
  optimizer.visit_moments(parameters, [&](const Parameter<double>& p) {
    names.push_back(p.name);
    moments.push_back(copy_of(p.values));
    EXPECT_TRUE(p.gradient.empty());
    EXPECT_EQ(p.shape, p.name.ends_with("bias") ? std::vector<Index>{7} : (std::vector<Index>{3, 5}));
  });
  EXPECT_EQ(names, (std::vector<std::string>{"m.weight", "v.weight", "m.bias", "v.bias"}));
  std::size_t next = 0;
  resumed.visit_moments(others, [&](const Parameter<double>& p) {  // before its first step
    std::copy(moments[next].begin(), moments[next].end(), p.values.begin());
    ++next;
  });
  resumed.set_steps(optimizer.steps());
  for (std::size_t i = 0; i < 2; ++i)
    std::copy(parameters[i].values.begin(), parameters[i].values.end(), others[i].values.begin());
  draw_gradients(parameters, random);
  for (std::size_t i = 0; i < 2; ++i)
    std::copy(parameters[i].gradient.begin(), parameters[i].gradient.end(), others[i].gradient.begin());
  optimizer.step(parameters, 0.01);
  resumed.step(others, 0.01);
  EXPECT_EQ(all_values<double>(model), all_values<double>(other));
}

TEST(NnAdamW, SkipsParametersWithoutGradient) {
  std::vector<double> values{1, 2};
  AdamW<double> optimizer;
  optimizer.step({{"still", {1, 2}, values, {}}}, 0.1);
  EXPECT_EQ(values, (std::vector<double>{1, 2}));
}

TEST(NnClip, MatchesPyTorch) {
  WeightAndBias model(7);
  const auto parameters = parameters_of<double>(model);
  Random random(8);
  draw_gradients(parameters, random);
  std::vector<std::vector<double>> want{copy_of(parameters[0].gradient), copy_of(parameters[1].gradient)};
  const double norm = reference::clip_grad_norm(want, 0.7);
  EXPECT_NEAR(clip_grad_norm(parameters, 0.7), norm, 1e-12 * norm);
  for (std::size_t i = 0; i < 2; ++i)
    for (std::size_t j = 0; j < want[i].size(); ++j) ASSERT_NEAR(parameters[i].gradient[j], want[i][j], 1e-14);
  EXPECT_NEAR(clip_grad_norm(parameters, 0.7), 0.7, 1e-12);
  EXPECT_NEAR(clip_grad_norm(parameters, 5), 0.7, 1e-12) << "shorter gradients are not scaled";
  EXPECT_NEAR(clip_grad_norm(parameters, 5), 0.7, 1e-12);
}

/// Parameters of several blocks, some of them without gradients.
TEST(NnClip, SumsAllBlocks) {
  std::vector<double> values(20000, 0), gradient(20000, 3), few{4};
  const std::vector<Parameter<double>> parameters{
      {"many", {20000}, values, gradient}, {"none", {20000}, values, {}}, {"one", {1}, few, few}};
  EXPECT_NEAR(clip_grad_norm(parameters, 1), std::sqrt(9 * 20000 + 16), 1e-9);
  for (const double g : gradient) ASSERT_NEAR(g, 3 / std::sqrt(9 * 20000 + 16), 1e-14);
}

TEST(NnSchedule, ByHand) {
  const CosineSchedule rate{.highest = 1, .lowest = 0.1, .warm_up = 4, .decay_steps = 14};
  for (Index i = 0; i < 4; ++i) EXPECT_DOUBLE_EQ(rate(i), 0.2 * static_cast<double>(i + 1)) << i;
  EXPECT_DOUBLE_EQ(rate(4), 1);
  EXPECT_NEAR(rate(9), 0.55, 1e-15);  // halfway
  EXPECT_NEAR(rate(5), 0.1 + 0.45 * (1 + std::cos(std::acos(-1.0) / 10)), 1e-15);
  EXPECT_GT(rate(13), 0.1);
  for (const Index step : {14, 15, 1000}) EXPECT_DOUBLE_EQ(rate(step), 0.1) << step;
  const CosineSchedule at_once{.highest = 2, .lowest = 0, .warm_up = 0, .decay_steps = 2};
  EXPECT_DOUBLE_EQ(at_once(0), 2);
  EXPECT_NEAR(at_once(1), 1, 1e-15);
  EXPECT_DOUBLE_EQ(at_once(2), 0);
}

TEST(NnPositions, SinesByHand) {
  States<double> x({2, 3, 4});
  std::fill_n(x.data(), x.size(), 10.0);
  add_sinusoidal_positions(x, 1);
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 3; ++i) {
      const double p = static_cast<double>(i) + 1;
      EXPECT_NEAR(x(b, i, 0), 10 + std::sin(p), 1e-14);
      EXPECT_NEAR(x(b, i, 1), 10 + std::cos(p), 1e-14);
      EXPECT_NEAR(x(b, i, 2), 10 + std::sin(p / 100), 1e-14);
      EXPECT_NEAR(x(b, i, 3), 10 + std::cos(p / 100), 1e-14);
    }
  EXPECT_NEAR(x(0, 0, 0), 10.841470984807897, 1e-14);
  States<double> odd({1, 1, 3});
  add_sinusoidal_positions(odd);
  EXPECT_EQ(odd(0, 0, 0), 0);
  EXPECT_EQ(odd(0, 0, 1), 1);
  EXPECT_EQ(odd(0, 0, 2), 0);
}

TEST(NnPositions, LearnedOnesBeginAtTheGivenPosition) {
  Random random(9);
  LearnedPositions<double> positions(5, 2, 1, random);
  const auto table = parameters_of<double>(positions).front().values;
  States<double> x({2, 3, 2});
  positions.add_to(x, 2);
  for (Index b = 0; b < 2; ++b)
    for (Index i = 0; i < 3; ++i)
      for (Index f = 0; f < 2; ++f) EXPECT_EQ(x(b, i, f), table[static_cast<std::size_t>((2 + i) * 2 + f)]);
  EXPECT_THROW(positions.add_to(x, 3), std::out_of_range);
  EXPECT_THROW(positions.add_to(x, -1), std::out_of_range);
}

TEST(NnRandom, MatchesThePublishedSequence) {
  Random random(1234567);  // the first numbers of the generator's published sequence
  EXPECT_EQ(random.bits(), 6457827717110365317u);
  EXPECT_EQ(random.bits(), 3203168211198807973u);
  Random again(random.state());
  EXPECT_EQ(random.bits(), again.bits());
  double sum = 0, squares = 0;
  for (int i = 0; i < 10000; ++i) {
    const double x = random.normal();
    sum += x / 10000;
    squares += x * x / 10000;
    const auto below = random.below(3);
    ASSERT_TRUE(below >= 0 && below < 3);
  }
  EXPECT_NEAR(sum, 0, 0.05);      // five standard deviations
  EXPECT_NEAR(squares, 1, 0.07);  // likewise
}

}  // namespace
}  // namespace nn::test
