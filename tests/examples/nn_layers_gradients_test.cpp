// Gradients of attention, feed-forward networks and whole layers against central differences.
#include "layers.h"
#include "nn_central_differences.h"

namespace nn::test {
namespace {

constexpr Index kTokens = 5, kMemory = 4;

TEST(NnGradients, SelfAttention) {
  for (const bool bias : {true, false})
    for (const Mask& mask : masks_of(kTokens)) {
      SCOPED_TRACE(text_of(mask) + (bias ? ", with biases" : ""));
      Random random(1);
      SelfAttention<double> layer({.embed_dim = 6, .heads = 2, .bias = bias});
      draw_parameters<double>(layer, 2);
      States<double> x = normal_states<double>({2, kTokens, 6}, random), grad_x;
      expect_gradients(
          layer, {{"x", &x, &grad_x}}, [&] { return layer.forward(x, mask); },
          [&](const States<double>& grad) { grad_x = layer.backward(grad); });
    }
}

/// Calls backward(gradient of the memory), which must accumulate, with a gradient that is not 0, and returns the amount
/// added.
template <class Backward>
States<double> added(const States<double>& memory, const Backward& backward) {
  Random random(77);
  const States<double> before = normal_states<double>(memory.shape(), random);
  States<double> sum = before;
  backward(sum);
  for (Index i = 0; i < sum.size(); ++i) sum.data()[i] -= before.data()[i];
  return sum;
}

TEST(NnGradients, CrossAttention) {
  for (const Mask& mask : masks_of(kMemory)) {
    SCOPED_TRACE(text_of(mask));
    Random random(3);
    CrossAttention<double> layer({.embed_dim = 6, .heads = 3});
    draw_parameters<double>(layer, 4);
    States<double> x = normal_states<double>({2, kTokens, 6}, random), grad_x;
    States<double> memory = normal_states<double>({2, kMemory, 6}, random), grad_memory;
    expect_gradients(
        layer, {{"x", &x, &grad_x}, {"memory", &memory, &grad_memory}}, [&] { return layer.forward(x, memory, mask); },
        [&](const States<double>& grad) {
          grad_memory = added(memory, [&](States<double>& sum) { grad_x = layer.backward(grad, sum); });
        });
  }
}

/// Configurations that cover every option.
std::vector<LayerConfig> configs() {
  std::vector<LayerConfig> all;
  for (const bool norm_first : {true, false}) {
    all.push_back({.features = 6, .heads = 2, .hidden = 7, .norm_first = norm_first, .dropout = 0.3});
    all.push_back({.features = 6,
                   .heads = 1,
                   .activation = ActivationKind::gelu,
                   .norm_first = norm_first,
                   .norm = NormKind::layer_without_bias,
                   .bias = false});
    all.push_back({.features = 6,
                   .heads = 3,
                   .hidden = 5,
                   .activation = ActivationKind::swiglu,
                   .norm_first = norm_first,
                   .norm = NormKind::rms,
                   .dropout = 0.1});
  }
  return all;
}

std::string name_of(const LayerConfig& c) {
  return std::to_string(c.heads) + " heads" + (c.norm_first ? ", norm first" : "");
}

/// Makes each call drop the same elements.
template <class Layer>
void rewind_dropouts(Layer& layer) {
  layer.visit_dropouts([](Dropout<double>& dropout) { dropout.set_calls(5); });
}

TEST(NnGradients, FeedForward) {
  for (const LayerConfig& config : configs()) {
    SCOPED_TRACE(name_of(config));
    Random random(5);
    FeedForward<double> layer(config, random);
    draw_parameters<double>(layer, 6);
    States<double> x = normal_states<double>({2, kTokens, 6}, random), grad_x;
    expect_gradients(
        layer, {{"x", &x, &grad_x}}, [&] { return layer.forward(x); },
        [&](const States<double>& grad) { grad_x = layer.backward(grad); });
  }
}

TEST(NnGradients, EncoderLayer) {
  for (const LayerConfig& config : configs())
    for (const Mask& mask : masks_of(kTokens)) {
      SCOPED_TRACE(name_of(config) + ", " + text_of(mask));
      Random random(7);
      EncoderLayer<double> layer(config, random);
      draw_parameters<double>(layer, 8);
      States<double> x = normal_states<double>({2, kTokens, 6}, random), grad_x;
      expect_gradients(
          layer, {{"x", &x, &grad_x}},
          [&] {
            rewind_dropouts(layer);
            return layer.forward(x, mask);
          },
          [&](const States<double>& grad) { grad_x = layer.backward(grad); });
    }
}

TEST(NnGradients, DecoderLayer) {
  for (const LayerConfig& config : configs())
    for (const Mask& memory_mask : masks_of(kMemory)) {
      SCOPED_TRACE(name_of(config) + ", memory " + text_of(memory_mask));
      Random random(9);
      DecoderLayer<double> layer(config, random);
      draw_parameters<double>(layer, 13);
      States<double> x = normal_states<double>({2, kTokens, 6}, random), grad_x;
      States<double> memory = normal_states<double>({2, kMemory, 6}, random), grad_memory;
      expect_gradients(
          layer, {{"x", &x, &grad_x}, {"memory", &memory, &grad_memory}},
          [&] {
            rewind_dropouts(layer);
            return layer.forward(x, {.causal = true}, memory, memory_mask);
          },
          [&](const States<double>& grad) {
            grad_memory = added(memory, [&](States<double>& sum) { grad_x = layer.backward(grad, sum); });
          });
    }
}

/// Dropout applies to the values added to x, not to x itself, and to the right fraction of them.
TEST(NnDropout, OfALayerDoesNotChangeTheResidual) {
  Random random(11);
  EncoderLayer<double> layer({.features = 8, .heads = 2, .dropout = 0.5}, random);
  States<double> x = normal_states<double>({2, 30, 8}, random);
  draw_parameters<double>(layer, 12);
  for (const Parameter<double>& p : parameters_of<double>(layer))  // the feed-forward network adds nothing
    if (p.name.starts_with("linear2")) std::fill(p.values.begin(), p.values.end(), 0.0);
  const States<double> kept = layer(x, {}), dropped = layer.forward(x, {});
  Index zeros = 0;
  for (Index i = 0; i < x.size(); ++i) {
    const double added = dropped.data()[i] - x.data()[i], all = kept.data()[i] - x.data()[i];
    if (std::abs(added) < 1e-14)
      ++zeros;
    else
      EXPECT_NEAR(added, 2 * all, 1e-12 * (1 + std::abs(all)));
  }
  EXPECT_NEAR(static_cast<double>(zeros), 240, 55);  // five standard deviations of 480 coin flips
}

}  // namespace
}  // namespace nn::test
