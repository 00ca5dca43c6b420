// Options::interleaved_heads: every result equals that of the same heads in consecutive order.
#include <gtest/gtest.h>

#include <vector>

#include "attn/attn.h"
#include "support/random.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kHeads = 6, kKvHeads = 3, kGroup = kHeads / kKvHeads, kDim = 16, kVDim = 8;

/// The interleaved head that is head `consecutive` in consecutive order.
Index interleaved(Index consecutive) { return consecutive % kGroup * kKvHeads + consecutive / kGroup; }

/// A tensor whose dimension 1 is in consecutive order.
template <class T, int Rank>
Tensor<T, Rank> in_order(const Tensor<T, Rank>& given) {
  Tensor<T, Rank> ordered(given.shape());
  const Index size = given.size() / given.dim(0) / given.dim(1);
  for (Index b = 0; b < given.dim(0); ++b)
    for (Index h = 0; h < kHeads; ++h)
      std::copy_n(given.data() + (b * kHeads + interleaved(h)) * size, size, ordered.data() + (b * kHeads + h) * size);
  return ordered;
}

template <class T, int Rank>
void expect_same(const Tensor<T, Rank>& of_interleaved, const Tensor<T, Rank>& of_consecutive, const char* what) {
  ASSERT_EQ(of_interleaved.shape(), of_consecutive.shape()) << what;
  const Tensor<T, Rank> ordered = in_order(of_interleaved);
  for (Index i = 0; i < ordered.size(); ++i) ASSERT_EQ(ordered.data()[i], of_consecutive.data()[i]) << what << i;
}

std::vector<double> in_order(const std::vector<double>& of_heads) {
  std::vector<double> ordered;
  for (Index h = 0; h < kHeads; ++h) ordered.push_back(of_heads[static_cast<std::size_t>(interleaved(h))]);
  return ordered;
}

const Options kInterleaved{.interleaved_heads = true};

class InterleavedHeads : public ::testing::Test {
 protected:
  void draw(Index q_len, Index kv_len) {
    q = drawn<float>({2, kHeads, q_len, kDim}, random);
    k = drawn<float>({2, kKvHeads, kv_len, kDim}, random);
    v = drawn<float>({2, kKvHeads, kv_len, kVDim}, random);
    grad_out = drawn<float>({2, kHeads, q_len, kVDim}, random);
  }
  Random random{1};
  Tensor<float, 4> q, k, v, grad_out;
};

TEST_F(InterleavedHeads, OfCalls) {
  const std::vector<double> slopes{0.1, 0.2, 0.3, 0.4, 0.5, 0.6}, logits{1, -2, 3, 0, 2, -1};
  const auto mods = causal() | alibi(slopes) | sinks(logits);
  const auto ordered = causal() | alibi(in_order(slopes)) | sinks(in_order(logits));
  for (const Index q_len : {1, 3, 70})
    for (const bool invariant : {false, true}) {
      draw(q_len, 300);
      const Options options{.interleaved_heads = true, .row_invariant = invariant};
      const auto a = attention(q, k, v, mods, options);
      const auto b = attention(in_order(q), k, v, ordered, {.row_invariant = invariant});
      expect_same(a.out, b.out, "out");
      const auto c = attention(q, k, v, options), d = attention(in_order(q), k, v, {.row_invariant = invariant});
      expect_same(c.out, d.out, "out without mods");
      const auto e = naive_attention(q, k, v, mods, options), f = naive_attention(in_order(q), k, v, ordered);
      expect_same(e.out, f.out, "naive");
      expect_same(e.weights, f.weights, "weights");
      const auto g = attention_mass(q, k, a.lse, mods, options),
                 h = attention_mass(in_order(q), k, b.lse, ordered, {.row_invariant = invariant});
      expect_same(g, h, "mass");
    }
}

