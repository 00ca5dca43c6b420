// Masks that gather keys: all paths at sizes that gather, no leaks from keys outside the lists, and work in proportion
// to the kept pairs.
#include "support/bound.h"
#include "support/executors.h"
#include "support/grouped_rows.h"
#include "support/mod_table.h"
#include "support/sweep.h"

namespace attn::test {
namespace {

/// Draws calls over whole grids: queries and keys are the same tokens.
template <class T>
Drawn<T> draw_tokens(Index tokens, Random& random) {
  const Index kv_heads = random.integer(1, 2);
  const Sizes s{random.integer(1, 2), kv_heads * random.integer(1, 2), kv_heads, tokens, tokens, random.pick(kDims),
                random.pick(kDims)};
  Drawn<T> drawn = Drawn<T>::draw(s, random);
  drawn.numbers.q_offset.reset();
  return drawn;
}

template <class T>
class Gathered : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, Eigen::bfloat16>;
TYPED_TEST_SUITE(Gathered, Scalars);

TYPED_TEST(Gathered, WholeGrids) {
  Random random(1);
  for (const Index tokens : {1, 12, 36, 48, 60, 64, 96, 120, 144, 180})
    for (int round = 0; round < 4; ++round) {
      auto drawn = draw_tokens<TypeParam>(tokens, random);
      const Setting setting{drawn.sizes, drawn.numbers, random};
      const auto row = neighbourhood_rows(setting)[0];
      expect_right(drawn, row);
      expect_right(drawn, sink_rows(setting)[0] | row |
                              mask("causal", causal(), [](const Pair& p) { return p.kv <= p.q; })[0] |
                              alibi_rows(setting)[0]);
      expect_right(drawn, random.pick(key_length_rows(setting)) | row | random.pick(dropout_rows(setting)));
    }
}

TYPED_TEST(Gathered, ShortLists) {
  Random random(2);
  for (const Index kv_len : {9, 64, 130, 400})
    for (const Index q_len : {1, 2, 5, 17, 50}) {
      const Sizes s = listed_sizes(q_len, kv_len, kDims, random);
      auto drawn = Drawn<TypeParam>::draw(s, random);
      const Setting setting{s, drawn.numbers, random};
      const auto row = select_rows(setting)[0];
      expect_right(drawn, row);
      expect_right(drawn, sink_rows(setting)[0] | row |
                              mask("causal", causal(), [](const Pair& p) { return p.kv <= p.q; })[0] |
                              alibi_rows(setting)[0]);
      expect_right(drawn, random.pick(key_length_rows(setting)) | row | random.pick(dropout_rows(setting)));
      expect_right(drawn, random.pick(bias_rows<4>(setting)) | row);
    }
}

/// Heads whose lists have very different lengths: the tile after the end of a short list shows keys of the next list,
/// whose positions say nothing about the queries of this head.
TYPED_TEST(Gathered, TilesEndInTheListOfAnotherHead) {
  constexpr Index kHeads = 6, kQueries = 5, kKeys = 600, kDim = 64;
  Random random(4);
  const auto drawn = [&](Index heads, Index len) {
    Tensor<TypeParam, 4> x({1, heads, len, kDim});
    for (Index i = 0; i < x.size(); ++i) x.data()[i] = static_cast<TypeParam>(random.uniform(-1, 1));
    return x;
  };
  for (int round = 0; round < 8; ++round) {
    std::vector<std::vector<std::vector<Index>>> lists(kHeads);
    for (std::size_t head = 0; head < lists.size(); ++head) {
      lists[head].emplace_back();
      for (Index n = random.pick(std::vector<Index>{0, 1, 5, 30, 70, 140}); n > 0; --n)
        lists[head][0].push_back(random.integer(0, kKeys - 1));
    }
    const auto q = drawn(kHeads, kQueries), k = drawn(3, kKeys), v = drawn(3, kKeys);
    for (const Index first : {Index(150), kKeys - kQueries}) {
      const auto selected = select(lists);
      const auto got = attention(q, k, v, selected | causal(), {.q_offset = first}).out;
      const auto want = naive_attention(q, k, v, selected | causal(), {.q_offset = first}).out;
      for (Index i = 0; i < got.size(); ++i)
        ASSERT_NEAR(static_cast<double>(got.data()[i]), static_cast<double>(want.data()[i]),
                    sizeof(TypeParam) == 2 ? 0.02 : 1e-5)
            << "round " << round << ", element " << i;
    }
  }
}

TYPED_TEST(Gathered, ListsOfAnyLength) {
  Random random(10);
  for (const Index kv_len : {9, 64, 130, 400})
    for (const Index q_len : {1, 2, 17, 50}) {
      const Sizes s = listed_sizes(q_len, kv_len, kDims, random);
      auto drawn = Drawn<TypeParam>::draw(s, random);
      const Setting setting{s, drawn.numbers, random};
      const auto rows = select_rows(setting);
      for (std::size_t i = 2; i < 4; ++i) {  // the lists in compressed rows
        expect_right(drawn, rows[i]);
        expect_right(drawn, sink_rows(setting)[0] | rows[i] |
                                mask("causal", causal(), [](const Pair& p) { return p.kv <= p.q; })[0] |
                                alibi_rows(setting)[0]);
        expect_right(drawn, edge_rows(setting)[0] | rows[i]);
      }
    }
}

/// Returns lists of `n` random keys for each query of each head.
Tensor<Index, 3> draw_lists(Index heads, Index q_len, Index n, Index kv_len, Random& random) {
  Tensor<Index, 3> lists({heads, q_len, n});
  for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = random.integer(0, kv_len - 1);
  return lists;
}

/// The keys that a query of head 0 keeps, by the predicate of `mods`.
template <class M>
std::vector<bool> kept_by(const M& mods, Index q_len, Index kv_len, Index row) {
  Problem p;
  p.q_len = q_len, p.kv_len = kv_len, p.q_offset = kv_len - q_len;
  const auto mask = bound(mods, p);
  std::vector<bool> kept;
  for (Index j = 0; j < kv_len; ++j) kept.push_back(mask.keep(Position{0, 0, p.q_offset + row, j}));
  return kept;
}

/// Checks that NaN or infinity in a value reaches exactly the queries that keep it, and in a key no other queries.
template <class M>
void expect_no_leak(const M& mods, Index q_len, Index kv_len, Random& random) {
  const Index poisoned = random.integer(0, kv_len - 1);
  for (const bool in_key : {true, false})
    for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      Inputs in({1, 1, 1, q_len, kv_len, 16, 20}, random);
      auto& x = in_key ? in.k : in.v;
      x[static_cast<std::size_t>(poisoned * (in_key ? 16 : 20))] = poison;
      Arguments<float> a(in);
      for (Isa isa : instruction_sets()) {
        const auto got = flash(a, mods, {.isa = isa});
        for (Index i = 0; i < q_len; ++i) {
          const bool kept = kept_by(mods, q_len, kv_len, i)[static_cast<std::size_t>(poisoned)];
          const bool finite = std::all_of(got.out.begin() + i * 20, got.out.begin() + (i + 1) * 20,
                                          [](float y) { return std::isfinite(y); });
          SCOPED_TRACE(::testing::Message() << to_string(isa) << " query " << i << " key " << poisoned);
          ASSERT_TRUE(kept || finite);
          ASSERT_TRUE(!kept || in_key || !finite);
        }
      }
    }
}

TEST(GatheredKeys, NothingLeaksIntoWindowsAndLists) {
  Random random(3);
  for (int round = 0; round < 6; ++round) {
    expect_no_leak(attn::detail::neighbourhood_of(attn::detail::token_grid({9, 10}, {3, 3}, {}, {}), true), 90, 90,
                   random);
    expect_no_leak(select(draw_lists(1, 20, 9, 120, random)), 20, 120, random);
    expect_no_leak(select(draw_lists(1, 1, 20, 90, random)), 70, 90, random);
  }
}

/// A window as wide as the grid covers whole rows, unless it is causal.
TEST(GatheredKeys, CausalWindowsMayBeAsWideAsTheGrid) {
  Random random(4);
  struct Grid {
    std::vector<Index> shape, window, causal;
  };
  for (Grid g : {Grid{{18, 2}, {5, 2}, {0, 1}}, {{9, 4}, {5, 4}, {1, 1}}, {{9, 2, 2}, {5, 2, 2}, {0, 0, 1}}})
    for (const bool is_causal : {true, false}) {
      if (!is_causal) std::fill(g.causal.begin(), g.causal.end(), 0);
      const auto grid = attn::detail::token_grid(g.shape, g.window, std::vector<Index>(), g.causal);
      const auto mod = attn::detail::neighbourhood_of(grid, true);
      Arguments<double> a(Inputs({1, 1, 1, 36, 36, 8, 8}, random));
      const Computed<double> by_definition = naive(a, mod);
      for (const Isa isa : instruction_sets()) {
        const Computed<double> got = flash(a, mod, {.isa = isa});
        for (std::size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], by_definition.out[i], 1e-13);
      }
    }
}

