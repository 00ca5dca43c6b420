// Positions given to append(), trees of drafts, and removal of rows: small cases and refusals.
#include <numeric>

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
std::vector<Index> counted(Index first, Index end) {
  std::vector<Index> all(static_cast<std::size_t>(end - first));
  std::iota(all.begin(), all.end(), first);
  return all;
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

// Positions for several sequences: of all tokens, packed or not, or one list that applies to each sequence.
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
  constexpr Index kLargest = Index(1) << (sizeof(Index) > 4 ? 60 : 28);
  refused("far", {"positions[1]", std::to_string(kLargest + 1)}, [&] {
    cache.append(0, packed.k(), packed.v(), {.positions = {1, kLargest + 1, 3}});
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

// Each node gets the result that decoding its path token by token gives, and after accept() the cache is that of the
// path, bit for bit.
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

    Cache accepted = cache;
    accepted.accept(sequence, path);
    EXPECT_EQ(positions_of(accepted, sequence), counted(0, 9 + static_cast<Index>(path.size())));
    EXPECT_TRUE(holds(plain, {tokens_of(accepted, sequence)}));
  }
  Cache none = cache;
  none.accept(sequence, std::vector<Index>());
  EXPECT_EQ(none.length(sequence), 9);
}
TEST(KvTree, EqualsItsPaths) {
  for (const Rope& rope : ropes()) {
    expect_tree<KvCache<float>>(cache_with(rope), 0, [](const auto& c) { return c.view(); });
    auto pages = pages_with(rope);
    const Index a = pages.add();
    expect_tree<PagedKvCache<float>>(std::move(pages), a, [a](const auto& c) { return c.view({a}); });
  }
}

// After a drop that kept positions, the positions of drafts continue from that of the last row.
TEST(KvTree, FollowsTheLastPosition) {
  const Rope rope({.head_dim = 8});
  auto cache = cache_with(rope);
  append(cache, 0, drawn(20, 1));
  cache.drop(0, 2, 10, {.keep_positions = true});
  const Index context = cache.length(0), first = cache.position(0, context);
  EXPECT_EQ(first, 20);
  append(cache, 0, drawn(7, 2), {.positions = tree_positions(kParents, first)});
  EXPECT_NO_THROW(attention(queries(7, 3), cache, tree(kParents)));
  const Said said{"node 0 has depth 0", "position 20", "query by position 19"};
  expect_refused("earlier queries", said, [&] { attention(queries(7, 3), cache, tree(kParents), {.q_offset = 11}); });
  cache.accept(0, {0, 2, 5});
  EXPECT_EQ(cache.position(0, context + 2), 22);
}

TEST(KvTree, AcceptRefusesNodesThatAreNoPath) {
  const Rope rope({.head_dim = 8});
  auto cache = cache_with(rope);
  append(cache, 0, drawn(9, 1));
  append(cache, 0, drawn(7, 2), {.positions = tree_positions(kParents, 9)});
  const auto refused = [&](const char* what, const Said& said, const std::vector<Index>& path) {
    expect_refused(what, said, [&] { cache.accept(0, path); });
    EXPECT_EQ(cache.length(0), 16);
  };
  refused("no such node", {"path[1] is node 7", "7 nodes"}, {0, 7});
  refused("a negative node", {"path[0] is node -1", "7 nodes"}, {-1});
  refused("not increasing", {"path[2] is 1 after 1"}, {0, 1, 1});
  refused("siblings", {"path[2], node 2", "is at position 10", "must be at position 11"}, {0, 1, 2});
  refused("without its root", {"path[0], node 1", "is at position 10", "must be at position 9"}, {1});
  expect_refused("no sequence", {"1"}, [&] { cache.accept(1, {0}); });
  cache.truncate(0, 11);
  expect_refused("a node that was truncated", {"path[1] is node 2", "2 nodes"}, [&] { cache.accept(0, {0, 2}); });
  cache.accept(0, {0});
  EXPECT_EQ(cache.length(0), 10);
  expect_refused("accepted already", {"0 nodes"}, [&] { cache.accept(0, {0}); });
}

// After appends to other sequences and after failed calls, accept() still knows which rows are the drafts.
TEST(KvTree, AcceptKnowsTheLastAppendToItsSequence) {
  const Rope rope({.head_dim = 8});
  const auto check = [](auto& cache, Index a, Index b, const auto& both) {
    append(cache, a, drawn(9, 1));
    append(cache, b, drawn(4, 1));
    append(cache, a, drawn(7, 2), {.positions = tree_positions(kParents, 9)});
    append(cache, b, drawn(3, 3));
    both(drawn(1, 4));
    cache.accept(a, {0, 2, 5});
    EXPECT_EQ(cache.length(a), 12);
  };
  auto cache = cache_with(rope, 2);
  check(cache, 0, 1, [&](const Tokens& t) {
    Drawn given(t);
    cache.append(given.k(), given.v(), {0, 1});
  });
  auto pages = pages_with(rope);
  const Index a = pages.add(), b = pages.add();
  check(pages, a, b, [&](const Tokens& t) {
    Drawn given(t);
    pages.append({a, b}, given.k(), given.v(), {0, 1});
  });

  MultiHeadAttention<float> mha({.embed_dim = 8, .heads = 1});
  const Tensor<float, 3> x({1, 3, 8});
  const auto throws = score_mod([](auto s, const Position&) {
    if constexpr (std::is_arithmetic_v<decltype(s)>) throw std::runtime_error("no");
    return s;
  });
  const auto fails_after_a_tree = [&](auto&& drafts) {
    mha(x, drafts, tree({-1, 0, 0}));
    EXPECT_THROW(mha(x, drafts, throws), std::runtime_error);
  };
  auto drafts = mha.make_cache();
  fails_after_a_tree(drafts);
  drafts.accept(0, {0, 2});
  EXPECT_EQ(drafts.length(0), 2);
  PagedKvCache<float> paged_drafts({.pages = 4, .page_size = 4, .kv_heads = 1, .head_dim = 8});
  const Index c = paged_drafts.add();
  fails_after_a_tree(paged_drafts.select({c}));
  paged_drafts.accept(c, {0, 2});
  EXPECT_EQ(paged_drafts.length(c), 2);
}

TEST(KvDrop, RefusesWrongRows) {
  auto cache = cache_with(Rope({.head_dim = 8}));
  append(cache, 0, drawn(9, 1));
  const auto refused = [&](const char* what, const Said& said, const auto& call) {
    expect_refused(what, said, call);
    EXPECT_EQ(cache.length(0), 9);
  };
  refused("end", {"0..9", "2 and 10"}, [&] { cache.drop(0, 2, 10); });
  refused("begin", {"-1 and 3"}, [&] { cache.drop(0, -1, 3); });
  refused("order", {"4 and 3"}, [&] { cache.drop(0, 4, 3); });
  refused("no such row", {"rows[1] is 9", "has 9 rows"}, [&] { cache.retain(0, {2, 9}); });
  refused("not increasing", {"rows[2] is 4 after 4"}, [&] { cache.retain(0, {2, 4, 4}); });
  refused("no sequence", {"2"}, [&] { cache.drop(2, 0, 1); });
  auto pages = pages_with({});
  expect_refused("no sequence", {"5"}, [&] { pages.retain(5, {0}); });
}

/// Expects that a cache holds the keys and values of `tokens`, rotated by `positions`, except for rounding.
template <class Cache>
void expect_holds(const Cache& cache, Index sequence, const Tokens& tokens, const Positions& positions, float error) {
  auto fresh = cache_with(cache.config().rope);
  append(fresh, 0, tokens, {.positions = positions});
  const Tokens got = tokens_of(cache, sequence), wanted = tokens_of(fresh, 0);
  ASSERT_EQ(got.size(), wanted.size());
  EXPECT_EQ(got.values(), wanted.values());
  const std::vector<double> a = got.keys(), b = wanted.keys();
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], static_cast<double>(error)) << i;
}
Tokens without(const Tokens& tokens, Index begin, Index end) {
  Tokens left = tokens.part(0, begin);
  left.add(tokens.part(end, tokens.size()));
  return left;
}

