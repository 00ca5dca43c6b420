// The contiguous cache: appending, truncating, reordering and growing, against a plain model.
#include "support/ragged_call.h"

namespace attn::test {
namespace {

constexpr TokenSizes kSizes{2, 3, 5};

KvCacheConfig config(Index batch, Index capacity) {
  return {.batch = batch, .kv_heads = kSizes.kv_heads, .capacity = capacity, .head_dim = kSizes.head_dim, .v_dim = 5};
}

/// A cache and its expected contents.
template <class S>
struct ModelledCache {
  KvCache<S> cache;
  std::vector<Tokens> model;
  Random random{1};

  explicit ModelledCache(const KvCacheConfig& c)
      : cache(c), model(static_cast<std::size_t>(c.batch), Tokens({c.kv_heads, c.head_dim, cache.config().v_dim})) {}

  std::vector<Tokens> draw(const std::vector<Index>& lens) {
    std::vector<Tokens> more;
    for (Index len : lens) more.push_back(Tokens::exact(model[0].sizes(), len, random));
    return more;
  }
  void keep(const std::vector<Tokens>& more) {
    for (std::size_t s = 0; s < model.size(); ++s) model[s].add(more[s]);
    EXPECT_TRUE(holds(cache, model));
  }
  void append_as_many(Index len, Layout layout = Layout::bhsd) {
    const auto more = draw(std::vector<Index>(model.size(), len));
    Appended<Given<S>> given(more, layout);
    cache.append(given.k(), given.v());
    keep(more);
  }
  void append(const std::vector<Index>& lens, Layout layout = Layout::bhsd) {
    const auto more = draw(lens);
    Appended<Given<S>> given(concatenated(more), layout);
    cache.append(given.k(), given.v(), lens);
    keep(more);
  }
  void append_to(Index sequence, Index len, Layout layout = Layout::bhsd) {
    std::vector<Index> lens(model.size(), 0);
    lens[static_cast<std::size_t>(sequence)] = len;
    const auto more = draw(lens);
    Appended<Given<S>> given(concatenated(more), layout);
    cache.append(sequence, given.k(), given.v());
    keep(more);
  }
  void truncate(Index sequence, Index length) {
    cache.truncate(sequence, length);
    model[static_cast<std::size_t>(sequence)].truncate(length);
    EXPECT_TRUE(holds(cache, model));
  }
};

template <class S>
class KvCacheOf : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, long double, Eigen::half, Eigen::bfloat16, std::int8_t>;
TYPED_TEST_SUITE(KvCacheOf, Scalars);

TYPED_TEST(KvCacheOf, KeepsAppendedTokens) {
  for (Layout layout : {Layout::bhsd, Layout::bshd, Layout::dim_major, Layout::gaps, Layout::reversed}) {
    ModelledCache<TypeParam> k(config(3, 4));
    EXPECT_TRUE(holds(k.cache, k.model));  // nothing yet
    k.append_as_many(0, layout);
    k.append_as_many(2, layout);
    k.append({1, 0, 5}, layout);
    k.append({0, 0, 0}, layout);
    k.append_to(1, 70, layout);
    k.append_to(2, 0, layout);
    k.append_as_many(1, layout);
    k.truncate(1, 1);
    k.truncate(0, 0);
    k.truncate(2, k.cache.length(2));
    k.append({3, 2, 1}, layout);
    k.cache.clear();
    EXPECT_EQ(k.cache.capacity(), 144);  // memory is kept
    for (Tokens& t : k.model) t.truncate(0);
    EXPECT_TRUE(holds(k.cache, k.model));
    k.append({2, 9, 0}, layout);
  }
}

// More tokens than are packed at a time, starting in the middle of a sequence.
TYPED_TEST(KvCacheOf, KeepsManyTokensAtOnce) {
  ModelledCache<TypeParam> k({.batch = 2, .kv_heads = 1, .head_dim = 33, .v_dim = 2});
  k.append({5, 0});
  k.append({200, 131});
}

TYPED_TEST(KvCacheOf, AttendsToItsTokens) {
  using S = TypeParam;
  using T = std::conditional_t<sizeof(S) <= 2, float, S>;
#ifdef __wasm__
  if (std::is_same_v<T, long double>) GTEST_SKIP() << "WASI's C library computes exp(long double) in double precision";
#endif
  ModelledCache<S> k(config(3, 4));
  k.append({9, 0, 70});
  Random random(2);
  for (Index q_len : {1, 4, 5, 20}) {
    const RaggedCall call(4, k.model, {q_len, q_len, q_len}, random);
    RaggedMemory<T> memory(call);
    const auto q = memory.q.cview();
    attention_into(memory.out.view(), memory.lse3(), ragged(q, call.q_lens), k.cache, causal());
    Expected<T>(call, {[](const Pair& p) { return p.kv <= p.q; }, {}}).expect(memory);
  }
}

TEST(KvCache, EmptySequencesGiveZeros) {
  const KvCache<float> cache({.batch = 2, .kv_heads = 2, .head_dim = 3});
  const auto r = attention(Tensor<float, 4>({2, 4, 6, 3}), cache, causal());
  EXPECT_EQ(r.out.shape(), (Shape<4>{2, 4, 6, 3}));
  for (Index i = 0; i < r.out.size(); ++i) EXPECT_EQ(r.out.data()[i], 0);
  for (Index i = 0; i < r.lse.size(); ++i) EXPECT_EQ(r.lse.data()[i], -std::numeric_limits<float>::infinity());
}

// All types of queries and results, compared with the overload that writes to views.
TEST(KvCache, QueriesAndResultsOfAllTypes) {
  ModelledCache<float> k({.kv_heads = 1, .head_dim = 4, .v_dim = 3});
  k.append({30});
  Random random(3);
  const auto values = random.values(8 * 4);
  Eigen::Matrix<double, 8, 4> exact = Eigen::Map<const Eigen::Matrix<double, 8, 4>>(values.data());
  const Eigen::MatrixXf q = exact.cast<float>();
  const auto r = attention(q, k.cache, causal());
  static_assert(std::is_same_v<decltype(r.out), Eigen::MatrixXf>);
  RaggedCall call(1, k.model, {8}, random);
  for (Index i = 0; i < 8; ++i)
    for (Index d = 0; d < 4; ++d) call.q[0][static_cast<std::size_t>(i * 4 + d)] = exact(i, d);
  RaggedMemory<float> memory(call);
  attention_into(memory.out.view(), memory.lse3(), memory.q.cview(), k.cache, causal());
  Expected<float>(call, {[](const Pair& p) { return p.kv <= p.q; }, {}}).expect(memory);
  for (Index i = 0; i < 8; ++i) {
    EXPECT_EQ(r.lse(i), memory.lse.view()(0, 0, i, 0));
    for (Index d = 0; d < 3; ++d) EXPECT_EQ(r.out(i, d), memory.out.view()(0, 0, i, d));
  }
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> out(8, 3);
  attention_into(out, q, k.cache, causal());
  EXPECT_EQ(out, r.out);
  EXPECT_EQ(attention(q, k.cache.view(), causal()).out, r.out);
  EXPECT_EQ(attention(ragged(q, {8}), k.cache, causal()).out, r.out);
  Tensor<float, 2> q2({8, 4});
  q2.matrix() = q;
  EXPECT_EQ(attention(q2, k.cache, causal()).out.matrix(), r.out);
  // 16-bit results are rounded once, to the nearest.
  Eigen::Matrix<Eigen::half, Eigen::Dynamic, Eigen::Dynamic> narrow(8, 3);
  attention_into(narrow, q, k.cache, causal());
  EXPECT_EQ(narrow, r.out.cast<Eigen::half>());
  const auto of_half = attention(q.cast<Eigen::half>().eval(), k.cache, causal());
  EXPECT_EQ(of_half.out,
            attention(q.cast<Eigen::half>().cast<float>().eval(), k.cache, causal()).out.cast<Eigen::half>());
  static_assert(std::is_same_v<decltype(of_half.lse)::Scalar, float>);
}

// Appending 16-bit floats to a float cache is exact, and appending floats to a 16-bit cache rounds to the nearest.
TEST(KvCache, AppendConvertsScalars) {
  Random random(4);
  const Tokens tokens(kSizes, 40, random), narrow = tokens.rounded_to<Eigen::bfloat16>();
  KvCache<float> wide(config(1, 64));
  Appended<Eigen::bfloat16> given(narrow);
  wide.append(given.k(), given.v());
  EXPECT_TRUE(holds(wide, {narrow}));
  KvCache<Eigen::bfloat16> rounding(config(1, 64));
  Appended<float> floats(tokens);
  rounding.append(floats.k(), floats.v());
  EXPECT_TRUE(holds(rounding, {narrow}));
  EXPECT_FALSE(holds(rounding, {tokens}));
}

TEST(KvCache, CapacityAtLeastDoubles) {
  ModelledCache<float> k(config(2, 3));
  EXPECT_EQ(k.cache.capacity(), 3);
  const Index bytes = k.cache.bytes();
  EXPECT_EQ(bytes, 2 * 2 * 3 * (3 + 5) * 4);
  k.append({3, 1});
  EXPECT_EQ(k.cache.capacity(), 3);
  k.append({1, 0});
  EXPECT_EQ(k.cache.capacity(), 6);
  EXPECT_EQ(k.cache.bytes(), 2 * bytes);
  k.append({0, 20});
  EXPECT_EQ(k.cache.capacity(), 21);
  k.cache.reserve(10);
  EXPECT_EQ(k.cache.capacity(), 21);
  k.cache.reserve(22);
  EXPECT_EQ(k.cache.capacity(), 42);
  EXPECT_TRUE(holds(k.cache, k.model));
  k.cache.reserve(100);
  EXPECT_EQ(k.cache.capacity(), 100);
  EXPECT_EQ(KvCache<float>({.head_dim = 2}).capacity(), 64);
  EXPECT_EQ(KvCache<float>({.head_dim = 2, .max_capacity = 10}).capacity(), 10);
}

TEST(KvCache, ViewsOfOneSequenceAndOfAll) {
  ModelledCache<float> k(config(2, 10));
  k.append({4, 7});
  const auto all = k.cache.keys();
  EXPECT_EQ(all.shape(), (Shape<4>{2, 2, 7, 3}));
  EXPECT_EQ(k.cache.values().shape(), (Shape<4>{2, 2, 7, 5}));
  EXPECT_EQ(all.stride(2), 3);  // the tokens of a head are contiguous
  EXPECT_EQ(all.stride(3), 1);
  EXPECT_EQ(k.cache.keys(1).data(), &all(1, 0, 0, 0));  // not a copy
  const float* const before = all.data();
  k.append({6, 3});
  EXPECT_EQ(k.cache.keys().data(), before);  // nothing was moved either
  // key_lengths() drops the padding after the shorter sequence.
  k.truncate(0, 2);
  Random random(5);
  const RaggedCall call(2, k.model, {1, 1}, random);
  Tensor<float, 4> q({2, 2, 1, 3});
  for (Index s = 0; s < 2; ++s) std::copy_n(call.q[RaggedCall::at(s)].begin(), 6, &q(s, 0, 0, 0));
  const auto by_views = attention(q, k.cache.keys(), k.cache.values(), key_lengths(k.cache.lengths()));
  const auto by_cache = attention(q, k.cache);
  for (Index i = 0; i < by_cache.out.size(); ++i) EXPECT_NEAR(by_views.out.data()[i], by_cache.out.data()[i], 1e-6);
}

TEST(KvCache, CopiesAreIndependent) {
  ModelledCache<std::int8_t> k(config(2, 4));
  k.append({3, 2});
  const KvCache<std::int8_t> copy = k.cache;
  const std::vector<Tokens> before = k.model;
  k.append({1, 1});
  k.truncate(0, 0);
  k.append({2, 0});
  EXPECT_TRUE(holds(copy, before));
}

// Every map among up to four sequences of different lengths.
TYPED_TEST(KvCacheOf, ReordersByEveryMap) {
  for (Index count = 1; count <= 4; ++count) {
    Index maps = 1;
    for (Index i = 0; i < count; ++i) maps *= count;
    for (Index map = 0; map < maps; ++map) {
      ModelledCache<TypeParam> k(config(count, 6));
      const Index lens[] = {4, 0, 6, 1};
      k.append(std::vector<Index>(lens, lens + count));
      std::vector<Index> from;
      std::vector<Tokens> wanted;
      for (Index i = 0, rest = map; i < count; ++i, rest /= count) {
        from.push_back(rest % count);
        wanted.push_back(k.model[static_cast<std::size_t>(rest % count)]);
      }
      k.cache.reorder(from);
      ASSERT_TRUE(holds(k.cache, wanted)) << "map " << map << " of " << count;
      // Sequences that had the same source are independent.
      k.model = wanted;
      k.append(std::vector<Index>(static_cast<std::size_t>(count), 1));
    }
  }
}

// Larger random maps, with several cycles and trees attached to cycles.
TEST(KvCache, ReordersByRandomMaps) {
  ModelledCache<float> k(config(9, 3));
  k.append({3, 1, 4, 1, 5, 9, 2, 6, 0});
  for (int round = 0; round < 300; ++round) {
    std::vector<Index> from(9);
    for (Index i = 0; i < 9; ++i) from[static_cast<std::size_t>(i)] = i;
    for (std::size_t i = 9; i-- > 1;)
      std::swap(from[i], from[static_cast<std::size_t>(k.random.integer(0, static_cast<Index>(i)))]);
    for (Index& i : from)
      if (k.random.chance(round % 3 * 0.2)) i = k.random.integer(0, 8);
    std::vector<Tokens> wanted;
    for (Index i : from) wanted.push_back(k.model[static_cast<std::size_t>(i)]);
    k.cache.reorder(from);
    ASSERT_TRUE(holds(k.cache, wanted)) << "round " << round;
    k.model = wanted;
    // Makes the sequences differ again.
    const Index one = k.random.integer(0, 8);
    if (k.cache.length(one) > 6) k.truncate(one, 2);
    k.append_to(one, k.random.integer(1, 4));
  }
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TEST(KvCache, DeprecatedNamesStillWork) {
  KvCache<float> old_names(config(2, 8)), new_names(config(2, 8));
  Random random(3);
  Appended<float> more(Tokens::exact(kSizes, 3, random));
  old_names.append_to(1, more.k(), more.v());
  new_names.append(1, more.k(), more.v());
  const KvBatch<float> batch = old_names.batch();
  EXPECT_EQ(batch.length(0), 0);
  EXPECT_EQ(batch.length(1), 3);
  EXPECT_EQ(batch.batch().size(), 2);
  EXPECT_EQ(view(old_names.keys(1)).shape(), view(new_names.keys(1)).shape());
  EXPECT_TRUE(
      std::equal(&old_names.keys(1)(0, 0, 0, 0), &old_names.keys(1)(0, 0, 0, 0) + 5, &new_names.keys(1)(0, 0, 0, 0)));
}
#pragma GCC diagnostic pop

}  // namespace
}  // namespace attn::test
