// lightning_indexer() against its definition: exact selections with many ties, over tensors and caches.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "attn/attn.h"
#include "support/paths.h"
#include "support/random.h"
#include "support/refused.h"

namespace attn::test {
namespace {

/// Small integers, whose scores are exact in every type and often equal.
template <class T, int Rank = 4>
Tensor<T, Rank> integers(const Shape<Rank>& shape, Random& random, Index low = -2) {
  Tensor<T, Rank> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(static_cast<float>(random.integer(low, 2)));
  return t;
}

struct Positions {
  Index q_offset, kv_offset = 0;
};

/// The definition: scores in double, sorted. NaN counts as infinity. Rows are contiguous.
template <class Q, class K, class W>
std::vector<Index> by_definition(const Q& q, const K& k, const W& weights, Index batch, Index row, Index count,
                                 bool causal, const Positions& at) {
  std::vector<double> scores;
  for (Index s = 0; s < k.dim(2) && (!causal || at.kv_offset + s <= at.q_offset + row); ++s) {
    double score = 0;
    for (Index h = 0; h < q.dim(1); ++h) {
      double product = 0;
      const auto *of_q = &q(batch, h, row, 0), *of_k = &k(batch, 0, s, 0);
      for (Index c = 0; c < q.dim(3); ++c) product += static_cast<double>(of_q[c]) * static_cast<double>(of_k[c]);
      score += static_cast<double>(weights(batch, row, h)) * (product < 0 ? 0 : product);
    }
    scores.push_back(std::isnan(score) ? std::numeric_limits<double>::infinity() : score);
  }
  std::vector<Index> keys(scores.size());
  std::iota(keys.begin(), keys.end(), Index(0));
  std::stable_sort(keys.begin(), keys.end(), [&](Index a, Index b) {
    return scores[static_cast<std::size_t>(a)] > scores[static_cast<std::size_t>(b)];
  });
  keys.resize(std::min(keys.size(), static_cast<std::size_t>(count)));
  std::sort(keys.begin(), keys.end());
  for (Index& key : keys) key += at.kv_offset;
  return keys;
}

/// Expects the selection of a row to be `keys`, and then -1.
void expect_keys(const Tensor<Index, 4>& selected, Index batch, Index row, const std::vector<Index>& keys,
                 const char* what) {
  const Index n = selected.dim(3), count = static_cast<Index>(keys.size());
  ASSERT_LE(count, n) << what;
  for (Index i = 0; i < n; ++i)
    ASSERT_EQ(selected(batch, 0, row, i), i < count ? keys[static_cast<std::size_t>(i)] : -1)
        << what << ", batch " << batch << ", row " << row << ", entry " << i;
}

/// A copy in double, which the definition reads faster.
template <class X>
auto in_double(const X& given) {
  const auto from = view(given);
  constexpr int kRank = std::remove_cvref_t<decltype(from)>::kRank;
  Tensor<double, kRank> t(from.shape());
  if constexpr (kRank == 3) {
    for (Index a = 0; a < t.dim(0); ++a)
      for (Index b = 0; b < t.dim(1); ++b)
        for (Index c = 0; c < t.dim(2); ++c) t(a, b, c) = static_cast<double>(static_cast<float>(from(a, b, c)));
  } else {
    for (Index a = 0; a < t.dim(0); ++a)
      for (Index b = 0; b < t.dim(1); ++b)
        for (Index c = 0; c < t.dim(2); ++c)
          for (Index d = 0; d < t.dim(3); ++d)
            t(a, b, c, d) = static_cast<double>(static_cast<float>(from(a, b, c, d)));
  }
  return t;
}

template <class Q, class K, class W>
void expect_definition(const Tensor<Index, 4>& selected, const Q& given_q, const K& given_k, const W& given_weights,
                       Index count, bool causal, const Positions& at, const char* what) {
  const auto q = in_double(given_q), k = in_double(given_k);
  const auto weights = in_double(given_weights);
  ASSERT_EQ(selected.shape(), (Shape<4>{q.dim(0), 1, q.dim(2), std::min(count, k.dim(2))})) << what;
  for (Index b = 0; b < q.dim(0); ++b)
    for (Index row = 0; row < q.dim(2); ++row)
      expect_keys(selected, b, row, by_definition(q, k, weights, b, row, count, causal, at), what);
}

template <class T>
class LightningIndexerOf : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, Eigen::bfloat16>;
TYPED_TEST_SUITE(LightningIndexerOf, Scalars);

TYPED_TEST(LightningIndexerOf, SelectsByDefinition) {
  using T = TypeParam;
  Random random(1);
  const Executor several = threads(3);
  for (const Index heads : {1, 3, 16, 40, 64})
    for (const Index keys : {1, 63, 64, 130, 400})
      for (const Index tokens : {1, 5, 18})
        for (const Index count : {1, 7, 64, 300}) {
          if (random.chance(0.85)) continue;
          const Index dim = random.pick(std::vector<Index>{4, 5, 18});
          const auto q = integers<T>({2, heads, tokens, dim}, random), k = integers<T>({2, 1, keys, dim}, random);
          const auto weights = integers<T, 3>({2, tokens, heads}, random, -1);
          for (const bool causal : {true, false}) {
            const Executor executor = random.chance(0.5) ? serial() : several;
            const auto selected = lightning_indexer(q, k, weights, {.count = count, .causal = causal},
                                                    {.executor = executor, .isa = random.pick(instruction_sets())});
            expect_definition(selected, q, k, weights, count, causal, {keys - tokens}, "default positions");
          }
          const Positions at{random.integer(-5, keys + 5), random.integer(-3, 3) * 16};
          const auto selected =
              lightning_indexer(q, k, weights, {.count = count}, {.q_offset = at.q_offset, .kv_offset = at.kv_offset});
          expect_definition(selected, q, k, weights, count, true, at, "given positions");
        }
}

TEST(LightningIndexer, ReadsAnyStrides) {
  Random random(2);
  const auto q = integers<float>({2, 9, 6, 12}, random), k = integers<float>({2, 100, 1, 12}, random);
  const auto weights = integers<float, 3>({2, 9, 6}, random);
  const auto of_tokens = q.view().transpose(1, 2), keys = k.view().transpose(1, 2);
  const auto selected = lightning_indexer(of_tokens, keys, weights, {.count = 20});
  expect_definition(selected, of_tokens, keys, weights, 20, true, {91}, "(batch, tokens, heads, dim)");
}

TEST(LightningIndexer, HasAPositionForEachBatchElement) {
  Random random(3);
  const auto q = integers<float>({2, 4, 3, 8}, random), k = integers<float>({2, 1, 90, 8}, random);
  const auto weights = integers<float, 3>({2, 3, 4}, random, 0);
  const auto selected = lightning_indexer(q, k, weights, {.count = 10}, {.q_offsets = {70, 20}});
  for (Index b = 0; b < 2; ++b)
    for (Index row = 0; row < 3; ++row)
      expect_keys(selected, b, row, by_definition(q, k, weights, b, row, 10, true, {b == 0 ? 70 : 20}), "q_offsets");
}

/// Real numbers, so that scores round: one token, its prompt, and all numbers of threads give the same selection.
TEST(LightningIndexer, DependsOnTheTokenAlone) {
  Random random(4);
  constexpr Index kKeys = 6000, kTokens = 20;
  const auto q = drawn<float>({1, 20, kTokens, 32}, random), k = drawn<float>({1, 1, kKeys, 32}, random);
  const auto weights = drawn<float, 3>({1, kTokens, 20}, random);
  const auto all = lightning_indexer(q, k, weights, {.count = 500}, {.executor = serial()});
  for (const int workers : {2, 7}) {
    const auto same = lightning_indexer(q, k, weights, {.count = 500}, {.executor = threads(workers)});
    ASSERT_TRUE(std::equal(all.data(), all.data() + all.size(), same.data())) << workers;
  }
  for (const Index row : {0, 13, 19}) {
    // The keys that the token sees, as if no more had been written yet.
    const auto seen = k.view().slice(2, 0, kKeys - kTokens + row + 1);
    for (const int workers : {1, 7}) {
      const auto alone = lightning_indexer(q.view().slice(2, row, row + 1), seen, weights.view().slice(1, row, row + 1),
                                           {.count = 500}, {.executor = threads(workers)});
      ASSERT_TRUE(std::equal(alone.data(), alone.data() + alone.size(), &all(0, 0, row, 0))) << row;
    }
  }
}

TEST(LightningIndexer, CountsNaNAsInfinity) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();
  Random random(5);
  const auto q = integers<float>({1, 17, 2, 8}, random, 1);
  auto k = integers<float>({1, 1, 200, 8}, random, 1);
  Tensor<float, 3> weights({1, 2, 17});
  std::fill_n(weights.data(), weights.size(), 1.0f);
  k(0, 0, 150, 3) = kNaN;
  k(0, 0, 20, 0) = kInfinity;
  k(0, 0, 90, 7) = kNaN;
  k(0, 0, 91, 7) = -kInfinity;  // relu makes it 0
  for (const Index count : {1, 2, 3, 30}) {
    const auto selected = lightning_indexer(q, k, weights, {.count = count, .causal = false});
    expect_definition(selected, q, k, weights, count, false, {0}, "NaN");
  }
  const auto first = lightning_indexer(q, k, weights, {.count = 3});
  expect_keys(first, 0, 1, {20, 90, 150}, "NaN and infinity");
}

template <class S>
class LightningIndexerOver : public ::testing::Test {};
using Stored = ::testing::Types<float, double, Eigen::half, Float8E4M3, Float8E5M2>;
TYPED_TEST_SUITE(LightningIndexerOver, Stored);

/// Prompts of two sequences in chunks: each row selects by definition among the stored keys.
TYPED_TEST(LightningIndexerOver, CachesInChunks) {
  using S = TypeParam;
  using T = typename KvCache<S>::Computed;
  Random random(6);
  constexpr Index kHeads = 12, kDim = 20, kCount = 40;
  KvCache<S> cache({.batch = 2, .capacity = 16, .head_dim = kDim, .v_dim = 1});
  PagedKvCache<S> pages({.pages = 40, .page_size = 16, .head_dim = kDim, .v_dim = 1});
  const Index a = pages.add(), b = pages.add();
  const Tensor<T, 4> k = integers<T>({2, 1, 300, kDim}, random);
  Index first = 0;
  for (const Index tokens : {70, 1, 100, 1, 33}) {
    const auto more = k.view().slice(2, first, first + tokens);
    const Tensor<T, 4> values({2, 1, tokens, 1});
    cache.append(more, values);
    for (const Index s : {0, 1})
      pages.append(s == 0 ? a : b, more.slice(0, s, s + 1), values.view().slice(0, s, s + 1));
    const auto q = integers<T>({2, kHeads, tokens, kDim}, random);
    const auto weights = integers<T, 3>({2, tokens, kHeads}, random, -1);
    const auto expect = [&](const Tensor<Index, 4>& selected, const char* what) {
      const auto keys = k.view().slice(2, 0, first + tokens);
      expect_definition(selected, q, keys, weights, kCount, true, {first}, what);
    };
    expect(lightning_indexer(q, cache, weights, {.count = kCount}), "KvCache");
    expect(lightning_indexer(q, pages.view({a, b}), weights, {.count = kCount}, {.executor = threads(2)}), "pages");
    first += tokens;
  }
  // Sequences of different lengths: the shorter one sees fewer keys than there are entries.
  cache.truncate(1, 25);
  const auto q = integers<T>({2, kHeads, 1, kDim}, random);
  const auto weights = integers<T, 3>({2, 1, kHeads}, random, -1);
  const auto selected = lightning_indexer(q, cache, weights, {.count = kCount});
  const auto keys = k.view().slice(2, 0, first);
  expect_keys(selected, 0, 0, by_definition(q, keys, weights, 0, 0, kCount, true, {first - 1}), "longer");
  expect_keys(selected, 1, 0, by_definition(q, keys, weights, 1, 0, kCount, true, {24}), "shorter");
}

/// Caches with scales, against the indexer over the numbers that they store; and rows without values.
TEST(LightningIndexer, ReadsQuantisedAndLatentCaches) {
  Random random(7);
  const auto k = drawn<float>({1, 1, 150, 32}, random), q = drawn<float>({1, 6, 3, 32}, random);
  const auto weights = drawn<float, 3>({1, 3, 6}, random);
  const Tensor<float, 4> values({1, 1, 150, 32});
  KvCache<std::int8_t> bytes({.head_dim = 32});
  KvCache<Int4> digits({.head_dim = 32});
  bytes.append(k, values);
  digits.append(k, values);
  Tensor<float, 4> of_bytes(k.shape()), of_digits(k.shape());
  for (Index j = 0; j < 150; ++j)
    for (Index c = 0; c < 32; ++c) {
      of_bytes(0, 0, j, c) = static_cast<float>(bytes.keys()(0, 0, j, c)) * bytes.key_scales()(0, 0, j);
      of_digits(0, 0, j, c) = digits.keys()(0, 0, j, 0)[c];
    }
  KvCaches<float> latent({.layers = 1, .pages = 10, .page_size = 16, .latent = {.rank = 24, .rope_dim = 8}});
  const Index sequence = latent.add();
  auto step = latent.step({sequence}, 150);
  step.layer(0).append_latent(k);
  step.commit();
  const auto expect = [&](const auto& cache, const Tensor<float, 4>& keys, const char* what) {
    const auto selected = lightning_indexer(q, cache, weights, {.count = 25});
    const auto same = lightning_indexer(q, keys, weights, {.count = 25});
    EXPECT_TRUE(std::equal(same.data(), same.data() + same.size(), selected.data())) << what;
  };
  expect(bytes, of_bytes, "int8");
  expect(digits, of_digits, "int4");
  expect(latent.view(0, {sequence}), k, "latent");
}

/// The rope of a cache rotates the queries of the indexer as well.
TEST(LightningIndexer, RotatesQueriesOfCachesWithRopes) {
  Random random(8);
  const Rope rope({.head_dim = 16});
  auto k = drawn<float>({1, 1, 120, 16}, random), q = drawn<float>({1, 5, 4, 16}, random);
  const auto weights = drawn<float, 3>({1, 4, 5}, random);
  KvCache<float> cache({.head_dim = 16, .rope = rope});
  cache.append(k, k);
  const auto selected = lightning_indexer(q, cache, weights, {.count = 15});
  rope.rotate(k);
  rope.rotate(q, 116);
  const auto same = lightning_indexer(q, k, weights, {.count = 15});
  EXPECT_TRUE(std::equal(same.data(), same.data() + same.size(), selected.data()));
}

/// A window has dropped tokens, so rows of the cache are not positions.
TEST(LightningIndexer, NumbersTheKeysOfWindowsByPosition) {
  Random random(9);
  PagedKvCache<float> pages({.pages = 20, .page_size = 16, .head_dim = 8, .window = 64});
  const Index s = pages.add();
  const auto k = integers<float>({1, 1, 200, 8}, random);
  for (Index first = 0; first < 200; first += 20) {
    const auto more = k.view().slice(2, first, first + 20);
    pages.append(s, more, more);
  }
  const Index offset = pages.view({s}).offset(0);
  ASSERT_GT(offset, 0);
  const auto q = integers<float>({1, 3, 2, 8}, random);
  const auto weights = integers<float, 3>({1, 2, 3}, random, 0);
  const auto selected = lightning_indexer(q, pages.view({s}), weights, {.count = 30});
  expect_definition(selected, q, k.view().slice(2, offset, 200), weights, 30, true, {198, offset}, "window");
}

TEST(LightningIndexer, MakesListsForSelect) {
  Random random(10);
  const auto index_q = integers<float>({2, 8, 30, 16}, random), index_k = integers<float>({2, 1, 400, 16}, random);
  const auto weights = integers<float, 3>({2, 30, 8}, random, 0);
  const auto q = drawn<float>({2, 4, 30, 16}, random), k = drawn<float>({2, 2, 400, 16}, random);
  const auto lists = lightning_indexer(index_q, index_k, weights, {.count = 50});
  Tensor<bool, 4> kept({2, 1, 30, 400});
  for (Index b = 0; b < 2; ++b)
    for (Index row = 0; row < 30; ++row)
      for (const Index key : by_definition(index_q, index_k, weights, b, row, 50, true, {370}))
        kept(b, 0, row, key) = true;
  const auto out = attention(q, k, k, select(lists)).out, expected = naive_attention(q, k, k, keep(kept)).out;
  for (Index i = 0; i < out.size(); ++i) ASSERT_NEAR(out.data()[i], expected.data()[i], 1e-5);
}

/// Many heads that share a key head are computed as the queries of one head.
TEST(LightningIndexer, MakesListsForManyHeads) {
  Random random(11);
  constexpr Index kHeads = 130;
  const auto q = drawn<float>({2, kHeads, 3, 20}, random), k = drawn<float>({2, 2, 500, 20}, random);
  const auto v = drawn<float>({2, 2, 500, 12}, random);
  Tensor<Index, 4> lists({2, 1, 3, 70});
  for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = random.integer(0, 499);
  const std::vector<double> slopes = random.values(kHeads, 0.01);
  for (const bool interleaved : {false, true})
    for (const Isa isa : instruction_sets()) {
      const Options options{.interleaved_heads = interleaved, .isa = isa};
      const auto mods = select(lists) | alibi(slopes);
      const auto a = attention(q, k, v, mods, options),
                 b = attention(q, k, v, mods | sinks(std::vector<double>(kHeads, 0.5)), options);
      const auto c = naive_attention(q, k, v, mods, options),
                 d = naive_attention(q, k, v, mods | sinks(std::vector<double>(kHeads, 0.5)), options);
      for (Index i = 0; i < a.out.size(); ++i) {
        ASSERT_NEAR(a.out.data()[i], c.out.data()[i], 1e-5);
        ASSERT_NEAR(b.out.data()[i], d.out.data()[i], 1e-5);
      }
      for (Index i = 0; i < a.lse.size(); ++i) ASSERT_NEAR(a.lse.data()[i], c.lse.data()[i], 1e-5);
    }
}

TEST(LightningIndexer, RefusesSizesThatDisagree) {
  const Tensor<float, 4> q({2, 4, 5, 8}), k({2, 1, 9, 8}), two_heads({2, 2, 9, 8}), narrow({2, 1, 9, 7});
  const Tensor<float, 3> w({2, 5, 4}), swapped({2, 4, 5});
  expect_refused("weights", {"(2, 4, 5)", "(2, 5, 4)"}, [&] { lightning_indexer(q, k, swapped); });
  expect_refused("key heads", {"share one key head", "there are 2"}, [&] { lightning_indexer(q, two_heads, w); });
  expect_refused("count", {"positive, but is 0"}, [&] { lightning_indexer(q, k, w, {.count = 0}); });
  expect_refused("dim", {"head_dim", "8", "7"}, [&] { lightning_indexer(q, narrow, w); });
  KvCache<float> cache({.batch = 3, .head_dim = 8});
  expect_refused("batch", {"batch 2", "3 sequences"}, [&] { lightning_indexer(q, cache, w); });
  EXPECT_EQ(lightning_indexer(q, k.view().slice(2, 0, 0), w).shape(), (Shape<4>{2, 1, 5, 0}));
}

}  // namespace
}  // namespace attn::test