// A context shift: the first tokens stay as sinks, and those after them are dropped. The result is that of a sequence
// that never had the dropped tokens, also with YaRN, whose factor is applied once.
TEST(KvDrop, EqualsTheSequenceWithoutTheTokens) {
  for (const Rope& rope : ropes()) {
    const Tokens text = drawn(30, 1);
    auto cache = cache_with(rope);
    append(cache, 0, text);
    cache.drop(0, 4, 15);
    EXPECT_EQ(positions_of(cache, 0), counted(0, 19));
    expect_holds(cache, 0, without(text, 4, 15), counted(0, 19), 2e-6f);
    auto pages = pages_with(rope);
    const Index a = pages.add();
    append(pages, a, text);
    for (const bool keeps : {false, true}) {
      const Index b = pages.fork(a);
      pages.drop(b, 4, 15, {.keep_positions = keeps});
      Positions positions = counted(0, 4);
      for (Index p : counted(keeps ? 15 : 4, keeps ? 30 : 19)) positions.push_back(p);
      EXPECT_EQ(positions_of(pages, b), positions);
      expect_holds(pages, b, without(text, 4, 15), positions, keeps ? 0 : 2e-6f);
      EXPECT_TRUE(holds(pages, a, tokens_of(pages, a)));
      expect_holds(pages, a, text, counted(0, 30), 0);
    }
  }
}

