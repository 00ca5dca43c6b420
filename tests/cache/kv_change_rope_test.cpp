// change_rope(): stored keys take the angles of another rope.
#include "support/cached.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kDim = 64;

Rope short_rope(RopePairs pairs) { return Rope({.head_dim = kDim, .rotary_dim = 48, .pairs = pairs}); }
/// Other frequencies, and an attention factor.
Rope long_rope(RopePairs pairs) {
  return Rope({.head_dim = kDim,
               .rotary_dim = 48,
               .pairs = pairs,
               .base = 1e6,
               .scaling = RopeScaling::yarn,
               .factor = 8,
               .trained_length = 64});
}

/// Largest error of an element of a key that is rotated and stored once more, relative to the largest element of the
/// row. A rotation may move the errors of both elements of a pair into one of them.
template <class S>
constexpr double kKeyError = kElements<S> > 1                 ? 0.4
                             : std::is_same_v<S, std::int8_t> ? 0.02
                             : kIsSmall<S>                    ? 0.2
                             : sizeof(S) == 2                 ? 0.01
                                                              : 2e-6;

void expect_near(const Tokens& got, const Tokens& wanted, double step) {
  ASSERT_EQ(got.size(), wanted.size());
  for (Index i = 0; i < got.size(); ++i)
    for (Index h = 0; h < got.sizes().kv_heads; ++h) {
      double largest = 0;
      for (Index d = 0; d < kDim; ++d) largest = std::max(largest, std::abs(wanted.k(i, h, d)));
      for (Index d = 0; d < kDim; ++d) {
        ASSERT_NEAR(got.k(i, h, d), wanted.k(i, h, d), step * largest) << "row " << i << ", feature " << d;
        ASSERT_EQ(got.v(i, h, d), wanted.v(i, h, d)) << "row " << i;
      }
    }
}

template <class S>
class KvChangeRope : public ::testing::Test {
 protected:
  Tokens tokens(Index count) { return Tokens({2, kDim, kDim}, count, random_); }

  Random random_{1};
};
using RotatedFormats = ::testing::Types<float, double, Eigen::bfloat16, std::int8_t, Float8E4M3, Int4>;
TYPED_TEST_SUITE(KvChangeRope, RotatedFormats);

TYPED_TEST(KvChangeRope, EqualsTheKeysOfTheOtherRope) {
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::interleaved}) {
    const auto cache = [&](const Rope& rope) {
      return KvCache<TypeParam>({.batch = 2, .kv_heads = 2, .head_dim = kDim, .rope = rope});
    };
    KvCache<TypeParam> changed = cache(short_rope(pairs)), wanted = cache(long_rope(pairs));
    const std::vector<Tokens> first{this->tokens(70), this->tokens(70)}, more{this->tokens(3), this->tokens(3)};
    const auto append = [](KvCache<TypeParam>& to, const std::vector<Tokens>& of, const AppendOptions& options) {
      Appended<Given<TypeParam>> given(of);
      to.append(given.k(), given.v(), options);
    };
    for (KvCache<TypeParam>* c : {&changed, &wanted}) {
      append(*c, first, {});
      c->drop(1, 10, 30, {.keep_positions = true});
    }
    changed.change_rope(long_rope(pairs));
    EXPECT_TRUE(*changed.config().rope == long_rope(pairs));
    for (KvCache<TypeParam>* c : {&changed, &wanted}) append(*c, more, {});
    for (Index s = 0; s < 2; ++s) {
      EXPECT_EQ(changed.position(s, changed.length(s)), wanted.position(s, wanted.length(s)));
      expect_near(tokens_of(changed, s), tokens_of(wanted, s), kKeyError<TypeParam>);
    }
    // Queries are rotated by the new rope.
    KvCache<TypeParam> same = wanted;
    same.change_rope(long_rope(pairs));
    Tensor<detail::cached_t<TypeParam>, 4> q({2, 4, 1, kDim});
    for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<detail::cached_t<TypeParam>>(std::sin(i));
    const auto got = attention(q, changed).out, want = attention(q, wanted).out;
    for (Index i = 0; i < got.size(); ++i)
      ASSERT_NEAR(static_cast<double>(got.data()[i]), static_cast<double>(want.data()[i]), 10 * kKeyError<TypeParam>);
  }
}

