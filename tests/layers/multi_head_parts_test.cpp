// Named rows of MultiHeadAttention's parameters, and separate biases of inputs and output.
#include <numeric>

#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using Layer = MultiHeadAttention<double>;
using Names = std::vector<std::string>;

/// A tensor whose elements all differ.
Tensor<double, 2> numbered(Index rows, Index columns, double first) {
  Tensor<double, 2> t({rows, columns});
  std::iota(t.data(), t.data() + t.size(), first);
  return t;
}
Tensor<double, 1> numbered(Index size, double first) {
  Tensor<double, 1> t({size});
  std::iota(t.data(), t.data() + t.size(), first);
  return t;
}

TEST(MultiHeadParts, OfPackedParametersHaveNames) {
  Layer layer({.embed_dim = 12, .heads = 4, .kv_heads = 2});
  for (const char* separator : {"_", "."}) {
    const auto name = [&](const char* part, const char* kind) { return std::string(part) + separator + kind; };
    layer.load(name("q_proj", "weight"), numbered(12, 12, 1000));
    layer.load(name("k_proj", "weight"), numbered(6, 12, 2000));
    layer.load(name("v_proj", "weight"), numbered(6, 12, 3000));
    layer.load(name("q_proj", "bias"), numbered(12, 100));
    layer.load(name("k_proj", "bias"), numbered(6, 200));
    layer.load(name("v_proj", "bias"), numbered(6, 300));

    Tensor<double, 2> weight({24, 12});
    weight.matrix() << numbered(12, 12, 1000).matrix(), numbered(6, 12, 2000).matrix(), numbered(6, 12, 3000).matrix();
    EXPECT_EQ(layer.weight("in_proj_weight").matrix(), weight.matrix());
    const auto bias = layer.bias("in_proj_bias");
    EXPECT_EQ(bias(0), 100);
    EXPECT_EQ(bias(11), 111);
    EXPECT_EQ(bias(12), 200);
    EXPECT_EQ(bias(17), 205);
    EXPECT_EQ(bias(18), 300);
    EXPECT_EQ(bias(23), 305);
    layer.load("in_proj_weight",
               numbered(24, 12, 0));  // overwrites the values, so that the next separator is tested, too
    layer.load("in_proj_bias", numbered(24, 0));
  }

  // Parts are read and written in place.
  EXPECT_EQ(layer.weight("k_proj_weight").shape(), (Shape<2>{6, 12}));
  EXPECT_EQ(layer.weight("k_proj_weight")(1, 2), 13 * 12 + 2);
  EXPECT_EQ(std::as_const(layer).weight("v_proj.weight")(5, 11), 24 * 12 - 1);
  EXPECT_EQ(std::as_const(layer).bias("v_proj_bias")(0), 18);
  layer.weight("q_proj_weight")(0, 1) = -1;
  layer.bias("k_proj.bias")(5) = -2;
  EXPECT_EQ(layer.weight("in_proj_weight")(0, 1), -1);
  EXPECT_EQ(layer.bias("in_proj_bias")(17), -2);

  layer.load("o_proj.weight", numbered(12, 12, 7));
  layer.load("o_proj.bias", numbered(12, 8));
  EXPECT_EQ(layer.weight("out_proj.weight")(0, 1), 8);
  EXPECT_EQ(layer.bias("out_proj.bias")(11), 19);

  // parameter_names() lists PyTorch's names only.
  EXPECT_EQ(layer.parameter_names(), (Names{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}));
}

TEST(MultiHeadParts, OfSeparateWeightsAreTheWholeWeights) {
  Layer layer({.embed_dim = 12, .heads = 4, .kv_heads = 2, .key_dim = 5, .value_dim = 7});
  layer.load("k_proj.weight", numbered(6, 5, 10));
  layer.load("v_proj_bias", numbered(6, 20));
  EXPECT_EQ(layer.weight("k_proj_weight")(5, 4), 39);
  EXPECT_EQ(layer.weight("q_proj.weight").shape(), (Shape<2>{12, 12}));
  EXPECT_EQ(layer.bias("in_proj_bias")(18), 20);
}

TEST(MultiHeadParts, AreLoadedByRows) {
  Layer layer({.embed_dim = 12, .heads = 4, .kv_heads = 2});
  layer.load("in_proj_weight", numbered(24, 12, 0));
  layer.load_rows("in_proj_weight", 12, numbered(12, 12, 5000));
  EXPECT_EQ(layer.weight("q_proj_weight")(11, 11), 143);
  EXPECT_EQ(layer.weight("k_proj_weight")(0, 0), 5000);
  EXPECT_EQ(layer.weight("v_proj_weight")(5, 11), 5143);
  layer.load_rows("v_proj_weight", 4,
                  Eigen::MatrixXf::Constant(2, 12, 0.5f));  // rows of a part, from another scalar type
  EXPECT_EQ(layer.weight("in_proj_weight")(21, 11), 5000 + 9 * 12 + 11);
  EXPECT_EQ(layer.weight("in_proj_weight")(22, 0), 0.5);
  layer.load_rows("in_proj_bias", 22, Eigen::Vector2d(3, 4));
  EXPECT_EQ(layer.bias("v_proj_bias")(3), 0);
  EXPECT_EQ(layer.bias("v_proj_bias")(5), 4);
  EXPECT_NO_THROW(layer.load_rows("in_proj_bias", 24, Tensor<double, 1>({0})));
}

