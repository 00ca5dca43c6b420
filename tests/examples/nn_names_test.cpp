// The names, shapes and order of all parameters match PyTorch's, which checkpoints rely on.
#include "encoder.h"
#include "gpt.h"
#include "nn_numbers.h"
#include "transformer.h"

namespace nn::test {
namespace {

using Named = std::vector<std::string>;

/// "name (rows, columns)" of each parameter, in order; the same in each call.
template <class Model>
Named named(Model& model, const std::string& prefix = "") {
  const auto once = [&] {
    Named all;
    model.visit(prefix, [&](const Parameter<float>& p) {
      std::string text = p.name + " (";
      Index size = 1;
      for (std::size_t i = 0; i < p.shape.size(); ++i) {
        text += (i > 0 ? ", " : "") + std::to_string(p.shape[i]);
        size *= p.shape[i];
      }
      EXPECT_EQ(static_cast<std::size_t>(size), p.values.size()) << p.name;
      EXPECT_TRUE(p.gradient.empty() || p.gradient.size() == p.values.size()) << p.name;
      all.push_back(text + ")");
    });
    return all;
  };
  const Named first = once();
  EXPECT_EQ(once(), first);
  return first;
}

Named with_prefix(const std::string& prefix, const Named& names) {
  Named all;
  for (const std::string& name : names) all.push_back(prefix + name);
  return all;
}

Named joined(const std::vector<Named>& parts) {
  Named all;
  for (const Named& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

const Named kEncoderLayer{"self_attn.in_proj_weight (12, 4)",
                          "self_attn.in_proj_bias (12)",
                          "self_attn.out_proj.weight (4, 4)",
                          "self_attn.out_proj.bias (4)",
                          "linear1.weight (6, 4)",
                          "linear1.bias (6)",
                          "linear2.weight (4, 6)",
                          "linear2.bias (4)",
                          "norm1.weight (4)",
                          "norm1.bias (4)",
                          "norm2.weight (4)",
                          "norm2.bias (4)"};
const Named kDecoderLayer{"self_attn.in_proj_weight (12, 4)",
                          "self_attn.in_proj_bias (12)",
                          "self_attn.out_proj.weight (4, 4)",
                          "self_attn.out_proj.bias (4)",
                          "multihead_attn.in_proj_weight (12, 4)",
                          "multihead_attn.in_proj_bias (12)",
                          "multihead_attn.out_proj.weight (4, 4)",
                          "multihead_attn.out_proj.bias (4)",
                          "linear1.weight (6, 4)",
                          "linear1.bias (6)",
                          "linear2.weight (4, 6)",
                          "linear2.bias (4)",
                          "norm1.weight (4)",
                          "norm1.bias (4)",
                          "norm2.weight (4)",
                          "norm2.bias (4)",
                          "norm3.weight (4)",
                          "norm3.bias (4)"};

TEST(NnNames, Layers) {
  Random random(1);
  const LayerConfig config{.features = 4, .heads = 2, .hidden = 6};
  EncoderLayer<float> encoder(config, random);
  DecoderLayer<float> decoder(config, random);
  EXPECT_EQ(named(encoder), kEncoderLayer);
  EXPECT_EQ(named(decoder, "layers.3."), with_prefix("layers.3.", kDecoderLayer));
}

TEST(NnNames, LayersWithoutBiases) {
  Random random(2);
  EncoderLayer<float> layer({.features = 4,
                             .heads = 2,
                             .hidden = 6,
                             .activation = ActivationKind::swiglu,
                             .norm = NormKind::rms,
                             .bias = false},
                            random);
  EXPECT_EQ(named(layer),
            (Named{"self_attn.in_proj_weight (12, 4)", "self_attn.out_proj.weight (4, 4)", "linear1.weight (12, 4)",
                   "linear2.weight (4, 6)", "norm1.weight (4)", "norm2.weight (4)"}));
  FeedForward<float> wide({.features = 4}, random);  // four times as wide by default
  EXPECT_EQ(named(wide),
            (Named{"linear1.weight (16, 4)", "linear1.bias (16)", "linear2.weight (4, 16)", "linear2.bias (4)"}));
}

TEST(NnNames, Encoder) {
  Encoder<float> model({.tokens = 5, .context = 7, .layers = 2, .layer = {.features = 4, .heads = 2, .hidden = 6}}, 3);
  EXPECT_EQ(named(model), joined({{"tokens.weight (5, 4)", "positions.weight (7, 4)"},
                                  with_prefix("layers.0.", kEncoderLayer),
                                  with_prefix("layers.1.", kEncoderLayer),
                                  {"norm.weight (4)", "norm.bias (4)"}}));
}

TEST(NnNames, Gpt) {
  Gpt<float> model({.tokens = 5, .context = 7, .layers = 1, .heads = 2, .features = 4}, 4);
  EXPECT_EQ(
      named(model, "gpt."),
      with_prefix("gpt.", {"tokens.weight (5, 4)", "positions.weight (7, 4)",
                           "layers.0.self_attn.in_proj_weight (12, 4)", "layers.0.self_attn.out_proj.weight (4, 4)",
                           "layers.0.linear1.weight (16, 4)", "layers.0.linear2.weight (4, 16)",
                           "layers.0.norm1.weight (4)", "layers.0.norm2.weight (4)", "norm.weight (4)"}));
  EXPECT_EQ(count_parameters<float>(model), 5 * 4 + 7 * 4 + 12 * 4 + 4 * 4 + 16 * 4 + 4 * 16 + 3 * 4);
}

TEST(NnNames, Transformer) {
  Transformer<float> model({.source_tokens = 5,
                            .target_tokens = 7,
                            .encoder_layers = 1,
                            .decoder_layers = 2,
                            .layer = {.features = 4, .heads = 2, .hidden = 6}},
                           5);
  EXPECT_EQ(named(model), joined({{"source_tokens.weight (5, 4)", "target_tokens.weight (7, 4)"},
                                  with_prefix("encoder.layers.0.", kEncoderLayer),
                                  {"encoder.norm.weight (4)", "encoder.norm.bias (4)"},
                                  with_prefix("decoder.layers.0.", kDecoderLayer),
                                  with_prefix("decoder.layers.1.", kDecoderLayer),
                                  {"decoder.norm.weight (4)", "decoder.norm.bias (4)"}}));
}

/// Parameters and their gradients stay at the same addresses during training.
TEST(NnNames, SpansStayValid) {
  Gpt<float> model({.tokens = 5, .context = 7, .layers = 1, .heads = 2, .features = 4}, 6);
  const auto before = parameters_of<float>(model);
  const States<float> logits = model.forward(tokens_of({{0, 1, 2}}));
  model.backward(logits);
  const auto after = parameters_of<float>(model);
  ASSERT_EQ(before.size(), after.size());
  for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(before[i].values.data(), after[i].values.data());
  model.forward(tokens_of({{0, 1}}));
  model.backward(model.forward(tokens_of({{0, 1}})));
  const auto later = parameters_of<float>(model);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_EQ(after[i].gradient.data(), later[i].gradient.data());
    EXPECT_EQ(after[i].gradient.size(), after[i].values.size());
  }
}

/// The seed determines the initial model.
TEST(NnNames, SeedsDetermineInitialValues) {
  const GptConfig config{.tokens = 50, .context = 20, .layers = 2, .heads = 2, .features = 32, .bias = true};
  Gpt<float> a(config, 7), b(config, 7), c(config, 8);
  EXPECT_EQ(all_values<float>(a), all_values<float>(b));
  EXPECT_NE(all_values<float>(a), all_values<float>(c));
  for (const Parameter<float>& p : parameters_of<float>(a)) {  // as in GPT-2
    double squares = 0;
    for (const float x : p.values) squares += static_cast<double>(x) * static_cast<double>(x);
    const double deviation = std::sqrt(squares / static_cast<double>(p.values.size()));
    const bool adds = p.name.ends_with("out_proj.weight") || p.name.ends_with("linear2.weight");
    if (p.shape.size() == 1)
      EXPECT_EQ(deviation, p.name.ends_with("weight") ? 1 : 0) << p.name;
    else  // within five standard deviations for 640 values or more
      EXPECT_NEAR(deviation, adds ? 0.01 : 0.02, (adds ? 0.01 : 0.02) * 0.14) << p.name;
  }
}

}  // namespace
}  // namespace nn::test
