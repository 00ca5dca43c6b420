// The loops, kernels and prefetching that explain() reports are those of the call.
#include <sstream>
#include <string>

#include "support/paths.h"

namespace attn::test {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Halves = Matrix<Eigen::bfloat16>;

/// The line of an explanation that begins with `name`, without that prefix.
std::string line_of(const Explanation& e, const std::string& name) {
  std::ostringstream out;
  out << e;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name)) return line.substr(line.find_first_not_of(' ', name.size()));
  return "";
}

TEST(Explain, ReportsTheLoopAndTheReason) {
  const auto of = [](Index q_len, Index kv_len) {
    const Tensor<float, 4> q({1, 2, q_len, 64}), k({1, 2, kv_len, 64});
    return explain(q, k, k, full(), {.isa = instruction_sets().front()});
  };
  const Explanation tiles = of(5, 100), single = of(4, 100), none = of(0, 100);
  EXPECT_EQ(tiles.single_queries, 0);
  EXPECT_EQ(line_of(tiles, "loop"), "tiles of queries, more than 4 per sequence");
  EXPECT_EQ(single.single_queries, 8);
  EXPECT_EQ(single.few_queries, 4);
  EXPECT_EQ(line_of(single, "loop"), "single queries, at most 4 per sequence");
  EXPECT_EQ(line_of(none, "loop"), "tiles of queries");
  EXPECT_EQ(line_of(of(1, 100), "loop"), "single queries, at most 4 per sequence, in the direct loop");
}

/// Up to half a vector of queries (8 of 16) is processed as single queries, if rows are long enough and there are
/// enough keys.
TEST(Explain, MoreQueriesAreSingleWithWideVectors) {
  const auto few = [](Index kv_len, Index head_dim, Isa isa) {
    const Tensor<float, 4> q({1, 1, 8, head_dim}), k({1, 1, kv_len, head_dim});
    const Explanation e = explain(q, k, k, full(), {.isa = isa});
    EXPECT_EQ(e.single_queries, e.few_queries >= 8 ? 8 : 0);
    return e.few_queries;
  };
  for (Isa isa : instruction_sets()) {
    EXPECT_EQ(few(256, 64, isa), isa >= Isa::avx512 ? 8 : 4);
    EXPECT_EQ(few(255, 64, isa), 4);
    EXPECT_EQ(few(256, 63, isa), 4);
  }
}

TEST(Explain, SingleQueriesFetchAheadOnlyBeyondTheCache) {
  // With the generic kernels: with AVX-512 the direct loop handles these queries even where keys are far, and fetches
  // nothing ahead.
  const auto of = [](Index kv_len, Index heads = 1, Index q_len = 1) {
    const Tensor<float, 4> q({1, heads, q_len, 64}), k({1, 1, kv_len, 64});
    return explain(q, k, k, full(), {.isa = Isa::generic});
  };
  EXPECT_FALSE(of(16384).fetches_ahead);  // 8 MiB
  EXPECT_TRUE(of(16385).fetches_ahead);
  EXPECT_FALSE(of(6144, 2).fetches_ahead);  // 3 MiB, read by two queries
  EXPECT_TRUE(of(6145, 2).fetches_ahead);
  EXPECT_FALSE(of(6144, 1, 2).fetches_ahead);
  EXPECT_TRUE(of(6145, 1, 2).fetches_ahead);
  EXPECT_EQ(line_of(of(16385), "loop"), "single queries, at most 4 per sequence, keys and values fetched ahead");
}

/// Pages with fewer keys than a tile.
TEST(Explain, QueriesThatShareKeysReadSmallPagesInPlace) {
  const auto of = [](Index page_size, Index kv_len, Index heads = 2) {
    PagedKvCache<float> cache({.pages = (kv_len + page_size - 1) / page_size, .page_size = page_size, .head_dim = 64});
    const Index sequence = cache.add();
    cache.append(sequence, Tensor<float, 4>({1, 1, kv_len, 64}), Tensor<float, 4>({1, 1, kv_len, 64}));
    return explain(Tensor<float, 4>({1, heads, 1, 64}), cache.view({sequence}), full(), {.isa = Isa::generic});
  };
  EXPECT_FALSE(of(64, 6144).fetches_ahead);  // 3 MiB
  EXPECT_TRUE(of(64, 6145).fetches_ahead);
  EXPECT_FALSE(of(16, 16384).fetches_ahead);  // 8 MiB
  EXPECT_TRUE(of(16, 16385).fetches_ahead);
  EXPECT_FALSE(of(64, 100, 1).packs_keys);
  for (const Index page_size : {8, 16, 17, 48}) {
    EXPECT_EQ(of(page_size, 100).packs_keys, page_size % 16 != 0);
    EXPECT_EQ(of(page_size, 100).packs_values, page_size % 16 != 0);
    EXPECT_TRUE(of(page_size, 100, 1).packs_keys);
  }
}

