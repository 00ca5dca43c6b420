// The layers of examples/nn, with parameters loaded by PyTorch's names, against the reference.
#include "nn_reference.h"

#include "cross_entropy.h"
#include "encoder.h"
#include "gpt.h"
#include "layers.h"
#include "nn_numbers.h"
#include "transformer.h"

namespace nn::test {
namespace {

using reference::Allowed;
using reference::Matrix;
using reference::State;

/// Only rounding errors: the sums of a layer have a few dozen terms.
constexpr double kRelative = 1e-12;

/// Fills every parameter with the tensor of the same name, which must have its shape. All tensors must be used.
template <class Model>
void load(Model& model, State state, const std::string& prefix = "") {
  model.visit(prefix, [&](const Parameter<double>& p) {
    ASSERT_TRUE(state.contains(p.name)) << p.name;
    const reference::Tensor& tensor = state.at(p.name);
    ASSERT_EQ(p.shape, std::vector<Index>(tensor.shape.begin(), tensor.shape.end())) << p.name;
    auto to = p.values.begin();
    for (const auto& row : tensor.rows) to = std::copy(row.begin(), row.end(), to);
    ASSERT_EQ(to, p.values.end());
    state.erase(p.name);
  });
  for (const auto& [name, tensor] : state) ADD_FAILURE() << name << " is not a parameter of the model";
}

Matrix sequence_of(const States<double>& x, Index sequence) {
  Matrix rows;
  for (Index i = 0; i < x.dim(1); ++i) {
    const double* const row = &x(sequence, i, 0);
    rows.emplace_back(row, row + x.dim(2));
  }
  return rows;
}

void expect_close(const States<double>& got, Index sequence, const Matrix& want) {
  ASSERT_EQ(static_cast<Index>(want.size()), got.dim(1));
  double scale = 0;
  for (const auto& row : want)
    for (const double x : row) scale = std::max(scale, std::abs(x));
  for (Index i = 0; i < got.dim(1); ++i)
    for (Index f = 0; f < got.dim(2); ++f)
      ASSERT_NEAR(got(sequence, i, f), want[static_cast<std::size_t>(i)].at(static_cast<std::size_t>(f)),
                  kRelative * scale)
          << "sequence " << sequence << ", token " << i << ", feature " << f;
}

Allowed allowed_by(const Mask& mask, Index sequence) {
  return [mask, sequence](std::size_t i, std::size_t j) {
    return (!mask.causal || j <= i) &&
           (mask.key_lengths.empty() || static_cast<Index>(j) < mask.key_lengths[static_cast<std::size_t>(sequence)]);
  };
}

/// A configuration of the reference and the equivalent one of examples/nn.
struct Pair {
  reference::Layer want;
  LayerConfig config;
};
std::vector<Pair> pairs() {
  std::vector<Pair> all;
  const auto add = [&](reference::Activation activation, ActivationKind kind, std::size_t heads, bool norm_first,
                       bool bias) {
    all.push_back({{24, heads, 20, activation, norm_first, bias},
                   {.features = 24,
                    .heads = static_cast<Index>(heads),
                    .hidden = 20,
                    .activation = kind,
                    .norm_first = norm_first,
                    .norm = bias ? NormKind::layer : NormKind::layer_without_bias,
                    .bias = bias,
                    .dropout = 0.5}});  // only in training
  };
  for (const bool norm_first : {true, false})
    for (const bool bias : {true, false}) {
      add(reference::Activation::relu, ActivationKind::relu, 1, norm_first, bias);
      add(reference::Activation::gelu_tanh, ActivationKind::gelu, 3, norm_first, bias);
      add(reference::Activation::swiglu, ActivationKind::swiglu, 4, norm_first, bias);
    }
  return all;
}

TEST(NnReference, EncoderLayer) {
  for (const Pair& pair : pairs())
    for (const Mask& mask : masks_of(7)) {
      Random random(1);
      EncoderLayer<double> layer(pair.config, random);
      const State state = reference::encoder_layer_state(pair.want, "some.", 2);
      load(layer, state, "some.");
      const States<double> x = normal_states<double>({2, 7, 24}, random), y = layer(x, mask);
      for (const Index s : {0, 1})
        expect_close(y, s, reference::encoder_layer(sequence_of(x, s), pair.want, allowed_by(mask, s), state, "some."));
    }
}

TEST(NnReference, DecoderLayer) {
  for (const Pair& pair : pairs())
    for (const Mask& memory_mask : masks_of(6)) {
      if (memory_mask.causal) continue;  // the memory is another sequence
      Random random(3);
      DecoderLayer<double> layer(pair.config, random);
      const State state = reference::decoder_layer_state(pair.want, "", 4);
      load(layer, state);
      const States<double> x = normal_states<double>({2, 7, 24}, random),
                           memory = normal_states<double>({2, 6, 24}, random);
      const States<double> y = layer(x, {.causal = true}, memory, memory_mask);
      for (const Index s : {0, 1})
        expect_close(y, s,
                     reference::decoder_layer(sequence_of(x, s), sequence_of(memory, s), pair.want,
                                              allowed_by({.causal = true}, s), allowed_by(memory_mask, s), state));
    }
}

TEST(NnReference, MultiheadAttention) {
  const reference::Layer what{24, 3, 1};
  const State all = reference::encoder_layer_state(what, "", 5);
  State state;
  for (const auto& [name, tensor] : all)
    if (name.starts_with("self_attn.")) state[name.substr(10)] = tensor;
  for (const Mask& mask : masks_of(6)) {
    Random random(6);
    SelfAttention<double> self({.embed_dim = 24, .heads = 3});
    CrossAttention<double> cross({.embed_dim = 24, .heads = 3});
    load(self, state);
    load(cross, state);
    const States<double> x = normal_states<double>({2, 6, 24}, random),
                         memory = normal_states<double>({2, 6, 24}, random);
    const States<double> of_self = self(x, mask), of_cross = cross(x, memory, mask);
    for (const Index s : {0, 1}) {
      const Matrix q = sequence_of(x, s), k = sequence_of(memory, s);
      expect_close(of_self, s, reference::multihead_attention(q, q, 3, allowed_by(mask, s), state, ""));
      expect_close(of_cross, s, reference::multihead_attention(q, k, 3, allowed_by(mask, s), state, ""));
    }
  }
}

TEST(NnReference, Norms) {
  Random random(7);
  const States<double> x = normal_states<double>({2, 5, 24}, random);
  State state;
  reference::add_tensor(state, "weight", {24}, 8);
  Norm<double> rms(24, NormKind::rms, 1e-3), without_bias(24, NormKind::layer_without_bias), layer(24);
  load(rms, state);
  load(without_bias, state);
  for (const Index s : {0, 1}) {
    expect_close(rms(x), s, reference::rms_norm(sequence_of(x, s), state, "", 1e-3));
    expect_close(without_bias(x), s, reference::layer_norm(sequence_of(x, s), state, ""));
  }
  reference::add_tensor(state, "bias", {24}, 9);
  load(layer, state);
  for (const Index s : {0, 1}) expect_close(layer(x), s, reference::layer_norm(sequence_of(x, s), state, ""));
}

TEST(NnReference, CrossEntropy) {
  Random random(10);
  const States<double> logits = normal_states<double>({2, 3, 9}, random);
  Matrix rows = sequence_of(logits, 0);
  for (const auto& row : sequence_of(logits, 1)) rows.push_back(row);
  for (const double smoothing : {0.0, 0.1, 1.0}) {
    const double got = CrossEntropy<double>(smoothing)(logits, tokens_of({{4, -1, 0}, {8, 8, -1}}));
    EXPECT_NEAR(got, reference::cross_entropy(rows, {4, -1, 0, 8, 8, -1}, smoothing, -1), kRelative * got);
  }
}

/// The embeddings of tokens plus those of positions, if the state has them.
Matrix embedded(const Tokens& tokens, Index sequence, const State& state, const std::string& name, double scale) {
  Matrix x;
  for (Index i = 0; i < tokens.dim(1); ++i) {
    x.push_back(state.at(name + ".weight").rows.at(static_cast<std::size_t>(tokens(sequence, i))));
    for (double& number : x.back()) number *= scale;
  }
  return x;
}
void add_positions(Matrix& x, const State& state) {
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t f = 0; f < x[i].size(); ++f) x[i][f] += state.at("positions.weight").rows.at(i).at(f);
}
/// As in Vaswani et al. 2017, section 3.5.
void add_sines(Matrix& x) {
  for (std::size_t pos = 0; pos < x.size(); ++pos)
    for (std::size_t i = 0; 2 * i + 1 < x[pos].size(); ++i) {
      const double angle =
          static_cast<double>(pos) / std::pow(10000, 2 * static_cast<double>(i) / static_cast<double>(x[pos].size()));
      x[pos][2 * i] += std::sin(angle);
      x[pos][2 * i + 1] += std::cos(angle);
    }
}

void merge(State& into, State more) { into.merge(more); }

TEST(NnReference, Gpt) {
  for (const bool bias : {true, false}) {
    const reference::Layer what{24, 2, 96, reference::Activation::gelu_tanh, true, bias};
    State state = reference::encoder_layer_state(what, "layers.0.", 11);
    merge(state, reference::encoder_layer_state(what, "layers.1.", 12));
    reference::add_tensor(state, "tokens.weight", {9, 24}, 13);
    reference::add_tensor(state, "positions.weight", {8, 24}, 14);
    reference::add_tensor(state, "norm.weight", {24}, 15);
    if (bias) reference::add_tensor(state, "norm.bias", {24}, 16);
    Gpt<double> model(
        {.tokens = 9, .context = 8, .layers = 2, .heads = 2, .features = 24, .bias = bias, .dropout = 0.3}, 17);
    load(model, state);
    Random random(18);
    const Tokens tokens = random_tokens(2, 7, 9, random);
    const States<double> logits = model(tokens);
    for (const Index s : {0, 1}) {
      Matrix x = embedded(tokens, s, state, "tokens", 1);
      add_positions(x, state);
      for (const char* layer : {"layers.0.", "layers.1."})
        x = reference::encoder_layer(x, what, allowed_by({.causal = true}, s), state, layer);
      expect_close(logits, s, reference::linear(reference::layer_norm(x, state, "norm."), state, "tokens."));
    }
  }
}

TEST(NnReference, Encoder) {
  const reference::Layer what{24, 4, 20, reference::Activation::relu, false, true};
  State state = reference::encoder_layer_state(what, "layers.0.", 21);
  reference::add_tensor(state, "tokens.weight", {9, 24}, 23);
  reference::add_tensor(state, "positions.weight", {8, 24}, 24);
  reference::add_tensor(state, "norm.weight", {24}, 25);
  reference::add_tensor(state, "norm.bias", {24}, 26);
  Encoder<double> model({.tokens = 9,
                         .context = 8,
                         .layers = 1,
                         .layer = {.features = 24, .heads = 4, .hidden = 20, .norm_first = false}},
                        27);
  load(model, state);
  Random random(28);
  const Tokens tokens = random_tokens(2, 6, 9, random);
  const Mask padding{.key_lengths = {6, 4}};
  const States<double> logits = model(tokens, padding.key_lengths);
  for (const Index s : {0, 1}) {
    Matrix x = embedded(tokens, s, state, "tokens", 1);
    add_positions(x, state);
    x = reference::encoder_layer(x, what, allowed_by(padding, s), state, "layers.0.");
    expect_close(logits, s, reference::linear(reference::layer_norm(x, state, "norm."), state, "tokens."));
  }
}

TEST(NnReference, Transformer) {
  const reference::Layer what{24, 4, 20, reference::Activation::relu, true, true};
  State state = reference::encoder_layer_state(what, "encoder.layers.0.", 31);
  merge(state, reference::decoder_layer_state(what, "decoder.layers.0.", 32));
  merge(state, reference::decoder_layer_state(what, "decoder.layers.1.", 33));
  reference::add_tensor(state, "source_tokens.weight", {9, 24}, 34);
  reference::add_tensor(state, "target_tokens.weight", {11, 24}, 35);
  for (const char* side : {"encoder", "decoder"}) {
    reference::add_tensor(state, std::string(side) + ".norm.weight", {24}, 36);
    reference::add_tensor(state, std::string(side) + ".norm.bias", {24}, 37);
  }
  Transformer<double> model({.source_tokens = 9,
                             .target_tokens = 11,
                             .encoder_layers = 1,
                             .decoder_layers = 2,
                             .layer = {.features = 24, .heads = 4, .hidden = 20, .dropout = 0.3}},
                            38);
  load(model, state);
  Random random(39);
  const Tokens sources = random_tokens(2, 6, 9, random), targets = random_tokens(2, 7, 11, random);
  const Mask padding{.key_lengths = {3, 6}};
  const States<double> logits = model(sources, padding.key_lengths, targets);
  for (const Index s : {0, 1}) {
    Matrix memory = embedded(sources, s, state, "source_tokens", std::sqrt(24.0));
    add_sines(memory);
    memory = reference::encoder_layer(memory, what, allowed_by(padding, s), state, "encoder.layers.0.");
    memory = reference::layer_norm(memory, state, "encoder.norm.");
    Matrix x = embedded(targets, s, state, "target_tokens", std::sqrt(24.0));
    add_sines(x);
    for (const char* layer : {"decoder.layers.0.", "decoder.layers.1."})
      x = reference::decoder_layer(x, memory, what, allowed_by({.causal = true}, s), allowed_by(padding, s), state,
                                   layer);
    expect_close(logits, s,
                 reference::linear(reference::layer_norm(x, state, "decoder.norm."), state, "target_tokens."));
  }
}

}  // namespace
}  // namespace nn::test
