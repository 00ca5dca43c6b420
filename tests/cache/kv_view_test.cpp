// Sequences in the caller's pages, and explain() and the workspace of calls over sequences.
#include <sstream>

#include "support/allocations.h"
#include "support/cached.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

/// Sequences in the caller's pages, of shape (pages, page_size, kv_heads, dim) and in random order.
template <class S, class Entry>
struct OwnPages {
  Index page_size, per_sequence = 0;
  std::vector<S> keys, values;
  std::vector<Entry> tables;
  TokenSizes sizes;
  std::vector<Index> lengths;

  OwnPages(const std::vector<Tokens>& sequences, Index size, Random& random)
      : page_size(size), sizes(sequences[0].sizes()) {
    std::vector<Entry> free;
    for (const Tokens& t : sequences) {
      lengths.push_back(t.size());
      const Index pages = (t.size() + size - 1) / size;
      per_sequence = std::max(per_sequence, pages + 1);
      for (Index i = 0; i < pages; ++i) free.push_back(static_cast<Entry>(free.size()));
    }
    const Index count = static_cast<Index>(free.size());
    keys.assign(static_cast<std::size_t>(count * row(sizes.head_dim) * size), S(kNaN));
    values.assign(static_cast<std::size_t>(count * row(sizes.v_dim) * size), S(kNaN));
    for (const Tokens& t : sequences) {
      std::vector<Entry> table;
      for (Index i = 0; i < t.size(); ++i) {
        if (i % size == 0) {
          const auto taken = free.begin() + random.integer(0, static_cast<Index>(free.size()) - 1);
          table.push_back(*taken);
          free.erase(taken);
        }
        const Index at = static_cast<Index>(table.back()) * size + i % size;
        for (Index h = 0; h < sizes.kv_heads; ++h) {
          for (Index d = 0; d < sizes.head_dim; ++d)
            keys[static_cast<std::size_t>(at * row(sizes.head_dim) + h * sizes.head_dim + d)] = S(t.k(i, h, d));
          for (Index d = 0; d < sizes.v_dim; ++d)
            values[static_cast<std::size_t>(at * row(sizes.v_dim) + h * sizes.v_dim + d)] = S(t.v(i, h, d));
        }
      }
      table.resize(static_cast<std::size_t>(per_sequence), Entry(-99));
      tables_of_all.push_back(table);
    }
    for (auto& table : tables_of_all) {
      table.resize(static_cast<std::size_t>(per_sequence), Entry(-99));
      tables.insert(tables.end(), table.begin(), table.end());
    }
  }

  KvView<Wide<S>> view() const {
    const Index sequences = static_cast<Index>(lengths.size());
    return {pages(keys, sizes.head_dim), pages(values, sizes.v_dim),
            TensorView<const Entry, 2>(tables.data(), {sequences, per_sequence}), lengths};
  }

 private:
  static constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

  Index row(Index dim) const { return sizes.kv_heads * dim; }
  TensorView<const S, 4> pages(const std::vector<S>& numbers, Index dim) const {
    const Index count = static_cast<Index>(numbers.size()) / (page_size * row(dim));
    return bshd(numbers.data(), count, page_size, sizes.kv_heads, dim);
  }

  std::vector<std::vector<Entry>> tables_of_all;
};

template <class S, class Entry>
void expect_own_pages() {
  Random random(1);
  for (Index page_size : {1, 16, 64, 100}) {
    SCOPED_TRACE("pages of " + std::to_string(page_size));
    std::vector<Tokens> tokens;
    for (Index length : {130, 0, 64, 5}) tokens.push_back(Tokens::exact({2, 32, 6}, length, random));
    const RaggedCall call(4, tokens, {1, 2, 30, 5}, random);
    const OwnPages<S, Entry> own(tokens, page_size, random);
    const Expected<Wide<S>> expected(call, {[](const Pair& p) { return p.kv <= p.q; }, {}});
    for (Isa isa : instruction_sets()) {
      RaggedMemory<Wide<S>> memory(call);
      const auto q = memory.q.cview();
      attention_into(memory.out.view(), memory.lse3(), ragged(q, call.q_lens), own.view(), causal(),
                     {.executor = serial(), .isa = isa});
      expected.expect(memory);
    }
  }
}
TEST(KvPages, OfFloats) { expect_own_pages<float, std::int32_t>(); }
TEST(KvPages, OfHalves) { expect_own_pages<Eigen::half, std::int64_t>(); }
TEST(KvPages, OfDoubles) { expect_own_pages<double, short>(); }

class KvCall : public ::testing::Test {
 protected:
  Random random_{2};
  std::vector<Tokens> tokens_ = [&] {
    std::vector<Tokens> tokens;
    for (Index length : {9000, 130, 64, 0}) tokens.push_back(Tokens::exact({2, 32, 32}, length, random_));
    return tokens;
  }();
  RaggedCall call_{4, tokens_, {1, 60, 4, 1}, random_};
  PoisonedCache<float> cache_{tokens_, 16};
  RaggedMemory<float> memory_{call_};

  auto query() { return memory_.q.cview(); }
};

