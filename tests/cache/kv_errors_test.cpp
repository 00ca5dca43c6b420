// Errors of KvCache, KvView and attention over them: the values in the messages, and that nothing changes.
#include "support/ragged_call.h"
#include "support/refused.h"

namespace attn::test {
namespace {

// Sizes that occur nowhere else, so that a number in a message identifies its size.
constexpr TokenSizes kRightSizes{3, 13, 19};

class KvErrors : public ::testing::Test {
 protected:
  KvErrors() {
    Appended<float> given(concatenated(model_));
    cache_.append(given.k(), given.v(), {5, 7});
  }
  /// Expects an error that leaves the cache unchanged.
  template <class Call>
  void refused(const char* what, const Said& said, const Call& call) {
    expect_refused(what, said, call);
    EXPECT_TRUE(holds(cache_, model_)) << what;
    EXPECT_EQ(cache_.capacity(), 8) << what;
  }
  Appended<float> given(const TokenSizes& sizes, Index count) {
    return Appended<float>(std::vector(2, Tokens(sizes, count, random_)));
  }
  Appended<float> one(Index count) { return Appended<float>(Tokens(kRightSizes, count, random_)); }

  Random random_{1};
  std::vector<Tokens> model_{Tokens(kRightSizes, 5, random_), Tokens(kRightSizes, 7, random_)};
  KvCache<float> cache_{{.batch = 2, .kv_heads = 3, .capacity = 8, .head_dim = 13, .v_dim = 19, .max_capacity = 11}};
};

TEST(KvCacheConfig, RefusesInvalidValues) {
  const auto refused = [](KvCacheConfig c, const Said& said) {
    expect_refused("KvCache", said, [&] { const KvCache<float> cache(c); });
  };
  refused({}, {"head_dim 0", "head_dim has no default"});
  refused({.batch = 0, .head_dim = 4}, {"batch 0"});
  refused({.kv_heads = -2, .head_dim = 4}, {"kv_heads -2"});
  refused({.head_dim = 4, .v_dim = -3}, {"v_dim -3"});
  refused({.capacity = 7, .head_dim = 4, .max_capacity = 6}, {"capacity is 7", "max_capacity is 6"});
  refused({.capacity = -5, .head_dim = 4}, {"capacity is -5"});
  refused({.head_dim = 4, .max_capacity = 0}, {"capacity is 0"});
  refused({.head_dim = 4, .rope = Rope({.head_dim = 6})}, {"head_dim is 4", "6"});
}

/// Refused before any memory is allocated.
TEST(PagedKvCacheConfig, RefusesMorePagesThanCanBeCounted) {
  if (sizeof(Index) < 8) GTEST_SKIP() << "an Index has 32 bits";
  const auto pages = static_cast<Index>(std::int64_t(1) << 58);
  const Said said = {"288230376151711744", "too many bytes"};
  expect_refused("PagedKvCache", said, [&] { const PagedKvCache<float> c({.pages = pages, .head_dim = 64}); });
  expect_refused("KvCaches", said, [&] { const KvCaches<float> c({.layers = 2, .head_dim = 64, .pages = pages}); });
}

TEST_F(KvErrors, Appending) {
  auto two = given(kRightSizes, 2), heads = given({2, 13, 19}, 2), dims = given({3, 14, 19}, 2),
       values = given({3, 13, 20}, 2), three = given(kRightSizes, 3);
  auto single = one(2), five = one(5);
  refused("heads", {"(2, 2, 2, 13)", "(2, 3, 2, 13)"}, [&] { cache_.append(heads.k(), two.v()); });
  refused("head_dim", {"(2, 3, 2, 14)", "(2, 3, 2, 13)"}, [&] { cache_.append(dims.k(), dims.v()); });
  refused("v_dim", {"(2, 3, 2, 20)", "(2, 3, 2, 19)"}, [&] { cache_.append(two.k(), values.v()); });
  refused("tokens", {"(2, 3, 3, 19)", "(2, 3, 2, 19)"}, [&] { cache_.append(two.k(), three.v()); });
  refused("batch", {"(1, 3, 2, 13)", "(2, 3, 2, 13)", "pass their lengths after the values"},
          [&] { cache_.append(single.k(), single.v()); });
  refused("a batch of ragged tokens", {"(2, 3, 2, 13)", "(1, 3, 2, 13)"}, [&] {
    cache_.append(two.k(), two.v(), {1, 1});
  });
  refused("three lengths", {"3 lengths", "2 sequences"}, [&] { cache_.append(five.k(), five.v(), {2, 2, 1}); });
  refused("lengths too large", {"sequence 1", "is 3", "of the 5", "0..2"}, [&] {
    cache_.append(five.k(), five.v(), {3, 3});
  });
  refused("lengths too small", {"add up to 4", "5 tokens"}, [&] { cache_.append(five.k(), five.v(), {3, 1}); });
  refused("a negative length", {"sequence 0", "-1"}, [&] { cache_.append(five.k(), five.v(), {-1, 6}); });
  refused("no such sequence", {"sequence 2 is out of range", "batch is 2"},
          [&] { cache_.append(2, five.k(), five.v()); });
  refused("no such sequence", {"sequence -1 is out of range"}, [&] { cache_.append(-1, five.k(), five.v()); });
}

TEST_F(KvErrors, Capacity) {
  auto five = one(5);
  auto two = given(kRightSizes, 5);
  const auto too_long = [&](const char* what, const Said& said, const auto& call) {
    try {
      call();
      ADD_FAILURE() << what << ": nothing was thrown";
    } catch (const std::length_error& e) {
      for (const std::string& number : said)
        EXPECT_NE(std::string(e.what()).find(number), std::string::npos) << number << " in: " << e.what();
    }
    EXPECT_TRUE(holds(cache_, model_));
    EXPECT_EQ(cache_.capacity(), 8);
  };
  too_long("one sequence", {"attn: ", "sequence 1", "12 tokens", "11"}, [&] { cache_.append(1, five.k(), five.v()); });
  too_long("both", {"sequence 1", "12", "11"}, [&] { cache_.append(two.k(), two.v()); });
  too_long("reserve", {"12", "11"}, [&] { cache_.reserve(12); });
  cache_.append(0, five.k(), five.v());
  EXPECT_EQ(cache_.capacity(), 11);  // not twice 8
  EXPECT_EQ(cache_.length(0), 10);
}

TEST_F(KvErrors, OtherOperations) {
  refused("truncate to more", {"sequence 0", "0..5", "is 6"}, [&] { cache_.truncate(0, 6); });
  refused("truncate to a negative length", {"-2"}, [&] { cache_.truncate(1, -2); });
  refused("truncate another", {"sequence 5 is out of range", "2"}, [&] { cache_.truncate(5, 0); });
  refused("length of another", {"sequence 2 is out of range"}, [&] { cache_.length(2); });
  refused("keys of another", {"sequence 2 is out of range"}, [&] { cache_.keys(2); });
  refused("values of another", {"sequence -3 is out of range"}, [&] { cache_.values(-3); });
  refused("reorder by one", {"1 indices", "2 sequences"}, [&] { cache_.reorder({0}); });
  refused("reorder by another", {"from[1] = 2", "2 sequences"}, [&] { cache_.reorder({0, 2}); });
  refused("reorder by less", {"from[0] = -1"}, [&] { cache_.reorder({-1, 0}); });
}

TEST_F(KvErrors, Queries) {
  const auto call = [&](const Shape<4>& shape, const std::optional<std::vector<Index>>& lens = {},
                        const Options& options = {}) {
    const auto q = tensor(shape);
    auto out = tensor({shape[0], shape[1], shape[2], 19});
    Tensor<float, 3> lse({shape[0], shape[1], shape[2]});
    std::fill_n(out.data(), out.size(), kUntouched);
    if (lens) {
      expect_refused("explain", {}, [&] { explain(ragged(q, *lens), cache_, causal(), options); });
      expect_refused("workspace_bytes", {}, [&] { workspace_bytes(ragged(q, *lens), cache_, causal(), options); });
      expect_refused("attention", {}, [&] { attention(ragged(q, *lens), cache_, causal(), options); });
    } else {
      expect_refused("explain", {}, [&] { explain(q, cache_, causal(), options); });
    }
    try {
      if (lens)
        attention_into(out, lse, ragged(q, *lens), cache_, causal(), options);
      else
        attention_into(out, lse, q, cache_, causal(), options);
    } catch (...) {
      for (Index i = 0; i < out.size(); ++i) EXPECT_EQ(out.data()[i], kUntouched);
      throw;
    }
  };
  refused("batch", {"query has 4", "2 sequences"}, [&] { call({4, 6, 1, 13}); });
  refused("one row of queries", {"query has 1", "2 sequences", "ragged(q, "}, [&] { call({1, 6, 4, 13}); });
  refused("heads", {"(5)", "(3)"}, [&] { call({2, 5, 1, 13}); });
  refused("head_dim", {"12", "13"}, [&] { call({2, 6, 1, 12}); });
  refused("lengths of three", {"3 lengths", "2 sequences"}, [&] { call({1, 6, 4, 13}, {{1, 1, 2}}); });
  refused("a batch of ragged queries", {"(2, 6, 4, 13)", "1"}, [&] { call({2, 6, 4, 13}, {{2, 2}}); });
  refused("lengths too large", {"lens[1]", "is 3", "of 4", "0..2"}, [&] { call({1, 6, 4, 13}, {{2, 3}}); });
  refused("lengths too small", {"add up to 3", "4 queries"}, [&] { call({1, 6, 4, 13}, {{2, 1}}); });
  refused("a negative length", {"lens[0]", "is -1"}, [&] { call({1, 6, 4, 13}, {{-1, 5}}); });
  refused("q_offset", {"q_offset"}, [&] { call({2, 6, 1, 13}, {}, {.q_offset = Index(1) << 61}); });
  refused("q_offsets", {"3 q_offsets", "batch of 2"}, [&] { call({2, 6, 1, 13}, {}, {.q_offsets = {1, 2, 3}}); });
  refused("q_offsets", {"q_offsets[1]"}, [&] { call({1, 6, 4, 13}, {{1, 3}}, {.q_offsets = {1, Index(1) << 61}}); });
}

// Siblings in a tree share a position. A cache's rope rotates drafts by their rows, unless append() was told otherwise.
TEST(KvTreeErrors, CachesWithARopeRefuseOtherPositions) {
  const Rope rope({.head_dim = 4});
  Random random(5);
  const TokenSizes sizes{2, 4, 4};
  Appended<float> all(Tokens(sizes, 9, random));
  KvCache<float> with_rope({.kv_heads = 2, .head_dim = 4, .rope = rope}), plain({.kv_heads = 2, .head_dim = 4});
  with_rope.append(all.k(), all.v());
  plain.append(all.k(), all.v());
  PagedKvCache<float> pages({.pages = 4, .page_size = 4, .kv_heads = 2, .head_dim = 4, .rope = rope});
  const Index text = pages.add();
  pages.append(text, all.k(), all.v());
  const auto q = tensor({1, 4, 5, 4});
  auto out = q;
  const auto drafts = tree({-1, 0, 0, 1, 2});
  const auto refused = [](const char* what, const auto& call) {
    expect_refused(what, {"node 2 has depth 1", "at position 5", "its key by position 6", "tree_positions(parents, 4)"},
                   call);
  };
  refused("KvCache", [&] { attention(q, with_rope, drafts); });
  refused("pages", [&] { attention(q, pages.view({text}), drafts); });
  refused("ragged", [&] { attention(ragged(q, {5}), with_rope, drafts); });
  refused("with others", [&] { attention(q, with_rope, softcap(5) | drafts | causal()); });
  refused("in a mask of masks", [&] { attention(q, with_rope, any_of(not_(all_of(drafts, causal())), causal())); });
  refused("into", [&] { attention_into(out, q, with_rope, drafts); });
  refused("explain", [&] { explain(q, with_rope, drafts); });
  expect_refused("two contexts", {"node 4 has depth 0", "at position 4", "by position 8"}, [&] {
    attention(q, with_rope, tree({-1, 0, 1, 2, -1}));
  });
  EXPECT_NO_THROW(attention(q, plain, drafts));
  with_rope.truncate(0, 4);
  with_rope.append(all.k().slice(2, 4, 9), all.v().slice(2, 4, 9), {.positions = tree_positions({-1, 0, 0, 1, 2}, 3)});
  expect_refused("another context", {"node 0 has depth 0", "at position 4", "by position 3"},
                 [&] { attention(q, with_rope, drafts); });
  with_rope.clear();
  with_rope.append(all.k(), all.v());
  // In a chain, the row of a node is its position.
  const auto chain = attention(q, with_rope, tree({-1, 0, 1, 2, 3})).out,
             as_text = attention(q, with_rope, causal()).out;
  EXPECT_TRUE(std::equal(chain.data(), chain.data() + chain.size(), as_text.data()));
}

// A cache without a rope, whose keys the caller has rotated. The result for node 4 of the tree equals that for the
// last token of its path fed as a plain sequence.
TEST(KvTreeErrors, TreesOfKeysRotatedByTheCaller) {
  const Rope rope({.head_dim = 4});
  Random random(6);
  const TokenSizes sizes{2, 4, 4};
  Appended<float> context(Tokens(sizes, 6, random)), drafted(Tokens(sizes, 5, random));
  Tensor<float, 4> q({1, 2, 5, 4});
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<float>(random.uniform(-1, 1));
  const std::vector<Index> parents{-1, 0, 0, 1, 2}, positions{6, 7, 7, 8, 8}, path{0, 2, 4};

  KvCache<float> text({.kv_heads = 2, .head_dim = 4, .rope = rope});
  text.append(context.k(), context.v());
  for (const Index node : path)
    text.append(TensorView<const float, 4>(drafted.k()).slice(2, node, node + 1),
                TensorView<const float, 4>(drafted.v()).slice(2, node, node + 1));
  const auto expected = attention(q.slice(2, 4, 5), text, causal()).out;

  Tensor<float, 4> k0(context.k()), k(drafted.k()), turned_q(q);
  rope.rotate(k0, 0);
  rope.rotate(k, positions);
  rope.rotate(turned_q, positions);
  KvCache<float> cache({.kv_heads = 2, .head_dim = 4});
  cache.append(k0, context.v());
  cache.append(k, drafted.v());
  const auto got = attention(turned_q, cache, tree(parents)).out;
  for (Index h = 0; h < 2; ++h)
    for (Index d = 0; d < 4; ++d) EXPECT_NEAR(got(0, h, 4, d), expected(0, h, 0, d), 1e-6f);
}

TEST_F(KvErrors, Results) {
  const auto q = tensor({2, 6, 4, 13}), packed = tensor({1, 6, 4, 13});
  auto good = tensor({2, 6, 4, 19}), short_out = tensor({2, 6, 3, 19}), narrow = tensor({2, 6, 4, 18});
  Tensor<float, 3> lse({2, 6, 4}), short_lse({2, 6, 3});
  refused("out", {"(2, 6, 3, 19)", "(2, 6, 4, 19)"}, [&] { attention_into(short_out, q, cache_); });
  refused("v_dim", {"(2, 6, 4, 18)", "(2, 6, 4, 19)"}, [&] { attention_into(narrow, lse, q, cache_); });
  refused("lse", {"(2, 6, 3)", "(2, 6, 4)"}, [&] { attention_into(good, short_lse, q, cache_); });
  refused("out of ragged queries", {"(2, 6, 4, 19)", "(1, 6, 4, 19)"}, [&] {
    attention_into(good, ragged(packed, {3, 1}), cache_);
  });
  refused("lengths of a mod", {"key_lengths", "3", "2"}, [&] { attention(q, cache_, key_lengths({1, 2, 3})); });
  refused("a length of a mod", {"6", "0..5"}, [&] { attention(q, cache_, key_lengths({6, 2})); });
  EXPECT_NO_THROW(attention(q, cache_, key_lengths({5, 7})));  // each within its own sequence
}

TEST(KvViewErrors, PagesAndTables) {
  const auto k = tensor({9, 3, 4, 13}), v = tensor({9, 3, 4, 19});
  const auto make = [&](const std::vector<std::int32_t>& entries, const Shape<2>& shape,
                        const std::vector<Index>& lens) {
    return KvView<float>(k, v, TensorView<const std::int32_t, 2>(entries.data(), shape), lens);
  };
  EXPECT_EQ(make({3, 8, 0, -7}, {2, 2}, {8, 4}).size(), 2);  // table entries after a sequence's pages are not read
  EXPECT_EQ(make({9999, -1}, {2, 1}, {0, 0}).size(), 2);
  expect_refused("too large", {"entry 1", "sequence 1", "page 9", "are 9"}, [&] {
    make({3, 8, 0, 9}, {2, 2}, {8, 5});
  });
  expect_refused("negative", {"entry 0", "sequence 0", "page -1"}, [&] { make({-1, 2}, {1, 2}, {1}); });
  expect_refused("too short", {"sequence 1", "9 tokens", "2 pages of 4"}, [&] { make({1, 2, 3, 4}, {2, 2}, {8, 9}); });
  expect_refused("negative length", {"sequence 0", "-2"}, [&] { make({1, 2}, {1, 2}, {-2}); });
  // Views with strides of 0: the capacity of the repeated pages exceeds the range of Index.
  const float number = 1;
  const TensorView<const float, 4> page(&number, {1, 1, Index(1) << 60, 1}, {0, 0, 0, 0});
  const std::int8_t first = 0;
  const TensorView<const std::int8_t, 2> row(&first, {1, 16}, {0, 0});
  EXPECT_EQ(KvView<float>(page, page, row, {Index(1) << 61}).length(0), Index(1) << 61);
  expect_refused("lengths", {"2 tables", "1 lengths"}, [&] { make({1, 2}, {2, 1}, {1}); });
  const std::vector<std::int32_t> one{0};
  const TensorView<const std::int32_t, 2> table(one.data(), {1, 1});
  const auto refused = [&](const char* what, const Said& said, const Shape<4>& k_shape, const Shape<4>& v_shape) {
    const auto keys = tensor(k_shape), values = tensor(v_shape);
    expect_refused(what, said, [&] { KvView<float>(keys, values, table, {1}); });
  };
  refused("pages", {"(9, 3, 4, 13)", "(8, 3, 4, 19)"}, {9, 3, 4, 13}, {8, 3, 4, 19});
  refused("heads", {"(9, 3, 4, 13)", "(9, 2, 4, 19)"}, {9, 3, 4, 13}, {9, 2, 4, 19});
  refused("page_size", {"(9, 3, 4, 13)", "(9, 3, 5, 19)"}, {9, 3, 4, 13}, {9, 3, 5, 19});
  refused("no tokens in a page", {"(9, 3, 0, 13)"}, {9, 3, 0, 13}, {9, 3, 0, 19});
}

}  // namespace
}  // namespace attn::test