// Each rotation rounds a key once more, and multiplies it by a rounded cosine and sine, here with an error of 0.3 eps.
// The angle is the same each time, so errors add up.
TEST(KvDrop, RoundsOnceEachTime) {
  for (const Rope& rope : ropes()) {
    const Tokens text = drawn(400, 1);
    auto cache = cache_with(rope);
    append(cache, 0, text);
    for (int i = 0; i < 100; ++i) cache.drop(0, 1, 4);
    const float largest = 2.0f * static_cast<float>(rope.attention_factor());
    expect_holds(cache, 0, without(text, 1, 301), counted(0, 100), 50 * static_cast<float>(epsilon<float>()) * largest);
  }
}

TEST(KvDrop, OfWholePagesMovesNothing) {
  const Rope rope({.head_dim = 8});
  for (const bool with_rope : {false, true}) {
    auto pages = with_rope ? pages_with(rope) : pages_with({});
    const Index a = pages.add();
    append(pages, a, drawn(18, 1));
    const std::vector<Index> table(pages.table(a).begin(), pages.table(a).end());
    const Index free = pages.free_pages();
    pages.drop(a, 4, 12);
    const std::vector<Index> left(pages.table(a).begin(), pages.table(a).end());
    EXPECT_EQ(left, (std::vector<Index>{table[0], table[3], table[4]}));
    EXPECT_EQ(pages.free_pages(), free + 2);
  }
}

// A fork keeps its tokens; pages that do not change remain shared, and a drop that needs more copies than there are
// free pages changes nothing.
TEST(KvDrop, CopiesSharedPages) {
  const Rope rope({.head_dim = 8});
  const Tokens text = drawn(19, 1);
  auto pages = pages_with(rope, 7);
  const Index a = pages.add();
  append(pages, a, text);
  const Index b = pages.fork(a);
  const auto table = [&](Index s) { return std::vector<Index>(pages.table(s).begin(), pages.table(s).end()); };
  const std::vector<Index> before = table(a);
#ifndef ATTN_NO_EXCEPTIONS
  try {
    pages.drop(b, 0, 2);
    ADD_FAILURE() << "five pages were copied to two";
  } catch (const OutOfPages& e) {
    EXPECT_EQ(e.needed(), 5);
    EXPECT_EQ(e.free(), 2);
  }
#endif
  EXPECT_EQ(table(b), before);
  expect_holds(pages, b, text, counted(0, 19), 0);
  pages.drop(b, 13, 15);  // the last two pages change
  EXPECT_EQ(table(a), before);
  EXPECT_EQ(table(b)[2], before[2]);
  EXPECT_NE(table(b)[3], before[3]);
  EXPECT_NE(table(b)[4], before[4]);
  EXPECT_EQ(pages.free_pages(), 0);
  expect_holds(pages, a, text, counted(0, 19), 0);
  expect_holds(pages, b, without(text, 13, 15), counted(0, 17), 2e-6f);
  pages.retain(b, counted(0, 16));  // removes the end of a sequence, as truncate() does
  EXPECT_EQ(pages.free_pages(), 1);
  pages.retain(b, std::vector<Index>());
  EXPECT_EQ(pages.length(b), 0);
  EXPECT_EQ(pages.free_pages(), 2);
  pages.release(a);
  EXPECT_EQ(pages.free_pages(), 7);
}

