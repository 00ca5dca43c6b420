// Options as the last argument or in place of mods, in braces and as objects, in every call that accepts them.
#include <algorithm>
#include <cstddef>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <attn/attn.h>

#include "support/random.h"

namespace attn {
namespace {

// Each call is made in both forms, which must give the same result, and a different one from a call without options.
constexpr double kScale = 0.01;
const Options kOptions{.scale = kScale};

template <class... Number>
concept OptionsWithoutNames = requires(Number... n) {
  Options{n...};
};
static_assert(!OptionsWithoutNames<double> && !OptionsWithoutNames<double, Index>);

template <class X>
bool equal(const X& a, const X& b) {
  return std::equal(a.data(), a.data() + a.size(), b.data(), b.data() + b.size());
}

struct Arguments {
  Eigen::MatrixXf q = Eigen::MatrixXf::Random(5, 8), k = Eigen::MatrixXf::Random(9, 8);
  Eigen::MatrixXf v = Eigen::MatrixXf::Random(9, 4);
  Eigen::MatrixXf plain = attention(q, k, v, full()).out;
  Eigen::MatrixXf scaled = attention(q, k, v, full(), kOptions).out;
  Eigen::VectorXf lse = attention(q, k, v, full(), kOptions).lse;
  Eigen::VectorXf plain_lse = attention(q, k, v, full()).lse;
};

TEST(OptionsInPlaceOfMods, Attention) {
  const Arguments a;
  ASSERT_FALSE(equal(a.plain, a.scaled));
  Options options = kOptions;
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, {.scale = kScale}).out, a.scaled));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, {}, {.scale = kScale}).out, a.scaled));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, options).out, a.scaled));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, kOptions).out, a.scaled));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, {}).out, a.plain));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, {}, {}).out, a.plain));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, causal(), {}).out, attention(a.q, a.k, a.v, causal()).out));
}

TEST(OptionsInPlaceOfMods, AttentionInto) {
  const Arguments a;
  Eigen::MatrixXf out(5, 4);
  Eigen::VectorXf lse(5);
  const auto expect = [&](const Eigen::MatrixXf& wanted) {
    EXPECT_TRUE(equal(out, wanted));
    out.setZero();
  };
  attention_into(out, a.q, a.k, a.v, {.scale = kScale}), expect(a.scaled);
  attention_into(out, a.q, a.k, a.v, {}, {.scale = kScale}), expect(a.scaled);
  attention_into(out, a.q, a.k, a.v, kOptions), expect(a.scaled);
  attention_into(out, a.q, a.k, a.v, {}), expect(a.plain);
  attention_into(out, lse, a.q, a.k, a.v, {.scale = kScale}), expect(a.scaled);
  attention_into(out, lse, a.q, a.k, a.v, {}, {.scale = kScale}), expect(a.scaled);
  attention_into(out, lse, a.q, a.k, a.v, kOptions), expect(a.scaled);
  EXPECT_TRUE(equal(lse, a.lse));
  attention_into(out, lse, a.q, a.k, a.v, {}), expect(a.plain);
  EXPECT_TRUE(equal(lse, a.plain_lse));
}