TEST_F(KvCall, NeedsExactlyTheReportedWorkspace) {
  const auto batch = cache_.view();
  const auto q = query();
  const auto queries = ragged(q, call_.q_lens);
  attention_into(memory_.out.view(), memory_.lse3(), queries, batch, causal(), {.executor = serial()});
  const auto wanted = memory_.all();
  for (const Executor& executor : {serial(), eager_threads(3)}) {
    Options options{.executor = executor};
    const std::size_t bytes = workspace_bytes(queries, batch, causal(), options);
    EXPECT_EQ(static_cast<Index>(bytes), explain(queries, batch, causal(), options).workspace_bytes);
    for (const std::size_t offset : {std::size_t(0), std::size_t(1), std::size_t(63)}) {  // any alignment
      std::vector<std::byte> memory(bytes + 200, std::byte(0xAB));
      options.workspace = std::span(memory).subspan(offset + 64, bytes);
      RaggedMemory<float> got(call_);
      attention_into(got.out.view(), got.lse3(), queries, batch, causal(), options);
      EXPECT_TRUE(same_bits(got.all(), wanted));
      const auto untouched = [](std::byte b) { return b == std::byte(0xAB); };
      const auto given = memory.begin() + static_cast<std::ptrdiff_t>(offset + 64);
      EXPECT_TRUE(std::all_of(memory.begin(), given, untouched));
      EXPECT_TRUE(std::all_of(given + static_cast<std::ptrdiff_t>(bytes), memory.end(), untouched));
      options.workspace = std::span(memory).subspan(offset + 64, bytes - 1);
      expect_refused("a byte too few", {std::to_string(bytes), std::to_string(bytes - 1)},
                     [&] { attention_into(got.out.view(), got.lse3(), queries, batch, causal(), options); });
    }
  }
}

// With a workspace, a call allocates little per sequence, independent of the lengths.
TEST_F(KvCall, AllocatesLittle) {
  const auto batch = cache_.view();
  const auto q = query();
  const auto queries = ragged(q, call_.q_lens);
  Options options{.executor = serial()};
  std::vector<std::byte> memory(workspace_bytes(queries, batch, causal(), options));
  options.workspace = memory;
  const auto out = memory_.out.view();
  const Allocations a = allocations_of([&] { attention_into(out, queries, batch, causal(), options); });
  // The tables of four sequences at 8 bytes per page, plus 1.6 kB per sequence.
  EXPECT_LT(a.peak, (9000 + 130 + 64) / 16 * 8 + 4 * 1600);
  EXPECT_EQ(a.in_use, 0);
}

TEST_F(KvCall, IsExplained) {
  const auto q = query();
  const auto queries = ragged(q, call_.q_lens);
  const Explanation e =
      explain(queries, cache_.view(), full(), {.executor = eager_threads(2), .isa = instruction_sets()[0]});
  EXPECT_EQ(e.isa, instruction_sets()[0]);
  EXPECT_EQ(e.amx, Amx::unsupported);
  EXPECT_EQ(e.passes, 1);
  EXPECT_EQ(e.keys_per_tile, 64);
  EXPECT_TRUE(e.packs_keys && e.packs_values);  // pages are smaller than a tile
  EXPECT_EQ(e.threads, 2);
  // Each single query visits 141 tiles of the first sequence, one of the third, and none of the last.
  const Index tiles_of_prefill = (e.query_tiles - 4 * (1 + 4 + 1)) * 3;
  EXPECT_GT(tiles_of_prefill, 0);
  EXPECT_EQ(e.full_tiles, 4 * (141 + 4 * 1) + tiles_of_prefill);
  EXPECT_EQ(e.masked_tiles, 0);
  EXPECT_EQ(e.skipped_tiles, 0);
  EXPECT_GT(e.tasks, 4);  // the keys of the first sequence are split
  const PoisonedCache<float> aligned(tokens_, 64), one_piece(tokens_, 0);
  for (const auto& cache : {aligned.view(), one_piece.view()}) {
    const Explanation in_place = explain(queries, cache, causal(), {.executor = serial()});
    EXPECT_FALSE(in_place.packs_keys || in_place.packs_values);
    EXPECT_EQ(in_place.threads, 1);
    EXPECT_GT(in_place.masked_tiles, 0);
  }
  // Masks that group tokens run in one pass over caches.
  EXPECT_EQ(explain(queries, cache_.view(), strided_sparse(128)).passes, 1);
  std::ostringstream text;
  text << e;
  EXPECT_NE(text.str().find("packed           keys and values"), std::string::npos) << text.str();
}

TEST_F(KvCall, WithoutSequencesOrQueries) {
  const auto none = cache_.pages().view(std::vector<Index>());
  EXPECT_EQ(none.size(), 0);
  const Tensor<float, 4> q({0, 4, 3, 32}), no_rows({1, 4, 0, 32});
  EXPECT_EQ(attention(q, none).out.shape(), (Shape<4>{0, 4, 3, 32}));
  EXPECT_EQ(attention(ragged(no_rows, std::vector<Index>()), none).out.shape(), (Shape<4>{1, 4, 0, 32}));
  EXPECT_EQ(attention(ragged(no_rows, {0, 0, 0, 0}), cache_.view()).lse.shape(), (Shape<3>{1, 4, 0}));
  EXPECT_EQ(workspace_bytes(ragged(no_rows, {0, 0, 0, 0}), cache_.view()), 0u);
  const Explanation e = explain(ragged(no_rows, {0, 0, 0, 0}), cache_.view());
  EXPECT_EQ(e.tiles(), 0);
  EXPECT_EQ(e.tasks, 0);
}

}  // namespace
}  // namespace attn::test
