// The backward pass in bf16, by vectors or on the matrix unit: which calls use it, and its workspace. The sweep tests
// its results.
#include "attn/attn.h"
#include "support/executors.h"
#include "support/gradient_oracle.h"
#include "support/paths.h"

namespace attn::test {
namespace {

using Eigen::bfloat16;

class BackwardBf16 : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!available(GetParam()))
      GTEST_SKIP() << "this machine has no " << to_string(GetParam()) << ", and none is emulated";
  }

  Tensor<bfloat16, 4> q = drawn<bfloat16>({2, 4, 70, 64}, 1, 1), k = drawn<bfloat16>({2, 2, 100, 64}, 2, 1),
                      v = drawn<bfloat16>({2, 2, 100, 40}, 3, 1), g = drawn<bfloat16>({2, 4, 70, 40}, 4, 1);

  /// Whether gradients in bf16 and those of AVX-512 in float differ in any bit. Both start from the same 16-bit output,
  /// so both compute the sums over keys themselves.
  template <class G, class M = Mods<>>
  bool is_used(const G& grad_out, const M& mods = {}, Options options = {}) const {
    Options vectors = options;
    options.isa = GetParam();
    vectors.isa = Isa::avx512;
    const auto result = attention(q, k, v, mods, vectors);
    const Result r{result.out.view(), result.lse.view()};
    const auto a = attention_backward(grad_out, q, k, v, r, mods, options),
               b = attention_backward(grad_out, q, k, v, r, mods, vectors);
    const bool equal = same_bits(a.query, b.query) && same_bits(a.key, b.key) && same_bits(a.value, b.value);
    return !equal;
  }
};

TEST_P(BackwardBf16, IsUsedForBf16) {
  EXPECT_TRUE(is_used(g));
  EXPECT_TRUE(is_used(g, causal() | dropout(0.2, 1)));
}

TEST_P(BackwardBf16, IsNotUsedForFloatGradientsOrNegativeScales) {
  const auto floats = drawn<float>(g.shape(), 4, 1);
  EXPECT_FALSE(is_used(floats));
  EXPECT_EQ(is_used(floats, Mods<>(), {.compute = Compute::bf16}), GetParam() == Isa::amx);
  EXPECT_FALSE(is_used(g, Mods<>(), {.scale = -0.1}));
}

// Partial sums of products could overflow where the exact sum does not, and non-finite elements need masking by
// selection.
TEST_P(BackwardBf16, IsNotUsedForHugeOrNonFiniteRows) {
  for (auto* tensor : {&q, &k, &v, &g})
    for (const float x : {0x1p31f, std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      bfloat16& number = tensor->data()[tensor->size() - 1];
      const bfloat16 before = number;
      number = bfloat16(x);
      EXPECT_FALSE(is_used(g)) << x;
      number = before;
      EXPECT_TRUE(is_used(g));
    }
}

TEST_P(BackwardBf16, DroppedKeysMayBeNaN) {
  const auto mods = key_lengths({90, 90});
  EXPECT_TRUE(is_used(g, mods));
  const Options options{.isa = GetParam()};
  const auto clean = attention_backward(g, q, k, v, attention(q, k, v, mods, options), mods, options);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 2; ++h) k(b, h, 95, 3) = v(b, h, 95, 3) = bfloat16(std::numeric_limits<float>::quiet_NaN());
  const auto got = attention_backward(g, q, k, v, attention(q, k, v, mods, options), mods, options);
  for (Index i = 0; i < got.query.size(); ++i)
    ASSERT_NEAR(float(got.query.data()[i]), float(clean.query.data()[i]), 0.01f);
  for (Index i = 0; i < got.key.size(); ++i) ASSERT_NEAR(float(got.key.data()[i]), float(clean.key.data()[i]), 0.01f);
}

// A tile has fewer queries than columns; the unused columns hold garbage.
TEST_P(BackwardBf16, WorkspaceMayBeUninitialised) {
  q = drawn<bfloat16>({2, 4, 7, 64}, 1, 1), g = drawn<bfloat16>({2, 4, 7, 40}, 4, 1);
  const auto mods = softcap(3) | causal();
  Options options{.executor = serial(), .isa = GetParam()};
  const auto r = attention(q, k, v, mods, options);
  std::vector<std::byte> memory(backward_workspace_bytes(q, k, v, mods, options));
  options.workspace = memory;
  Tensor<bfloat16, 4> grads[2][3];
  for (const bool nan : {false, true}) {
    std::fill(memory.begin(), memory.end(), nan ? std::byte(0xff) : std::byte(0));
    auto& [grad_q, grad_k, grad_v] = grads[nan];
    grad_q = q, grad_k = k, grad_v = v;
    attention_backward_into(grad_q, grad_k, grad_v, g, q, k, v, r.out, r.lse, mods, options);
  }
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(grads[0][i], grads[1][i])) << i;
}

TEST_P(BackwardBf16, WorkspaceSizeIsSufficient) {
  Tensor<bfloat16, 4> grad_q(q.shape()), grad_k(k.shape()), grad_v(v.shape());
  Options options{.executor = eager_threads(2), .isa = GetParam()};
  const auto r = attention(q, k, v, options);
  std::vector<std::byte> memory(backward_workspace_bytes(q, k, v, options) + 64, std::byte(0x5a));
  options.workspace = std::span(memory).first(memory.size() - 64);
  attention_backward_into(grad_q, grad_k, grad_v, g, q, k, v, r.out, r.lse, options);
  EXPECT_TRUE(std::all_of(memory.end() - 64, memory.end(), [](std::byte b) { return b == std::byte(0x5a); }));
  const auto alone = attention_backward(g, q, k, v, r, {.executor = serial(), .isa = GetParam()});
  EXPECT_TRUE(same_bits(grad_q, alone.query) && same_bits(grad_k, alone.key) && same_bits(grad_v, alone.value));
}

TEST_P(BackwardBf16, NoQueriesOrNoKeysGiveZeros) {
  const Options options{.isa = GetParam()};
  const Tensor<bfloat16, 4> none({2, 4, 0, 64}), no_grad({2, 4, 0, 40}), no_k({2, 2, 0, 64}), no_v({2, 2, 0, 40});
  const auto of_keys = attention_backward(no_grad, none, k, v, attention(none, k, v, options), options);
  for (Index i = 0; i < k.size(); ++i) ASSERT_EQ(of_keys.key.data()[i], bfloat16(0));
  const auto of_queries = attention_backward(g, q, no_k, no_v, attention(q, no_k, no_v, options), options);
  for (Index i = 0; i < q.size(); ++i) ASSERT_EQ(of_queries.query.data()[i], bfloat16(0));
}

INSTANTIATE_TEST_SUITE_P(EachSet, BackwardBf16, ::testing::Values(Isa::avx512_bf16, Isa::amx),
                         [](const auto& isa) { return std::string(to_string(isa.param)); });

}  // namespace
}  // namespace attn::test
