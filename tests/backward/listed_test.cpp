// Gradients when the keys in lists are gathered: all paths against the oracle, threads, memory, NaN and infinities, and
// work in proportion to the lists.
#include <set>

#include "gradient_case.h"
#include "support/executors.h"
#include "support/grouped_rows.h"
#include "support/mod_table.h"

namespace attn::test {
namespace {

template <class T>
class Listed : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, long double, Eigen::bfloat16, Eigen::half>;
TYPED_TEST_SUITE(Listed, Scalars);

TYPED_TEST(Listed, GradientsMatchTheDefinition) {
  Random random(1);
  for (const Index kv_len : {9, 64, 200})
    for (const Index q_len : {1, 2, 17, 50}) {
      const Sizes s = listed_sizes(q_len, kv_len, kGradientDims, random);
      GradientCase<TypeParam> c(s, random);
      const Setting setting{s, c.numbers, random};
      const auto rows = select_rows(setting);
      const auto& lists = rows[static_cast<std::size_t>(random.pick(std::vector<Index>{0, 2, 3}))];
      c.check(lists);
      c.check(rows[2] | edge_rows(setting)[0]);
      c.check(sink_rows(setting)[0] | softcap_rows()[0] | rows[3] |
              mask("causal", causal(), [](const Pair& p) { return p.kv <= p.q; })[0] | alibi_rows(setting)[0] |
              random.pick(dropout_rows(setting)));
    }
}

/// A graph in which each of n nodes has `degree` neighbours and node 0 is linked to all nodes.
struct Graph {
  std::vector<std::vector<Index>> neighbours;

  Graph(Index n, Index degree, Random& random) : neighbours(static_cast<std::size_t>(n)) {
    for (auto& list : neighbours)
      for (Index e = 0; e < degree; ++e) list.push_back(random.integer(0, n - 1));
    for (Index i = 0; i < n; ++i) neighbours[0].push_back(i);
  }
};

template <class T>
struct GraphCall {
  Tensor<T, 4> q, k, v, grad_out, grad_q, grad_k, grad_v;