TEST_F(InterleavedHeads, OfGradients) {
  draw(20, 90);
  const auto a = attention(q, k, v, causal(), kInterleaved), b = attention(in_order(q), k, v, causal());
  const auto c = attention_backward(grad_out, q, k, v, a, causal(), kInterleaved);
  const auto d = attention_backward(in_order(grad_out), in_order(q), k, v, b, causal());
  const auto e = naive_attention_backward(grad_out, q, k, v, causal(), kInterleaved);
  const auto f = naive_attention_backward(in_order(grad_out), in_order(q), k, v, causal());
  const auto expect = [&](const auto& x, const auto& y, const char* what) {
    expect_same(x.query, y.query, what);
    for (Index i = 0; i < k.size(); ++i) ASSERT_EQ(x.key.data()[i], y.key.data()[i]) << what;
    for (Index i = 0; i < v.size(); ++i) ASSERT_EQ(x.value.data()[i], y.value.data()[i]) << what;
  };
  expect(c, d, "fused");
  expect(e, f, "naive");
  const auto change = drawn<float>(q.shape(), random);
  expect_same(attention_jvp(q, k, v, change, k, v, causal(), kInterleaved).tangent,
              attention_jvp(in_order(q), k, v, in_order(change), k, v, causal()).tangent, "forward mode");
}

TEST_F(InterleavedHeads, OfCaches) {
  KvCache<float> cache({.batch = 2, .kv_heads = kKvHeads, .head_dim = kDim, .v_dim = kVDim});
  KvCache<std::int8_t> bytes({.batch = 2, .kv_heads = kKvHeads, .head_dim = kDim, .v_dim = kVDim});
  draw(1, 500);
  cache.append(k, v);
  bytes.append(k, v);
  for (const Index q_len : {1, 30}) {
    const auto queries = drawn<float>({2, kHeads, q_len, kDim}, random);
    expect_same(attention(queries, cache, causal(), kInterleaved).out,
                attention(in_order(queries), cache, causal()).out, "float");
    expect_same(attention(queries, bytes, causal(), kInterleaved).out,
                attention(in_order(queries), bytes, causal()).out, "int8");
  }
}

/// The matrix unit reads the heads of a group as rows.
TEST(InterleavedHeadsOf, BFloat16) {
  Random random(2);
  for (const Index q_len : {1, 40}) {
    const auto q = drawn<Eigen::bfloat16>({1, kHeads, q_len, 64}, random);
    const auto k = drawn<Eigen::bfloat16>({1, kKvHeads, 300, 64}, random);
    expect_same(attention(q, k, k, kInterleaved).out, attention(in_order(q), k, k).out, "bfloat16");
  }
}

TEST_F(InterleavedHeads, OfLists) {
  draw(12, 400);
  Tensor<Index, 4> each({2, kHeads, 12, 20});
  for (Index i = 0; i < each.size(); ++i) each.data()[i] = random.integer(0, 399);
  for (const bool one_list : {false, true}) {
    const auto lists = one_list ? each.view().slice(1, 0, 1) : each.view();
    const Tensor<Index, 4> ordered = one_list ? Tensor<Index, 4>(lists) : in_order(each);
    const auto a = attention(q, k, v, select(lists), kInterleaved), b = attention(in_order(q), k, v, select(ordered));
    expect_same(a.out, b.out, "out");
    const auto c = attention_backward(grad_out, q, k, v, a, select(lists), kInterleaved);
    const auto d = naive_attention_backward(in_order(grad_out), in_order(q), k, v, select(ordered));
    const auto query = in_order(c.query);
    for (Index i = 0; i < q.size(); ++i) ASSERT_NEAR(query.data()[i], d.query.data()[i], 1e-5);
    for (Index i = 0; i < k.size(); ++i) ASSERT_NEAR(c.key.data()[i], d.key.data()[i], 1e-5);
  }
  for (const bool together : {false, true}) {
    const auto a = top_k_blocks(q, k, {.count = 3, .heads_together = together, .interleaved_heads = true});
    const auto b = top_k_blocks(in_order(q), k, {.count = 3, .heads_together = together});
    expect_same(attention(q, k, v, a, kInterleaved).out, attention(in_order(q), k, v, b).out, "blocks");
  }
}

TEST_F(InterleavedHeads, AreRefusedWhereHeadsMustBeNeighbours) {
  draw(4, 40);
  const Tensor<Index, 4> lists({2, kKvHeads, 4, 2});
  expect_refused("lists", {"lists of 3 key heads", "all 6 query heads"},
                 [&] { attention(q, k, v, select(lists), kInterleaved); });
  expect_refused("recurrent", {"consecutive query heads"},
                 [&] { linear_attention(q, k, v, elu1(), causal(), kInterleaved); });
  const Tensor<float, 1> weights({k.dim(3)});
  expect_refused("additive", {"additive_attention()", "consecutive query heads"}, [&] {
    additive_attention(q, k, v, {{}, {}, weights}, causal(), kInterleaved);
  });
}

}  // namespace
}  // namespace attn::test
