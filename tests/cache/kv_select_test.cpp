// select() over caches: only the listed keys are read. Compared with the same mask where nothing is gathered.
#include <numeric>

#include <atomic>

#include "support/compare.h"
#include "support/random.h"
#include "support/tokens.h"

namespace attn::test {
namespace {

constexpr Index kHeads = 6, kKvHeads = 3, kDim = 64, kVDim = 32;
using Lists = std::vector<std::vector<std::vector<std::vector<Index>>>>;  // by batch element, head and query

/// Lists of up to `most` keys, some of them empty. Some keys are listed twice, in any order.
Lists lists(Index batch, Index heads, Index rows, Index keys, Index most, std::uint64_t seed) {
  Random random(seed);
  Lists all(static_cast<std::size_t>(batch));
  for (auto& of_element : all) {
    of_element.resize(static_cast<std::size_t>(heads));
    for (auto& of_head : of_element) {
      of_head.resize(static_cast<std::size_t>(rows));
      for (auto& list : of_head)
        for (Index count = random.integer(0, most); count > 0; --count) list.push_back(random.integer(0, keys - 1));
    }
  }
  return all;
}
/// The same mask, which is evaluated pair by pair because it is combined with another one.
auto masked(const auto& selected) {
  return any_of(selected, mask_mod([](const Position&) { return false; }));
}

template <class S>
Tensor<S, 4> drawn(const Shape<4>& shape, std::uint64_t seed) {
  Random random(seed);
  Tensor<S, 4> x(shape);
  for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<S>(random.uniform(-1, 1));
  return x;
}

const auto* q_data(const auto& q) {
  if constexpr (requires { q.q; })
    return q.q.data();
  else
    return q.data();
}

/// Expects results that differ only by rounding, and that the call visits only the listed keys.
template <class Q, class View, class Selected, class Others = Mods<>>
void expect_gathered(const Q& q, const View& view, const Selected& selected, const Others& others = {},
                     const Options& options = {}) {
  constexpr double kError = sizeof(*q_data(q)) == 2 ? 0.01 : 1e-5;
  const auto got = attention(q, view, selected | others, options),
             want = attention(q, view, masked(selected) | others, options);
  ASSERT_EQ(got.out.shape(), want.out.shape());
  for (Index i = 0; i < got.out.size(); ++i) {
    const auto a = static_cast<double>(got.out.data()[i]), b = static_cast<double>(want.out.data()[i]);
    ASSERT_NEAR(a, b, kError * std::max(1.0, std::abs(b))) << "out " << i;
  }
  for (Index i = 0; i < got.lse.size(); ++i) {
    const auto a = static_cast<double>(got.lse.data()[i]), b = static_cast<double>(want.lse.data()[i]);
    ASSERT_TRUE(a == b || std::abs(a - b) <= kError) << "lse " << i << ": " << a << ", but masked " << b;
  }
  // The lists have up to 90 keys, which are two tiles; all keys would be ten or more.
  const Explanation e = explain(q, view, selected | others, options);
  EXPECT_LE(e.full_tiles + e.masked_tiles + e.skipped_tiles, 2 * e.query_tiles);
  // With exactly the memory that workspace_bytes() says.
  std::vector<std::byte> memory(workspace_bytes(q, view, selected | others, options));
  Options given = options;
  given.workspace = memory;
  auto out = got.out;
  std::fill_n(out.data(), out.size(), std::remove_cvref_t<decltype(*out.data())>(7));
  attention_into(out, q, view, selected | others, given);
  for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], got.out.data()[i]) << "with a workspace, " << i;
}

template <class S>
class KvSelect : public ::testing::Test {
 protected:
  using T = std::conditional_t<sizeof(S) == 2, S, detail::cached_t<S>>;  // of queries

  /// Two sequences of a paged cache whose pages alternate; the second is a fork that shares the pages of the first.
  PagedKvCache<S> cache(Index page_size, const std::optional<Rope>& rope) {
    PagedKvCache<S> pages({.pages = 4000 / page_size,
                           .page_size = page_size,
                           .kv_heads = kKvHeads,
                           .head_dim = kDim,
                           .v_dim = kVDim,
                           .rope = rope});
    const Index other = pages.add();
    sequences_ = {pages.add(), 0};
    Random random(1);
    const auto append = [&](Index to, Index count) {
      const Tokens tokens({kKvHeads, kDim, kVDim}, count, random);
      Appended<Given<S>> given(tokens);
      pages.append(to, given.k(), given.v());
    };
    append(sequences_[0], 300), append(other, 70), append(sequences_[0], 301);
    sequences_[1] = pages.fork(sequences_[0]);
    append(sequences_[0], 99), append(sequences_[1], 33);
    return pages;
  }
  static Tensor<T, 4> queries(Index batch, Index count) { return drawn<T>({batch, kHeads, count, kDim}, 9); }

  std::vector<Index> sequences_;
};
using Formats = ::testing::Types<float, double, Eigen::bfloat16, Eigen::half, std::int8_t, Float8E4M3, Int4>;
TYPED_TEST_SUITE(KvSelect, Formats);

