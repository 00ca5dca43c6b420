// The paged cache: tables, sharing, copy on write, and its state after running out of pages.
#include <array>
#include <functional>

#include "support/paged_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

const PagedKvCacheConfig kSmall{.pages = 6, .page_size = 4, .kv_heads = 2, .head_dim = 3, .v_dim = 5};
constexpr TokenSizes kPagedSizes{2, 3, 5};

class PagedCache : public ::testing::Test {
 protected:
  /// Appends `count` tokens to a sequence.
  bool append(Index id, Index count) { return append(std::vector{id}, {count}, false); }
  bool append(const std::vector<Index>& ids, const std::vector<Index>& counts, bool ragged) {
    std::vector<Tokens> more;
    for (Index count : counts) more.emplace_back(model_.sizes(), count, random_);
    const bool done = model_.append(ids, more, ragged, Layout::bhsd);
    model_.expect_sound();
    model_.expect_contents();
    return done;
  }
  std::vector<Index> table(Index id) const { return {model_.cache.table(id).begin(), model_.cache.table(id).end()}; }

  Random random_{1};
  PagedModel<float> model_{kSmall};
  PagedKvCache<float>& cache_ = model_.cache;
};

TEST_F(PagedCache, BeginsWithAllPagesFree) {
  EXPECT_EQ(cache_.pages(), 6);
  EXPECT_EQ(cache_.free_pages(), 6);
  EXPECT_EQ(cache_.sequences(), 0);
  EXPECT_FALSE(cache_.has(0));
  EXPECT_EQ(cache_.key_pages().shape(), (Shape<4>{6, 2, 4, 3}));
  EXPECT_EQ(cache_.value_pages().shape(), (Shape<4>{6, 2, 4, 5}));
  EXPECT_EQ(cache_.bytes(), 6 * 2 * 4 * (3 + 5) * 4);
  // A byte per element, and two scales of four bytes per token and head.
  EXPECT_EQ(PagedKvCache<std::int8_t>(kSmall).bytes(), 6 * 2 * 4 * (3 + 5 + 2 * 4));
  EXPECT_EQ(PagedKvCache<Eigen::half>(kSmall).bytes(), 6 * 2 * 4 * (3 + 5) * 2);
  EXPECT_EQ(PagedKvCache<float>({.pages = 1, .head_dim = 7}).value_pages().shape(), (Shape<4>{1, 1, 64, 7}));
}

TEST_F(PagedCache, TakesAPageWhenTheLastIsFull) {
  const Index a = model_.add();
  EXPECT_EQ(cache_.length(a), 0);
  EXPECT_TRUE(cache_.table(a).empty());
  for (Index count = 1; count <= 9; ++count) {
    ASSERT_TRUE(append(a, 1));
    EXPECT_EQ(cache_.free_pages(), 6 - (count + 3) / 4);
  }
  ASSERT_TRUE(append(a, 0));
  ASSERT_TRUE(append(a, 15));  // 24 tokens fill all pages
  EXPECT_EQ(cache_.free_pages(), 0);
  EXPECT_FALSE(append(a, 1));
}

TEST_F(PagedCache, IdsAreNeverReused) {
  const Index a = model_.add(), b = model_.fork(a);
  model_.release(b);
  model_.release(a);
  EXPECT_GT(model_.add(), b);
}

TEST_F(PagedCache, TruncateFreesUnsharedPages) {
  const Index a = model_.add();
  append(a, 10);
  const std::vector<Index> before = table(a);
  model_.truncate(a, 10);
  EXPECT_EQ(table(a), before);
  model_.truncate(a, 9);
  EXPECT_EQ(table(a), before);
  const Index b = model_.fork(a);
  model_.truncate(a, 8);
  EXPECT_EQ(table(a), std::vector<Index>(before.begin(), before.begin() + 2));
  EXPECT_EQ(cache_.free_pages(), 3);  // b still uses the third
  model_.truncate(b, 4);
  EXPECT_EQ(cache_.free_pages(), 4);
  model_.truncate(a, 0);
  EXPECT_EQ(cache_.free_pages(), 5);
  model_.expect_sound();
  ASSERT_TRUE(append(a, 5));
  model_.expect_contents();
}

