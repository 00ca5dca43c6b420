// What explain() says must be what the call does.
#include <atomic>
#include <sstream>

#include "support/paths.h"

namespace attn::test {
namespace {

struct Matrices {
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> q, k, v;
  Matrices(Index q_len, Index kv_len) : q(q_len, 8), k(kv_len, 8), v(kv_len, 8) {
    q.setRandom();
    k.setRandom();
    v.setRandom();
  }
};

/// The number of pairs that a mask is asked for is the number of pairs in masked tiles.
TEST(Explain, CountsTheTilesThatACallMasks) {
  const Matrices m(300, 500);
  for (Isa isa : instruction_sets()) {
    std::atomic<Index> asked{0};
    const auto counted = mask_mod(
        [&](const Position& p) {
          ++asked;
          return causal().keep(p);
        },
        // Blind within a tile, so that all of its pairs are asked for.
        [](const Tile& t) { return t.kv.size() <= 16 ? Coverage::some : causal().coverage(t); },
        [](const Tile& t) { return causal().kv_range(t); });
    const Options options{.executor = serial(), .isa = isa};
    const Explanation e = explain(m.q, m.k, m.v, counted, options);
    EXPECT_EQ(asked, 0) << "explain() asks hints alone";
    attention(m.q, m.k, m.v, counted, options);
    EXPECT_GT(e.masked_tiles, 0);
    EXPECT_LE(asked, e.masked_tiles * e.queries_per_tile * e.keys_per_tile);
    EXPECT_GT(asked, (e.masked_tiles - 2) * (e.queries_per_tile - 16) * e.keys_per_tile / 2);
    EXPECT_EQ(e.isa, isa);
    EXPECT_EQ(e.keys_per_tile, 64);
    EXPECT_EQ(e.tiles(), e.query_tiles * 8);  // ceil(500 / 64)
  }
}

TEST(Explain, KnowsPlainAttentionFromMasked) {
  const Matrices m(256, 256);
  const Explanation plain = explain(m.q, m.k, m.v);
  EXPECT_EQ(plain.masked_tiles, 0);
  EXPECT_EQ(plain.skipped_tiles, 0);
  EXPECT_EQ(plain.full_tiles, plain.query_tiles * 4);
  // A lambda without hints is asked for whole tiles: as many are skipped and full as if it had hints.
  const Explanation opaque = explain(m.q, m.k, m.v, mask_mod([](auto p) { return p.q >= p.kv; }));
  const Explanation hinted = explain(m.q, m.k, m.v, causal());
  EXPECT_GT(hinted.skipped_tiles, 0);
  EXPECT_GT(hinted.full_tiles, 0);
  EXPECT_EQ(opaque.skipped_tiles, hinted.skipped_tiles);
  EXPECT_EQ(opaque.masked_tiles, hinted.masked_tiles);
  EXPECT_EQ(opaque.full_tiles, hinted.full_tiles);
  // Through masks of masks too.
  const Explanation inside = explain(m.q, m.k, m.v, not_(any_of(mask_mod([](auto p) { return p.q < p.kv; }))));
  EXPECT_EQ(inside.full_tiles, hinted.full_tiles);
  const Explanation mapped =
      explain(m.q, m.k, m.v, block_mask(mask_mod([](auto p) { return p.q >= p.kv; }), m.q.rows(), m.k.rows()));
  EXPECT_EQ(mapped.skipped_tiles, hinted.skipped_tiles);
  const Explanation window = explain(m.q, m.k, m.v, sliding_window(10));
  EXPECT_GT(window.skipped_tiles, 0);
  EXPECT_EQ(window.tiles(), plain.tiles());
  EXPECT_EQ(explain(m.q, m.k, m.v, score_mod([](auto x, auto) { return x; })).full_tiles, plain.full_tiles);
}

TEST(Explain, KnowsPaddingInATensor) {
  const Matrices m(200, 500);
  Tensor<bool, 1> kept({500});
  std::fill_n(kept.data(), 192, true);
  const Explanation by_tensor = explain(m.q, m.k, m.v, keep(kept)),
                    by_lengths = explain(m.q, m.k, m.v, key_lengths({192}));
  EXPECT_EQ(by_tensor.full_tiles, by_lengths.full_tiles);
  EXPECT_EQ(by_tensor.full_tiles + by_tensor.masked_tiles, by_tensor.query_tiles * 3);
  for (Index j = 0; j < 500; ++j) kept(j) = !kept(j);
  EXPECT_EQ(explain(m.q, m.k, m.v, drop(kept)).full_tiles, by_lengths.full_tiles);
  EXPECT_EQ(explain(m.q, m.k, m.v, padding(kept)).full_tiles, by_lengths.full_tiles);
  EXPECT_EQ(explain(m.q, m.k, m.v, padding(kept)).skipped_tiles, by_lengths.skipped_tiles);
  EXPECT_EQ(explain(m.q, m.k, m.v, key_ranges({0}, {192})).skipped_tiles, by_lengths.skipped_tiles);
  // A tensor with rows is looked at pair by pair.
  Tensor<bool, 2> pairs({200, 500});
  for (Index i = 0; i < 200; ++i) std::fill_n(&pairs(i, 0), 192, true);
  EXPECT_EQ(explain(m.q, m.k, m.v, keep(pairs)).full_tiles, by_lengths.full_tiles);
}

TEST(Explain, KnowsBranchesOfATree) {
  const Matrices m(480, 580);
  std::vector<Index> parents;
  for (Index i = 0; i < 480; ++i) parents.push_back(i % 96 == 0 ? -1 : i - 1);
  const Explanation e = explain(m.q, m.k, m.v, tree(parents));
  // The context of 100 keys, and of five branches its own, half of it.
  EXPECT_LT(e.full_tiles + e.masked_tiles, e.query_tiles * 5);
  EXPECT_GT(e.full_tiles, 0);
}

TEST(Explain, KnowsThreadsMemoryAndLayout) {
  const Matrices m(2000, 2000);
  const Explanation e = explain(m.q, m.k, m.v, causal(), {.executor = threads(3)});
  EXPECT_EQ(e.threads, 3);
  EXPECT_EQ(static_cast<std::size_t>(e.workspace_bytes),
            workspace_bytes(m.q, m.k, m.v, causal(), {.executor = threads(3)}));
  EXPECT_FALSE(e.packs_keys || e.packs_values);
  const Eigen::MatrixXf columns = m.k;
  const Explanation packed = explain(m.q, columns, m.v, causal(), {.executor = threads(3)});
  EXPECT_TRUE(packed.packs_keys && !packed.packs_values);
  EXPECT_GT(packed.workspace_bytes, e.workspace_bytes);

  const Matrices one(1, 300);
  const Explanation row = explain(one.q, one.k, one.v);
  EXPECT_EQ(row.queries_per_tile, 1);
  EXPECT_EQ(row.query_tiles, 1);
  EXPECT_EQ(row.tasks, 1);
  EXPECT_EQ(row.threads, 1);
  const Matrices far(1, 9000);  // the keys of one query, at least 1024 of them to a task
  const Explanation parts = explain(far.q, far.k, far.v, full(), {.executor = threads(3)});
  EXPECT_EQ(parts.tasks, 8);
  EXPECT_EQ(parts.threads, 3);
  EXPECT_EQ(parts.tiles(), (9000 + 63) / 64);
  EXPECT_EQ(explain(far.q, far.k, far.v, full(), {.executor = serial()}).tasks, 8);
  const Matrices none(0, 300);
  const Explanation empty = explain(none.q, none.k, none.v);
  EXPECT_EQ(empty.query_tiles, 0);
  EXPECT_EQ(empty.tasks, 0);
  EXPECT_EQ(empty.workspace_bytes, 0);
  EXPECT_EQ(empty.tiles(), 0);
}

TEST(Explain, Prints) {
  Explanation e;
  e.passes = 1;
  e.queries_per_tile = 12;
  e.keys_per_tile = 64;
  e.query_tiles = 9;
  e.few_queries = 4;
  e.tasks = 5;
  e.threads = 1;
  e.workspace_bytes = 1000;
  e.packs_values = true;
  e.skipped_tiles = 1;
  e.full_tiles = 2;
  std::ostringstream out;
  out << e;
  EXPECT_EQ(out.str(),
            "instruction set  generic\n"
            "matrix unit      not for these numbers\n"
            "tile             12 x 64 (queries x keys)\n"
            "loop             tiles of queries, more than 4 in a sequence\n"
            "passes           1\n"
            "query tiles      9, in 5 tasks on 1 thread\n"
            "workspace        1000 bytes\n"
            "packed           values\n"
            "skipped          1 of 3 tiles (33.3 %)\n"
            "masked           0 of 3 tiles (0 %)\n"
            "full             2 of 3 tiles (66.7 %)\n");
  e.ignored_isa = "sse9";
  std::ostringstream ignored;
  ignored << e;
  EXPECT_EQ(ignored.str().substr(0, ignored.str().find('\n')),
            "instruction set  generic (ATTN_ISA=sse9 is not available here)");
}

/// The line of an explanation that begins so, without that.
std::string line_of(const Explanation& e, const std::string& name) {
  std::ostringstream out;
  out << e;
  std::istringstream lines(out.str());
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with(name)) return line.substr(line.find_first_not_of(' ', name.size()));
  return "";
}

TEST(Explain, TellsWhichLoopServesAndWhy) {
  const auto of = [](Index q_len, Index kv_len) {
    const Tensor<float, 4> q({1, 2, q_len, 64}), k({1, 2, kv_len, 64});
    return explain(q, k, k, full(), {.isa = instruction_sets().front()});
  };
  const Explanation tiles = of(5, 100), single = of(4, 100), none = of(0, 100);
  EXPECT_EQ(tiles.single_queries, 0);
  EXPECT_EQ(line_of(tiles, "loop"), "tiles of queries, more than 4 in a sequence");
  EXPECT_EQ(single.single_queries, 8);
  EXPECT_EQ(single.few_queries, 4);
  EXPECT_EQ(line_of(single, "loop"), "single queries, at most 4 in a sequence");
  EXPECT_EQ(line_of(none, "loop"), "tiles of queries");
  EXPECT_EQ(line_of(of(1, 100), "loop"), "single queries, at most 4 in a sequence, in one kernel");
}

/// Half a vector of 16 queries by themselves, where rows and keys are long enough.
TEST(Explain, WideVectorsLeaveMoreQueriesSingle) {
  const auto few = [](Index kv_len, Index head_dim, Isa isa) {
    const Tensor<float, 4> q({1, 1, 8, head_dim}), k({1, 1, kv_len, head_dim});
    const Explanation e = explain(q, k, k, full(), {.isa = isa});
    EXPECT_EQ(e.single_queries, e.few_queries >= 8 ? 8 : 0);
    return e.few_queries;
  };
  for (Isa isa : instruction_sets()) {
    EXPECT_EQ(few(256, 64, isa), detail::vectors_of(isa) == detail::VectorSet::avx512 ? 8 : 4);
    EXPECT_EQ(few(255, 64, isa), 4);
    EXPECT_EQ(few(256, 63, isa), 4);
  }
}

TEST(Explain, SingleQueriesFetchAheadWhatCannotBeInTheCache) {
  // The generic kernels, because with AVX-512 one kernel takes these queries even where keys are far, and fetches
  // nothing.
  const auto of = [](Index kv_len, Index heads = 1, Index q_len = 1) {
    const Tensor<float, 4> q({1, heads, q_len, 64}), k({1, 1, kv_len, 64});
    return explain(q, k, k, full(), {.isa = Isa::generic});
  };
  EXPECT_FALSE(of(16384).fetches_ahead);  // 8 MiB
  EXPECT_TRUE(of(16385).fetches_ahead);
  EXPECT_FALSE(of(6144, 2).fetches_ahead);  // 3 MiB, of queries that share it
  EXPECT_TRUE(of(6145, 2).fetches_ahead);
  EXPECT_FALSE(of(6144, 1, 2).fetches_ahead);
  EXPECT_TRUE(of(6145, 1, 2).fetches_ahead);
  EXPECT_EQ(line_of(of(16385), "loop"), "single queries, at most 4 in a sequence, keys and values fetched ahead");
}

/// Pages that hold less than a tile of keys.
TEST(Explain, QueriesThatShareKeysReadSmallPagesInPlace) {
  const auto of = [](Index page_size, Index kv_len, Index heads = 2) {
    PagedKvCache<float> cache({.pages = detail::ceil_div(kv_len, page_size), .page_size = page_size, .head_dim = 64});
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

/// Queries that visit no key fetch nothing.
TEST(Explain, FarKeysOfQueriesInOneKernelAreNotFetched) {
  const Tensor<float, 4> q({2, 16, 1, 64}), k({2, 16, 1100, 64});
  const auto of = [&](const auto& mods) { return explain(q, k, k, mods, {.isa = instruction_sets().back()}); };
  const Explanation all = of(full()), one = of(key_lengths({1100, 0})),
                    holes = of(mask_mod([](auto p) { return p.batch == 0 || p.kv != 7; }));
  if (all.lone_queries == 0) GTEST_SKIP() << "AVX-512: not there";
  EXPECT_FALSE(all.fetches_ahead);
  EXPECT_EQ(one.lone_queries, 16);
  EXPECT_FALSE(one.fetches_ahead);
  EXPECT_TRUE(holes.fetches_ahead);
  EXPECT_EQ(line_of(all, "loop"), "single queries, at most 8 in a sequence, in one kernel");
}

TEST(Explain, SequencesOfACacheMayTakeBothLoops) {
  KvCache<float> cache({.batch = 2, .kv_heads = 1, .head_dim = 8});
  const Tensor<float, 4> k({1, 1, 60, 8}), q({1, 1, 51, 8});
  cache.append(k, k, {50, 10});
  const Explanation e = explain(ragged(q, {50, 1}), cache);
  EXPECT_EQ(e.single_queries, 1);
  EXPECT_GT(e.query_tiles, 1);
  EXPECT_EQ(e.lone_queries, 1);
  EXPECT_EQ(line_of(e, "loop"), "tiles of queries, and 1 single query, in one kernel");
}

TEST(Explain, TellsWhetherTheMatrixUnitServes) {
  using Halves = Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrices floats(40, 50);
  const Halves q = floats.q.cast<Eigen::bfloat16>(), k = floats.k.cast<Eigen::bfloat16>();
  EXPECT_EQ(explain(floats.q, floats.k, floats.k).amx, Amx::not_for_these);
  EXPECT_EQ(explain(q, k, floats.k).amx, Amx::not_for_these);
  EXPECT_EQ(explain(q, k, k, full(), {.isa = instruction_sets().front()}).amx, Amx::not_there);
  EXPECT_EQ(to_string(Amx::not_there), "not there");
  EXPECT_EQ(to_string(Amx::used), "used");
  const Explanation e = explain(q, k, k);
  if (!available(Isa::amx) || e.amx == Amx::refused) GTEST_SKIP() << "matrix unit: " << to_string(e.amx);
  EXPECT_EQ(e.amx, Amx::used);
  EXPECT_TRUE(e.in_bf16);
  EXPECT_EQ(e.isa, Isa::amx);
  EXPECT_EQ(e.queries_per_tile, 32);
  EXPECT_TRUE(e.packs_keys && e.packs_values);  // of 8 columns
  EXPECT_EQ(explain(floats.q, floats.k, floats.k, full(), {.compute = Compute::bf16}).amx, Amx::used);
  EXPECT_EQ(explain(Halves(q.topRows(1)), k, k).amx, Amx::not_for_single_queries);
  EXPECT_EQ(explain(Halves(q.topRows(1)), k, k).isa, Isa::avx512);
  // Unless several share their keys, which lie as the matrix unit reads them.
  const Tensor<Eigen::bfloat16, 4> one({1, 4, 1, 32}), keys({1, 2, 70, 32}), odd({1, 2, 70, 40});
  EXPECT_EQ(explain(one, keys, keys).amx, Amx::used);
  EXPECT_EQ(explain(one, keys, odd).amx, Amx::not_for_single_queries);
}

TEST(Explain, TellsWhetherVectorsMultiplyBf16) {
  using Halves = Eigen::Matrix<Eigen::bfloat16, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrices floats(40, 50);
  const Halves q = floats.q.cast<Eigen::bfloat16>(), k = floats.k.cast<Eigen::bfloat16>();
  EXPECT_FALSE(explain(q, k, k, full(), {.isa = instruction_sets().back()}).in_bf16);
  if (!available(Isa::avx512_bf16) || !detail::cpu_has_bf16()) GTEST_SKIP() << "no AVX512-BF16 here";
  Options options{.isa = Isa::avx512_bf16};
  const Explanation e = explain(q, k, k, full(), options);
  EXPECT_TRUE(e.in_bf16);
  EXPECT_EQ(e.isa, Isa::avx512_bf16);
  EXPECT_EQ(e.amx, Amx::not_there);
  EXPECT_EQ(e.queries_per_tile, 32);
  EXPECT_EQ(line_of(e, "matrix unit"), "not there, products of bf16 by vectors");
  for (const Explanation& other :
       {explain(Halves(q.topRows(1)), k, k, full(), options), explain(floats.q, floats.k, floats.k, full(), options)}) {
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
  EXPECT_FALSE(explain(floats.q, floats.k, floats.k, full(), options).in_bf16) << "a backward pass would not know";
}

TEST(Explain, RefusesWhatACallRefuses) {
  const Matrices m(4, 5);
  const Eigen::MatrixXf wrong(6, 8);
  EXPECT_THROW(explain(m.q, m.k, wrong), std::invalid_argument);
  EXPECT_THROW(workspace_bytes(m.q, m.k, wrong), std::invalid_argument);
}

}  // namespace
}  // namespace attn::test
