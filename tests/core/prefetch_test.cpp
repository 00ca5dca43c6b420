// Prefetching: it covers existing rows only, and those that are read next.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention.h"
#include "support/paths.h"

namespace attn::test {
namespace {

using detail::kKeyTile;
using detail::PrefetchPlan;

/// A call without mods and the pass over it.
struct PrefillCall {
  PrefillCall(Index heads, Index q_len, Index kv_len)
      : q({1, heads, q_len, 64}), k({1, heads, kv_len, 64}), v({1, heads, kv_len, 64}), out({1, heads, q_len, 64}) {
    problem.heads = problem.kv_heads = heads;
    problem.q_len = q_len;
    problem.kv_len = kv_len;
    problem.head_dim = problem.v_dim = 64;
  }
  Problem problem;
  Tensor<float, 4> q, k, v, out;
  detail::CallTensors<float> tensors{out.view(),
                                     {},
                                     q.view(),
                                     detail::DTypeView<const float>(k.view()),
                                     detail::DTypeView<const float>(v.view()),
                                     problem,
                                     detail::kKernelChoice<float>};
  detail::PassContext<float> pass{
      {tensors}, detail::choose_kernels<float>({.isa = instruction_sets().front()}, detail::Bf16Products::none)};

  /// The tensor that a block is in and its first row within a head; '-' if it is in none.
  std::pair<char, Index> row_of(const PrefetchPlan::Block& block) const {
    const auto find = [&](char name, const Tensor<float, 4>& t) {
      const auto* begin = reinterpret_cast<const std::byte*>(t.data());
      const Index offset = block.data - begin, row = 64 * static_cast<Index>(sizeof(float));
      return std::pair(offset >= 0 && offset < t.size() * static_cast<Index>(sizeof(float)) ? name : '-', offset / row);
    };
    for (const auto& [name, t] : {std::pair{'q', &q}, {'k', &k}, {'v', &v}, {'o', &out}})
      if (find(name, *t).first != '-') return find(name, *t);
    return {'-', 0};
  }
};

detail::QueryTile tile_of(Index head, Index tile, Index rows) {
  return {0, head, tile, {tile * rows, (tile + 1) * rows}};
}

TEST(PrefetchPlans, LongKeysFetchTheNextTile) {
  PrefillCall call(1, 96, 8192);
  const auto queries = tile_of(0, 0, 48), following = tile_of(0, 1, 48);
  const PrefetchPlan plan = detail::plan_prefetch(call.pass, 2, queries, following, {128, 192}, {0, 8192});
  EXPECT_EQ(call.row_of(plan.block[0]), std::pair('k', Index(192)));
  EXPECT_EQ(call.row_of(plan.block[1]), std::pair('v', Index(192)));
  EXPECT_EQ(call.row_of(plan.block[2]), std::pair('k', Index(192 + kKeyTile / 2)));
  EXPECT_EQ(call.row_of(plan.block[3]), std::pair('v', Index(192 + kKeyTile / 2)));
  // After the last tile come the next queries, and the output rows of the current ones.
  const PrefetchPlan last = detail::plan_prefetch(call.pass, 2, queries, following, {8128, 8192}, {0, 8192});
  EXPECT_EQ(call.row_of(last.block[0]), std::pair('q', Index(48)));
  EXPECT_EQ(call.row_of(last.block[1]), std::pair('o', Index(0)));
}

TEST(PrefetchPlans, ShortKeysFetchTheNextHead) {
  PrefillCall call(3, 48, 128);
  const auto queries = tile_of(1, 0, 48), following = tile_of(2, 0, 48);
  const PrefetchPlan plan = detail::plan_prefetch(call.pass, 1, queries, following, {64, 128}, {0, 128});
  EXPECT_EQ(call.row_of(plan.block[0]), std::pair('k', Index(2 * 128 + 64)));
  EXPECT_EQ(call.row_of(plan.block[1]), std::pair('v', Index(2 * 128 + 64)));
  // The last head has no successor, and is fetched again.
  const PrefetchPlan last = detail::plan_prefetch(call.pass, 1, tile_of(2, 0, 48), following, {0, 64}, {0, 128});
  EXPECT_EQ(call.row_of(last.block[0]), std::pair('k', Index(0)));
}

/// Kernels divide by the width of a block in cache lines.
TEST(PrefetchPlans, BlocksAreNeverEmpty) {
  for (const Index kv_len : {1, 40, 64, 200, 3000})
    for (const Index tiles : {1, 2, 5}) {
      PrefillCall call(2, 48 * tiles, kv_len);
      for (Index t = 0; t < 2 * tiles; ++t)
        for (Index j = 0; j < kv_len; j += kKeyTile) {
          const auto queries = tile_of(t / tiles, t % tiles, 48), following = tile_of(1, tiles - 1, 48);
          const Range keys{j, std::min(j + kKeyTile, kv_len)};
          for (const auto& block :
               detail::plan_prefetch(call.pass, tiles, queries, following, keys, {0, kv_len}).block) {
            EXPECT_EQ(block.width, 64 * static_cast<Index>(sizeof(float)));
            EXPECT_GE(block.stride, block.width);
          }
        }
    }
}

/// A prefetcher of rows of keys, and then of values.
detail::Prefetcher fetching_twice(const detail::RowsToRead& key, Index dim, Index rows) {
  detail::Prefetcher f;
  f.add<float>(key, dim, rows);
  f.end_score();
  f.add<float>(key, dim, rows);
  return f;
}

TEST(Prefetchers, FetchEachLineOnce) {
  if (!detail::kPrefetches) GTEST_SKIP() << "WebAssembly has no prefetch instruction";
  const Tensor<float, 4> t({1, 1, 70, 40});  // rows of 160 bytes: 2.5 lines
  for (const Index stride : {40, 48})
    for (const Index rows : {1, 20}) {
      const detail::RowsToRead key{reinterpret_cast<const std::byte*>(t.data()), detail::DType::native, stride, 1};
      detail::Prefetcher f = fetching_twice(key, 40, rows);
      const Index lines = stride == 40 ? detail::ceil_div(rows * 160, detail::kCacheLine)
                                       : rows * detail::ceil_div(Index(160), detail::kCacheLine);
      EXPECT_EQ(f.score_lines(), lines);
      EXPECT_EQ(f.lines_left(), 2 * lines);
      for (Index left = 2 * lines - 1; left >= 0; --left) {
        f.lines<1>();
        ASSERT_EQ(f.lines_left(), left);
      }
      f.lines<4>();  // none left
      EXPECT_EQ(f.lines_left(), 0);
      // As many while rows are copied.
      detail::Prefetcher copying = fetching_twice(key, 40, rows);
      copying.lines(2 * lines - 1);
      EXPECT_EQ(copying.lines_left(), 1);
      copying.lines(4);
      EXPECT_TRUE(copying.is_empty());
      copying.lines(4);
      // Spread over the reads: the fraction of lines fetched keeps up with that of bytes read, and the last line is
      // fetched with the last byte. At most one line is fetched per line read.
      for (const Index times : {1, 2, 3}) {
        detail::Prefetcher spread = fetching_twice(key, 40, rows);
        spread.spread(2 * lines, times * 2 * lines * detail::kCacheLine);
        for (Index step = 1; step <= 2 * lines * times; ++step) {
          spread.step<detail::kCacheLine / 2>();
          spread.step<detail::kCacheLine / 2>();
          ASSERT_EQ(2 * lines - spread.lines_left(), detail::ceil_div(step, times)) << times;
        }
      }
      detail::Prefetcher more = fetching_twice(key, 40, rows);
      more.spread(2 * lines, lines * detail::kCacheLine);
      for (Index read = 0; read < lines; ++read) more.step<detail::kCacheLine>();
      EXPECT_EQ(more.lines_left(), lines);
    }
  // A tile in pages: the lines of its separate rows are fetched, up to the prefetcher's capacity.
  detail::Prefetcher pages;
  for (const Index at : {40, 0, 20}) {
    pages.add<float>({reinterpret_cast<const std::byte*>(t.data() + at * 40), detail::DType::native, 48, 1}, 40, 7);
    pages.add<float>({nullptr, detail::DType::native, 48, 1}, 40, 7);
    pages.add<float>({reinterpret_cast<const std::byte*>(t.data()), detail::DType::native, 48, 1}, 40, 0);
  }
  EXPECT_EQ(pages.score_lines(), 3 * 7 * 3);
  EXPECT_EQ(pages.lines_left(), 3 * 7 * 3);
  pages.lines<22>();
  EXPECT_EQ(pages.lines_left(), 41);
  for (int i = 0; i < 30; ++i)  // 29 are accepted
    pages.add<float>({reinterpret_cast<const std::byte*>(t.data()), detail::DType::native, 40, 1}, 40, 2);
  EXPECT_EQ(pages.lines_left(), 41 + 29 * 5);
  detail::Prefetcher nothing;
  nothing.spread(nothing.lines_left(), 320);
  nothing.step<64>();
  nothing.lines<2>();
  EXPECT_EQ(nothing.lines_left(), 0);
  EXPECT_TRUE(nothing.is_empty());
  // A prefetcher that has fetched all lines is empty as well, and accepts new ones.
  pages.lines(41 + 29 * 5);
  EXPECT_FALSE(pages.is_empty());
  pages.lines<1>();
  EXPECT_TRUE(pages.is_empty());
  pages.add<float>({reinterpret_cast<const std::byte*>(t.data()), detail::DType::native, 40, 1}, 40, 2);
  EXPECT_EQ(pages.lines_left(), 5);
}

/// In a tensor, as much of the next tile is fetched as fits 16 KiB, and what exceeds that of the current one. Tiles
/// that do not exist are not fetched.
TEST(DecodeTiles, FetchTheNextRowsInTensors) {
  if (!detail::kPrefetches) GTEST_SKIP() << "WebAssembly has no prefetch instruction";
  const Index kv_len = 2 * kKeyTile + 10, head_dim = 160, v_dim = 32;
  Problem problem;
  problem.heads = problem.kv_heads = 2;
  problem.q_len = 1;
  problem.kv_len = kv_len;
  problem.head_dim = head_dim;
  problem.v_dim = v_dim;
  const Tensor<float, 4> q({1, 2, 1, head_dim}), k({1, 2, kv_len, head_dim}), v({1, 2, kv_len, v_dim});
  Tensor<float, 4> out({1, 2, 1, v_dim});
  const detail::CallTensors<float> tensors{
      out.view(), {}, q.view(), {k.view()}, {v.view()}, problem, detail::kKernelChoice<float>};
  const detail::DecodeTiles<float> far(tensors, true), near(tensors, false);
  using Tile = detail::DecodeTiles<float>::KvTile;
  const Tile first{0, 1, {0, 64}}, second{0, 1, {64, 128}}, last{0, 1, {128, 192}}, none{0, 1, {192, 192}};
  const Index key = head_dim / 16, value = v_dim / 16, ahead = 16 * 1024 / (head_dim * 4);
  const auto lines = [](const auto& tiles, auto now, auto after) {
    detail::Prefetcher f;
    tiles.fetch(f, now, after, false);
    EXPECT_EQ(f.score_lines(), f.lines_left());
    EXPECT_EQ(f.is_empty(), f.lines_left() == 0);
    return f.lines_left();
  };
  EXPECT_EQ(lines(far, far.keys_of(first), far.keys_of(second)), 64 * key);
  EXPECT_EQ(lines(far, far.keys_of(second), far.keys_of(last)), (64 - ahead + 10) * key);
  EXPECT_EQ(lines(far, far.keys_of(second), far.values_of(first)), (64 - ahead) * key + 64 * value);
  EXPECT_EQ(lines(far, far.values_of(second), far.keys_of(first)), ahead * key);
  EXPECT_EQ(lines(far, far.values_of(second), far.keys_of(none)), 0);
  EXPECT_EQ(lines(near, near.keys_of(first), near.keys_of(second)), 0);
  // Listed rows are prefetched where they are copied.
  const std::vector<Index> list(static_cast<std::size_t>(kv_len), 3);
  const detail::RowList rows{.rows = list.data()};
  const auto listing = [&](const Tensor<float, 4>& t) { return detail::KvRows<float>(t.view()).listed(rows); };
  const detail::CallTensors<float> with_lists{
      out.view(), {}, q.view(), listing(k), listing(v), problem, detail::kKernelChoice<float>};
  const detail::DecodeTiles<float> listed(with_lists, true);
  EXPECT_EQ(lines(listed, listed.keys_of(first), listed.keys_of(second)), 0);
  detail::Prefetcher whole;
  far.fetch(whole, last);
  EXPECT_EQ(whole.score_lines(), 10 * key);
  EXPECT_EQ(whole.lines_left(), 10 * (key + value));
}

/// If rows are read from pages in place, the first 16 KiB of the current tile have already been fetched; its rest is
/// fetched now, with the first 16 KiB of the next tile. If a tile is copied first, copying reads all of it, so the
/// whole next tile is fetched.
TEST(DecodeTiles, FetchTheNextRowsInPages) {
  if (!detail::kPrefetches) GTEST_SKIP() << "WebAssembly has no prefetch instruction";
  constexpr Index kPage = 16, kPages = 9;
  const std::vector<Index> table{7, 0, 3, 8, 2, 5, 1, 6, 4};
  for (const Index head_dim : {64, 96, 128}) {
    const Index kv_len = 2 * kKeyTile + 10, v_dim = 32;
    Problem problem;
    problem.heads = 4;
    problem.kv_heads = 2;
    problem.q_len = 1;
    problem.kv_len = kv_len;
    problem.head_dim = head_dim;
    problem.v_dim = v_dim;
    const Tensor<float, 4> q({1, 4, 1, head_dim}), k({kPages, 2, kPage, head_dim}), v({kPages, 2, kPage, v_dim});
    Tensor<float, 4> out({1, 4, 1, v_dim});
    const detail::Pages pages{table.data(), kPages, kPage};
    const detail::CallTensors<float> tensors{
        out.view(), {}, q.view(), {k.view(), pages}, {v.view(), pages}, problem, detail::kKernelChoice<float>};
    const detail::DecodeTiles<float> far(tensors, true), near(tensors, false);
    using Tile = detail::DecodeTiles<float>::KvTile;
    const Tile first{0, 1, {0, 64}}, second{0, 1, {64, 128}}, last{0, 1, {128, 192}};
    const auto lines = [](const auto& tiles, auto now, auto after, bool in_runs) {
      detail::Prefetcher f;
      tiles.fetch(f, now, after, in_runs);
      return f.lines_left();
    };
    const Index key = head_dim / 16, value = v_dim / 16, ahead = std::min<Index>(16 * 1024 / (head_dim * 4), 64);
    EXPECT_EQ(lines(far, far.keys_of(first), far.keys_of(second), true), 64 * key);
    EXPECT_EQ(lines(far, far.keys_of(second), far.keys_of(last), true), (64 - ahead + 10) * key);
    EXPECT_EQ(lines(far, far.keys_of(second), far.values_of(first), true), (64 - ahead) * key + 64 * value);
    EXPECT_EQ(lines(far, far.values_of(first), far.values_of(second), true), 64 * value);
    EXPECT_EQ(lines(far, far.values_of(second), far.keys_of(first), true), ahead * key);
    EXPECT_EQ(lines(far, far.keys_of(second), far.keys_of(last), false), 10 * key);
    EXPECT_EQ(lines(far, far.keys_of(second), far.values_of(first), false), 64 * value);
    EXPECT_EQ(lines(near, near.keys_of(first), near.keys_of(second), true), 0);
  }
}

}  // namespace
}  // namespace attn::test
