// Positions given to append(), and trees of drafts over a cache with a rope.
#include "support/refused.h"
#include "support/tokens.h"

namespace attn::test {
namespace {

constexpr TokenSizes kSizes{2, 8, 5};

using Drawn = Appended<float>;
Tokens drawn(Index count, std::uint64_t seed) {
  Random random(seed);
  return Tokens(kSizes, count, random);
}
std::vector<Rope> ropes() {
  return {Rope({.head_dim = 8}), Rope({.head_dim = 8, .rotary_dim = 6, .pairs = RopePairs::interleaved}),
          Rope({.head_dim = 8, .scaling = RopeScaling::yarn, .factor = 8, .trained_length = 32})};
}
KvCache<float> cache_with(const std::optional<Rope>& rope, Index batch = 1) {
  return KvCache<float>({.batch = batch, .kv_heads = 2, .head_dim = 8, .v_dim = 5, .rope = rope});
}
PagedKvCache<float> pages_with(const std::optional<Rope>& rope, Index pages = 40, Index page_size = 4) {
  return PagedKvCache<float>(
      {.pages = pages, .page_size = page_size, .kv_heads = 2, .head_dim = 8, .v_dim = 5, .rope = rope});
}

template <class Cache>
void append(Cache& cache, Index sequence, const Tokens& tokens, const AppendOptions& options = {}) {
  Drawn given(tokens);
  cache.append(sequence, given.k(), given.v(), options);
}

template <class Cache>
std::vector<Index> positions_of(const Cache& cache, Index sequence) {
  std::vector<Index> all;
  for (Index row = 0; row < cache.length(sequence); ++row) all.push_back(cache.position(sequence, row));
  return all;
}
using Positions = std::vector<Index>;

TEST(KvPositions, ContinueAfterTheLastRow) {
  const Rope rope({.head_dim = 8});
  auto cache = cache_with(rope, 2);
  append(cache, 0, drawn(2, 1));
  append(cache, 0, drawn(3, 2), {.positions = {7, 7, -3}});
  append(cache, 0, drawn(2, 3));
  EXPECT_EQ(positions_of(cache, 0), (Positions{0, 1, 7, 7, -3, -2, -1}));
  EXPECT_EQ(cache.position(0, 7), 0);
  EXPECT_EQ(cache.position(0, 9), 2);
  EXPECT_EQ(positions_of(cache, 1), Positions());
  EXPECT_EQ(cache.position(1, 0), 0);
  cache.reorder({1, 0});
  EXPECT_EQ(positions_of(cache, 1), (Positions{0, 1, 7, 7, -3, -2, -1}));
  EXPECT_EQ(cache.position(0, 5), 5);
  auto copy = cache;
  cache.truncate(1, 4);
  EXPECT_EQ(cache.position(1, 4), 8);
  cache.truncate(1, 2);
  append(cache, 1, drawn(2, 4));
  EXPECT_EQ(positions_of(cache, 1), (Positions{0, 1, 2, 3}));
  EXPECT_EQ(copy.position(1, 3), 7);
  copy.clear();
  append(copy, 1, drawn(1, 5));
  EXPECT_EQ(positions_of(copy, 1), Positions{0});

  auto pages = pages_with(rope);
  const Index a = pages.add();
  append(pages, a, drawn(6, 6), {.positions = {4, 5, 6, 6, 8, 9}});
  const Index b = pages.fork(a, 3);
  append(pages, b, drawn(2, 7));
  EXPECT_EQ(positions_of(pages, a), (Positions{4, 5, 6, 6, 8, 9}));
  EXPECT_EQ(positions_of(pages, b), (Positions{4, 5, 6, 7, 8}));
  pages.truncate(b, 0);
  EXPECT_EQ(pages.position(b, 0), 0);
}

// For several sequences: the positions of all, packed or not, or those of one for each.
TEST(KvPositions, OfSeveralSequences) {
  const Rope rope({.head_dim = 8});
  auto cache = cache_with(rope, 2);
  Drawn same({drawn(2, 1), drawn(2, 2)}), packed(drawn(3, 3));
  cache.append(same.k(), same.v(), {.positions = {3, 5}});
  cache.append(same.k(), same.v(), {.positions = {7, 8, 10, 11}});
  cache.append(packed.k(), packed.v(), {1, 2}, {.positions = {20, 30, 31}});
  EXPECT_EQ(positions_of(cache, 0), (Positions{3, 5, 7, 8, 20}));
  EXPECT_EQ(positions_of(cache, 1), (Positions{3, 5, 10, 11, 30, 31}));

  auto pages = pages_with(rope);
  const Index a = pages.add(), b = pages.add();
  auto both = pages.select({b, a});
  both.append(same.k(), same.v(), {.positions = {7, 8, 10, 11}});
  both.append(packed.k(), packed.v(), {1, 2}, {.positions = {20, 30, 31}});
  EXPECT_EQ(positions_of(pages, b), (Positions{7, 8, 20}));
  EXPECT_EQ(positions_of(pages, a), (Positions{10, 11, 30, 31}));
}

TEST(KvPositions, ThatDoNotFitAreRefused) {
  const Rope rope({.head_dim = 8});
  auto cache = cache_with(rope, 2), plain = cache_with({}, 2);
  Drawn same({drawn(3, 1), drawn(3, 2)}), packed(drawn(3, 3));
  const auto refused = [&](const char* what, const Said& said, const auto& call) {
    expect_refused(what, said, call);
    EXPECT_EQ(cache.length(0) + cache.length(1) + plain.length(0), 0);
  };
  refused("no rope", {"3 positions", "without a rope"}, [&] {
    plain.append(same.k(), same.v(), {.positions = {1, 2, 3}});
  });
  refused("of one and a half", {"4 positions", "2 sequences of 3 tokens"}, [&] {
    cache.append(same.k(), same.v(), {.positions = {1, 2, 3, 4}});
  });
  refused("packed", {"2 positions", "3 tokens"}, [&] {
    cache.append(packed.k(), packed.v(), {1, 2}, {.positions = {1, 2}});
  });
  refused("one", {"4 positions", "3 tokens"}, [&] {
    cache.append(0, packed.k(), packed.v(), {.positions = {1, 2, 3, 4}});
  });
  refused("far", {"positions[1]", std::to_string(detail::kLargestIndex + 1)}, [&] {
    cache.append(0, packed.k(), packed.v(), {.positions = {1, detail::kLargestIndex + 1, 3}});
  });
  auto pages = pages_with({});
  const Index a = pages.add();
  refused("no rope", {"3 positions", "without a rope"}, [&] {
    append(pages, a, drawn(3, 1), {.positions = {1, 2, 3}});
  });
}

/// The heads of `q` for one query.
Tensor<float, 4> queries(Index count, std::uint64_t seed) {
  Random random(seed);
  Tensor<float, 4> q({1, 4, count, 8});
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<float>(random.uniform(-1, 1));
  return q;
}
void expect_near(const TensorView<const float, 4>& a, const TensorView<const float, 4>& b, float error = 3e-6f) {
  ASSERT_EQ(a.shape(), b.shape());
  for (Index h = 0; h < a.dim(1); ++h)
    for (Index i = 0; i < a.dim(2); ++i)
      for (Index d = 0; d < a.dim(3); ++d)
        ASSERT_NEAR(a(0, h, i, d), b(0, h, i, d), error) << h << " " << i << " " << d;
}

const std::vector<Index> kParents{-1, 0, 0, 1, 2, 2, -1}, kDepths{0, 1, 1, 2, 2, 2, 0};

std::vector<Index> path_to(Index node) {
  std::vector<Index> path;
  for (; node >= 0; node = kParents[static_cast<std::size_t>(node)]) path.insert(path.begin(), node);
  return path;
}

// Each node gets the result that decoding its path token by token gives.
template <class Cache>
void expect_tree(Cache cache, Index sequence, const std::function<KvView<float>(const Cache&)>& view) {
  const Tokens text = drawn(9, 1), drafts = drawn(7, 2);
  append(cache, sequence, text);
  const auto positions = tree_positions(kParents, 9);
  for (std::size_t i = 0; i < positions.size(); ++i) ASSERT_EQ(positions[i], 9 + kDepths[i]);
  append(cache, sequence, drafts, {.positions = positions});
  const auto q = queries(7, 3);
  const auto of_tree = attention(q, view(cache), tree(kParents)).out;
  for (Index node = 0; node < 7; ++node) {
    const std::vector<Index> path = path_to(node);
    auto plain = cache_with(cache.config().rope);
    append(plain, 0, text);
    for (const Index step : path) append(plain, 0, drafts.part(step, step + 1));
    expect_near(of_tree.slice(2, node, node + 1), attention(q.slice(2, node, node + 1), plain, causal()).out);
  }
}
TEST(KvTree, EqualsItsPaths) {
  for (const Rope& rope : ropes()) {
    expect_tree<KvCache<float>>(cache_with(rope), 0, [](const auto& c) { return c.view(); });
    auto pages = pages_with(rope);
    const Index a = pages.add();
    expect_tree<PagedKvCache<float>>(std::move(pages), a, [a](const auto& c) { return c.view({a}); });
  }
}

}  // namespace
}  // namespace attn::test