TEST(OptionsInPlaceOfMods, NaiveAttention) {
  const Arguments a;
  const Eigen::MatrixXf plain = naive_attention(a.q, a.k, a.v, full()).out;
  const Eigen::MatrixXf scaled = naive_attention(a.q, a.k, a.v, full(), kOptions).out;
  ASSERT_FALSE(equal(plain, scaled));
  EXPECT_TRUE(equal(naive_attention(a.q, a.k, a.v, {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(naive_attention(a.q, a.k, a.v, {}, {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(naive_attention(a.q, a.k, a.v, kOptions).out, scaled));
  EXPECT_TRUE(equal(naive_attention(a.q, a.k, a.v, {}).out, plain));
  Eigen::MatrixXf out(5, 4);
  naive_attention_into(out, a.q, a.k, a.v, {.scale = kScale});
  EXPECT_TRUE(equal(out, scaled));
  naive_attention_into(out, a.q, a.k, a.v, {});
  EXPECT_TRUE(equal(out, plain));
  naive_attention_into(out, a.q, a.k, a.v, kOptions);
  EXPECT_TRUE(equal(out, scaled));
  naive_attention_into(out, a.q, a.k, a.v, {}, {.scale = kScale});
  EXPECT_TRUE(equal(out, scaled));
}

// For explain() and workspace_bytes(): the explanation shows the instruction set, and the workspace grows with the
// number of threads.
std::string text(const Explanation& e) { return (std::ostringstream() << e).str(); }
const Options kAsked{.executor = threads(3), .isa = best_isa()};

TEST(OptionsInPlaceOfMods, ExplainAndWorkspaceBytes) {
  const auto q = test::drawn<float>({2, 2, 200, 8}, 1);
  const std::string wanted = text(explain(q, q, q, full(), kAsked));
  EXPECT_NE(wanted, text(explain(q, q, q, full(), {.executor = serial()})));
  EXPECT_EQ(text(explain(q, q, q, {.executor = threads(3), .isa = best_isa()})), wanted);
  EXPECT_EQ(text(explain(q, q, q, {}, kAsked)), wanted);
  EXPECT_EQ(text(explain(q, q, q, kAsked)), wanted);
  EXPECT_EQ(text(explain(q, q, q, {})), text(explain(q, q, q)));

  const std::size_t bytes = workspace_bytes(q, q, q, full(), kAsked);
  EXPECT_NE(bytes, workspace_bytes(q, q, q, full(), {.executor = serial()}));
  EXPECT_EQ(workspace_bytes(q, q, q, {.executor = threads(3), .isa = best_isa()}), bytes);
  EXPECT_EQ(workspace_bytes(q, q, q, {}, kAsked), bytes);
  EXPECT_EQ(workspace_bytes(q, q, q, kAsked), bytes);
  EXPECT_EQ(workspace_bytes(q, q, q, {}), workspace_bytes(q, q, q));
}

TEST(OptionsInPlaceOfMods, Weights) {
  const Arguments a;
  const auto mass = attention_mass(a.q, a.k, a.lse, full(), kOptions);
  EXPECT_TRUE(equal(attention_mass(a.q, a.k, a.lse, {.scale = kScale}), mass));
  EXPECT_TRUE(equal(attention_mass(a.q, a.k, a.lse, {}, {.scale = kScale}), mass));
  EXPECT_TRUE(equal(attention_mass(a.q, a.k, a.lse, kOptions), mass));
  EXPECT_FALSE(equal(attention_mass(a.q, a.k, a.lse, {}), mass));
  const auto spread = entropy(a.q, a.k, a.lse, full(), kOptions);
  EXPECT_TRUE(equal(entropy(a.q, a.k, a.lse, {.scale = kScale}), spread));
  EXPECT_TRUE(equal(entropy(a.q, a.k, a.lse, kOptions), spread));
  EXPECT_FALSE(equal(entropy(a.q, a.k, a.lse, {}), spread));
  const auto top = top_k_weights(a.q, a.k, a.lse, 2, full(), kOptions).weights;
  EXPECT_TRUE(equal(top_k_weights(a.q, a.k, a.lse, 2, {.scale = kScale}).weights, top));
  EXPECT_TRUE(equal(top_k_weights(a.q, a.k, a.lse, 2, kOptions).weights, top));
  EXPECT_FALSE(equal(top_k_weights(a.q, a.k, a.lse, 2, {}).weights, top));

  float sum = 0;
  const auto add = [&](const WeightTile<float>& t) { sum += t.weights(0, 0); };
  const auto expect = [&](float wanted) {
    EXPECT_EQ(sum, wanted);
    sum = 0;
  };
  for_each_weight_tile(a.q, a.k, a.lse, full(), add, kOptions);
  const float wanted = std::exchange(sum, 0.f);
  ASSERT_NE(wanted, 0.f);
  for_each_weight_tile(a.q, a.k, a.lse, {}, add, {.scale = kScale}), expect(wanted);
  for_each_weight_tile(a.q, a.k, a.lse, add, {.scale = kScale}), expect(wanted);
  for_each_weight_tile(a.q, a.k, a.lse, add, kOptions), expect(wanted);
  for_each_weight_tile(a.q, a.k, a.plain_lse, full(), add);
  const float plain = std::exchange(sum, 0.f);
  for_each_weight_tile(a.q, a.k, a.plain_lse, add), expect(plain);
  for_each_weight_tile(a.q, a.k, a.plain_lse, add, {}), expect(plain);
}

TEST(OptionsInPlaceOfMods, MayFollowEmptyBraces) {
  const Arguments a;
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, {}, kOptions).out, a.scaled));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, Options(), kOptions).out, a.scaled));
  EXPECT_TRUE(equal(attention(a.q, a.k, a.v, kOptions, {}).out, a.scaled));
  EXPECT_EQ(text(explain(a.q, a.k, a.v, {}, kAsked)), text(explain(a.q, a.k, a.v, full(), kAsked)));
}

// Each option is passed on its own, to check that none is overlooked.
TEST(OptionsInPlaceOfMods, AreRefusedWhenGivenTwice) {
  const Arguments a;
  std::byte memory[8];
  const Options each[] = {{.scale = 1},          {.q_offset = 0},
                          {.q_offsets = {0}},    {.kv_offset = 0},
                          {.accumulate = true},  {.executor = serial()},
                          {.workspace = memory}, {.compute = Compute::bf16},
                          {.isa = Isa::generic}, {.normaliser = Normaliser::sigmoid()}};
  for (const Options& options : each) {
    try {
      explain(a.q, a.k, a.v, options, options);
      ADD_FAILURE() << "option " << &options - each << " was not detected";
    } catch (const std::invalid_argument& e) {
      EXPECT_NE(std::string(e.what()).find("options are given twice"), std::string::npos) << e.what();
    }
  }
}