/// The general loop fetches far keys ahead (`holes`), but not for queries that visit no key (`one`).
TEST(Explain, FarKeysInTheDirectLoopAreNotFetchedAhead) {
  const Tensor<float, 4> q({2, 16, 1, 64}), k({2, 16, 1100, 64});
  const auto of = [&](const auto& mods) { return explain(q, k, k, mods, {.isa = instruction_sets().back()}); };
  const Explanation all = of(full()), one = of(key_lengths({1100, 0})),
                    holes = of(mask_mod([](auto p) { return p.batch == 0 || p.kv != 7; }));
  if (all.direct_queries == 0) GTEST_SKIP() << "AVX-512: not available";
  EXPECT_FALSE(all.fetches_ahead);
  EXPECT_EQ(one.direct_queries, 16);
  EXPECT_FALSE(one.fetches_ahead);
  EXPECT_TRUE(holes.fetches_ahead);
  EXPECT_EQ(line_of(all, "loop"),
            "single queries, at most " + std::to_string(all.few_queries) + " per sequence, in the direct loop");
}

TEST(Explain, SequencesOfACacheMayUseBothLoops) {
  KvCache<float> cache({.batch = 2, .kv_heads = 1, .head_dim = 8});
  const Tensor<float, 4> k({1, 1, 60, 8}), q({1, 1, 51, 8});
  cache.append(k, k, {50, 10});
  const Explanation e = explain(ragged(q, {50, 1}), cache);
  EXPECT_EQ(e.single_queries, 1);
  EXPECT_GT(e.query_tiles, 1);
  EXPECT_EQ(e.direct_queries, 1);
  EXPECT_EQ(line_of(e, "loop"), "tiles of queries, and 1 single query, in the direct loop");
}

TEST(Explain, ReportsWhetherTheMatrixUnitIsUsed) {
  const Matrix<float> float_q = Matrix<float>::Random(40, 8), float_k = Matrix<float>::Random(50, 8);
  const Halves q = float_q.cast<Eigen::bfloat16>(), k = float_k.cast<Eigen::bfloat16>();
  EXPECT_EQ(explain(float_q, float_k, float_k).amx, Amx::unsupported);
  EXPECT_EQ(explain(q, k, float_k).amx, Amx::unsupported);
  EXPECT_EQ(explain(q, k, k, full(), {.isa = instruction_sets().front()}).amx, Amx::unavailable);
  EXPECT_EQ(to_string(Amx::unavailable), "not available");
  EXPECT_EQ(to_string(Amx::used), "used");
  const Explanation e = explain(q, k, k);
  if (!available(Isa::amx) || e.amx == Amx::refused) GTEST_SKIP() << "matrix unit: " << to_string(e.amx);
  EXPECT_EQ(e.amx, Amx::used);
  EXPECT_TRUE(e.in_bf16);
  EXPECT_EQ(e.isa, Isa::amx);
  EXPECT_EQ(e.queries_per_tile, 32);
  EXPECT_TRUE(e.packs_keys && e.packs_values);  // for matrices of 8 columns
  EXPECT_EQ(explain(float_q, float_k, float_k, full(), {.compute = Compute::bf16}).amx, Amx::used);
  EXPECT_EQ(explain(Halves(q.topRows(1)), k, k).amx, Amx::not_for_single_queries);
  EXPECT_EQ(explain(Halves(q.topRows(1)), k, k).isa, Isa::avx512);
  // Single queries do use it if several share keys stored in the layout of the matrix unit.
  const Tensor<Eigen::bfloat16, 4> one({1, 4, 1, 32}), keys({1, 2, 70, 32}), odd({1, 2, 70, 40});
  EXPECT_EQ(explain(one, keys, keys).amx, Amx::used);
  EXPECT_EQ(explain(one, keys, odd).amx, Amx::not_for_single_queries);
}

TEST(Explain, ReportsWhetherVectorsMultiplyBf16) {
  const Matrix<float> float_q = Matrix<float>::Random(40, 8), float_k = Matrix<float>::Random(50, 8);
  const Halves q = float_q.cast<Eigen::bfloat16>(), k = float_k.cast<Eigen::bfloat16>();
  EXPECT_FALSE(explain(q, k, k, full(), {.isa = instruction_sets().back()}).in_bf16);
  if (!available(Isa::avx512_bf16) || emulates_matrix_unit()) GTEST_SKIP() << "no AVX512-BF16 of this processor";
  Options options{.isa = Isa::avx512_bf16};
  const Explanation e = explain(q, k, k, full(), options);
  EXPECT_TRUE(e.in_bf16);
  EXPECT_EQ(e.isa, Isa::avx512_bf16);
  EXPECT_EQ(e.amx, Amx::unavailable);
  EXPECT_EQ(e.queries_per_tile, 32);
  EXPECT_EQ(line_of(e, "matrix unit"), "not available, bf16 products by vector instructions");
  for (const Explanation& other :
       {explain(Halves(q.topRows(1)), k, k, full(), options), explain(float_q, float_k, float_k, full(), options)}) {
    EXPECT_FALSE(other.in_bf16);
    EXPECT_EQ(other.isa, Isa::avx512);
  }
  for (const Index keys : {1, 16, 21, 22, 32, 33, 42, 43, 64, 65, 96}) {
    const bool fill_vectors = keys >= 43 || (22 <= keys && keys <= 32);
    EXPECT_EQ(explain(q, Halves(Halves::Zero(keys, 8)), Halves(Halves::Zero(keys, 8)), full(), options).in_bf16,
              fill_vectors)
        << keys << " keys";
  }
  options.compute = Compute::bf16;
  EXPECT_FALSE(explain(float_q, float_k, float_k, full(), options).in_bf16) << "a backward pass would not use it";
}

}  // namespace
}  // namespace attn::test