TYPED_TEST(KvSelect, ReadsTheListedKeys) {
  for (const Index page_size : {16, 100, 64}) {
    const std::optional<Rope> rope =
        page_size == 100 ? std::nullopt : std::optional(Rope({.head_dim = kDim, .rotary_dim = 32}));
    const PagedKvCache<TypeParam> pages = this->cache(page_size, rope);
    const auto [a, b] = std::pair(this->sequences_[0], this->sequences_[1]);
    for (const Index heads : {Index(1), kKvHeads, kHeads}) {
      SCOPED_TRACE("page_size " + std::to_string(page_size) + ", lists of " + std::to_string(heads) + " heads");
      const auto q = this->queries(1, 1), several = this->queries(1, 5), both = this->queries(2, 3);
      expect_gathered(q, pages.view({a}), select(lists(1, heads, 1, 700, 90, 2)));
      expect_gathered(several, pages.view({b}), select(lists(1, heads, 5, 630, 60, 3)), causal());
      expect_gathered(several, pages.view({b}), select(lists(1, heads, 1, 630, 60, 4)), causal());
      expect_gathered(both, pages.view({b, a}), select(lists(2, heads, 3, 634, 60, 5)));
      expect_gathered(both, pages.view({a, b}), select(lists(1, heads, 3, 634, 60, 6)), Mods<>{},
                      {.executor = threads(3)});
      // Queries of several sequences, concatenated: each has lists for the rows of its own queries.
      expect_gathered(ragged(several, {0, 5}), pages.view({a, b}), select(lists(2, heads, 1, 634, 60, 7)));
    }
  }
}

TYPED_TEST(KvSelect, CombinesWithOtherMods) {
  const PagedKvCache<TypeParam> pages = this->cache(64, Rope({.head_dim = kDim}));
  const auto view = pages.view({this->sequences_[0]});
  const auto q = this->queries(1, 3);
  for (const Index heads : {Index(1), kHeads}) {
    const auto selected = select(lists(1, heads, 3, 690, 80, 11));
    expect_gathered(q, view, selected, alibi(alibi_slopes(kHeads)) | softcap(3));
    expect_gathered(q, view, selected, sinks({1, 0, 2, -1, 0, 3}) | sliding_window(500));
    expect_gathered(q, view, selected, dropout(0.4, 5));
    expect_gathered(q, view, selected, weight_mod([](auto w, auto p) { return w * (p.kv % 3 == 0 ? 1 : 2); }));
    expect_gathered(q, view, selected, Mods<>{}, {.normaliser = Normaliser::sigmoid(-2)});
    expect_gathered(q, view, select(lists(1, 1, 3, 690, 80, 12)), Mods<>{}, {.interleaved_heads = true});
  }
  // Added to the result over other keys.
  const auto selected = select(lists(1, kKvHeads, 3, 690, 80, 13));
  auto before = attention(q, view, sliding_window(20)), want = before;
  attention_into(before.out, before.lse, q, view, selected, {.accumulate = true});
  attention_into(want.out, want.lse, q, view, masked(selected), {.accumulate = true});
  for (Index i = 0; i < want.out.size(); ++i)
    ASSERT_NEAR(static_cast<double>(before.out.data()[i]), static_cast<double>(want.out.data()[i]),
                sizeof(*q.data()) == 2 ? 0.01 : 1e-5);
}

/// With row_invariant, and for lists of most keys, all keys are visited, and the bits are those of the mask.
TYPED_TEST(KvSelect, VisitsAllKeysWhereThatIsPromisedOrFaster) {
  const PagedKvCache<TypeParam> pages = this->cache(64, std::nullopt);
  const auto view = pages.view({this->sequences_[0]});
  const auto q = this->queries(1, 2);
  const auto equal = [&](const auto& selected, const Options& options) {
    const auto got = attention(q, view, selected, options).out,
               want = attention(q, view, masked(selected), options).out;
    for (Index i = 0; i < got.size(); ++i) ASSERT_EQ(got.data()[i], want.data()[i]) << i;
  };
  equal(select(lists(1, 1, 2, 700, 60, 14)), {.row_invariant = true});
  equal(select(lists(1, 1, 2, 700, 2000, 15)), {});
}

TEST(KvSelectOfCaches, ContiguousAndLatentRows) {
  KvCache<float> cache({.batch = 2, .kv_heads = kKvHeads, .head_dim = kDim});
  cache.append(drawn<float>({2, kKvHeads, 500, kDim}, 1), drawn<float>({2, kKvHeads, 500, kDim}, 2));
  cache.append(1, drawn<float>({1, kKvHeads, 77, kDim}, 3), drawn<float>({1, kKvHeads, 77, kDim}, 4));
  expect_gathered(drawn<float>({2, kHeads, 4, kDim}, 5), cache, select(lists(2, kKvHeads, 4, 500, 50, 6)));

  KvCaches<float> caches({.layers = 1, .pages = 20, .page_size = 64, .latent = {.rank = 48, .rope_dim = 16}});
  const Index s = caches.add();
  auto step = caches.step({s}, 900);
  step.layer(0).append_latent(drawn<float>({1, 1, 900, 64}, 7));
  step.commit();
  // 64 heads that share a list are computed in tiles.
  for (const Index heads : {3, 64})
    expect_gathered(drawn<float>({1, heads, 1, 64}, 8), caches.view(0, {s}), select(lists(1, 1, 1, 900, 90, 9)));
}