TEST(OptionsInPlaceOfMods, EntryPointsCanBeNamedByTheirArgumentTypes) {
  using Tensor4 = Tensor<float, 4>;
  EXPECT_NE((&attention<Tensor4, Tensor4, Tensor4, Mods<>>), nullptr);
  EXPECT_NE((&attention<Tensor4, KvCache<float>, Mods<>>), nullptr);
}

TEST(OptionsInPlaceOfMods, Caches) {
  const auto q = test::drawn<float>({1, 2, 3, 8}, 1), k = test::drawn<float>({1, 2, 9, 8}, 2);
  KvCache<float> cache({.kv_heads = 2, .head_dim = 8});
  cache.append(k, k);
  const auto plain = attention(q, cache, full()).out, scaled = attention(q, cache, full(), kOptions).out;
  ASSERT_FALSE(equal(plain, scaled));
  EXPECT_TRUE(equal(attention(q, cache, {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(attention(q, cache, {}, {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(attention(q, cache, kOptions).out, scaled));
  EXPECT_TRUE(equal(attention(q, cache, {}).out, plain));

  Tensor<float, 4> out(q.shape());
  Tensor<float, 3> lse({1, 2, 3});
  const auto expect = [&](const Tensor<float, 4>& wanted) {
    EXPECT_TRUE(equal(out, wanted));
    std::fill_n(out.data(), out.size(), 0.f);
  };
  attention_into(out, q, cache, {.scale = kScale}), expect(scaled);
  attention_into(out, q, cache, {}, {.scale = kScale}), expect(scaled);
  attention_into(out, q, cache, kOptions), expect(scaled);
  attention_into(out, q, cache, {}), expect(plain);
  attention_into(out, lse, q, cache, {.scale = kScale}), expect(scaled);
  attention_into(out, lse, q, cache, {}, {.scale = kScale}), expect(scaled);
  attention_into(out, lse, q, cache, kOptions), expect(scaled);
  attention_into(out, lse, q, cache, {}), expect(plain);

  EXPECT_EQ(text(explain(q, cache, {.executor = serial()})), text(explain(q, cache, full(), {.executor = serial()})));
  EXPECT_EQ(text(explain(q, cache, kAsked)), text(explain(q, cache, full(), kAsked)));
  EXPECT_EQ(text(explain(q, cache, {})), text(explain(q, cache)));
  EXPECT_EQ(workspace_bytes(q, cache, kAsked), workspace_bytes(q, cache, full(), kAsked));
  EXPECT_EQ(workspace_bytes(q, cache, {.executor = serial()}),
            workspace_bytes(q, cache, full(), {.executor = serial()}));
  EXPECT_EQ(workspace_bytes(q, cache, {}), workspace_bytes(q, cache));
}

TEST(OptionsInPlaceOfMods, MultiHead) {
  const MultiHeadAttention<float> mha({.embed_dim = 8, .heads = 2});
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(5, 8) * 4;
  const Eigen::MatrixXf plain = mha(x, x, x, full()).out, scaled = mha(x, x, x, full(), kOptions).out;
  ASSERT_FALSE(equal(plain, scaled));
  const MultiHeadOptions with_weights{.weights = true};
  EXPECT_TRUE(equal(mha(x, x, x, {}).out, plain));
  EXPECT_TRUE(equal(mha(x, x, x, {}, {}).out, plain));
  EXPECT_TRUE(equal(mha(x, x, x, causal(), {}).out, mha(x, x, x, causal()).out));
  EXPECT_TRUE(equal(mha(x, x, x, {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(mha(x, x, x, {}, {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(mha(x, x, x, full(), {.scale = kScale}).out, scaled));
  EXPECT_TRUE(equal(mha(x, x, x, kOptions).out, scaled));
  EXPECT_TRUE(equal(mha(x, x, x, {}, kOptions).out, scaled));
  EXPECT_EQ(mha(x, x, x).weights.size(), 0);
  EXPECT_EQ(mha(x, x, x, {.weights = true}).weights.size(), 2 * 5 * 5);
  EXPECT_EQ(mha(x, x, x, {}, {.weights = true}).weights.size(), 2 * 5 * 5);
  EXPECT_EQ(mha(x, x, x, causal(), {.weights = true}).weights.size(), 2 * 5 * 5);
  EXPECT_EQ(mha(x, x, x, with_weights).weights.size(), 2 * 5 * 5);
  EXPECT_EQ(mha(x, x, x, causal(), with_weights).weights.size(), 2 * 5 * 5);
}

}  // namespace
}  // namespace attn
