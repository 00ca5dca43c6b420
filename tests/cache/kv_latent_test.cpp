// Caches of latent rows: each is a key, and its beginning a value.
#include "support/cached.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kRank = 96, kRope = 32, kRow = kRank + kRope;

template <class T>
Tensor<T, 4> drawn_rows(const Shape<4>& shape, Random& random) {
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(random.uniform(-1, 1));
  return t;
}

/// Latent caches, and caches that store the same tokens as keys and values.
template <class S>
struct Both {
  using T = Given<S>;
  KvCaches<S> latent{{.layers = 2, .pages = 30, .page_size = 16, .latent = {.rank = kRank, .rope_dim = kRope}}};
  KvCaches<S> whole{{.layers = 2, .head_dim = kRow, .v_dim = kRank, .pages = 30, .page_size = 16}};

  Index add() {
    whole.add();
    return latent.add();
  }
  void append(const std::vector<Index>& to, const std::vector<Index>& lens, Random& random) {
    Index sum = 0;
    for (Index len : lens) sum += len;
    auto a = latent.step(to, lens), b = whole.step(to, lens);
    for (Index layer = 0; layer < 2; ++layer) {
      const Tensor<T, 4> rows = drawn_rows<T>({1, 1, sum, kRow}, random);
      a.layer(layer).append_latent(rows, lens);
      b.layer(layer).append(rows, rows.view().slice(3, 0, kRank), lens);
    }
    a.commit();
    b.commit();
  }
  template <class Change>
  void both(const Change& change) {
    change(latent);
    change(whole);
  }
  /// The largest difference of the outputs over both, for single queries and for more.
  double difference(const std::vector<Index>& sequences, Random& random) const {
    using Computed = detail::cached_t<S>;
    double most = 0;
    for (const Index layer : {0, 1})
      for (const Index len : {1, 20}) {
        const auto q = drawn_rows<Computed>({static_cast<Index>(sequences.size()), 6, len, kRow}, random);
        const auto a = attention(q, latent.view(layer, sequences), causal()).out,
                   b = attention(q, whole.view(layer, sequences), causal()).out;
        EXPECT_EQ(a.dim(3), kRank);
        for (Index i = 0; i < a.size(); ++i)
          most = std::max(most, std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i])));
      }
    return most;
  }
};

template <class S>
class KvLatent : public ::testing::Test {};
using LatentFormats = ::testing::Types<float, double, Eigen::bfloat16, Float8E4M3, Int4, std::int8_t>;
TYPED_TEST_SUITE(KvLatent, LatentFormats);

TYPED_TEST(KvLatent, EqualsCachesOfKeysAndValues) {
  Random random(1);
  Both<TypeParam> c;
  // With one scale for the row, 8-bit values are rounded otherwise than with their own scale.
  const double allowed = std::is_same_v<TypeParam, std::int8_t> ? 0.01 : 0;
  const Index a = c.add();
  c.append({a}, {70}, random);
  EXPECT_LE(c.difference({a}, random), allowed);
  Index b = 0;
  c.both([&](auto& caches) { b = caches.fork(a, 41); });
  c.append({a, b}, {3, 12}, random);
  c.both([&](auto& caches) { caches.drop(a, 5, 30); });
  c.both([&](auto& caches) { caches.truncate(b, 50); });
  EXPECT_LE(c.difference({a, b}, random), allowed);
  c.both([&](auto& caches) { caches.retain(b, {0, 3, 4, 17, 40, 49}, {}); });
  c.append({b}, {20}, random);
  EXPECT_LE(c.difference({b, a}, random), allowed);
  EXPECT_LE(static_cast<double>(c.latent.bytes()), 0.6 * static_cast<double>(c.whole.bytes()));
}

TEST(KvLatentErrors, NameTheSizes) {
  const auto made = [](KvCachesConfig config) {
    config.layers = config.pages = 1;
    config.page_size = 4;
    return KvCaches<float>(config);
  };
  EXPECT_EQ(made({.latent = {.rank = 8, .rope_dim = 4}}).config().head_dim, 12);
  EXPECT_EQ(made({.latent = {.rank = 8}}).config().v_dim, 8);
  expect_refused("kv_heads",
                 {"latent rows of 8 + 4 features, kv_heads must be 1, head_dim 12 and v_dim 8", "2, 0 and 0"},
                 [&] { made({.kv_heads = 2, .latent = {.rank = 8, .rope_dim = 4}}); });
  expect_refused("head_dim", {"they are 1, 8 and 0"},
                 [&] { made({.head_dim = 8, .latent = {.rank = 8, .rope_dim = 4}}); });
  expect_refused("no rank", {"latent.rank 0 must be positive"}, [&] { made({.latent = {.rope_dim = 4}}); });
  expect_refused("rope", {"leave out the rope"}, [&] { made({.rope = Rope({.head_dim = 8}), .latent = {.rank = 8}}); });
  auto caches = made({.latent = {.rank = 8, .rope_dim = 4}}), plain = made({.head_dim = 12});
  const Tensor<float, 4> rows({1, 1, 2, 12}), few({1, 1, 2, 8}), values({1, 1, 2, 8});
  auto step = caches.step({caches.add()}, 2);
  auto of_plain = plain.step({plain.add()}, 2);
  expect_refused("keys and values", {"use append_latent(rows)"}, [&] { step.layer(0).append(rows, values); });
  expect_refused("features", {"rows have shape (1, 1, 2, 8), expected 12 features"},
                 [&] { step.layer(0).append_latent(few); });
  expect_refused("no latent rows", {"construct them with .latent"}, [&] { of_plain.layer(0).append_latent(rows); });
  step.layer(0).append_latent(rows);
}

}  // namespace
}  // namespace attn::test
