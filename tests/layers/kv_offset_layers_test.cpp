// Options::kv_offset in layers, additive scores, gated recurrent forms and explain(). A part of the keys gives the same
// results as all keys with a mask that drops the others.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/random.h"

namespace attn::test {
namespace {

constexpr Index kQueries = 33, kKeys = 150, kFirst = 41;  // the part has the keys from kFirst on
const auto kRest = mask_mod([](auto p) { return p.kv >= kFirst; });

Eigen::MatrixXf drawn(Index rows, Index columns, Random& random) {
  Eigen::MatrixXf m(rows, columns);
  for (Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<float>(random.uniform(-1, 1));
  return m;
}

void expect_near(const Eigen::MatrixXf& a, const Eigen::MatrixXf& b) {
  ASSERT_EQ(a.rows(), b.rows());
  EXPECT_LE((a - b).cwiseAbs().maxCoeff(), 2e-5f);
}

// The rope rotates projected keys by their positions, on both paths.
TEST(KvOffsetLayers, MultiHead) {
  Random random(1);
  const MultiHeadAttention<float> layer({.embed_dim = 32, .heads = 4, .kv_heads = 2, .rope = Rope({.head_dim = 8})});
  const Eigen::MatrixXf x = drawn(kQueries, 32, random), memory = drawn(kKeys, 32, random),
                        part = memory.bottomRows(kKeys - kFirst);
  const auto near = causal() | sliding_window(70) | dropout(0.1, 3);
  const auto mods = near | key_lengths({140});
  for (const Path path : {Path::flash, Path::naive}) {
    MultiHeadOptions of_all{.path = path, .attention = {.q_offset = 100}}, of_part = of_all;
    of_part.attention.kv_offset = kFirst;
    const auto whole = layer(x, memory, memory, mods | kRest, of_all);
    expect_near(layer(x, part, part, mods, of_part).out, whole.out);
    // Positions do matter.
    const auto elsewhere = layer(x, part, part, near, MultiHeadOptions{.path = path, .attention = {.q_offset = 100}});
    EXPECT_GT((elsewhere.out - whole.out).cwiseAbs().maxCoeff(), 1e-3f);
  }
}

TEST(KvOffsetLayers, Additive) {
  Random random(2);
  const Eigen::MatrixXf q = drawn(kQueries, 6, random), k = drawn(kKeys, 5, random), v = drawn(kKeys, 4, random),
                        w_q = drawn(7, 6, random), w_k = drawn(7, 5, random);
  const Eigen::VectorXf w = drawn(7, 1, random);
  const Eigen::MatrixXf part_k = k.bottomRows(kKeys - kFirst), part_v = v.bottomRows(kKeys - kFirst);
  const auto mods = sliding_window(70, 10) | key_lengths({140}) | alibi({0.1});
  const Options of_all{.q_offset = 100}, of_part{.q_offset = 100, .kv_offset = kFirst};
  const auto whole = additive_attention(q, k, v, {w_q, w_k, w}, mods | kRest, of_all);
  const auto got = additive_attention(q, part_k, part_v, {w_q, w_k, w}, mods, of_part);
  expect_near(got.out, whole.out);
  expect_near(naive_additive_attention(q, part_k, part_v, {w_q, w_k, w}, mods, of_part).out, whole.out);
  const auto gradients =
      additive_attention_backward(v.topRows(kQueries).eval(), q, part_k, part_v, {w_q, w_k, w}, got, mods, of_part);
  const auto of_whole =
      additive_attention_backward(v.topRows(kQueries).eval(), q, k, v, {w_q, w_k, w}, whole, mods | kRest, of_all);
  expect_near(gradients.query, of_whole.query);
  expect_near(gradients.key, of_whole.key.bottomRows(kKeys - kFirst));
}

// Query and key of a token have the same row, so q_offset must equal kv_offset, which is its default. Lengths and
// bounds in masks refer to all keys.
TEST(KvOffsetLayers, Gated) {
  Random random(3);
  const Eigen::MatrixXf q = drawn(60, 6, random), k = drawn(60, 6, random), v = drawn(60, 4, random);
  Tensor<float, 1> gate({60}), beta({60});
  for (Index i = 0; i < 60; ++i) {
    gate(i) = static_cast<float>(random.uniform(-0.2, 0));
    beta(i) = static_cast<float>(random.uniform(0, 1));
  }
  const auto of_all = key_lengths({kFirst + 50}) | documents_at({0, kFirst + 20, kFirst + 60}),
             at_0 = key_lengths({50}) | documents_at({0, 20, 60});
  const Options part{.kv_offset = kFirst};
  expect_near(gated_attention(q, k, v, gate, of_all, part).out, gated_attention(q, k, v, gate, at_0).out);
  expect_near(naive_gated_attention(q, k, v, gate, of_all, part).out, gated_attention(q, k, v, gate, at_0).out);
  expect_near(gated_delta_rule(q, k, v, gate, beta, of_all, part).out, gated_delta_rule(q, k, v, gate, beta, at_0).out);
  try {
    gated_attention(q, k, v, gate, of_all, {.q_offset = 0, .kv_offset = kFirst});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("q_offset is 0 and kv_offset is 41; with gates"), std::string::npos)
        << e.what();
  }
}

// The plan of a part equals that of a call with the same distances from position 0.
TEST(KvOffsetLayers, Explain) {
  const Tensor<float, 4> q({1, 2, 300, 16}), k({1, 2, 2000, 16});
  const auto plan = [&](const auto& mods, const Options& options) { return explain(q, k, k, mods, options); };
  const Options part{.q_offset = 5100, .kv_offset = 4000, .executor = serial()},
      at_0{.q_offset = 1100, .executor = serial()}, without{.q_offset = 5100, .executor = serial()};
  const auto window = sliding_window(200);
  EXPECT_EQ(plan(window, part).full_tiles, plan(window, at_0).full_tiles);
  EXPECT_EQ(plan(window, part).masked_tiles, plan(window, at_0).masked_tiles);
  EXPECT_EQ(plan(window, part).skipped_tiles, plan(window, at_0).skipped_tiles);
  EXPECT_EQ(plan(key_lengths({5200}), part).skipped_tiles, plan(key_lengths({1200}), at_0).skipped_tiles);
  EXPECT_EQ(plan(window, without).skipped_tiles, plan(window, without).tiles());  // no key is near
  EXPECT_LT(plan(window, part).skipped_tiles, plan(window, part).tiles());
}

}  // namespace
}  // namespace attn::test
