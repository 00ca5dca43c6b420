// explain() describes what the call does.
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

/// The mask is evaluated for as many pairs as there are in masked tiles.
TEST(Explain, CountsTheTilesThatACallMasks) {
  const Matrices m(300, 500);
  for (Isa isa : instruction_sets()) {
    std::atomic<Index> asked{0};
    const auto counted = mask_mod(
        [&](const Position& p) {
          ++asked;
          return causal().keep(p);
        },
        // The hint is too coarse within a tile, so all pairs of the tile are evaluated.
        [](const Tile& t) { return t.kv.size() <= 16 ? Coverage::some : causal().coverage(t); },
        [](const Tile& t) { return causal().kv_range(t); });
    const Options options{.executor = serial(), .isa = isa};
    const Explanation e = explain(m.q, m.k, m.v, counted, options);
    EXPECT_EQ(asked, 0) << "explain() uses hints only";
    attention(m.q, m.k, m.v, counted, options);
    EXPECT_GT(e.masked_tiles, 0);
    EXPECT_LE(asked, e.masked_tiles * e.queries_per_tile * e.keys_per_tile);
    EXPECT_GT(asked, (e.masked_tiles - 2) * (e.queries_per_tile - 16) * e.keys_per_tile / 2);
    EXPECT_EQ(e.isa, isa);
    EXPECT_EQ(e.keys_per_tile, 64);
    EXPECT_EQ(e.tiles(), e.query_tiles * 8);  // ceil(500 / 64)
  }
}

TEST(Explain, DistinguishesPlainFromMaskedAttention) {
  const Matrices m(256, 256);
  const Explanation plain = explain(m.q, m.k, m.v);
  EXPECT_EQ(plain.masked_tiles, 0);
  EXPECT_EQ(plain.skipped_tiles, 0);
  EXPECT_EQ(plain.full_tiles, plain.query_tiles * 4);
  // A lambda without hints is evaluated for whole tiles, so as many tiles are skipped, or full, as with hints.
  const Explanation opaque = explain(m.q, m.k, m.v, mask_mod([](auto p) { return p.q >= p.kv; }));
  const Explanation hinted = explain(m.q, m.k, m.v, causal());
  EXPECT_GT(hinted.skipped_tiles, 0);
  EXPECT_GT(hinted.full_tiles, 0);
  EXPECT_EQ(opaque.skipped_tiles, hinted.skipped_tiles);
  EXPECT_EQ(opaque.masked_tiles, hinted.masked_tiles);
  EXPECT_EQ(opaque.full_tiles, hinted.full_tiles);
  // The same holds for masks combined from other masks.
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

TEST(Explain, DetectsPaddingInATensor) {
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
  // A tensor with one row per query is examined pair by pair.
  Tensor<bool, 2> pairs({200, 500});
  for (Index i = 0; i < 200; ++i) std::fill_n(&pairs(i, 0), 192, true);
  EXPECT_EQ(explain(m.q, m.k, m.v, keep(pairs)).full_tiles, by_lengths.full_tiles);
}

TEST(Explain, DetectsBranchesOfATree) {
  const Matrices m(480, 580);
  std::vector<Index> parents;
  for (Index i = 0; i < 480; ++i) parents.push_back(i % 96 == 0 ? -1 : i - 1);
  const Explanation e = explain(m.q, m.k, m.v, tree(parents));
  // A query visits the 100 keys of the context and, on average, half of its own branch, one of five.
  EXPECT_LT(e.full_tiles + e.masked_tiles, e.query_tiles * 5);
  EXPECT_GT(e.full_tiles, 0);
}

TEST(Explain, ReportsThreadsMemoryAndLayout) {
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
  const Matrices far(1, 9000);  // the keys of one query, at least 1024 of them per task
  const Explanation parts = explain(far.q, far.k, far.v, full(), {.executor = threads(3)});
  EXPECT_EQ(parts.tasks, 8);
  EXPECT_EQ(parts.threads, 3);
  EXPECT_EQ(parts.tiles(), (9000 + 63) / 64);
  EXPECT_EQ(explain(far.q, far.k, far.v, full(), {.executor = serial()}).tasks, 8);
  // A second worker does not pay off below two microseconds of work.
  const Matrices few(8, 20);
  EXPECT_EQ(explain(few.q, few.k, few.v, full(), {.executor = threads(3)}).threads, 1);
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
  e.microseconds = 7.31;
  e.workspace_bytes = 1000;
  e.packs_values = true;
  e.skipped_tiles = 1;
  e.full_tiles = 2;
  std::ostringstream out;
  out << e;
  EXPECT_EQ(out.str(),
            "instruction set  generic\nmatrix unit      not for this scalar type, scale or kind of score, or with "
            "row_invariant or weight_mod\ntile             12 x 64 "
            "(queries x keys)\nloop             tiles of queries, more than 4 per sequence\npasses           1\nquery "
            "tiles      9, in 5 tasks on 1 thread, about 7.3 microseconds of work\nworkspace        1000 bytes\npacked "
            "          values\nskipped          1 of 3 tiles (33.3 %)\nmasked           0 of 3 tiles (0 %)\nfull       "
            "      2 of 3 tiles (66.7 %)\n");
  e.ignored_isa = "sse9";
  std::ostringstream ignored;
  ignored << e;
  EXPECT_EQ(ignored.str().substr(0, ignored.str().find('\n')),
            "instruction set  generic (ATTN_ISA=sse9 is not available here)");
}

TEST(Explain, RefusesInvalidCalls) {
  const Matrices m(4, 5);
  const Eigen::MatrixXf wrong(6, 8);
  EXPECT_THROW(explain(m.q, m.k, wrong), std::invalid_argument);
  EXPECT_THROW(workspace_bytes(m.q, m.k, wrong), std::invalid_argument);
}

}  // namespace
}  // namespace attn::test