/// Lists of many tiles over several stretches and splits of keys, which are prefetched and merged, on any number of
/// threads.
template <class S>
void expect_long_lists(double error) {
  Random random(1);
  PagedKvCache<S> pages({.pages = 700, .page_size = 64, .kv_heads = 1, .head_dim = kDim});
  const Index s = pages.add();
  const Tokens tokens({1, kDim, kDim}, 40000, random);
  Appended<Given<S>> given(tokens);
  pages.append(s, given.k(), given.v());
  std::vector<std::vector<Index>> list(1);
  for (int i = 0; i < 6000; ++i) list[0].push_back(random.integer(0, 39999));
  const auto selected = select(list);
  for (const Index heads : {1, 4, 64}) {
    const auto q = drawn<float>({1, heads, 1, kDim}, 8);
    const auto serially = attention(q, pages.view({s}), selected, {.executor = serial()}).out,
               on_three = attention(q, pages.view({s}), selected, {.executor = threads(3)}).out,
               want = attention(q, pages.view({s}), masked(selected)).out;
    for (Index i = 0; i < want.size(); ++i) {
      ASSERT_EQ(serially.data()[i], on_three.data()[i]) << heads << " heads, element " << i;
      ASSERT_NEAR(serially.data()[i], want.data()[i], error) << heads << " heads, element " << i;
    }
  }
}
TEST(KvSelectOfCaches, LongLists) {
  expect_long_lists<float>(2e-6);
  expect_long_lists<Eigen::bfloat16>(2e-6);
  expect_long_lists<std::int8_t>(2e-5);
}

/// Mods see only keys that their sequence has, although the other one is much longer.
TEST(KvSelectOfCaches, OfVeryDifferentLengthsBFloat16) {
  using S = Eigen::bfloat16;
  PagedKvCache<S> pages({.pages = 100, .page_size = 64, .kv_heads = kKvHeads, .head_dim = kDim});
  const Index lengths[] = {300, 3000}, first = pages.add(), second = pages.add();
  for (const Index s : {first, second}) {
    const Shape<4> shape{1, kKvHeads, lengths[s == second], kDim};
    pages.append(s, drawn<S>(shape, 1), drawn<S>(shape, 2));
  }
  Lists some = lists(1, kHeads, 1, 300, 60, 3);
  some.push_back(lists(1, kHeads, 1, 3000, 500, 4)[0]);
  std::atomic<Index> beyond{0};
  const auto counting = mask_mod([&](const Position& p) {
    if (p.kv >= lengths[p.batch]) ++beyond;
    return true;
  });
  const auto q = drawn<S>({2, kHeads, 20, kDim}, 5);
  const auto got = attention(q, pages.view({first, second}), select(some) | counting).out,
             want = attention(q, pages.view({first, second}), masked(select(some)) | counting).out;
  EXPECT_EQ(beyond, 0);
  for (Index i = 0; i < want.size(); ++i)
    ASSERT_NEAR(static_cast<double>(got.data()[i]), static_cast<double>(want.data()[i]), 0.01) << i;
}

/// A window without sinks drops the first tokens: lists still count from the first token of the sequence.
TEST(KvSelectOfCaches, AfterTokensHaveLeftAWindow) {
  PagedKvCache<float> pages({.pages = 40, .page_size = 16, .kv_heads = 1, .head_dim = kDim, .window = 400});
  const Index s = pages.add();
  for (int i = 0; i < 30; ++i)
    pages.append(s, drawn<float>({1, 1, 20, kDim}, 20 + static_cast<std::uint64_t>(i)),
                 drawn<float>({1, 1, 20, kDim}, 90 + static_cast<std::uint64_t>(i)));
  ASSERT_LT(pages.length(s), 600);
  expect_gathered(drawn<float>({1, 2, 3, kDim}, 8), pages.view({s}), select(lists(1, 1, 3, 600, 80, 9)), causal());
}

/// What lightning_indexer() selects among the keys of one cache is read from another.
TEST(KvSelectOfCaches, OfAnIndexer) {
  KvCache<Float8E4M3> index({.head_dim = 32, .v_dim = 1});
  KvCache<float> cache({.kv_heads = 1, .head_dim = kDim});
  index.append(drawn<float>({1, 1, 800, 32}, 1), Tensor<float, 4>({1, 1, 800, 1}));
  cache.append(drawn<float>({1, 1, 800, kDim}, 2), drawn<float>({1, 1, 800, kDim}, 3));
  Tensor<float, 3> weights({1, 2, 4});
  std::fill_n(weights.data(), weights.size(), 0.5f);
  const auto keys = lightning_indexer(drawn<float>({1, 4, 2, 32}, 4), index, weights, {.count = 100});
  expect_gathered(drawn<float>({1, 16, 2, kDim}, 5), cache, select(keys));
}

}  // namespace
}  // namespace attn::test