TEST_F(PagedCache, ForksShareUntilOneWrites) {
  const Index a = model_.add();
  append(a, 6);
  const Index b = model_.fork(a), c = model_.fork(a, 5), d = model_.fork(b, 4);
  EXPECT_EQ(table(b), table(a));
  EXPECT_EQ(table(c), table(a));
  EXPECT_EQ(table(d), std::vector{table(a)[0]});
  EXPECT_EQ(cache_.free_pages(), 4);
  const std::vector<Index> shared = table(a);
  EXPECT_EQ(cache_.pages_needed(a, 0), 0);
  EXPECT_EQ(cache_.pages_needed(a, 2), 1);  // a copy
  EXPECT_EQ(cache_.pages_needed(a, 3), 2);  // and one more
  EXPECT_EQ(cache_.pages_needed(d, 1), 1);  // its last page is full: no copy
  ASSERT_TRUE(append(c, 1));
  EXPECT_EQ(table(c)[0], shared[0]);
  EXPECT_NE(table(c)[1], shared[1]);
  EXPECT_EQ(table(a), shared);
  ASSERT_TRUE(append(b, 1));
  EXPECT_NE(table(b)[1], shared[1]);
  ASSERT_TRUE(append(a, 1));  // the last user of the page writes in place
  EXPECT_EQ(table(a), shared);
  ASSERT_TRUE(append(d, 1));
  EXPECT_EQ(cache_.free_pages(), 1);
}

TEST_F(PagedCache, ForkOutlivesItsOrigin) {
  const Index a = model_.add();
  append(a, 7);
  const Index b = model_.fork(a, 6);
  model_.release(a);
  EXPECT_EQ(cache_.free_pages(), 4);
  model_.expect_contents();
  ASSERT_TRUE(append(b, 1));  // no longer shared: no copy
  EXPECT_EQ(cache_.free_pages(), 4);
  model_.release(b);
  EXPECT_EQ(cache_.free_pages(), 6);
}

TEST_F(PagedCache, AppendingAfterTruncationIntoASharedPageCopiesIt) {
  const Index a = model_.add();
  append(a, 8);
  const Index b = model_.fork(a);
  model_.truncate(b, 5);
  EXPECT_EQ(cache_.pages_needed(b, 1), 1);
  ASSERT_TRUE(append(b, 1));
  EXPECT_NE(table(b)[1], table(a)[1]);
  model_.truncate(a, 5);
  EXPECT_EQ(cache_.pages_needed(a, 1), 0);
  ASSERT_TRUE(append(a, 1));
}

TEST_F(PagedCache, LastOfSeveralWritersKeepsTheSharedPage) {
  const Index a = model_.add();
  append(a, 3);
  const Index b = model_.fork(a), c = model_.fork(a);
  const std::vector<Index> shared = table(a);
  ASSERT_TRUE(append({b, a}, {1, 1}, false));  // c keeps the page
  EXPECT_EQ(table(c), shared);
  EXPECT_EQ(cache_.free_pages(), 3);
  ASSERT_TRUE(append({c}, {1}, false));
  EXPECT_EQ(table(c), shared);
  EXPECT_EQ(cache_.free_pages(), 3);
}

TEST_F(PagedCache, RaggedAppendGivesEachItsOwnTokens) {
  const Index a = model_.add(), b = model_.add(), c = model_.add();
  ASSERT_TRUE(append({c, a, b}, {5, 0, 9}, true));
  ASSERT_TRUE(append({b, c}, {2, 3}, true));
  EXPECT_EQ(cache_.length(a), 0);
  EXPECT_EQ(cache_.free_pages(), 1);
  EXPECT_FALSE(append({a, b}, {4, 2}, true));  // one page each, but only one is free
  ASSERT_TRUE(append({a, b}, {4, 1}, true));
}

TEST_F(PagedCache, OutOfPagesReportsCounts) {
  const Index a = model_.add();
  append(a, 18);
  const Index b = model_.fork(a);
  Appended<float> more(Tokens(model_.sizes(), 7, random_));
  try {
    cache_.append(b, more.k(), more.v());
    FAIL() << "nothing was thrown";
  } catch (const OutOfPages& e) {
    EXPECT_STREQ(e.what(),
                 "attn: 3 more pages are needed, but only 1 of 6 are free; release() or truncate() a sequence");
    EXPECT_EQ(e.needed(), 3);
    EXPECT_EQ(e.free(), 1);
  }
  model_.expect_sound();
  model_.expect_contents();
  model_.release(b);
  EXPECT_TRUE(append(a, 6));
  EXPECT_EQ(cache_.free_pages(), 0);
}