// Empty lists, and a list of one key.
TEST(GatheredKeys, QueriesWithoutKeysAreZero) {
  Tensor<int, 2> lists({3, 2});
  std::fill_n(lists.data(), 6, -1);
  lists(1, 1) = 7;
  Random random(4);
  Arguments<float> a(Inputs({1, 1, 1, 3, 40, 8, 8}, random));
  for (Isa isa : instruction_sets()) {
    const auto got = flash(a, select(lists), {.isa = isa});
    for (std::size_t i = 0; i < 24; ++i) EXPECT_EQ(got.out[i], i / 8 == 1 ? a.v.read()[7 * 8 + i % 8] : 0.0f);
    EXPECT_EQ(got.lse[0], -std::numeric_limits<float>::infinity());
    EXPECT_EQ(got.lse[2], -std::numeric_limits<float>::infinity());
    EXPECT_TRUE(std::isfinite(got.lse[1]));
  }
}

// Lists are sets: order and repetition change no bit.
TEST(GatheredKeys, OrderAndRepetitionChangeNothing) {
  Random random(5);
  Arguments<float> a(Inputs({1, 2, 1, 6, 900, 64, 64}, random));
  const auto lists = draw_lists(2, 6, 70, 900, random);
  Tensor<Index, 3> shuffled({2, 6, 100});
  for (Index h = 0; h < 2; ++h)
    for (Index i = 0; i < 6; ++i)
      for (Index j = 0; j < 100; ++j) shuffled(h, i, j) = j < 20 ? -1 : lists(h, i, (j * 37 + h) % 70);
  const auto expected = flash(a, select(lists)), got = flash(a, select(shuffled));
  std::set<Index> listed, again;
  for (Index j = 0; j < 70; ++j) listed.insert(lists(0, 0, j));
  for (Index j = 20; j < 100; ++j) again.insert(shuffled(0, 0, j));
  ASSERT_EQ(listed, again);
  EXPECT_EQ(expected.out, got.out);
  EXPECT_EQ(expected.lse, got.lse);
}

