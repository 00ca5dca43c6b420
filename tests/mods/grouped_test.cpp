// Masks that group tokens: their parts form the whole mask, hints hold in the groups, and work is in proportion to the
// kept pairs.
#include "support/executors.h"
#include "support/grouped_rows.h"
#include "support/paths.h"

namespace attn::test {
namespace {

Problem problem_of(const Sizes& s, Index first, Index first_key) {
  Problem p;
  p.batch = s.batch;
  p.q_len = s.q_len;
  p.kv_len = s.kv_len;
  p.q_offset = first;
  p.kv_offset = first_key;
  return p;
}

template <class M>
constexpr bool has_near = !std::is_same_v<decltype(M::near), attn::detail::NoHint>;

/// Calls check(sizes, positions of the first query and key, row) for each mask at all small sizes.
template <class Check>
void each_grouped(Check check) {
  Random random(1);
  for (Index q_len = 1; q_len <= 14; ++q_len)
    for (Index kv_len = 0; kv_len <= 14; ++kv_len)
      for (Index first : {kv_len - q_len, Index(0), Index(-9), Index(5)}) {
        const Sizes s{2, 1, 1, q_len, kv_len, 1, 1};
        const Setting setting{s, {}, random};
        for (int round = 0; round < 3; ++round) {
          const Index first_key = round == 0 ? 0 : random.integer(-9, 9);
          check(s, first, first_key, strided_rows(setting)[0]);
          check(s, first, std::abs(first_key), fixed_rows(setting)[0]);
          check(s, first, first_key, dilated_rows(setting)[0]);
        }
      }
}

TEST(Grouped, EveryPairIsInOnePart) {
  each_grouped([&]<class M>(const Sizes& s, Index first, Index first_key, const Row<M>& row) {
    if (::testing::Test::HasFailure()) return;
    SCOPED_TRACE(row.name);
    const Problem call = problem_of(s, first, first_key);
    Tensor<int, 3> kept({s.batch, s.q_len, s.kv_len}), visits({s.batch, s.q_len, 1});
    if constexpr (has_near<M>)
      for (Index b = 0; b < s.batch; ++b)
        for (Index i = 0; i < s.q_len; ++i)
          for (Index j = 0; j < s.kv_len; ++j) kept(b, i, j) += row.mod.near.keep({b, 0, first + i, first_key + j});
    attn::detail::for_each_token_groups(
        call, row.mod.grouping, [&](const attn::detail::TokenGroups& groups, const Problem& p) {
          for (Index group = 0; group < p.batch; ++group)
            for (Index i = 0; i < p.q_len; ++i) {
              const Index q = groups.in_call(Position{group, 0, p.q_offset + i, 0}).q;
              ++visits(groups.batch, q - first, 0);
              // The rows that tensors_of() reads.
              ASSERT_EQ(q - first, groups.first_query + group + i * groups.q_step);
              for (Index j = 0; j < p.kv_len; ++j) {
                const Position inside{group, 0, p.q_offset + i, p.kv_offset + j}, at = groups.in_call(inside);
                const Index key = at.kv - first_key;
                ASSERT_EQ(at.batch, groups.batch);
                ASSERT_LT(key, s.kv_len);
                ASSERT_EQ(key, groups.first_key + group + j * groups.kv_step);
                kept(at.batch, at.q - first, key) += row.mod.far.keep(inside);
              }
            }
        });
    for (Index b = 0; b < s.batch; ++b)
      for (Index i = 0; i < s.q_len; ++i) {
        ASSERT_TRUE(row.mod.grouping.shared || visits(b, i, 0) == 1);
        for (Index j = 0; j < s.kv_len; ++j)
          ASSERT_EQ(kept(b, i, j), row.meaning.keep({b, 0, i, first + i, first_key + j}))
              << first + i << " " << first_key + j;
      }
  });
}

/// The hints of `mods` for every tile of a problem, against its predicate.
template <class Mods>
void expect_sound(const Mods& mods, const Problem& p) {
  for (Index b = 0; b < p.batch; ++b)
    for (Index i0 = 0; i0 < p.q_len; ++i0)
      for (Index i1 = i0 + 1; i1 <= p.q_len; ++i1)
        for (Index j0 = 0; j0 < p.kv_len; ++j0)
          for (Index j1 = j0 + 1; j1 <= p.kv_len; ++j1) {
            const Tile t{b, 0, {p.q_offset + i0, p.q_offset + i1}, {p.kv_offset + j0, p.kv_offset + j1}};
            Index kept = 0;
            const Range visited = mods.kv_range(t);
            for (Index q = t.q.begin; q < t.q.end; ++q)
              for (Index kv = t.kv.begin; kv < t.kv.end; ++kv)
                if (mods.keep({b, 0, q, kv})) {
                  ++kept;
                  ASSERT_TRUE(visited.begin <= kv && kv < visited.end);
                }
            const Coverage coverage = mods.coverage(t);
            ASSERT_TRUE(coverage != Coverage::none || kept == 0);
            ASSERT_TRUE(coverage != Coverage::all || kept == (i1 - i0) * (j1 - j0));
          }
}

TEST(Grouped, HintsHoldInPartsAndCombinedMasks) {
  each_grouped([&]<class M>(const Sizes& s, Index first, Index first_key, const Row<M>& row) {
    if (::testing::Test::HasFailure() || s.q_len % 3 != 1 || s.kv_len % 4 > 1) return;
    const Problem call = problem_of(s, first, first_key);
    const auto mods = row.mod | causal() | key_lengths({s.kv_len / 2, s.kv_len}) | sliding_window(6, 3);
    const auto bound = attn::detail::bind(mods, call);
    SCOPED_TRACE(row.name);
    if constexpr (has_near<M>) expect_sound(bound.with_near_part(), call);
    const auto others = bound.without_grouped();
    attn::detail::for_each_token_groups(call, row.mod.grouping,
                                        [&](const attn::detail::TokenGroups& groups, const Problem& p) {
                                          expect_sound(attn::detail::MappedMods(others, groups, row.mod.far), p);
                                        });
  });
}

/// Visited pairs are in proportion to the kept ones, not to all; the bounds include waste at the tile edges of each
/// part.
TEST(Grouped, WorkIsInProportionToThePairs) {
  const Index n = 16384;
  const float number = 1;
  const TensorView<const float, 4> tokens(&number, {1, 1, n, 1}, {0, 0, 0, 1});
  const auto visited_of_kept = [&](const auto& mods, double kept) {
    const Explanation e = explain(tokens, tokens, tokens, mods, {.executor = serial()});
    EXPECT_GT(e.full_tiles, e.masked_tiles / 4);
    return static_cast<double>((e.full_tiles + e.masked_tiles) * e.queries_per_tile * e.keys_per_tile) / kept;
  };
  const double d = static_cast<double>(n);
  EXPECT_LT(visited_of_kept(strided_sparse(128), d * (128 + d / 256)), 1.8);
  EXPECT_LT(visited_of_kept(fixed_sparse(128, 8), d * (64 + 8 * d / 256)), 1.8);
  EXPECT_LT(visited_of_kept(dilated(128, 64), d * 112), 2.0);  // groups of 256 tokens, half of which have a full window
  EXPECT_EQ(explain(tokens, tokens, tokens, causal()).passes, 1);
  EXPECT_EQ(explain(tokens, tokens, tokens, strided_sparse(128)).passes, 2);
  EXPECT_EQ(explain(tokens, tokens, tokens, fixed_sparse(128, 8)).passes, 9);
  EXPECT_EQ(explain(tokens, tokens, tokens, dilated(128, 64)).passes, 1);
  // 100 does not divide n, so there are groups of two sizes.
  EXPECT_EQ(explain(tokens, tokens, tokens, dilated(128, 100)).passes, 2);
  EXPECT_EQ(explain(tokens, tokens, tokens, any_of(strided_sparse(128))).passes, 1);
}

TEST(Grouped, GroupsOnlyWhereItPays) {
  const float number = 1;
  const auto passes = [&](const auto& mods, Index n) {
    const TensorView<const float, 4> tokens(&number, {1, 1, n, 1}, {0, 0, 0, 1});
    const Explanation e = explain(tokens, tokens, tokens, mods), plain = explain(tokens, tokens, tokens, any_of(mods));
    EXPECT_LE(e.full_tiles + e.masked_tiles, plain.full_tiles + plain.masked_tiles);
    return e.passes;
  };
  EXPECT_EQ(passes(strided_sparse(64), 4096), 2);
  EXPECT_EQ(passes(strided_sparse(1000), 4096), 1);
  EXPECT_EQ(passes(fixed_sparse(64, 8), 4096), 9);
  EXPECT_EQ(passes(fixed_sparse(64, 64), 4096), 1);
  EXPECT_EQ(passes(fixed_sparse(1024, 33), 65536), 1);
  EXPECT_EQ(passes(dilated(2, 4), 40), 1);
  EXPECT_EQ(passes(dilated(20, 4), 1024), 1);  // one pass: this mask has no near part
}

// Tiles of tokens far apart, combined with masks whose hints inspect every key in a tile's range.
TEST(Grouped, CombinedWithMasksThatInspectTiles) {
  Random random(3);
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
  const auto expect_alike = [&](const auto& other) {
    const auto expect = [&](auto grouped) {
      grouped.grouping.always = true;
      const auto mods = grouped | other;
      const auto got = flash(a, mods), expected = naive(a, mods);
      for (std::size_t i = 0; i < got.out.size(); ++i) ASSERT_NEAR(got.out[i], expected.out[i], 1e-5);
      for (std::size_t i = 0; i < got.lse.size(); ++i)
        ASSERT_TRUE(got.lse[i] == expected.lse[i] || std::abs(got.lse[i] - expected.lse[i]) < 1e-5);
    };
    expect(strided_sparse(5));
    expect(fixed_sparse(16, 3));
    expect(dilated(70, 6, 20));
  };
  expect_alike(block_sparse(map, 10, 10));
  expect_alike(block_mask(mask_mod([](auto p) { return (p.q + p.kv / 50) % 3 != 0; }), n, n));
  expect_alike(keep(keys));
  expect_alike(drop(pairs));
  expect_alike(documents(ids));
  expect_alike(tree(parents));
}

// Each pass rounds the result of the previous one.
TEST(Grouped, ManyPassesStayAccurate) {
  Random random(4);
  Inputs in({1, 1, 1, 900, 900, 64, 8}, random);
  for (auto& x : in.q) x *= 4;
  Arguments<float> a(in);
  auto mods = fixed_sparse(64, 32);
  mods.grouping.always = true;
  const Meaning meaning{[](const Pair& p) { return p.kv <= p.q && (p.kv / 64 == p.q / 64 || p.kv % 64 >= 32); }, {}};
  const Truth truth = oracle(in, meaning, {});
  expect_close(truth, naive(a, mods), flash(a, mods));
}

TEST(Grouped, ResultsDoNotDependOnThreads) {
  Random random(2);
  Arguments<float> a(Inputs({2, 4, 2, 300, 300, 16, 24}, random));
  const auto expect_alike = [&](const auto& mods) {
    const auto one = flash(a, mods, {.executor = serial()}), three = flash(a, mods, {.executor = eager_threads(3)});
    EXPECT_EQ(one.out, three.out);
    EXPECT_EQ(one.lse, three.lse);
  };
  auto strided = strided_sparse(9);
  auto fixed = fixed_sparse(20, 4);
  strided.grouping.always = fixed.grouping.always = true;
  expect_alike(strided);
  expect_alike(fixed | softcap(2));
  expect_alike(dilated(9, 7, 3));
}

// NaN from the pass over near keys survives the pass over far keys, and vice versa.
TEST(Grouped, NaNInOnePartReachesTheResult) {
  const Index n = 60;
  const Eigen::MatrixXd q = Eigen::MatrixXd::Ones(n, 1), v = Eigen::MatrixXd::Ones(n, 3);
  for (const Index poisoned : {n - 1, n - 1 - 5 * 8}) {  // a near key of the last query, and a far one
    Eigen::MatrixXd k = Eigen::MatrixXd::Ones(n, 1);
    k(poisoned, 0) = std::numeric_limits<double>::quiet_NaN();
    auto mask = strided_sparse(8);
    mask.grouping.always = true;
    for (Isa isa : instruction_sets()) {
      const auto got = attention(q, k, v, mask, {.isa = isa});
      EXPECT_TRUE(std::isnan(got.lse(n - 1)) && got.out.row(n - 1).array().isNaN().all()) << poisoned;
      EXPECT_TRUE(got.out.topRows(poisoned).allFinite() && got.lse.head(poisoned).allFinite());
    }
  }
}

// Scores far from 0 in one part: the results of the two passes need the right weights.
TEST(Grouped, PartsWithVeryDifferentWeights) {
  const Index n = 60;
  Eigen::MatrixXd q = Eigen::MatrixXd::Ones(n, 1), k(n, 1), v = Eigen::MatrixXd::Random(n, 3);
  for (const double far_score : {-1e4, -30.0, 30.0, 1e4}) {
    // Every 8th key weighs more or less than the others; the last query has it in both parts.
    for (Index j = 0; j < n; ++j) k(j, 0) = (n - 1 - j) % 8 == 0 ? far_score : 0;
    auto mask = strided_sparse(8);
    mask.grouping.always = true;
    const auto got = attention(q, k, v, mask, {.scale = 1}), expected = attention(q, k, v, any_of(mask), {.scale = 1});
    EXPECT_LT((got.out - expected.out).cwiseAbs().maxCoeff(), 1e-13) << far_score;
    EXPECT_LT((got.lse - expected.lse).cwiseAbs().maxCoeff(), 1e-11) << far_score;
  }
}

}  // namespace
}  // namespace attn::test
