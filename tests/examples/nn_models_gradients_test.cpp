// Gradients of whole models, through their loss, against central differences for every parameter.
#include "cross_entropy.h"
#include "encoder.h"
#include "gpt.h"
#include "nn_central_differences.h"
#include "transformer.h"

namespace nn::test {
namespace {

TEST(NnGradients, Gpt) {
  for (const bool bias : {true, false}) {
    Gpt<double> model(
        {.tokens = 7, .context = 6, .layers = 2, .heads = 2, .features = 8, .bias = bias, .dropout = bias ? 0.2 : 0},
        1);
    draw_parameters<double>(model, 2);
    Random random(3);
    const Tokens tokens = random_tokens(2, 5, 7, random);
    expect_gradients(
        model, {},
        [&] {
          model.visit_dropouts([](Dropout<double>& dropout) { dropout.set_calls(9); });
          return model.forward(tokens);
        },
        [&](const States<double>& grad) { model.backward(grad); });
  }
}

TEST(NnGradients, Encoder) {
  for (const bool norm_first : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      Encoder<double> model({.tokens = 7,
                             .context = 6,
                             .layers = 2,
                             .layer = {.features = 8,
                                       .heads = 2,
                                       .activation = ActivationKind::gelu,
                                       .norm_first = norm_first,
                                       .dropout = dropout}},
                            4);
      draw_parameters<double>(model, 5);
      Random random(6);
      const Tokens tokens = random_tokens(2, 5, 7, random);
      expect_gradients(
          model, {},
          [&] {
            model.visit_dropouts([](Dropout<double>& d) { d.set_calls(9); });
            return model.forward(tokens, {5, 3});
          },
          [&](const States<double>& grad) { model.backward(grad); });
    }
}

TEST(NnGradients, Transformer) {
  for (const bool norm_first : {true, false})
    for (const double dropout : {0.0, 0.2}) {
      Transformer<double> model({.source_tokens = 7,
                                 .target_tokens = 9,
                                 .encoder_layers = 2,
                                 .decoder_layers = 2,
                                 .layer = {.features = 8,
                                           .heads = 2,
                                           .hidden = 8,
                                           .activation = ActivationKind::swiglu,
                                           .norm_first = norm_first,
                                           .dropout = dropout}},
                                7);
      draw_parameters<double>(model, 8);
      Random random(9);
      const Tokens sources = random_tokens(2, 4, 7, random), targets = random_tokens(2, 5, 9, random);
      expect_gradients(
          model, {},
          [&] {
            model.visit_dropouts([](Dropout<double>& d) { d.set_calls(9); });
            return model.forward(sources, {2, 4}, targets);
          },
          [&](const States<double>& grad) { model.backward(grad); });
    }
}

/// The whole computation from parameters to the training loss.
TEST(NnGradients, OfTheLossOfAModel) {
  Transformer<double> model({.source_tokens = 7, .target_tokens = 9, .layer = {.features = 8, .heads = 2}}, 10);
  draw_parameters<double>(model, 11);
  Random random(12);
  const Tokens sources = random_tokens(2, 4, 7, random), targets = random_tokens(2, 5, 9, random);
  Tokens next = random_tokens(2, 5, 9, random);
  next(1, 4) = next(1, 3) = CrossEntropy<double>::kIgnored;
  CrossEntropy<double> criterion(0.1);
  const auto loss = [&] { return criterion.forward(model.forward(sources, {4, 3}, targets), next); };
  loss();
  model.backward(criterion.backward());
  for (const Parameter<double>& p : parameters_of<double>(model))
    expect_derivatives(p.name, p.values, p.gradient, random, loss);
}

}  // namespace
}  // namespace nn::test
