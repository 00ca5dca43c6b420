// Attention over caches: sequences of many lengths in one call, some prefilling and some decoding, under all kinds of
// mods.
#include <optional>

#include "support/cached.h"
#include "support/executors.h"
#include "support/sample.h"

namespace attn::test {
namespace {

/// Draws a call over sequences of these lengths, with q_lens[s] queries at the end of sequence s.
RaggedCall draw_call(const std::vector<Index>& lengths, const std::vector<Index>& q_lens, Index group, Index dim,
                     Random& random) {
  const TokenSizes sizes{random.integer(1, 2), dim, random.pick(std::vector<Index>{dim, 3, 64})};
  std::vector<Tokens> tokens;
  for (Index length : lengths) tokens.push_back(Tokens::exact(sizes, length, random));
  return {sizes.kv_heads * group, tokens, q_lens, random};
}

/// T: the scalar of queries and results; S: the scalar of the cache.
template <class T, class S>
void sweep() {
  const std::vector<Index> lengths{65, 0, 1, 300, 63, 64, 130, 5};
  const std::vector<std::vector<Index>> all_q_lens{
      {1, 1, 1, 1, 1, 1, 1, 1},      // all decode
      {65, 0, 1, 4, 5, 64, 130, 5},  // most are whole prompts
      {2, 3, 1, 33, 1, 4, 0, 9},     // chunks; more queries than keys
  };
  const Index page_sizes[] = {0, 1, 3, 16, 48, 64, 128, 1000};
  Random random(1);
  std::size_t turn = 0;
  Sample sample;
  SCOPED_TRACE("a sample" + sample.text());
  for (const auto& q_lens : all_q_lens)
    for (Index group : {1, 2})
      for (Index dim : {kDimOfKernels<S>, Index(7)}) {
        RaggedCall call = draw_call(lengths, q_lens, group, dim, random);
        call.round_queries_to<T>();
        const RaggedRows<T> table(lengths, call.heads, random);
        for (const CachedRow<T>& row : table.rows) {
          if (!sample.takes_next()) continue;
          const Expected<T> expected(call, row.meaning);
          for (Isa isa : sets_for<T, S>()) {
            const Index page_size = page_sizes[turn++ % std::size(page_sizes)];
            std::ostringstream text;
            text << row.name << ", " << to_string(isa) << ", pages of " << page_size;
            SCOPED_TRACE(text.str());
            const PoisonedCache<S> cache(call.tokens, page_size);
            RaggedMemory<T> memory(call, random.pick(std::vector{Layout::bhsd, Layout::bshd, Layout::gaps}),
                                   random.pick(kOutputLayouts));
            row.run(memory, q_lens, cache.view(), {.executor = serial(), .isa = isa});
            expected.expect(memory, lse_error<T>(isa));
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
}

TEST(KvAttention, Float) { sweep<float, float>(); }
TEST(KvAttention, FloatOverBFloat16) { sweep<float, Eigen::bfloat16>(); }
TEST(KvAttention, FloatOverHalf) { sweep<float, Eigen::half>(); }
TEST(KvAttention, FloatOverEightBits) { sweep<float, std::int8_t>(); }
TEST(KvAttention, BFloat16) { sweep<Eigen::bfloat16, Eigen::bfloat16>(); }
TEST(KvAttention, BFloat16OverEightBits) { sweep<Eigen::bfloat16, std::int8_t>(); }
TEST(KvAttention, Double) { sweep<double, double>(); }

// Enough keys for those of a single query to be split.
template <class T, class S>
void sweep_long() {
  Random random(2);
  RaggedCall call = draw_call({4200, 9000, 60, 4095}, {1, 4, 1, 1}, 2, 32, random);
  call.round_queries_to<T>();
  const RaggedRows<T> table(call.lengths(), call.heads, random);
  Sample sample;
  for (const CachedRow<T>& row : table.rows) {
    std::optional<Expected<T>> expected;
    for (Index page_size : {0, 48, 64}) {
      if (!sample.takes_next()) continue;
      if (!expected) expected.emplace(call, row.meaning);
      SCOPED_TRACE(row.name + ", pages of " + std::to_string(page_size) + sample.text());
      const PoisonedCache<S> cache(call.tokens, page_size);
      RaggedMemory<T> memory(call);
      row.run(memory, call.q_lens, cache.view(), {.executor = eager_threads(2)});
      expected->expect(memory, lse_error<T>(default_isa()));
      if (::testing::Test::HasFailure()) return;
    }
  }
}
TEST(KvAttention, LongFloat) { sweep_long<float, float>(); }
TEST(KvAttention, LongBFloat16) { sweep_long<Eigen::bfloat16, Eigen::bfloat16>(); }
TEST(KvAttention, LongEightBits) { sweep_long<float, std::int8_t>(); }

// One explicit position for the first query of all sequences, independent of their lengths.
TEST(KvAttention, ExplicitQOffset) {
  Random random(3);
  const RaggedCall call = draw_call({10, 70, 0, 3}, {3, 8, 2, 5}, 2, 8, random);
  const RaggedRows<float> table(call.lengths(), call.heads, random);
  for (Index q_offset : {0, -4, 20})
    for (const CachedRow<float>& row : table.rows) {
      SCOPED_TRACE(row.name + ", q_offset " + std::to_string(q_offset));
      const PoisonedCache<float> cache(call.tokens, 3);
      RaggedMemory<float> memory(call);
      row.run(memory, call.q_lens, cache.view(), {.scale = 0.5, .q_offset = q_offset, .executor = serial()});
      Expected<float>(call, row.meaning, {.scale = 0.5, .q_offset = q_offset}).expect(memory);
    }
}

// Drafts of several sequences, each after its own context.
TEST(KvAttention, TreesOfDrafts) {
  Random random(4);
  const std::vector<Index> parents{-1, 0, 0, 1, 3, 2, -1};
  const RaggedCall call = draw_call({7, 100, 64}, {7, 7, 7}, 2, 8, random);
  for (Index page_size : {0, 5}) {
    const PoisonedCache<float> cache(call.tokens, page_size);
    for (Index s = 0; s < call.size(); ++s) {
      RaggedMemory<float> memory(call);
      const CachedRow<float> row(Row<decltype(erased_mask(full()))>{"tree", erased_mask(tree(parents)), {}});
      row.run(memory, call.q_lens, cache.view(), {.executor = serial()});
      const Index context = call.tokens[RaggedCall::at(s)].size() - 7;
      const Inputs in = call.inputs(s);
      const Meaning meaning{[=](const Pair& p) {
                              Index node = p.row;
                              while (node >= 0 && node != p.kv - context) node = parents[RaggedCall::at(node)];
                              return p.kv < context || node >= 0;
                            },
                            {}};
      Arguments<float> a(in);
      expect_close(oracle(in, meaning), naive_by_meaning(a, meaning), memory.of(call, s));
    }
  }
}

// Every mod of the tables. All sequences have the same length, so that they fit the tensors in mods.
template <class T>
void sweep_table() {
  Random random(5);
  Sample sample;
  for (Index q_len : {1, 4, 5, 40})
    for (Index kv_len : {1, 65, 130}) {
      const TokenSizes sizes{2, 32, 16};
      std::vector<Tokens> tokens;
      for (int s = 0; s < 2; ++s) tokens.push_back(Tokens::exact(sizes, kv_len, random));
      RaggedCall call(4, tokens, {q_len, q_len}, random);
      call.round_queries_to<T>();
      Sizes all = call.sizes(0);
      all.batch = 2;
      each_erased_row({all, {}, random}, [&](const auto& erased) {
        if (erased.meaning.factor) return;  // dropout cannot be expressed by lambdas; see dropout_test
        if (::testing::Test::HasFailure() || !sample.takes_next()) return;
        const CachedRow<T> row(erased);
        const Index page_size = random.pick(std::vector<Index>{0, 3, 48, 64});
        SCOPED_TRACE(row.name + ", pages of " + std::to_string(page_size) + sample.text());
        const PoisonedCache<T> cache(call.tokens, page_size);
        RaggedMemory<T> memory(call);
        row.run(memory, call.q_lens, cache.view(), {.executor = serial()});
        Expected<T>(call, row.meaning).expect(memory, lse_error<T>(default_isa()));
      });
    }
}
TEST(KvAttention, EveryModFloat) { sweep_table<float>(); }
TEST(KvAttention, EveryModBFloat16) { sweep_table<Eigen::bfloat16>(); }

}  // namespace
}  // namespace attn::test