// The same lists as a tensor, in compressed rows and as nested ranges.
TEST(GatheredKeys, AllListFormatsAgree) {
  Random random(11);
  Arguments<float> a(Inputs({1, 2, 2, 3, 900, 16, 16}, random));
  Tensor<int, 3> padded({2, 3, 4});
  std::fill_n(padded.data(), padded.size(), -1);
  const std::vector<std::vector<std::vector<int>>> nested{{{7, 3, 7}, {}, {899}}, {{1, 2, 3, 4}, {5}, {0, 0}}};
  const std::vector<std::vector<std::set<long>>> sets{{{7, 3}, {}, {899}}, {{1, 2, 3, 4}, {5}, {0}}};
  for (std::size_t h = 0; h < 2; ++h)
    for (std::size_t i = 0; i < 3; ++i)
      std::copy(nested[h][i].begin(), nested[h][i].end(), &padded(static_cast<Index>(h), static_cast<Index>(i), 0));
  Tensor<unsigned, 2> offsets({2, 4});
  const unsigned each[] = {0, 3, 3, 4, 4, 8, 9, 11};
  std::copy_n(each, 8, offsets.data());
  const std::vector<short> indices{7, 3, 7, 899, 1, 2, 3, 4, 5, 0, 0};
  const auto expected = flash(a, select(padded));
  EXPECT_EQ(flash(a, select(offsets, indices)).out, expected.out);
  EXPECT_EQ(flash(a, select(nested)).out, expected.out);
  EXPECT_EQ(flash(a, select(sets)).out, expected.out);
  const std::vector<std::vector<int>> of_all{{7, 3, 7}, {}, {899}};
  Tensor<int, 2> padded_of_all({3, 4});
  std::copy_n(padded.data(), 12, padded_of_all.data());
  EXPECT_EQ(flash(a, select(of_all)).out, flash(a, select(padded_of_all)).out);
  EXPECT_EQ(flash(a, select({0, 3, 3, 4}, {7, 3, 7, 899})).out, flash(a, select(of_all)).out);
  EXPECT_EQ(flash(a, select(std::vector{of_all, of_all})).out, flash(a, select(of_all)).out);
  EXPECT_NE(flash(a, select({0, 3, 3, 4}, {7, 3, 7, 898})).out, flash(a, select(of_all)).out);
  EXPECT_NE(flash(a, select({0, 2, 3, 4}, {7, 3, 7, 899})).out, flash(a, select(of_all)).out);
}