  GraphCall(Index heads, Index kv_heads, Index n, Index dim, Random& random)
      : q({1, heads, n, dim}),
        k({1, kv_heads, n, dim}),
        v({1, kv_heads, n, dim}),
        grad_out(q.shape()),
        grad_q(q.shape()),
        grad_k(k.shape()),
        grad_v(v.shape()) {
    for (auto* t : {&q, &k, &v, &grad_out})
      for (Index i = 0; i < t->size(); ++i) t->data()[i] = static_cast<T>(random.uniform(-1, 1));
  }
  template <class M>
  void run(const M& mods, const Options& options) {
    const auto r = attention(q, k, v, mods, {.executor = options.executor});
    attention_backward_into(grad_q, grad_k, grad_v, grad_out, q, k, v, r.out, r.lse, mods, options);
  }
  std::vector<T> bits() const {
    std::vector<T> all;
    for (auto* t : {&grad_q, &grad_k, &grad_v}) all.insert(all.end(), t->data(), t->data() + t->size());
    return all;
  }
};

TEST(ListedKeys, ThreadsAndMemoryDoNotChangeResults) {
  Random random(2);
  for (const Index kv_heads : {1, 4}) {
    GraphCall<float> g(4, kv_heads, 300, 24, random);
    const Graph graph(300, 12, random);
    const auto mods = select(graph.neighbours) | softcap(5);
    g.run(mods, {.executor = serial()});
    const auto expected = g.bits();
    for (const int workers : {1, 2, 3, 5}) {
      Options options{.executor = eager_threads(workers)};
      std::vector<std::byte> memory(backward_workspace_bytes(g.q, g.k, g.v, mods, options));
      std::fill(memory.begin(), memory.end(), std::byte(0xff));
      options.workspace = memory;
      g.run(mods, options);
      EXPECT_EQ(g.bits(), expected) << workers;
      options.workspace = std::span(memory).first(memory.size() - 1);
      EXPECT_THROW(g.run(mods, options), std::invalid_argument);
    }
  }
}

TEST(ListedKeys, AccumulateAddsToExistingGradients) {
  Random random(3);
  GraphCall<double> g(2, 1, 100, 9, random);
  const Graph graph(100, 5, random);
  const auto mods = select(graph.neighbours);
  g.run(mods, {});
  const auto once = g.bits();
  for (auto* t : {&g.grad_q, &g.grad_k, &g.grad_v}) std::fill_n(t->data(), t->size(), 0.5);
  const auto r = attention(g.q, g.k, g.v, mods);
  attention_backward_into(g.grad_q, g.grad_k, g.grad_v, g.grad_out, g.q, g.k, g.v, r.out, r.lse, mods,
                          {.accumulate = true});
  const auto added = g.bits();
  for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(added[i], once[i] + 0.5, 1e-14);
}

// NaN or infinity in a key or value reaches only the queries that keep it; listed keys that a mask drops are not kept.
TEST(ListedKeys, NothingLeaks) {
  Random random(4);
  for (const bool in_key : {true, false})
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      GraphCall<float> g(2, 1, 90, 16, random);
      const Graph graph(90, 6, random);
      const Index poisoned = 70;
      for (Index d = 0; d < 16; ++d) (in_key ? g.k : g.v)(0, 0, poisoned, d) = poison;
      g.run(select(graph.neighbours) | causal(), {});
      std::set<Index> keep;  // queries that keep it
      for (Index i = poisoned; i < 90; ++i) {
        const auto& list = graph.neighbours[static_cast<std::size_t>(i)];
        if (std::find(list.begin(), list.end(), poisoned) != list.end()) keep.insert(i);
      }
      for (Index i = 0; i < 90; ++i)
        for (Index h = 0; h < 2; ++h)
          for (Index d = 0; d < 16; ++d)
            ASSERT_TRUE(keep.count(i) == 1 || std::isfinite(g.grad_q(0, h, i, d))) << "query " << i;
      // Queries that keep the key spoil the gradients of all keys in their lists, and no others.
      std::set<Index> spoiled;
      for (const Index i : keep)
        for (const Index j : graph.neighbours[static_cast<std::size_t>(i)]) spoiled.insert(j);
      for (Index j = 0; j < 90; ++j)
        for (Index d = 0; d < 16; ++d)
          ASSERT_TRUE(spoiled.count(j) == 1 ||
                      (std::isfinite(g.grad_k(0, 0, j, d)) && std::isfinite(g.grad_v(0, 0, j, d))))
              << "key " << j;
    }
}

// Keys in parts: each call gathers the listed keys of its part.
TEST(ListedKeys, KeysInParts) {
  Random random(5);
  GraphCall<double> g(2, 2, 120, 8, random);
  const Graph graph(120, 7, random);
  const auto mods = select(graph.neighbours);
  const auto whole = attention(g.q, g.k, g.v, mods);
  const auto expected = attention_backward(g.grad_out, g.q, g.k, g.v, whole, mods);
  Tensor<double, 4> grad_q(g.q.shape());
  for (const Range part : {Range{0, 50}, Range{50, 120}}) {
    const auto of = [&](auto& t) { return t.view().slice(2, part.begin, part.end); };
    auto grad_k = of(g.grad_k), grad_v = of(g.grad_v);
    Tensor<double, 4> own(g.q.shape());
    attention_backward_into(own, grad_k, grad_v, g.grad_out, g.q, of(g.k), of(g.v), whole.out, whole.lse, mods,
                            {.q_offset = 0, .kv_offset = part.begin});
    for (Index i = 0; i < own.size(); ++i) grad_q.data()[i] += own.data()[i];
  }
  for (Index i = 0; i < grad_q.size(); ++i) {
    ASSERT_NEAR(grad_q.data()[i], expected.query.data()[i], 1e-13);
    ASSERT_NEAR(g.grad_k.data()[i], expected.key.data()[i], 1e-13);
    ASSERT_NEAR(g.grad_v.data()[i], expected.value.data()[i], 1e-13);
  }
}

// With 1 % of the pairs listed, a call evaluates other mods for about these pairs, despite the hub node.
TEST(ListedKeys, WorkIsInProportionToTheLists) {
  Random random(6);
  GraphCall<float> g(1, 1, 2000, 32, random);
  const Graph graph(2000, 10, random);
  Index listed = 0, evaluated = 0;
  for (const auto& list : graph.neighbours) listed += static_cast<Index>(list.size());
  const auto mods = select(graph.neighbours) | mask_mod([&](const Position&) { return ++evaluated > 0; });
  const Options options{.executor = serial()};
  const auto r = attention(g.q, g.k, g.v, mods, options);
  EXPECT_LE(evaluated, 3 * listed);
  evaluated = 0;
  attention_backward_into(g.grad_q, g.grad_k, g.grad_v, g.grad_out, g.q, g.k, g.v, r.out, r.lse, mods, options);
  EXPECT_GE(evaluated, listed);
  EXPECT_LE(evaluated, 3 * listed);
}

}  // namespace
}  // namespace attn::test