TEST_F(PagedCache, RefusesInvalidArguments) {
  const Index a = model_.add(), b = model_.add();
  append(a, 7);
  append(b, 2);
  const Index gone = model_.add();
  model_.release(gone);
  const auto before = table(a);
  const auto given = [&](const TokenSizes& sizes, Index count) {
    return Appended<float>(Tokens(sizes, count, random_));
  };
  const auto refused = [&](const char* what, const Said& said, const auto& call) {
    expect_refused(what, said, call);
    EXPECT_EQ(table(a), before) << what;
    model_.expect_sound();
    model_.expect_contents();
  };
  auto three = given(kPagedSizes, 3);
  const std::string name = std::to_string(gone);
  refused("length of a released one", {"sequence " + name + " does not exist"}, [&] { cache_.length(gone); });
  refused("table of a released one", {"sequence " + name + " does not exist"}, [&] { cache_.table(gone); });
  refused("released twice", {"sequence " + name + " does not exist"}, [&] { cache_.release(gone); });
  refused("fork of a released one", {"sequence " + name + " does not exist"}, [&] { cache_.fork(gone); });
  refused("truncate of a released one", {"sequence " + name + " does not exist"}, [&] { cache_.truncate(gone, 0); });
  refused("batch with a released one", {"sequence " + name + " does not exist"}, [&] { cache_.view({a, gone}); });
  refused("pages_needed of a released one", {"sequence " + name + " does not exist"},
          [&] { cache_.pages_needed(gone, 1); });
  refused("append to a released one", {"sequence " + name + " does not exist"},
          [&] { cache_.append(gone, three.k(), three.v()); });
  refused("append to one that was never added", {"sequence -4 does not exist"},
          [&] { cache_.append(-4, three.k(), three.v()); });
  refused("fork of too many", {"fork", "0..7", "is 8"}, [&] { cache_.fork(a, 8); });
  refused("fork of a negative length", {"-1"}, [&] { cache_.fork(a, -1); });
  refused("truncate to more", {"truncate", "0..7", "is 8"}, [&] { cache_.truncate(a, 8); });
  refused("truncate to a negative length", {"-1"}, [&] { cache_.truncate(a, -1); });
  refused("named twice", {"appears twice", std::to_string(a)}, [&] {
    cache_.append({a, b, a}, three.k(), three.v(), {1, 1, 1});
  });
  refused("lengths for others", {"2 lengths", "1 seq"}, [&] { cache_.append({a}, three.k(), three.v(), {1, 2}); });
  refused("lengths of more tokens", {"is 2", "0..1"}, [&] { cache_.append({a, b}, three.k(), three.v(), {2, 2}); });
  refused("lengths of fewer tokens", {"add up to 2", "3 tokens"}, [&] {
    cache_.append({a, b}, three.k(), three.v(), {1, 1});
  });
  refused("a negative length", {"-1"}, [&] { cache_.append({a, b}, three.k(), three.v(), {-1, 4}); });
  refused("one batch element for two", {"(1, 2, 3, 3)", "(2, 2, 3, 3)", "pass their lengths after the values"}, [&] {
    cache_.append({a, b}, three.k(), three.v());
  });
  auto heads = given({3, 3, 5}, 3), dims = given({2, 4, 5}, 3), values = given({2, 3, 6}, 3),
       two = given(kPagedSizes, 2);
  refused("heads", {"(1, 3, 3, 3)", "(1, 2, 3, 3)"}, [&] { cache_.append(a, heads.k(), heads.v()); });
  refused("head_dim", {"(1, 2, 3, 4)", "(1, 2, 3, 3)"}, [&] { cache_.append(a, dims.k(), dims.v()); });
  refused("v_dim", {"(1, 2, 3, 6)", "(1, 2, 3, 5)"}, [&] { cache_.append(a, values.k(), values.v()); });
  refused("tokens", {"(1, 2, 2, 5)", "(1, 2, 3, 5)"}, [&] { cache_.append(a, three.k(), two.v()); });
}

TEST(PagedCacheConfig, RefusesInvalidArguments) {
  const auto refused = [](PagedKvCacheConfig c, const Said& said) {
    expect_refused("PagedKvCache", said, [&] { const PagedKvCache<float> cache(c); });
  };
  refused({.pages = 0, .head_dim = 4}, {"pages 0", "head_dim 4"});
  refused({.pages = 2, .page_size = 0, .head_dim = 4}, {"page_size 0"});
  refused({.pages = 2, .kv_heads = -3, .head_dim = 4}, {"kv_heads -3"});
  refused({.pages = 2}, {"head_dim 0", "head_dim has no default"});
  refused({.pages = 2, .head_dim = 4, .v_dim = -2}, {"v_dim -2"});
  refused({.pages = 2, .head_dim = 4, .rope = Rope({.head_dim = 8})}, {"head_dim is 4", "8"});
}

}  // namespace
}  // namespace attn::test