// A separate algorithm sorts a few keys that are far apart.
TEST(GatheredKeys, RepetitionOfKeysFarApartChangesNothing) {
  Random random(8);
  Arguments<float> a(Inputs({1, 1, 1, 2, 9000, 8, 8}, random));
  Tensor<int, 2> once({2, 3}), twice({2, 3});
  for (int i = 0; i < 2; ++i) {
    once(i, 0) = 30 + i, once(i, 1) = 8000, once(i, 2) = -1;
    twice(i, 0) = twice(i, 2) = 8000, twice(i, 1) = 30 + i;
  }
  const auto expected = flash(a, select(once)), got = flash(a, select(twice));
  EXPECT_EQ(expected.out, got.out);
  EXPECT_EQ(expected.lse, got.lse);
}

TEST(GatheredKeys, ResultsDoNotDependOnThreads) {
  Random random(6);
  const auto expect_alike = [&](const Sizes& sizes, const auto& mods) {
    Arguments<float> a(Inputs(sizes, random));
    const auto one = flash(a, mods, {.executor = serial()}), three = flash(a, mods, {.executor = eager_threads(3)});
    EXPECT_EQ(one.out, three.out);
    EXPECT_EQ(one.lse, three.lse);
  };
  expect_alike({2, 4, 2, 30 * 20, 30 * 20, 16, 24}, neighbourhood({30, 20}, {5, 5}));
  expect_alike({1, 2, 1, 30 * 20, 30 * 20, 16, 24}, neighbourhood({30, 20}, {5, 5}, {3, 2}) | softcap(2));
  expect_alike({2, 4, 2, 40, 3000, 16, 24}, select(draw_lists(2, 40, 100, 3000, random)));
  expect_alike({1, 4, 2, 1, 9000, 16, 24}, select(draw_lists(4, 1, 3000, 9000, random)));
}

// Tiles of tokens far apart, combined with masks whose hints inspect every key in a tile's range.
TEST(GatheredKeys, CombinedWithMasksThatInspectTiles) {
  Random random(7);
  const Index n = 700;
  Arguments<float> a(Inputs({1, 2, 1, n, n, 8, 8}, random));
  Tensor<bool, 2> map({n / 10, n / 10}), pairs({n, n});
  Tensor<bool, 1> keys({n});
  for (auto* t : {&map, &pairs})
    for (Index i = 0; i < t->size(); ++i) t->data()[i] = random.chance(0.7);
  for (Index i = 0; i < n; ++i) keys(i) = random.chance(0.7);
  std::vector<Index> ids, parents;
  for (Index i = 0; i < n; ++i) {
    ids.push_back(i / 130);
    parents.push_back(random.integer(std::max<Index>(i - 5, -1), i - 1));
  }
  const auto grid = neighbourhood({35, 20}, {5, 5});
  const auto lists = select(draw_lists(2, n, 40, n, random));
  const auto expect_alike = [&](const auto& other) {
    const auto expect = [&](const auto& mods) {
      const auto got = flash(a, mods), expected = naive(a, mods);
      for (std::size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], expected.out[i], 1e-5);
      for (std::size_t i = 0; i < got.lse.size(); ++i)
        ASSERT_TRUE(got.lse[i] == expected.lse[i] || std::abs(got.lse[i] - expected.lse[i]) < 1e-5);
    };
    expect(grid | other);
    expect(other | lists);
  };
  expect_alike(block_sparse(map, 10, 10));
  expect_alike(block_mask(mask_mod([](auto p) { return (p.q + p.kv / 50) % 3 != 0; }), n, n));
  expect_alike(keep(keys));
  expect_alike(drop(pairs));
  expect_alike(documents(ids));
  expect_alike(tree(parents));
  expect_alike(strided_sparse(7));  // of two mods that gather or group, the first one does so
}

