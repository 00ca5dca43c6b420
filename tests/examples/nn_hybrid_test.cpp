// The layers of a hybrid model: gradients, results against plain loops, and generation against whole sequences.
#include "hybrid.h"
#include "nn_central_differences.h"
#include "threads.h"

namespace nn::test {
namespace {

/// Summing in another order changes results by a few roundings.
constexpr double kHybridRounding = 1e-12;

constexpr DeltaNetConfig kDeltaNet{.features = 6, .heads = 2, .head_dim = 4, .conv_width = 3};
constexpr HybridConfig kHybrid{
    .tokens = 11, .blocks = 2, .features = 12, .heads = 4, .kv_heads = 2, .head_dim = 4, .conv_width = 3};

DeltaNet<double> delta_net(const DeltaNetConfig& config = kDeltaNet) {
  Random random(1);
  return {config, random};
}

Hybrid<double> hybrid() {
  Hybrid<double> model(kHybrid, 3);
  draw_parameters<double>(model, 4, 0.3);
  return model;
}

TEST(NnGradients, DeltaNet) {
  expect_layer_gradients(delta_net(), {2, 5, 6});
  expect_layer_gradients(delta_net({.features = 4, .heads = 1, .head_dim = 6, .conv_width = 2}), {1, 70, 4});  // chunks
}

TEST(NnGradients, GatedAttention) { expect_layer_gradients(GatedAttention<double>(kHybrid.attention(6)), {2, 5, 12}); }

/// The epsilon keeps the norms of small vectors from having derivatives too large for a central difference.
TEST(NnGradients, Hybrid) {
  HybridConfig config = kHybrid;
  config.norm_epsilon = 0.01;
  Hybrid<double> model(config, 3);
  draw_parameters<double>(model, 4, 0.3);
  Random random(8);
  const Tokens tokens = random_tokens(2, 5, 11, random);
  expect_gradients(
      model, {}, [&] { return model.forward(tokens); }, [&](const States<double>& grad) { model.backward(grad); });
}

/// A parameter as rows.
std::vector<std::vector<double>> rows_of_parameter(DeltaNet<double>& layer, const std::string& name) {
  for (const Parameter<double>& p : parameters_of<double>(layer))
    if (p.name == name) {
      const std::size_t columns = p.shape.size() == 2 ? static_cast<std::size_t>(p.shape[1]) : p.values.size();
      std::vector<std::vector<double>> rows;
      for (std::size_t i = 0; i < p.values.size(); i += columns)
        rows.emplace_back(p.values.begin() + static_cast<std::ptrdiff_t>(i),
                          p.values.begin() + static_cast<std::ptrdiff_t>(i + columns));
      return rows;
    }
  ADD_FAILURE() << "there is no parameter " << name;
  return {};
}

using Rows = std::vector<std::vector<double>>;

Rows product(const Rows& x, const Rows& weight) {
  Rows y(x.size(), std::vector<double>(weight.size()));
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t o = 0; o < weight.size(); ++o)
      for (std::size_t f = 0; f < x[i].size(); ++f) y[i][o] += x[i][f] * weight[o][f];
  return y;
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }
double silu(double x) { return x * logistic(x); }

/// Divides d numbers by the root of the sum of their squares plus epsilon, and multiplies them by `factor`.
void normalise(double* x, std::size_t d, double epsilon, double factor) {
  double squares = epsilon;
  for (std::size_t i = 0; i < d; ++i) squares += x[i] * x[i];
  for (std::size_t i = 0; i < d; ++i) x[i] *= factor / std::sqrt(squares);
}

/// The layer for one sequence by its definition, token by token.
Rows plain_delta_net(DeltaNet<double>& layer, const DeltaNetConfig& config, const Rows& x) {
  const auto heads = static_cast<std::size_t>(config.heads), d = static_cast<std::size_t>(config.head_dim);
  const auto parameter = [&](const char* name) { return rows_of_parameter(layer, name); };
  const Rows in = product(x, parameter("in_proj_qkv.weight")), z = product(x, parameter("in_proj_z.weight"));
  const Rows b = product(x, parameter("in_proj_b.weight")), a = product(x, parameter("in_proj_a.weight"));
  const Rows conv = parameter("conv1d.weight"), norm = parameter("norm.weight");
  const Rows decay = parameter("A_log"), bias = parameter("dt_bias");
  Rows y(x.size(), std::vector<double>(heads * d));
  std::vector<Rows> state(heads, Rows(d, std::vector<double>(d)));  // (key feature, value feature)
  for (std::size_t t = 0; t < x.size(); ++t) {
    std::vector<double> qkv(3 * heads * d);
    for (std::size_t c = 0; c < qkv.size(); ++c) {
      for (std::size_t i = 0; i < conv[c].size(); ++i)
        if (t + 1 + i >= conv[c].size()) qkv[c] += conv[c][i] * in[t + 1 + i - conv[c].size()][c];
      qkv[c] = silu(qkv[c]);
    }
    for (std::size_t h = 0; h < heads; ++h) {
      double* const q = qkv.data() + h * d;
      double* const k = q + heads * d;
      const double* const v = k + heads * d;
      normalise(q, d, 1e-6, 1);
      normalise(k, d, 1e-6, 1);
      const double keep = std::exp(-std::exp(decay[0][h]) * std::log1p(std::exp(a[t][h] + bias[0][h])));
      for (std::size_t j = 0; j < d; ++j) {
        double old = 0;
        for (std::size_t i = 0; i < d; ++i) old += k[i] * (state[h][i][j] *= keep);
        for (std::size_t i = 0; i < d; ++i) {
          state[h][i][j] += logistic(b[t][h]) * k[i] * (v[j] - old);
          y[t][h * d + j] += q[i] * state[h][i][j] / std::sqrt(static_cast<double>(d));
        }
      }
      const double size = static_cast<double>(d);
      normalise(&y[t][h * d], d, size * 1e-6, std::sqrt(size));
      for (std::size_t j = 0; j < d; ++j) y[t][h * d + j] *= norm[0][j] * silu(z[t][h * d + j]);
    }
  }
  return product(y, parameter("out_proj.weight"));
}

TEST(NnReference, DeltaNet) {
  DeltaNet<double> layer = delta_net();
  draw_parameters<double>(layer, 2);
  Random random(9);
  const States<double> x = normal_states<double>({2, 70, 6}, random), y = layer(x);
  for (Index s = 0; s < 2; ++s) {
    Rows rows(70, std::vector<double>(6));
    for (std::size_t t = 0; t < 70; ++t)
      for (std::size_t f = 0; f < 6; ++f) rows[t][f] = x(s, static_cast<Index>(t), static_cast<Index>(f));
    const Rows wanted = plain_delta_net(layer, kDeltaNet, rows);
    for (std::size_t t = 0; t < 70; ++t)
      for (std::size_t f = 0; f < 6; ++f)
        ASSERT_NEAR(y(s, static_cast<Index>(t), static_cast<Index>(f)), wanted[t][f], kHybridRounding) << "token " << t;
  }
}

TEST(NnModels, HybridForwardMatchesInference) {
  Random random(10);
  Hybrid<double> model = hybrid();
  const Tokens tokens = random_tokens(3, 9, 11, random);
  EXPECT_LE(largest_difference(model.forward(tokens), model(tokens)), kHybridRounding);
}

/// A prompt and then single tokens, single tokens from the start, and chunks, against the whole sequence in one call.
TEST(NnModels, HybridContinuesFromState) {
  Random random(11);
  const Hybrid<double> model = hybrid();
  const Tokens tokens = random_tokens(2, 12, 11, random);
  const States<double> whole = model(tokens);
  for (const std::vector<Index>& chunks : {std::vector<Index>(12, 1), {12}, {9, 1, 1, 1}, {1, 2, 4, 5}}) {
    auto state = model.make_state(2, 12);
    Index at = 0;
    for (const Index n : chunks) {
      const States<double> part = model.next(columns_of(tokens, at, at + n), state);
      EXPECT_LE(largest_difference(part, States<double>(whole.slice(1, at, at + n))), kHybridRounding)
          << "token " << at;
      at += n;
    }
  }
}

/// A state that holds other tokens must change the results, and a full cache must be refused.
TEST(NnModels, HybridStateIsUsed) {
  const Hybrid<double> model = hybrid();
  auto state = model.make_state(1, 3);
  model.next(tokens_of({{1, 2}}), state);
  EXPECT_GT(largest_difference(model.next(tokens_of({{3}}), state), model(tokens_of({{3}}))), 1e-3);
  EXPECT_THROW(model.next(tokens_of({{3}}), state), attn::OutOfPages);
  EXPECT_THROW(model(tokens_of({{11}})), std::out_of_range);
}

TEST(NnThreads, GiveTheSameBitsInAHybrid) {
  const Hybrid<float> initial({.tokens = 50, .blocks = 1, .features = 96, .heads = 3, .kv_heads = 1}, 12);
  Random random(13);
  const Tokens tokens = random_tokens(6, 70, 50, random);
  const auto gradients = [&](int threads) {
    set_threads(threads);
    Hybrid<float> model = initial;
    model.backward(model.forward(tokens));
    set_threads(1);
    std::vector<float> all;
    for (const Parameter<float>& p : parameters_of<float>(model))
      all.insert(all.end(), p.gradient.begin(), p.gradient.end());
    return all;
  };
  const std::vector<float> one = gradients(1);
  for (const int threads : {2, 3}) EXPECT_TRUE(one == gradients(threads)) << threads << " threads";
}

TEST(NnNames, DeltaNet) {
  DeltaNet<double> layer = delta_net();
  std::vector<std::string> names;
  for (const Parameter<double>& p : parameters_of<double>(layer)) names.push_back(p.name);
  EXPECT_EQ(names,
            (std::vector<std::string>{"in_proj_qkv.weight", "in_proj_z.weight", "in_proj_b.weight", "in_proj_a.weight",
                                      "conv1d.weight", "A_log", "dt_bias", "norm.weight", "out_proj.weight"}));
}

}  // namespace
}  // namespace nn::test