// Eviction as in H2O and SnapKV: the keys with the most weight stay, with their positions. Attention is then that over
// all keys with a mask.
TEST(KvRetain, KeepsTheKeysWithTheMostWeight) {
  const Rope rope({.head_dim = 8});
  auto cache = cache_with(rope);
  append(cache, 0, drawn(40, 1));
  auto q = queries(40, 2);
  const auto r = attention(q, cache, causal());
  rope.rotate(q);
  const Tensor<float, 3> mass = attention_mass(q, cache.keys(0), r.lse, causal());
  std::vector<float> weight(40);
  for (Index h = 0; h < 4; ++h)
    for (Index j = 0; j < 40; ++j) weight[static_cast<std::size_t>(j)] += mass(0, h, j);
  std::vector<Index> rows = counted(0, 40);
  std::partial_sort(rows.begin(), rows.begin() + 12, rows.end(), [&](Index i, Index j) {
    return weight[static_cast<std::size_t>(i)] > weight[static_cast<std::size_t>(j)];
  });
  rows.resize(12);
  std::sort(rows.begin(), rows.end());

  const auto next = queries(1, 3);
  const auto kept = mask_mod([&](const Position& p) { return std::binary_search(rows.begin(), rows.end(), p.kv); });
  const auto wanted = attention(next, cache, kept, {.q_offset = 40}).out;
  cache.retain(0, rows, {.keep_positions = true});
  EXPECT_EQ(positions_of(cache, 0), rows);
  const Index after = 12 + 39 - rows.back();  // the row of position 40
  EXPECT_EQ(cache.position(0, after), 40);
  expect_near(attention(next, cache, full(), {.q_offset = after}).out, wanted);
}

// All layers of KvCaches hold what one PagedKvCache per layer holds, even if the layers' ropes differ.
TEST(KvCachesPositions, MatchACachePerLayer) {
  const std::vector<std::optional<Rope>> ropes{Rope({.head_dim = 8}), std::nullopt, Rope({.head_dim = 8, .base = 50})};
  KvCaches<float> all(
      {.layers = 3, .kv_heads = 2, .head_dim = 8, .v_dim = 5, .pages = 40, .page_size = 4, .ropes = ropes});
  std::vector<PagedKvCache<float>> each;
  for (const std::optional<Rope>& rope : ropes) each.push_back(pages_with(rope));
  std::vector<Index> ids;
  const auto on_all = [&](const auto& change) {
    change(all);
    for (auto& cache : each) change(cache);
    for (Index id : ids) {
      ASSERT_EQ(all.length(id), each[0].length(id));
      ASSERT_EQ(std::vector<Index>(all.table(id).begin(), all.table(id).end()),
                std::vector<Index>(each[0].table(id).begin(), each[0].table(id).end()));
      for (Index row = 0; row < all.length(id) + 2; ++row) ASSERT_EQ(all.position(id, row), each[0].position(id, row));
      const auto q = queries(3, 9);
      for (Index l = 0; l < 3; ++l) {
        const auto a = attention(q, all.view(l, {id}), causal()).out,
                   b = attention(q, each[static_cast<std::size_t>(l)].view({id}), causal()).out;
        ASSERT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data())) << "layer " << l;
      }
    }
  };
  const auto feed = [&](Index id, Index count, const std::vector<Index>& positions = {}) {
    auto step = all.step({id}, count, {.positions = positions});
    for (Index l = 0; l < 3; ++l) {
      Drawn given(drawn(count, static_cast<std::uint64_t>(7 * l + count)));
      step.layer(l).append(given.k(), given.v());
      AppendOptions options;
      if (ropes[static_cast<std::size_t>(l)]) options.positions = positions;
      each[static_cast<std::size_t>(l)].append(id, given.k(), given.v(), options);
    }
    step.commit();
  };
  on_all([&](auto& cache) { ids = {cache.add()}; });
  const Index a = ids[0];
  feed(a, 22);
  on_all([&](auto& cache) { ids = {a, cache.fork(a)}; });
  on_all([&](auto& cache) { cache.drop(a, 3, 9); });
  feed(a, 7, tree_positions(kParents, 16));
  {  // a step that is not committed changes no positions
    const auto step = all.step({a}, 2, {.positions = {100, 101}});
  }
  on_all([&](auto& cache) { cache.accept(a, {0, 2, 5}); });
  on_all([&](auto& cache) { cache.retain(a, {0, 1, 5, 9, 10, 14, 18}, {.keep_positions = true}); });
  feed(a, 2);
  on_all([&](auto& cache) { cache.drop(ids[1], 8, 12); });
  EXPECT_EQ(all.position(a, 8), 20);

  const auto step = all.step({a}, 1);
  expect_refused("an open step", {"drop: a step of 1 sequences is open"}, [&] { all.drop(a, 0, 1); });
}

}  // namespace
}  // namespace attn::test
