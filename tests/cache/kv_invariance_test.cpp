// Results over caches do not depend, bit for bit, on threads, other sequences or the paging of keys.
#include "support/cached.h"
#include "support/executors.h"

namespace attn::test {
namespace {

/// T: the scalar of queries and results; S: that of the cache.
template <class T_, class S_>
struct Scalars {
  using T = T_;
  using S = S_;
};

template <class Pair>
class KvInvariance : public ::testing::Test {
 protected:
  using T = typename Pair::T;
  using S = typename Pair::S;

  /// Some sequences decode, one of them with so many keys that they are split; others prefill.
  KvInvariance() : random_(1), call_(8, draw(), {1, 4, 5, 70, 1, 130}, random_) {
    call_.template round_queries_to<T>();
    const RaggedRows<T> all(call_.lengths(), call_.heads, random_);
    rows_ = {all.rows.front(), *std::find_if(all.rows.begin(), all.rows.end(), [](const CachedRow<T>& row) {
               return row.name.find("sinks") != std::string::npos;
             })};
  }

  /// Calls check(row, isa) without mods and with some, for each instruction set.
  template <class Check>
  void each(const Check& check) {
    for (const CachedRow<T>& row : rows_)
      for (Isa isa : sets_for<T, S>()) {
        SCOPED_TRACE(row.name + ", " + std::string(to_string(isa)));
        check(row, isa);
        if (this->HasFailure()) return;
      }
  }
  RaggedMemory<T> run(const RaggedCall& call, const CachedRow<T>& row, const KvView<Wide<T>>& batch,
                      const Options& options) {
    RaggedMemory<T> memory(call);
    row.run(memory, call.q_lens, batch, options);
    return memory;
  }

  Random random_;
  RaggedCall call_;
  std::vector<CachedRow<T>> rows_;