/// Pages that forks share, sinks that a window has moved, and the originals of these sinks are rotated once each.
TYPED_TEST(KvChangeRope, RotatesSharedPagesAndSinksOnce) {
  for (const Index page_size : {4, 16}) {
    const auto cache = [&](const Rope& rope) {
      return PagedKvCache<TypeParam>({.pages = 200 / page_size + 20,
                                      .page_size = page_size,
                                      .kv_heads = 2,
                                      .head_dim = kDim,
                                      .rope = rope,
                                      .window = 40,
                                      .sinks = 5});
    };
    PagedKvCache<TypeParam> changed = cache(short_rope(RopePairs::halves)),
                            wanted = cache(long_rope(RopePairs::halves));
    Index first = 0, fork = 0, early = 0;
    const auto append = [&](Index to, const Tokens& tokens) {
      for (PagedKvCache<TypeParam>* c : {&changed, &wanted}) {
        Appended<Given<TypeParam>> given(tokens);
        c->append(to, given.k(), given.v());
      }
    };
    for (PagedKvCache<TypeParam>* c : {&changed, &wanted}) first = c->add();
    append(first, this->tokens(30));
    for (PagedKvCache<TypeParam>* c : {&changed, &wanted}) {
      fork = c->fork(first, 21);
      early = c->fork(first, 9);  // shares the sinks before they move
    }
    for (int i = 0; i < 6; ++i) append(first, this->tokens(10));
    append(fork, this->tokens(3));
    changed.change_rope(long_rope(RopePairs::halves));
    const auto expect = [&] {
      for (const Index s : {first, fork, early}) {
        SCOPED_TRACE("sequence " + std::to_string(s));
        expect_near(tokens_of(changed, s), tokens_of(wanted, s), 2 * kKeyError<TypeParam>);
      }
    };
    expect();
    for (int i = 0; i < 6; ++i) append(first, this->tokens(10));  // sinks move again, from their originals
    append(early, this->tokens(60));
    expect();
  }
}

TYPED_TEST(KvChangeRope, ChangesLayersThatHaveARope) {
  const auto caches = [](const std::optional<Rope>& rope) {
    return KvCaches<TypeParam>({.layers = 3,
                                .kv_heads = 2,
                                .head_dim = kDim,
                                .pages = 10,
                                .page_size = 16,
                                .ropes = {rope, std::nullopt, rope}});
  };
  KvCaches<TypeParam> changed = caches(short_rope(RopePairs::halves)), wanted = caches(long_rope(RopePairs::halves));
  const Tokens tokens = this->tokens(40);
  for (KvCaches<TypeParam>* c : {&changed, &wanted}) {
    const Index s = c->add();
    auto step = c->step({s}, 40);
    for (Index layer = 0; layer < 3; ++layer) {
      Appended<Given<TypeParam>> given(tokens);
      step.layer(layer).append(given.k(), given.v());
    }
    if (c == &changed)
      expect_refused("an open step", {"change_rope", "a step of 1 sequences is open"},
                     [&] { c->change_rope(long_rope(RopePairs::halves)); });
    step.commit();
  }
  changed.change_rope(long_rope(RopePairs::halves));
  EXPECT_TRUE(*changed.config().ropes[2] == long_rope(RopePairs::halves));
  EXPECT_FALSE(changed.config().ropes[1]);
  for (Index layer = 0; layer < 3; ++layer)
    expect_near(tokens_in_pages<TypeParam>(PagesOfLayer<TypeParam>{changed, layer}, 0),
                tokens_in_pages<TypeParam>(PagesOfLayer<TypeParam>{wanted, layer}, 0), kKeyError<TypeParam>);
}

TEST(KvChangeRopeErrors, RefusesOtherPairs) {
  const Rope rope({.head_dim = kDim});
  KvCache<float> bare({.head_dim = kDim}), cache({.head_dim = kDim, .rope = rope});
  expect_refused("no rope", {"change_rope: the cache has no rope"}, [&] { bare.change_rope(rope); });
  expect_refused("rotary_dim", {"rotates 64 of 64 features in halves, the new one 32 of 64 in halves"},
                 [&] { cache.change_rope(Rope({.head_dim = kDim, .rotary_dim = 32})); });
  expect_refused("pairs", {"in halves, the new one 64 of 64 in interleaved pairs"},
                 [&] { cache.change_rope(Rope({.head_dim = kDim, .pairs = RopePairs::interleaved})); });
  KvCaches<float> layers({.layers = 2, .head_dim = kDim, .pages = 2, .ropes = {rope, std::nullopt}});
  expect_refused("a rope for a layer without", {"layer 1 has no rope"}, [&] { layers.change_ropes({rope, rope}); });
  expect_refused("none for a layer with one", {"layer 0 has a rope, and needs another one"}, [&] {
    layers.change_ropes({std::nullopt, std::nullopt});
  });
  expect_refused("too few", {"got 1 ropes for 2 layers"}, [&] { layers.change_ropes({rope}); });
  EXPECT_TRUE(*cache.config().rope == rope);
}

TEST(KvChangeRopeErrors, LayersAndTheirCachesChangeTogether) {
  const Rope before({.head_dim = 8}), after({.head_dim = 8, .base = 500});
  MultiHeadAttention<float> mha({.embed_dim = 16, .heads = 2, .rope = before});
  auto cache = mha.make_cache({.capacity = 8});
  const Eigen::MatrixXf x = Eigen::MatrixXf::Random(5, 16);
  mha(x, cache, causal());
  cache.change_rope(after);
  expect_refused("the layer's rope", {"the ropes of the layer and the cache differ: base 10000 and 500"},
                 [&] { mha(x, cache, causal()); });
  mha.change_rope(after);
  const Eigen::MatrixXf got = mha(x, cache, causal()).out;
  auto fresh = mha.make_cache({.capacity = 16});
  mha(x, fresh, causal());
  EXPECT_LT((got - mha(x, fresh, causal()).out).cwiseAbs().maxCoeff(), 1e-5);
}

}  // namespace
}  // namespace attn::test
