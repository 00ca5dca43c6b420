// MultiHeadAttention's parameters, their initial values, and errors.
#include <cmath>
#include <functional>
#include <set>

#include <gtest/gtest.h>

#include "attn/attn.h"

namespace {

using attn::Index;
using attn::MultiHeadConfig;
using attn::Tensor;
using attn::TensorView;
using Layer = attn::MultiHeadAttention<double>;
using Names = std::vector<std::string>;

void expect_refused(const std::function<void()>& call, std::initializer_list<const char*> parts) {
  try {
    call();
    ADD_FAILURE() << "nothing was thrown; expected: " << *parts.begin();
  } catch (const std::invalid_argument& e) {
    for (const char* part : parts)
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << "'" << part << "' is not in: " << e.what();
  }
}

TEST(MultiHeadParameters, HaveTheNamesAndShapesOfPyTorch) {
  const Layer packed({.embed_dim = 12, .heads = 4, .kv_heads = 2});
  EXPECT_EQ(packed.parameter_names(), (Names{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}));
  EXPECT_EQ(packed.weight("in_proj_weight").shape(), (attn::Shape<2>{12 + 2 * 6, 12}));
  EXPECT_EQ(packed.bias("in_proj_bias").shape(), (attn::Shape<1>{12 + 2 * 6}));
  EXPECT_EQ(packed.weight("out_proj.weight").shape(), (attn::Shape<2>{12, 12}));
  EXPECT_EQ(packed.bias("out_proj.bias").shape(), attn::Shape<1>{12});

  const Layer separate({.embed_dim = 12, .heads = 4, .kv_heads = 2, .key_dim = 5, .value_dim = 7});
  EXPECT_EQ(separate.parameter_names(), (Names{"q_proj_weight", "k_proj_weight", "v_proj_weight", "in_proj_bias",
                                               "out_proj.weight", "out_proj.bias"}));
  EXPECT_EQ(separate.weight("q_proj_weight").shape(), (attn::Shape<2>{12, 12}));
  EXPECT_EQ(separate.weight("k_proj_weight").shape(), (attn::Shape<2>{6, 5}));
  EXPECT_EQ(separate.weight("v_proj_weight").shape(), (attn::Shape<2>{6, 7}));

  EXPECT_EQ(Layer({.embed_dim = 12, .heads = 4, .bias = false}).parameter_names(),
            (Names{"in_proj_weight", "out_proj.weight"}));
  // One input of a different size is enough for separate weights, as in PyTorch.
  EXPECT_EQ(Layer({.embed_dim = 12, .heads = 4, .value_dim = 7, .bias = false}).parameter_names(),
            (Names{"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"}));
}

TEST(MultiHeadParameters, DefaultSizesAreFilledIn) {
  const Layer layer({.embed_dim = 12, .heads = 4});
  EXPECT_EQ(layer.config().kv_heads, 4);
  EXPECT_EQ(layer.config().key_dim, 12);
  EXPECT_EQ(layer.config().value_dim, 12);
  EXPECT_EQ(layer.head_dim(), 3);
}

TEST(MultiHeadParameters, RoundTripThroughLoad) {
  Layer layer({.embed_dim = 4, .heads = 2});
  Eigen::MatrixXd weight(12, 4);  // column-major, unlike the layer's weights
  for (Index i = 0; i < 12; ++i)
    for (Index j = 0; j < 4; ++j) weight(i, j) = static_cast<double>(10 * i + j);
  layer.load("in_proj_weight", weight);
  EXPECT_EQ(layer.weight("in_proj_weight").matrix(), weight);
  EXPECT_EQ(layer.weight("in_proj_weight").data()[5], 11);  // [out, in], row-major: row 1, column 1

  layer.load("in_proj_weight", 2 * weight);
  EXPECT_EQ(layer.weight("in_proj_weight").matrix(), 2 * weight);
  layer.load("out_proj.weight", Eigen::MatrixXf::Constant(4, 4, 0.5f));  // another floating-point type
  EXPECT_EQ(layer.weight("out_proj.weight")(3, 2), 0.5);

  Eigen::VectorXd column = Eigen::VectorXd::LinSpaced(4, 1, 4);
  layer.load("out_proj.bias", column);
  EXPECT_EQ(layer.bias("out_proj.bias")(2), 3);
  layer.load("out_proj.bias", 2 * column.transpose());
  EXPECT_EQ(layer.bias("out_proj.bias")(2), 6);
  const double every_second[] = {1, 0, 2, 0, 3, 0, 4};
  layer.load("out_proj.bias", TensorView<const double, 1>(every_second, {4}, {2}));
  EXPECT_EQ(layer.bias("out_proj.bias")(3), 4);

  // Writes in place, to a copy of the layer.
  Layer copy = layer;
  copy.weight("out_proj.weight")(0, 0) = 7;
  copy.bias("in_proj_bias")(11) = 8;
  EXPECT_EQ(std::as_const(copy).weight("out_proj.weight")(0, 0), 7);
  EXPECT_EQ(std::as_const(copy).bias("in_proj_bias")(11), 8);
  EXPECT_EQ(layer.weight("out_proj.weight")(0, 0), 0.5);
  EXPECT_EQ(layer.bias("in_proj_bias")(11), 0);
}

TEST(MultiHeadParameters, RefuseUnknownNamesAndWrongShapes) {
  Layer layer({.embed_dim = 4, .heads = 2});
  const Tensor<double, 2> weight({4, 12});
  const Tensor<double, 1> bias({3});
  const auto known = "in_proj_weight, in_proj_bias, out_proj.weight, out_proj.bias";
  expect_refused([&] { layer.load("out_proj_weight", weight); }, {"'out_proj_weight'", known});
  expect_refused([&] { layer.weight("qkv_weight"); }, {"'qkv_weight'", known});
  expect_refused([&] { layer.bias(""); }, {"''", known});
  expect_refused([&] { layer.load("in_proj_weight", weight); }, {"'in_proj_weight'", "(12, 4)", "(4, 12)"});
  expect_refused([&] { layer.load("in_proj_weight", bias); }, {"'in_proj_weight'", "(12, 4)", "(3)"});
  expect_refused([&] { layer.load("in_proj_bias", bias); }, {"'in_proj_bias'", "(12)", "(3)"});
  expect_refused([&] { layer.load("in_proj_bias", weight); }, {"'in_proj_bias'", "(12)", "(4, 12)"});
  expect_refused([&] { layer.load("in_proj_bias", Eigen::MatrixXd::Zero(12, 1).eval()); },
                 {"'in_proj_bias'", "(12)", "(12, 1)"});
  expect_refused([&] { layer.weight("in_proj_bias"); }, {"'in_proj_bias'", "bias()"});
  expect_refused([&] { layer.bias("in_proj_weight"); }, {"'in_proj_weight'", "weight()"});
}

TEST(MultiHeadInit, DependsOnTheSeed) {
  const MultiHeadConfig config{.embed_dim = 8, .heads = 2, .seed = 7};
  MultiHeadConfig other = config;
  other.seed = 8;
  const Layer a(config), b(config), c(other);
  for (const char* name : {"in_proj_weight", "out_proj.weight"}) {
    EXPECT_EQ(a.weight(name).matrix(), b.weight(name).matrix());
    EXPECT_TRUE((a.weight(name).matrix().array() != c.weight(name).matrix().array()).all());
  }
}

/// A layer's initial weights, computed from the definition by another program: element n is bound * (u(n) - 1), where
/// u(n) is the upper 53 bits of random number n of SplitMix64 in units of 2^-52.
TEST(MultiHeadInit, MatchesReferenceValues) {
  const MultiHeadConfig config{.embed_dim = 8, .heads = 2, .seed = 7};
  const Layer layer(config);
  EXPECT_EQ(layer.weight("in_proj_weight")(0, 0), -0.09541023663448231);
  EXPECT_EQ(layer.weight("in_proj_weight")(0, 1), -0.4184736123446208);
  EXPECT_EQ(layer.weight("in_proj_weight")(0, 2), 0.34706893024350266);
  EXPECT_EQ(layer.weight("in_proj_weight")(23, 7), 0.3285398045325628);
  EXPECT_EQ(layer.weight("out_proj.weight")(0, 0), 0.07944883688520159);
  EXPECT_EQ(layer.weight("out_proj.weight")(0, 1), -0.042914854606536865);
  const attn::MultiHeadAttention<float> single(config);
  EXPECT_EQ(single.weight("in_proj_weight")(0, 0), static_cast<float>(-0.09541023663448231));
}

/// A uniform distribution in [-bound, bound) fills the range and has mean 0 and variance bound^2 / 3.
TEST(MultiHeadInit, IsXavierAndKaimingUniform) {
  const auto expect_uniform = [](const TensorView<const double, 2>& w, double bound) {
    const auto m = w.matrix();
    const double n = static_cast<double>(w.size()), variance = bound * bound / 3;
    EXPECT_LE(m.cwiseAbs().maxCoeff(), bound);
    EXPECT_GT(m.maxCoeff(), 0.99 * bound);
    EXPECT_LT(m.minCoeff(), -0.99 * bound);
    EXPECT_LT(std::abs(m.mean()), 4 * std::sqrt(variance / n));
    // The variance of x^2 is 4/45 bound^4.
    EXPECT_LT(std::abs(m.squaredNorm() / n - variance), 4 * bound * bound * std::sqrt(4.0 / 45 / n));
  };
  const Layer packed({.embed_dim = 64, .heads = 4, .kv_heads = 2});
  expect_uniform(packed.weight("in_proj_weight"), std::sqrt(6.0 / (64 + 128)));
  expect_uniform(packed.weight("out_proj.weight"), std::sqrt(1.0 / 64));
  const Layer separate({.embed_dim = 64, .heads = 4, .key_dim = 40, .value_dim = 30});
  expect_uniform(separate.weight("q_proj_weight"), std::sqrt(6.0 / (64 + 64)));
  expect_uniform(separate.weight("k_proj_weight"), std::sqrt(6.0 / (64 + 40)));
  expect_uniform(separate.weight("v_proj_weight"), std::sqrt(6.0 / (64 + 30)));
  for (const char* name : {"in_proj_bias", "out_proj.bias"})
    for (Index i = 0; i < packed.bias(name).size(); ++i) EXPECT_EQ(packed.bias(name)(i), 0);

  std::set<double> distinct;
  for (const char* name : {"q_proj_weight", "k_proj_weight", "v_proj_weight", "out_proj.weight"})
    distinct.insert(separate.weight(name)(0, 0));
  EXPECT_EQ(distinct.size(), 4u);
}

TEST(MultiHeadErrors, InTheConfiguration) {
  const auto refused = [](const MultiHeadConfig& c, std::initializer_list<const char*> parts) {
    expect_refused([&] { Layer layer(c); }, parts);
  };
  refused({}, {"embed_dim", "positive", "0"});
  refused({.embed_dim = -8, .heads = 2}, {"embed_dim", "positive", "-8"});
  refused({.embed_dim = 8}, {"heads", "positive", "0"});
  refused({.embed_dim = 8, .heads = -2}, {"heads", "positive", "-2"});
  refused({.embed_dim = 8, .heads = 3}, {"embed_dim (8)", "multiple of heads (3)"});
  refused({.embed_dim = 12, .heads = 6, .kv_heads = 4}, {"heads (6)", "multiple of kv_heads (4)"});
  refused({.embed_dim = 12, .heads = 2, .kv_heads = 4}, {"heads (2)", "multiple of kv_heads (4)"});
  refused({.embed_dim = 12, .heads = 6, .kv_heads = -3}, {"kv_heads", "negative", "-3"});
  refused({.embed_dim = 12, .heads = 6, .key_dim = -1}, {"key_dim", "negative", "-1"});
  refused({.embed_dim = 12, .heads = 6, .value_dim = -5}, {"value_dim", "negative", "-5"});
  refused({.embed_dim = Index(1) << 62, .heads = 1}, {"embed_dim 4611686018427387904", "1152921504606846976"});
  refused({.embed_dim = 12, .heads = 6, .key_dim = Index(1) << 61}, {"key_dim 2305843009213693952"});
}

TEST(MultiHeadErrors, InTheInputs) {
  const Layer layer({.embed_dim = 8, .heads = 2, .key_dim = 5, .value_dim = 6});
  using Shape = attn::Shape<3>;
  const auto refused = [&](const Shape& q, const Shape& k, const Shape& v, std::initializer_list<const char*> parts) {
    const Tensor<double, 3> query(q), key(k), value(v);
    expect_refused([&] { layer(query, key, value); }, parts);
  };
  refused({2, 3, 7}, {2, 4, 5}, {2, 4, 6}, {"query has 7", "embed_dim has 8", "(2, 3, 7)", "(2, 4, 5)", "(2, 4, 6)"});
  refused({2, 3, 8}, {2, 4, 8}, {2, 4, 6}, {"key has 8", "key_dim has 5"});
  refused({2, 3, 8}, {2, 4, 5}, {2, 4, 5}, {"value has 5", "value_dim has 6"});
  refused({2, 3, 8}, {1, 4, 5}, {1, 4, 6}, {"batch", "query has 2", "key has 1"});
  refused({2, 3, 8}, {2, 4, 5}, {3, 4, 6}, {"batch", "key has 2", "value has 3"});
  refused({2, 3, 8}, {2, 4, 5}, {2, 9, 6}, {"length", "key has 4", "value has 9"});

  const Tensor<double, 3> q({2, 3, 8}), k({2, 4, 5}), v({2, 4, 6});
  EXPECT_NO_THROW(layer(q, k, v));
  expect_refused([&] { layer(q, k, v, attn::key_lengths({1, 2, 3})); }, {"key_lengths", "3", "2"});
  expect_refused([&] { layer(q, k, v, attn::key_lengths({1, 5})); }, {"key_lengths", "5", "4"});
  expect_refused([&] { layer(Eigen::MatrixXd::Zero(3, 9), Eigen::MatrixXd::Zero(4, 5), Eigen::MatrixXd::Zero(4, 6)); },
                 {"query has 9", "embed_dim has 8"});
}

}  // namespace