TEST(MultiHeadParts, RefuseWrongShapesAndRows) {
  Layer layer({.embed_dim = 4, .heads = 2, .in_bias = false});
  expect_refused("a part's shape", {"'k_proj_weight'", "(4, 4)", "(12, 4)"},
                 [&] { layer.load("k_proj_weight", numbered(12, 4, 0)); });
  expect_refused("another width", {"'in_proj_weight'", "(2, 4)", "(2, 5)"},
                 [&] { layer.load_rows("in_proj_weight", 0, numbered(2, 5, 0)); });
  expect_refused("past the end", {"'in_proj_weight'", "12 rows", "4 rows from row 9"},
                 [&] { layer.load_rows("in_proj_weight", 9, numbered(4, 4, 0)); });
  expect_refused("before the beginning", {"'in_proj_weight'", "-1"},
                 [&] { layer.load_rows("in_proj_weight", -1, numbered(4, 4, 0)); });
  expect_refused("far past the end", {"'q_proj_weight'", "4 rows", "9223372036854775807"},
                 [&] { layer.load_rows("q_proj_weight", std::numeric_limits<Index>::max(), numbered(4, 4, 0)); });
  expect_refused("a missing bias",
                 {"'q_proj_bias'", "in_proj_weight, out_proj.weight, out_proj.bias; and their parts: q_proj_weight"},
                 [&] { layer.bias("q_proj_bias"); });
  expect_refused("a weight as a bias", {"'q_proj_weight'", "weight()"}, [&] { layer.bias("q_proj_weight"); });
}

/// Parts of a copy are independent.
TEST(MultiHeadParts, BelongToTheirLayer) {
  Layer layer({.embed_dim = 4, .heads = 2}), copy = layer;
  const double before = layer.weight("k_proj_weight")(0, 0);
  copy.weight("k_proj_weight")(0, 0) = 9;
  EXPECT_EQ(layer.weight("k_proj_weight")(0, 0), before);
  EXPECT_EQ(copy.weight("in_proj_weight")(4, 0), 9);
}

TEST(MultiHeadBiases, OfInputsAndOutputAreSeparate) {
  const auto names = [](const MultiHeadConfig& c) { return Layer(c).parameter_names(); };
  const Names both{"in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"},
      in{"in_proj_weight", "in_proj_bias", "out_proj.weight"},
      out{"in_proj_weight", "out_proj.weight", "out_proj.bias"}, none{"in_proj_weight", "out_proj.weight"};
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2}), both);
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2, .bias = false}), none);
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2, .out_bias = false}), in);
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2, .in_bias = false}), out);
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2, .bias = false, .in_bias = true}), in);
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2, .bias = false, .out_bias = true}), out);
  EXPECT_EQ(names({.embed_dim = 4, .heads = 2, .bias = false, .in_bias = true, .out_bias = true}), both);
  const MultiHeadConfig filled = Layer({.embed_dim = 4, .heads = 2, .out_bias = false}).config();
  EXPECT_EQ(filled.in_bias, std::optional(true));
  EXPECT_EQ(filled.out_bias, std::optional(false));
}

/// A single bias is equivalent to both with zeros for the other.
TEST(MultiHeadBiases, AreAddedIfPresent) {
  for (const bool in : {false, true}) {
    Model m({.embed_dim = 12, .heads = 4, .kv_heads = 2, .key_dim = 12, .value_dim = 12}, 2, 3, 5);
    const char* missing = in ? "out_proj.bias" : "in_proj_bias";
    m.parameters[missing].assign(m.parameters[missing].size(), 0);
    const Layer with_zeros = m.layer<double>();
    m.parameters.erase(missing);
    m.config.in_bias = in;
    m.config.out_bias = !in;
    const auto q = tensor<double>(m.query, 2, 3, 12), k = tensor<double>(m.key, 2, 5, 12);
    const auto want = with_zeros(q, k, k).out, got = m.layer<double>()(q, k, k).out;
    EXPECT_TRUE(std::equal(want.data(), want.data() + want.size(), got.data()));
    const std::vector<Real> formula = expected(m, [](Index, Index, Index) { return true; }).out;
    const auto cross = m.layer<double>()(q, k, tensor<double>(m.value, 2, 5, 12)).out;
    for (Index i = 0; i < cross.size(); ++i)
      EXPECT_NEAR(cross.data()[i], static_cast<double>(formula[static_cast<std::size_t>(i)]), 1e-14);
  }
}

}  // namespace
}  // namespace attn::test
