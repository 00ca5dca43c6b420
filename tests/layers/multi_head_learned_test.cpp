// MultiHeadAttention::backward() with learned mods.
#include <numeric>

#include "support/multi_head_model.h"

namespace attn::test {
namespace {

TEST(MultiHeadLearned, GradientsOfModsAccumulate) {
  const MultiHeadAttention<double> layer({.embed_dim = 12, .heads = 4, .kv_heads = 2});
  const auto x = tensor<double>(Random(1).values(2 * 6 * 12, 1), 2, 6, 12);
  const auto grad = tensor<double>(Random(2).values(2 * 6 * 12, 1), 2, 6, 12);
  Tensor<double, 2> table({4, 7}), table_grad({4, 7});
  Tensor<double, 1> logits({4}), logits_grad({4});
  Random random(3);
  for (double& t : std::span(table.data(), 28)) t = random.uniform(-1, 1);
  for (double& l : std::span(logits.data(), 4)) l = random.uniform(-1, 1);
  const auto numbers = [&] { return std::vector<double>(logits.data(), logits.data() + 4); };
  const auto loss = [&] {
    const Tensor<double, 3> out = layer(x, x, x, causal() | relative_bias(table) | sinks(numbers()));
    return std::inner_product(out.data(), out.data() + out.size(), grad.data(), 0.0);
  };
  const auto slope = [&](double& number) {
    const double at = number, h = 1e-3;
    const auto moved = [&](double by) { return number = at + by * h, loss(); };
    const double result = (8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * h);
    number = at;
    return result;
  };
  auto learner = layer;
  const auto mods = causal() | relative_bias(table, table_grad) | sinks(numbers(), logits_grad);
  int calls = 0;
  for (const Path path : {Path::flash, Path::naive, Path::flash}) {
    const MultiHeadOptions options{.path = path, .keep = true};
    learner.backward(grad, x, x, x, learner(x, x, x, mods, options), mods, options);
    ++calls;
  }
  for (Index i = 0; i < 28; ++i)
    ASSERT_NEAR(table_grad.data()[i], calls * slope(table.data()[i]), 1e-9) << "table " << i;
  for (Index h = 0; h < 4; ++h) ASSERT_NEAR(logits_grad(h), calls * slope(logits.data()[h]), 1e-9) << "logit " << h;
}

}  // namespace
}  // namespace attn::test
