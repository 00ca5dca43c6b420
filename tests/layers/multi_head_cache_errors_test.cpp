// Calls of MultiHeadAttention over a cache that are refused or throw halfway leave the cache unchanged.
#include "support/multi_head_model.h"
#include "support/refused.h"
#include "support/tokens.h"

namespace attn::test {
namespace {

using Layer = MultiHeadAttention<float>;

const Rope kRope({.head_dim = 4});

Tensor<float, 3> drawn(Index batch, Index len, Index features, std::uint64_t seed) {
  return tensor<float>(Random(seed).values(batch * len * features), batch, len, features);
}

bool same(const Tensor<float, 3>& a, const Tensor<float, 3>& b) {
  return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.size(), b.data());
}

/// An error thrown after the tokens are appended.
struct ModError : std::runtime_error {
  using std::runtime_error::runtime_error;
};
auto failing() {
  return score_mod([](auto x, auto) -> decltype(x) { throw ModError("while attending"); });
}

TEST(MultiHeadCacheErrors, LeaveContiguousCachesUnchanged) {
  const Layer mha({.embed_dim = 8, .heads = 2, .rope = kRope});
  auto cache = mha.make_cache({.batch = 2, .capacity = 4}), untroubled = cache;
  const auto prompt = drawn(2, 3, 8, 1), next = drawn(2, 5, 8, 2);
  mha(prompt, cache, causal());
  mha(prompt, untroubled, causal());
  const std::vector<Tokens> before{tokens_of(cache, 0), tokens_of(cache, 1)};
  EXPECT_THROW(mha(next, cache, failing(), Options{.executor = serial()}), ModError);
  EXPECT_TRUE(holds(cache, before));
  expect_refused("lengths of three", {"key_lengths", "3", "2"}, [&] { mha(next, cache, key_lengths({1, 2, 3})); });
  EXPECT_THROW(mha(ragged(next, {1, 1}), cache, causal()), std::invalid_argument);
  EXPECT_TRUE(holds(cache, before));
  EXPECT_TRUE(same(mha(next, cache, causal()), mha(next, untroubled, causal())));
  EXPECT_EQ(cache.length(0), 8);

  auto small = mha.make_cache({.capacity = 4, .max_capacity = 4});
  EXPECT_THROW(mha(drawn(1, 5, 8, 3), small, causal()), std::length_error);
  EXPECT_EQ(small.length(0), 0);
}

/// A page is shared by sequences of which one ends earlier in it than the other.
TEST(MultiHeadCacheErrors, LeaveForksOfOtherLengthsUnchanged) {
  const Layer mha({.embed_dim = 8, .heads = 2, .rope = kRope});
  auto pages = mha.make_paged_cache({.pages = 4, .page_size = 4});
  const Index a = pages.add();
  mha(drawn(1, 7, 8, 1), pages.select({a}), causal());
  const Index b = pages.fork(a, 5);
  const Tokens before = tokens_of(pages, a), before_b = tokens_of(pages, b);
  for (const std::vector<Index>& both : {std::vector{a, b}, {b, a}}) {
    EXPECT_THROW(mha(drawn(2, 1, 8, 2), pages.select(both), failing(), Options{.executor = serial()}), ModError);
    EXPECT_TRUE(holds(pages, a, before));
    EXPECT_TRUE(holds(pages, b, before_b));
  }
}

TEST(MultiHeadCacheErrors, LeavePagedCachesUnchanged) {
  const Layer mha({.embed_dim = 8, .heads = 2, .rope = kRope});
  auto pages = mha.make_paged_cache({.pages = 7, .page_size = 4});
  const Index a = pages.add();
  mha(drawn(1, 6, 8, 1), pages.select({a}), causal());
  const Index b = pages.fork(a), c = pages.fork(a), empty = pages.add();
  const std::vector<Index> all{a, b, c, empty};

  struct State {
    Index free;
    std::vector<std::vector<Index>> tables;
    std::vector<Tokens> tokens;
  };
  const auto state = [&] {
    State s{pages.free_pages(), {}, {}};
    for (const Index i : all) {
      s.tables.emplace_back(pages.table(i).begin(), pages.table(i).end());
      s.tokens.push_back(tokens_of(pages, i));
    }
    return s;
  };
  const State before = state();
  const auto expect_untouched = [&](const char* what) {
    const State now = state();
    EXPECT_EQ(now.free, before.free) << what;
    EXPECT_EQ(now.tables, before.tables) << what;
    for (std::size_t i = 0; i < all.size(); ++i)
      EXPECT_TRUE(holds(pages, all[i], before.tokens[i])) << what << ", sequence " << i;
  };
  const auto next = drawn(1, 7, 8, 2);
  EXPECT_THROW(mha(ragged(next, {1, 2, 3, 1}), pages.select(all), failing(), Options{.executor = serial()}), ModError);
  expect_untouched("a mod that throws");
  EXPECT_THROW(mha(ragged(next, {4, 3}), pages.select({b, a}), failing(), Options{.executor = serial()}), ModError);
  expect_untouched("two of three that share a page");
  EXPECT_THROW(mha(drawn(4, 9, 8, 3), pages.select(all), causal()), OutOfPages);
  expect_untouched("no pages left");
  expect_refused("a sequence twice", {"appears twice"}, [&] { mha(ragged(next, {4, 3}), pages.select({b, b})); });
  expect_untouched("a sequence twice");

  // Later calls give the same results as without the failed ones.
  auto untroubled = mha.make_paged_cache({.pages = 7, .page_size = 4});
  const Index first = untroubled.add();
  mha(drawn(1, 6, 8, 1), untroubled.select({first}), causal());
  const std::vector<Index> others{first, untroubled.fork(first), untroubled.fork(first), untroubled.add()};
  EXPECT_TRUE(same(mha(ragged(next, {1, 2, 3, 1}), pages.select(all), causal()),
                   mha(ragged(next, {1, 2, 3, 1}), untroubled.select(others), causal())));
}

TEST(MultiHeadCacheErrors, LayerAndCacheMustHaveTheSameRope) {
  const auto x = drawn(1, 2, 8, 1);
  const Layer with_rope({.embed_dim = 8, .heads = 2, .rope = kRope}), plain({.embed_dim = 8, .heads = 2});
  KvCache<float> with({.kv_heads = 2, .head_dim = 4, .rope = Rope({.head_dim = 4})}),
      without({.kv_heads = 2, .head_dim = 4}),
      other({.kv_heads = 2, .head_dim = 4, .rope = Rope({.head_dim = 4, .base = 500})});
  EXPECT_NO_THROW(with_rope(x, with));
  EXPECT_NO_THROW(plain(x, without));
  expect_refused("none in the cache", {"the layer has a rope, but the cache has none"}, [&] { with_rope(x, without); });
  expect_refused("none in the layer", {"the cache has a rope, but the layer has none"}, [&] { plain.attend(x, with); });
  expect_refused("another", {"differ", "base 10000 and 500"}, [&] { with_rope.append(x, other); });
  EXPECT_EQ(without.length(0), 2);
  EXPECT_EQ(other.length(0), 0);
  for (const RopeConfig& c :
       {RopeConfig{.head_dim = 4, .pairs = RopePairs::interleaved}, RopeConfig{.head_dim = 4, .rotary_dim = 2},
        RopeConfig{.head_dim = 4, .scaling = RopeScaling::linear, .factor = 2}, RopeConfig{.head_dim = 2}})
    EXPECT_FALSE(Rope(c) == kRope);
  EXPECT_TRUE(Rope({.head_dim = 4, .rotary_dim = 4}) == kRope);
  EXPECT_FALSE(Rope({.head_dim = 4}, std::vector<double>{1, 2}) == kRope);
}

// A call that appends to a cache rotates the nodes of a tree by their positions. Other calls rotate each token by its
// row.
TEST(MultiHeadCacheErrors, LayersWithARopeRefuseSiblings) {
  const Layer mha({.embed_dim = 8, .heads = 2, .rope = kRope}), plain({.embed_dim = 8, .heads = 2});
  const auto prompt = drawn(1, 3, 8, 1), drafts = drawn(1, 4, 8, 2);
  const auto nodes = tree({-1, 0, 0, 1});
  const Said said{"node 2 has depth 1", "tree_positions(parents, "};
  auto cache = mha.make_cache();
  mha(prompt, cache, causal());
  EXPECT_NO_THROW(mha(drafts, cache, nodes));
  expect_refused("inside another mask", said, [&] { mha(drafts, cache, not_(nodes)); });
  expect_refused("of another length", {"4 nodes for 3 queries"}, [&] { mha(prompt, cache, nodes); });
  EXPECT_EQ(cache.length(0), 7);
  EXPECT_EQ(cache.position(0, 7), 6);
  mha.append(drafts, cache);
  expect_refused("appended before", said, [&] { mha.attend(drafts, cache, nodes); });
  expect_refused("without a cache", said, [&] { mha(drafts, drafts, drafts, nodes); });
  expect_refused("by definition", said, [&] { mha(drafts, drafts, drafts, nodes, {.path = Path::naive}); });
  auto without = plain.make_cache();
  EXPECT_NO_THROW(plain(drafts, without, nodes));
  EXPECT_NO_THROW(plain(drafts, drafts, drafts, nodes));
  EXPECT_NO_THROW(mha(drafts, drafts, drafts, tree({-1, 0, 1, 2})));
}

TEST(MultiHeadCacheErrors, MessagesContainTheValues) {
  const Layer mha({.embed_dim = 8, .heads = 2}), cross({.embed_dim = 8, .heads = 2, .key_dim = 5, .value_dim = 6});
  const auto x = drawn(1, 2, 8, 1);
  KvCache<float> cache = mha.make_cache(), heads({.kv_heads = 1, .head_dim = 4}),
                 wide({.kv_heads = 2, .head_dim = 4, .v_dim = 6});
  expect_refused("features", {"7", "embed_dim has 8"}, [&] { mha(drawn(1, 2, 7, 1), cache); });
  expect_refused("features", {"7", "embed_dim has 8"}, [&] { mha.attend(drawn(1, 2, 7, 1), cache); });
  expect_refused("batch", {"3", "1 sequences"}, [&] { mha(drawn(3, 2, 8, 1), cache); });
  expect_refused("lengths", {"2 lengths for 1 sequences"}, [&] { mha(ragged(x, {1, 1}), cache); });
  expect_refused("heads", {"kv_heads 1", "kv_heads 2"}, [&] { mha(x, heads); });
  expect_refused("v_dim", {"v_dim 6", "head_dim 4"}, [&] { mha.attend(x, wide); });
  expect_refused("another key", {"key_dim has 5"}, [&] { cross(x, cache); });
  expect_refused("another value", {"value has 5", "value_dim has 6"}, [&] { cross.append(drawn(1, 2, 5, 1), cache); });
  expect_refused("naive", {"for_each_weight_tile"}, [&] { mha(x, cache, {}, {.path = Path::naive}); });
  expect_refused("weights", {"for_each_weight_tile"}, [&] { mha(x, cache, {}, {.weights = true}); });
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(heads.length(0) + wide.length(0), 0);
}

TEST(MultiHeadCacheErrors, MakeCacheSetsShapeAndRope) {
  const Layer mha({.embed_dim = 24, .heads = 6, .kv_heads = 3, .rope = kRope});
  const auto cache = mha.make_cache<std::int8_t>({.batch = 5, .kv_heads = 7, .capacity = 11, .v_dim = 9});
  EXPECT_EQ(cache.config().batch, 5);
  EXPECT_EQ(cache.capacity(), 11);
  EXPECT_EQ(cache.config().kv_heads, 3);
  EXPECT_EQ(cache.config().head_dim, 4);
  EXPECT_EQ(cache.config().v_dim, 4);
  EXPECT_TRUE(cache.config().rope == std::optional(kRope));
  const auto pages = mha.make_paged_cache({.pages = 3, .page_size = 8});
  EXPECT_EQ(pages.pages(), 3);
  EXPECT_EQ(pages.config().page_size, 8);
  EXPECT_EQ(pages.config().kv_heads, 3);
  EXPECT_TRUE(pages.config().rope == std::optional(kRope));
}

}  // namespace
}  // namespace attn::test
