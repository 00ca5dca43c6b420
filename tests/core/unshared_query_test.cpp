// A single query per head that shares its keys with no other query: the direct loop gives the same bits as the general
// loop for single queries. Other tests compare the general loop with the definition.
#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <attn/attn.h>

#include "support/compare.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/random.h"

namespace attn::test {
namespace {

/// Changes no score, but as a score mod it rules out the direct loop, so that the general loop runs.
auto by_the_loop() {
  return score_mod([](auto x, auto) { return x; });
}

/// Whether kernels read far rows at memory bandwidth without prefetches.
bool keep_up(Isa isa) { return isa >= Isa::avx512; }

template <class Result>
auto computed(const Result& r) {
  using T = std::remove_cvref_t<decltype(*r.out.data())>;
  return Computed<T>{{r.out.data(), r.out.data() + r.out.size()}, {r.lse.data(), r.lse.data() + r.lse.size()}};
}

/// One token per head, each with its own keys.
template <class T>
struct Call {
  Call(Index heads, Index kv_len, Index head_dim, Index v_dim, Random& random)
      : q(drawn<T>({1, heads, 1, head_dim}, random)),
        k(drawn<T>({1, heads, kv_len, head_dim}, random)),
        v(drawn<T>({1, heads, kv_len, v_dim}, random)) {}

  /// Expects both loops to give the same bits, and explain() to report the direct loop for the call without
  /// by_the_loop() if `direct`, else the general loop for both calls.
  template <class M = Mods<>>
  void expect_same(const Options& options, const M& mods = {}, bool direct = true) const {
    EXPECT_EQ(explain(q, k, v, mods, options).direct_queries, direct ? q.dim(1) : 0);
    EXPECT_EQ(explain(q, k, v, mods | by_the_loop(), options).direct_queries, 0);
    EXPECT_TRUE(same_bits(computed(attention(q, k, v, mods, options)),
                          computed(attention(q, k, v, mods | by_the_loop(), options))));
  }