/// Visited pairs are in proportion to the kept ones; the bounds include the keys between the windows of a tile.
TEST(GatheredKeys, WorkIsInProportionToThePairs) {
  const float number = 1;
  const auto explained = [&](const auto& mods, Index q_len, Index kv_len) {
    const TensorView<const float, 4> q(&number, {1, 1, q_len, 1}, {0, 0, 0, 1}),
        k(&number, {1, 1, kv_len, 1}, {0, 0, 0, 1});
    return explain(q, k, k, mods, {.executor = serial(), .isa = instruction_sets().back()});
  };
  const auto visited = [](const Explanation& e) {
    return static_cast<double>((e.full_tiles + e.masked_tiles) * e.queries_per_tile * e.keys_per_tile);
  };
  const auto image = neighbourhood({128, 128}, {13, 13});
  EXPECT_LT(visited(explained(image, 16384, 16384)), 16384.0 * 169 * 1.9);
  EXPECT_GT(visited(explained(any_of(image), 16384, 16384)), 16384.0 * 169 * 3);
  const auto holes = neighbourhood({128, 128}, {13, 13}, {4, 4});
  EXPECT_LT(visited(explained(holes, 16384, 16384)), 16384.0 * 169 * 1.9);
  const auto video = neighbourhood({16, 32, 32}, {5, 7, 7});
  EXPECT_LT(visited(explained(video, 16384, 16384)), 16384.0 * 245 * 2.9);
  const auto row = neighbourhood({16384}, {65}, {16});
  EXPECT_LT(visited(explained(row, 16384, 16384)), 16384.0 * 65 * 2.2);
  // A part of a grid is not gathered, nor is a window that covers most of a small grid.
  EXPECT_EQ(explained(image, 8192, 16384).queries_per_tile, explained(causal(), 8192, 16384).queries_per_tile);
  EXPECT_EQ(explained(neighbourhood({8, 8}, {7, 7}), 64, 64).queries_per_tile,
            explained(causal(), 64, 64).queries_per_tile);

  Random random(8);
  const auto lists = select(draw_lists(1, 32, 256, 65536, random));
  EXPECT_LE(explained(lists, 32, 65536).full_tiles, 32 * 4);
  EXPECT_EQ(explained(lists, 32, 65536).single_queries, 32);
  EXPECT_GT(explained(any_of(lists), 32, 65536).masked_tiles, 500);
  const auto shared = select(draw_lists(1, 1, 256, 65536, random));
  EXPECT_EQ(explained(shared, 480, 65536).full_tiles, 4 * explained(causal(), 480, 64).query_tiles);
  EXPECT_EQ(explained(select(draw_lists(1, 32, 256, 512, random)), 32, 512).single_queries,
            0);  // too long for gathering to pay

  // A hub node costs only its own row: all keys, in tiles of one query.
  std::vector<std::vector<Index>> graph(1000);
  for (std::size_t i = 0; i < 1000; ++i)
    for (Index e = 0; e < (i == 0 ? 1000 : 12); ++e) graph[i].push_back(i == 0 ? e : random.integer(0, 999));
  const Explanation hub = explained(select(graph), 1000, 1000);
  EXPECT_EQ(hub.single_queries, 1000);
  EXPECT_EQ(hub.full_tiles + hub.masked_tiles, 999 + 16);
}

// A workspace of exactly the reported size.
TEST(GatheredKeys, NeedExactlyTheReportedWorkspace) {
  Random random(9);
  const auto expect = [&](const Sizes& s, const auto& mods) {
    Arguments<Eigen::half> a(Inputs(s, random));
    for (const int workers : {1, 3}) {
      Options options{.executor = eager_threads(workers)};
      const auto expected = flash(a, mods, options);
      std::vector<std::byte> memory(workspace_bytes(a.q.cview(), a.k.cview(), a.v.cview(), mods, options));
      options.workspace = memory;
      EXPECT_EQ(flash(a, mods, options).out, expected.out);
      options.workspace = std::span(memory).first(memory.size() - 1);
      EXPECT_THROW(flash(a, mods, options), std::invalid_argument);
    }
  };
  expect({2, 4, 2, 30 * 20, 30 * 20, 40, 24}, neighbourhood({30, 20}, {5, 5}));
  expect({2, 4, 2, 7, 3000, 40, 24}, select(draw_lists(4, 7, 100, 3000, random)));
}

}  // namespace
}  // namespace attn::test