 private:
  std::vector<Tokens> draw() {
    std::vector<Tokens> tokens;
    for (Index length : {9001, 130, 65, 300, 1, 130})
      tokens.emplace_back(TokenSizes{2, kDimOfKernels<S>, 64}, length, random_);
    return tokens;
  }
};

using AllScalars = ::testing::Types<Scalars<float, float>, Scalars<double, double>, Scalars<float, Eigen::half>,
                                    Scalars<Eigen::bfloat16, Eigen::bfloat16>, Scalars<float, std::int8_t>>;
TYPED_TEST_SUITE(KvInvariance, AllScalars);

TYPED_TEST(KvInvariance, Threads) {
  using Row = CachedRow<typename TypeParam::T>;
  const PoisonedCache<typename TypeParam::S> cache(this->call_.tokens, 48);
  this->each([&](const Row& row, Isa isa) {
    const auto alone = this->run(this->call_, row, cache.view(), {.executor = serial(), .isa = isa}).all();
    for (const Executor& executor : {eager_threads(2), eager_threads(3), Executor()})
      EXPECT_TRUE(
          same_bits(this->run(this->call_, row, cache.view(), {.executor = executor, .isa = isa}).all(), alone));
  });
}

TYPED_TEST(KvInvariance, Pages) {
  using Row = CachedRow<typename TypeParam::T>;
  using Cache = PoisonedCache<typename TypeParam::S>;
  const Cache one_piece(this->call_.tokens, 0);
  for (Index page_size : {1, 17, 16, 48, 64, 128, 1000}) {
    SCOPED_TRACE("pages of " + std::to_string(page_size));
    const Cache pages(this->call_.tokens, page_size);
    this->each([&](const Row& row, Isa isa) {
      const Options options{.executor = serial(), .isa = isa};
      auto wanted = this->run(this->call_, row, one_piece.view(), options),
           got = this->run(this->call_, row, pages.view(), options);
      for (Index s = 0; s < this->call_.size(); ++s)
        EXPECT_TRUE(same_bits(got.of(this->call_, s), wanted.of(this->call_, s))) << "sequence " << s;
    });
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(KvInvariance, OtherSequences) {
  using Row = CachedRow<typename TypeParam::T>;
  const RaggedCall& call = this->call_;
  PoisonedCache<typename TypeParam::S> cache(call.tokens, 64);
  this->each([&](const Row& row, Isa isa) {
    const Options options{.executor = serial(), .isa = isa};
    auto together = this->run(call, row, cache.view(), options);
    for (Index s = 0; s < call.size(); ++s) {
      RaggedCall alone = call;
      alone.tokens = {call.tokens[RaggedCall::at(s)]};
      alone.q_lens = {call.q_lens[RaggedCall::at(s)]};
      alone.q = {call.q[RaggedCall::at(s)]};
      const auto batch = cache.pages().view({cache.ids()[RaggedCall::at(s)]});
      EXPECT_TRUE(same_bits(this->run(alone, row, batch, options).all(), together.of(call, s))) << "sequence " << s;
    }
  });
}

// Heads processed together may visit different keys. One head's range must not shift the tiles of another.
TEST(KvInvarianceOfHeads, RangesOfOtherHeadsDoNotMatter) {
  using T = Eigen::bfloat16;
  const Index kv_heads = 8, heads = 16, dim = 64, keys = 500;
  Random random(9);
  const auto q = drawn<T>({1, heads, 1, dim}, random, 1), k = drawn<T>({1, kv_heads, keys, dim}, random, 1),
             v = drawn<T>({1, kv_heads, keys, dim}, random, 1);
  KvCache<T> one_piece({.kv_heads = kv_heads, .head_dim = dim});
  one_piece.append(k, v);
  PagedKvCache<T> pages({.pages = 8, .page_size = 64, .kv_heads = kv_heads, .head_dim = dim});
  const Index id = pages.add();
  pages.append(id, k, v);
  const auto ends = block_mask(mask_mod([](const Position& p) { return p.kv >= (p.head % 4 < 2 ? 345 : 325); }), 1,
                               keys, {}, 1, heads);
  for (Isa isa : sets_for<T>()) {
    SCOPED_TRACE(to_string(isa));
    const auto out = [&](const auto& cache, const Executor& executor) {
      Tensor<float, 4> result({1, heads, 1, dim});
      attention_into(result, q, cache, ends, {.executor = executor, .isa = isa});
      return std::vector<float>(result.data(), result.data() + result.size());
    };
    const auto wanted = out(one_piece, serial());
    for (int workers : {1, 2, 3})
      EXPECT_EQ(out(pages.view({id}), eager_threads(workers)), wanted) << workers << " threads";
  }
}

/// Windows that begin and end within a page, with dims that are not whole vectors and an odd number of heads.
template <class S>
void expect_windows_independent_of_pages() {
  using In = std::conditional_t<std::is_same_v<S, std::int8_t>, float, S>;
  using T = typename KvCache<S>::Computed;
  Random random(11);
  for (const Index dim : {8, 72})
    for (const Index heads_of_key : {2, 5})
      for (const Index q_len : {1, 4}) {
        const Index kv_heads = 2, heads = kv_heads * heads_of_key, keys = 171;
        const auto q = drawn<T>({1, heads, q_len, dim}, random, 1);
        const auto k = drawn<In>({1, kv_heads, keys, dim}, random, 1),
                   v = drawn<In>({1, kv_heads, keys, dim}, random, 1);
        KvCache<S> one_piece({.kv_heads = kv_heads, .head_dim = dim});
        one_piece.append(k, v);
        for (const Index page_size : {16, 48, 80}) {
          PagedKvCache<S> pages({.pages = 12, .page_size = page_size, .kv_heads = kv_heads, .head_dim = dim});
          const Index id = pages.add();
          pages.append(id, k, v);
          for (Isa isa : sets_for<T, S>())
            for (const Index before : {5, 22, 43, 90}) {
              const auto out = [&](const auto& cache) {
                Tensor<T, 4> result({1, heads, q_len, dim});
                attention_into(result, q, cache, sliding_window(before, 0), {.executor = serial(), .isa = isa});
                return std::vector<T>(result.data(), result.data() + result.size());
              };
              ASSERT_TRUE(same_bits(out(pages.view({id})), out(one_piece)))
                  << to_string(isa) << ", dim " << dim << ", " << heads_of_key << " heads on one, " << q_len
                  << " queries, pages of " << page_size << ", window " << before;
            }
        }
      }
}
TEST(KvInvarianceOfWindows, Float) { expect_windows_independent_of_pages<float>(); }
TEST(KvInvarianceOfWindows, Double) { expect_windows_independent_of_pages<double>(); }
TEST(KvInvarianceOfWindows, Half) { expect_windows_independent_of_pages<Eigen::half>(); }
TEST(KvInvarianceOfWindows, BFloat16) { expect_windows_independent_of_pages<Eigen::bfloat16>(); }
TEST(KvInvarianceOfWindows, Int8) { expect_windows_independent_of_pages<std::int8_t>(); }

TEST(KvInvarianceOfHeads, CallsWithoutQueries) {
  const KvCache<float> cache({.batch = 2, .kv_heads = 1, .head_dim = 4});
  EXPECT_EQ(attention(Tensor<float, 4>({2, 1, 0, 4}), cache).out.shape(), (Shape<4>{2, 1, 0, 4}));
}

// A sequence that occurs twice in a call, and sequences in a different order than they were added.
TEST(KvInvarianceOfOrder, SequencesInAnyOrderAndRepeated) {
  Random random(2);
  const TokenSizes sizes{1, 8, 8};
  const std::vector<Tokens> tokens{Tokens(sizes, 20, random), Tokens(sizes, 70, random)};
  PoisonedCache<float> cache(tokens, 16);
  const Index a = cache.ids()[0], b = cache.ids()[1];
  RaggedCall call(2, {tokens[1], tokens[0], tokens[1]}, {1, 6, 2}, random);
  RaggedMemory<float> memory(call);
  const auto q = memory.q.cview();
  attention_into(memory.out.view(), memory.lse3(), ragged(q, call.q_lens), cache.pages().view({b, a, b}));
  Expected<float>(call, {}).expect(memory);
}

// A prompt fed in chunks, with a call after each append, gives the same results as the whole prompt at once.
template <class T, class S>
void expect_chunks_match_the_whole(double scale) {
  Random random(3);
  const TokenSizes sizes{2, 32, 16};
  const Index n = 150, heads = 4;
  RaggedCall whole(heads, {Tokens::exact(sizes, n, random)}, {n}, random);
  whole.round_queries_to<T>();
  const Meaning is_causal{[](const Pair& p) { return p.kv <= p.q; }, {}};
  const Expected<T> expected(whole, is_causal, {.scale = scale, .q_offset = {}});
  for (Index chunk : {1, 4, 5, 37, 64, 150}) {
    SCOPED_TRACE("chunks of " + std::to_string(chunk));
    KvCache<S> one_piece({.kv_heads = 2, .capacity = 3, .head_dim = 32, .v_dim = 16});
    PagedKvCache<S> pages({.pages = 40, .page_size = 4, .kv_heads = 2, .head_dim = 32, .v_dim = 16});
    const Index id = pages.add();
    RaggedMemory<T> from_one(whole), from_pages(whole);
    for (Index begin = 0; begin < n; begin += chunk) {
      const Index end = std::min(begin + chunk, n);
      Appended<Given<S>> more(whole.tokens[0].part(begin, end));
      one_piece.append(more.k(), more.v());
      pages.append(id, more.k(), more.v());
      const auto rows = [&](const auto& t) {
        return t.part(begin * t.stride(2), {1, heads, end - begin, t.dim(3)}, t.strides());
      };
      const auto lse_rows = [&](const auto& t) {
        return t.part(begin * t.stride(2), {1, heads, end - begin}, t.strides());
      };
      const auto q = rows(from_one.q.cview());
      attention_into(rows(from_one.out.view()), lse_rows(from_one.lse3()), q, one_piece, causal(), {.scale = scale});
      attention_into(rows(from_pages.out.view()), lse_rows(from_pages.lse3()), q, pages.view({id}), causal(),
                     {.scale = scale});
    }
    expected.expect(from_one, lse_error<T>(default_isa()));
    expected.expect(from_pages, lse_error<T>(default_isa()));
    EXPECT_TRUE(same_bits(from_one.all(), from_pages.all()));
  }
}
TEST(KvChunks, MatchTheWholeInFloat) { expect_chunks_match_the_whole<float, float>(0.2); }
TEST(KvChunks, MatchTheWholeInBFloat16) { expect_chunks_match_the_whole<Eigen::bfloat16, Eigen::bfloat16>(0.2); }
TEST(KvChunks, MatchTheWholeInEightBits) { expect_chunks_match_the_whole<float, std::int8_t>(0.2); }

// With Compute::bf16, caches of every type are rounded to bf16, and the error stays within the bound of that rounding.
template <class S>
void expect_rounded() {
  Random random(4);
  const TokenSizes sizes{1, 64, 32};
  for (Index page_size : {0, 16, 64}) {
    SCOPED_TRACE("pages of " + std::to_string(page_size));
    const RaggedCall call(2, {Tokens::exact(sizes, 200, random), Tokens::exact(sizes, 64, random)}, {1, 40}, random);
    const PoisonedCache<S> cache(call.tokens, page_size);
    RaggedMemory<float> memory(call);
    const auto q = memory.q.cview();
    attention_into(memory.out.view(), memory.lse3(), ragged(q, call.q_lens), cache.view(), Mods<>(),
                   {.executor = serial(), .compute = Compute::bf16});
    for (Index s = 0; s < 2; ++s) {
      const Truth truth = oracle(call.inputs(s));
      const Errors<float> e(truth, memory.of(call, s));
      // Query and key have relative errors of 2^-9. The error of a score is twice that times scale * sum |q||k|, and a
      // weight's relative error is twice the score's. Weights and values are rounded too.
      const Real score = 2 * 0x1p-9L * truth.dot_condition + 1e-4L;
      EXPECT_LE(e.lse, 1.1L * score) << "sequence " << s;
      EXPECT_LE(e.out, 1.1L * (2 * score + 2 * 0x1p-9L) * truth.largest_value) << "sequence " << s;
    }
  }
}
TEST(KvRounded, Float) { expect_rounded<float>(); }
TEST(KvRounded, Half) { expect_rounded<Eigen::half>(); }
TEST(KvRounded, EightBits) { expect_rounded<std::int8_t>(); }

}  // namespace
}  // namespace attn::test