  Tensor<T, 4> q, k, v;
};

/// Numbers of keys just below and above the sizes of vectors, tiles, steps and splits. Row lengths for every number of
/// vectors that kernels process at a time, with and without a remainder.
template <class T>
void expect_bits_of_the_loop() {
  Random random(1);
  for (Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    for (Index kv_len : {1, 2, 7, 8, 9, 15, 16, 17, 31, 63, 64, 65, 100, 128, 511, 512, 513, 600, 1025, 2048, 2300})
      for (int i = 0; i < 2; ++i) {
        const std::vector<Index> dims{1, 5, 8, 16, 17, 32, 48, 64, 96, 128, 130, 256};
        const Index most = kv_len > 1000 ? 1 : 3;  // stays within 8 MiB: more would be far
        const Index head_dim = random.pick(dims), v_dim = std::min<Index>(random.pick(dims), most == 1 ? 128 : 256);
        const Call<T> call(random.integer(1, most), kv_len, head_dim, v_dim, random);
        SCOPED_TRACE(::testing::Message()
                     << kv_len << " keys, head_dim " << call.q.dim(3) << ", v_dim " << call.v.dim(3));
        call.expect_same({.executor = i == 0 ? serial() : eager_threads(2), .isa = isa});
        if (::testing::Test::HasFailure()) return;
      }
  }
}
TEST(UnsharedQuery, FloatMatchesTheGeneralLoopBitForBit) { expect_bits_of_the_loop<float>(); }
TEST(UnsharedQuery, DoubleMatchesTheGeneralLoopBitForBit) { expect_bits_of_the_loop<double>(); }

/// Rows of whole vectors of every instruction set, and numbers of keys just below and above multiples of the kernels'
/// group sizes.
template <class T>
void expect_bits_of_the_loop(Index row_bytes, const std::vector<Index>& kv_lens) {
  Random random(14);
  const Index dim = row_bytes / static_cast<Index>(sizeof(T));
  for (Isa isa : instruction_sets())
    for (Index kv_len : kv_lens) {
      SCOPED_TRACE(::testing::Message() << to_string(isa) << ", " << kv_len << " keys, " << dim << " elements");
      Call<T>(2, kv_len, dim, dim, random).expect_same({.executor = serial(), .isa = isa});
    }
}
TEST(UnsharedQuery, RowsOfWholeVectorsMatchTheGeneralLoopBitForBit) {
  const std::vector<Index> of_groups{7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 79, 80, 81, 100, 512, 513, 529};
  expect_bits_of_the_loop<float>(256, of_groups);
  expect_bits_of_the_loop<double>(256, of_groups);
  expect_bits_of_the_loop<float>(1024, {1, 2, 3, 64, 65, 100});
  expect_bits_of_the_loop<double>(1024, {1, 2, 3, 64, 65, 100});
}

/// The largest score is in the last step: all previous sums are rescaled.
TEST(UnsharedQuery, LaterMaximaRescale) {
  Random random(2);
  for (Isa isa : instruction_sets())
    for (Index kv_len : {65, 513, 1500, 2049}) {
      Call<float> call(2, kv_len, 64, 64, random);
      for (Index h = 0; h < 2; ++h)
        for (Index d = 0; d < 64; ++d) call.k(0, h, kv_len - 1, d) = call.q(0, h, 0, d);
      call.expect_same({.scale = 1, .executor = serial(), .isa = isa});
      const auto r = attention(call.q, call.k, call.v, Options{.scale = 1, .isa = isa});
      // A score of about 85 among scores of about 11 leaves only the last value.
      for (Index d = 0; d < 64; ++d) EXPECT_NEAR(r.out(0, 1, 0, d), call.v(0, 1, kv_len - 1, d), 1e-5f) << d;
    }
}

TEST(UnsharedQuery, WindowsBeginAnywhere) {
  Random random(3);
  const Call<float> call(2, 2200, 64, 32, random);
  for (Isa isa : instruction_sets())
    for (Index window : {0, 1, 63, 64, 511, 700, 1100, 2100})
      call.expect_same({.executor = serial(), .isa = isa}, causal() | sliding_window(window));
}

TEST(UnsharedQuery, SinksAreSummedOnce) {
  Random random(4);
  for (Isa isa : instruction_sets())
    for (Index kv_len : {1, 70, 600, 2100}) {
      const Call<float> call(2, kv_len, 64, 64, random);
      call.expect_same({.executor = serial(), .isa = isa}, sinks(std::vector<float>{3, -1}));
    }
}

/// Values after a row's last key are not read, or have zero weight.
TEST(UnsharedQuery, NanAfterTheLastKeyDoesNotSpread) {
  Random random(5);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Isa isa : instruction_sets())
    for (Index length : {0, 1, 5, 16, 61, 64, 100}) {
      Call<float> call(2, 128, 64, 64, random);
      const auto wanted = attention(call.q, call.k, call.v, key_lengths({length}), {.isa = isa});
      for (Index h = 0; h < 2; ++h)
        for (Index j = length; j < 128; ++j)
          for (Index d = 0; d < 64; ++d) call.k(0, h, j, d) = call.v(0, h, j, d) = nan;
      EXPECT_EQ(explain(call.q, call.k, call.v, key_lengths({length}), {.isa = isa}).direct_queries,
                length > 0 ? 2 : 0);
      const auto got = attention(call.q, call.k, call.v, key_lengths({length}), {.isa = isa});
      EXPECT_TRUE(same_bits(computed(got), computed(wanted))) << length;
      EXPECT_EQ(got.lse(0, 0, 0) == -std::numeric_limits<float>::infinity(), length == 0);
    }
}

/// A key in the middle is dropped, which rules out the direct loop.
TEST(UnsharedQuery, MasksWithHolesUseTheGeneralLoop) {
  Random random(6);
  Call<float> call(1, 200, 64, 64, random);
  const auto mask = mask_mod([](auto p) { return p.kv != 77; });
  for (Index d = 0; d < 64; ++d) call.v(0, 0, 77, d) = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(explain(call.q, call.k, call.v, mask).direct_queries, 0);
  const auto out = attention(call.q, call.k, call.v, mask).out;
  const auto truth = naive_attention(call.q, call.k, call.v, mask).out;
  for (Index d = 0; d < 64; ++d) EXPECT_NEAR(out(0, 0, 0, d), truth(0, 0, 0, d), 1e-5f);
}

/// Whether memory is far depends on the whole call; the result of a head does not. With 64-byte vectors the direct loop
/// reads far rows; otherwise the general loop fetches them ahead.
TEST(UnsharedQuery, FarKeysGiveTheSameBits) {
  Random random(7);
  const Index heads = 64, kv_len = 700;
  for (const auto& [head_dim, v_dim] : {std::pair<Index, Index>{64, 64}, {128, 64}, {64, 80}, {80, 64}, {80, 80}}) {
    const Call<float> one(1, kv_len, head_dim, v_dim, random);
    const auto repeated = [&](const Tensor<float, 4>& t) {
      Tensor<float, 4> all({1, heads, t.dim(2), t.dim(3)});
      for (Index h = 0; h < heads; ++h) std::copy_n(t.data(), t.size(), all.data() + h * t.size());
      return all;
    };
    const auto q = repeated(one.q), k = repeated(one.k), v = repeated(one.v);
    for (Isa isa : instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      const bool direct = keep_up(isa);
      EXPECT_EQ(explain(q, k, v, {.isa = isa}).fetches_ahead, !direct);
      EXPECT_EQ(explain(q, k, v, {.isa = isa}).direct_queries, direct ? heads : 0);
      const auto near = attention(one.q, one.k, one.v, {.isa = isa}), far = attention(q, k, v, {.isa = isa});
      for (Index h = 0; h < heads; ++h) {
        EXPECT_EQ(near.lse(0, 0, 0), far.lse(0, h, 0));
        for (Index d = 0; d < v_dim; ++d) ASSERT_EQ(near.out(0, 0, 0, d), far.out(0, h, 0, d)) << h << " " << d;
      }
    }
  }
}

/// Far keys are split, and each split is a task.
TEST(UnsharedQuery, SplitFarKeysMatchTheGeneralLoopBitForBit) {
  Random random(11);
  const Call<float> call(4, 4500, 64, 64, random);
  for (Isa isa : instruction_sets())
    for (const Executor& executor : {serial(), eager_threads(2)})
      call.expect_same({.executor = executor, .isa = isa}, full(), keep_up(isa));
}

/// 129 tiles in two splits: the second has 65 tiles, one more than are accumulated without a separate total.
TEST(UnsharedQuery, SplitsThatNeedTotalsUseTheGeneralLoop) {
  Random random(12);
  const Call<float> longer(32, 8193, 2, 2, random), shorter(32, 8192, 2, 2, random);
  for (Isa isa : instruction_sets()) {
    longer.expect_same({.executor = serial(), .isa = isa}, full(), false);
    shorter.expect_same({.executor = serial(), .isa = isa});
  }
}

/// Far rows with gaps are fetched ahead: hardware prefetchers do not predict them.
TEST(UnsharedQuery, FarRowsWithGapsUseTheGeneralLoop) {
  const Index kv_len = 20000;
  const Tensor<float, 4> q({1, 1, 1, 64}), kv({1, 1, kv_len, 128});
  const TensorView<const float, 4> gaps(kv.data(), {1, 1, kv_len, 64}, {0, 0, 128, 1}),
      dense(kv.data(), {1, 1, kv_len, 64}, {0, 0, 64, 1});
  for (Isa isa : instruction_sets()) {
    EXPECT_EQ(explain(q, dense, dense, {.isa = isa}).direct_queries, keep_up(isa) ? 1 : 0);
    EXPECT_EQ(explain(q, gaps, dense, {.isa = isa}).direct_queries, 0);
    EXPECT_EQ(explain(q, dense, gaps, {.isa = isa}).direct_queries, 0);
  }
}

/// Far heads are processed step by step, not head by head, if they are adjacent within each token or view the same
/// memory.
TEST(UnsharedQuery, InterleavedFarHeadsUseTheGeneralLoop) {
  const Index heads = 16, kv_len = 2100;
  Random random(13);
  const Call<float> one(1, kv_len, 64, 64, random);
  const Tensor<float, 4> together({1, kv_len, heads, 64});
  Tensor<float, 4> q({1, heads, 1, 64});
  for (Index h = 0; h < heads; ++h) std::copy_n(one.q.data(), 64, &q(0, h, 0, 0));
  const auto of_a_token = bshd(together.data(), 1, kv_len, heads, 64);
  const auto same = [&](const Tensor<float, 4>& t) {
    return TensorView<const float, 4>(t.data(), {1, heads, kv_len, 64}, {0, 0, 64, 1});
  };
  for (Isa isa : instruction_sets()) {
    EXPECT_EQ(explain(q, of_a_token, of_a_token, {.isa = isa}).direct_queries, 0);
    EXPECT_TRUE(explain(q, of_a_token, of_a_token, {.isa = isa}).fetches_ahead);
    EXPECT_EQ(explain(q, same(one.k), same(one.v), {.isa = isa}).direct_queries, 0);
    const auto wanted = attention(one.q, one.k, one.v, {.isa = isa}).out,
               got = attention(q, same(one.k), same(one.v), {.isa = isa}).out;
    for (Index h = 0; h < heads; ++h)
      for (Index d = 0; d < 64; ++d) ASSERT_NEAR(got(0, h, 0, d), wanted(0, 0, 0, d), 1e-6f) << h << " " << d;
  }
}

/// Queries and outputs whose elements are strided or 16-bit are copied before and after the loop.
TEST(UnsharedQuery, QueriesAndOutputsMayHaveAnyLayout) {
  Random random(8);
  const Call<float> call(3, 90, 32, 32, random);
  const auto wanted = attention(call.q, call.k, call.v);
  const Index heads = 3, dim = 32;
  std::vector<float> q(static_cast<std::size_t>(heads * dim)), out(q.size());
  const Shape<4> shape{1, heads, 1, dim}, side_by_side{0, 1, 1, heads};
  const TensorView<float, 4> q4(q.data(), shape, side_by_side), out4(out.data(), shape, side_by_side);
  Tensor<Eigen::half, 4> narrow(shape);
  for (Index h = 0; h < heads; ++h)
    for (Index d = 0; d < dim; ++d) q4(0, h, 0, d) = call.q(0, h, 0, d);
  EXPECT_EQ(explain(q4, call.k, call.v).direct_queries, heads);
  attention_into(out4, q4, call.k, call.v);
  attention_into(narrow, call.q, call.k, call.v);
  for (Index h = 0; h < heads; ++h)
    for (Index d = 0; d < dim; ++d) {
      EXPECT_EQ(out4(0, h, 0, d), wanted.out(0, h, 0, d));
      EXPECT_EQ(narrow(0, h, 0, d), static_cast<Eigen::half>(wanted.out(0, h, 0, d)));
    }
}

/// Contiguous and paged caches, with and without a rotary embedding; windows that begin inside a page and inside a
/// tile.
TEST(UnsharedQuery, ContiguousAndPagedCachesAgree) {
  Random random(9);
  const Index heads = 2, dim = 64, kv_len = 1200;
  const Call<float> call(heads, kv_len, dim, dim, random);
  for (const bool with_rope : {false, true}) {
    const std::optional<Rope> rope = with_rope ? std::optional<Rope>(Rope({.head_dim = dim})) : std::nullopt;
    KvCache<float> piece({.kv_heads = heads, .capacity = 1300, .head_dim = dim, .rope = rope});
    PagedKvCache<float> pages({.pages = 40, .page_size = 48, .kv_heads = heads, .head_dim = dim, .rope = rope});
    const auto id = pages.add();
    piece.append(call.k, call.v);
    pages.append(id, call.k, call.v);
    for (Isa isa : instruction_sets())
      for (Index window : {kv_len, Index(100), Index(700), Index(1000)}) {
        const auto mods = causal() | sliding_window(window);
        const Options options{.executor = serial(), .isa = isa};
        EXPECT_EQ(explain(call.q, piece, mods, options).direct_queries, heads);
        const auto one = computed(attention(call.q, piece, mods, options));
        EXPECT_TRUE(same_bits(one, computed(attention(call.q, pages.view(std::vector{id}), mods, options)))) << window;
        EXPECT_TRUE(same_bits(one, computed(attention(call.q, piece, mods | by_the_loop(), options)))) << window;
      }
  }
}

/// Calls with work between scores and values use the general loop.
TEST(UnsharedQuery, OtherCallsUseTheGeneralLoop) {
  Random random(10);
  const Call<float> call(2, 100, 64, 64, random);
  const auto direct = [&](const auto& mods, const Options& options) {
    return explain(call.q, call.k, call.v, mods, options).direct_queries;
  };
  EXPECT_EQ(direct(full(), {}), 2);
  EXPECT_EQ(direct(causal(), {}), 2);
  EXPECT_EQ(direct(softcap(5), {}), 0);
  EXPECT_EQ(direct(dropout(0.5, 1), {}), 0);
  EXPECT_EQ(direct(full(), {.accumulate = true}), 0);
  EXPECT_EQ(direct(full(), {.normaliser = Normaliser::sigmoid()}), 0);
  const Tensor<float, 4> shared({1, 1, 100, 64}), column = drawn<float>({1, 2, 64, 100}, random);
  EXPECT_EQ(explain(call.q, shared, shared).direct_queries, 0);
  const TensorView<const float, 4> columns(column.data(), {1, 2, 100, 64}, {12800, 6400, 1, 100});
  EXPECT_EQ(explain(call.q, columns, call.v).direct_queries, 0);
  EXPECT_EQ(explain(call.q, call.k, columns).direct_queries, 0);
  const Tensor<Eigen::half, 4> halves({1, 2, 100, 64});
  EXPECT_EQ(explain(call.q, halves, call.v).direct_queries, 0);
}

}  // namespace
}  // namespace attn::test
