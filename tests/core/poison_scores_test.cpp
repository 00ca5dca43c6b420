// A pair whose score becomes -inf is dropped as by a mask: its key and value have no effect, NaN included, on every
// path.
#include "support/paths.h"

namespace attn::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr Index kLen = 150, kDim = 16;  // three tiles of keys

/// Keys in every tile and at tile edges. They precede the last 40 positions by more than 3 tokens, the largest distance
/// in bias_of_near_keys(), so that relative_bias() drops them.
constexpr Index kPoisoned[] = {0, 5, 62, 63, 64, 65, 66, 100};
bool is_poisoned(Index key) {
  return std::find(std::begin(kPoisoned), std::end(kPoisoned), key) != std::end(kPoisoned);
}

Inputs poisoned(Inputs in, double in_keys, double in_values) {
  const Sizes& s = in.sizes;
  for (Index part = 0; part < s.batch * s.kv_heads; ++part)
    for (Index j : kPoisoned) {
      const Index row = part * s.kv_len + j;
      std::fill_n(in.k.begin() + row * s.head_dim, s.head_dim, in_keys);
      std::fill_n(in.v.begin() + row * s.v_dim, s.v_dim, in_values);
    }
  return in;
}

/// One bias per key, -inf for the poisoned keys.
template <class X>
Tensor<X, 1> bias_of_keys() {
  Tensor<X, 1> b({kLen});
  for (Index j = 0; j < kLen; ++j)
    b(j) = is_poisoned(j) ? -std::numeric_limits<X>::infinity() : static_cast<X>(j % 7) / 4;
  return b;
}
/// A bias for distances up to 3; -inf for keys farther back.
Tensor<float, 1> bias_of_near_keys() {
  Tensor<float, 1> b({7});
  for (Index i = 0; i < 7; ++i) b(i) = i == 0 ? -static_cast<float>(kInf) : 0.25f * static_cast<float>(i);
  return b;
}

template <class A, class B>
double difference(const A& a, const B& b, Index count) {
  double most = 0;
  for (Index i = 0; i < count; ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    if (x == y) continue;
    most = std::max(most, std::isfinite(x - y) ? std::abs(x - y) : kInf);
  }
  return most;
}
template <class T>
double difference(const Computed<T>& a, const Computed<T>& b) {
  return std::max(difference(a.out.data(), b.out.data(), static_cast<Index>(b.out.size())),
                  difference(a.lse.data(), b.lse.data(), static_cast<Index>(b.lse.size())));
}
template <class Out, class Lse>
double difference(const Result<Out, Lse>& a, const Result<Out, Lse>& b) {
  return std::max(difference(a.out.data(), b.out.data(), b.out.size()),
                  difference(a.lse.data(), b.lse.data(), b.lse.size()));
}

/// The tolerance, since selection sums in a different order than multiplication.
template <class T>
double allowed() {
  return static_cast<double>(8 * epsilon<T>());
}

template <class T, class M>
void expect_dropped(const char* name, const M& mods) {
  Random random(1);
  const AnyMods<T> any(mods);
  for (const Index q_len : {1, 3, 40})
    for (const double what : {kNaN, kInf, -kInf}) {
      Inputs clean({1, 2, 1, q_len, kLen, kDim, kDim}, random);
      clean.round_to<T>();
      const Inputs bad = poisoned(clean, what, kNaN);
      SCOPED_TRACE(::testing::Message() << name << ", " << what << " in keys, " << q_len << " queries");
      for (const Layout layout : {Layout::bhsd, Layout::dim_major}) {
        Arguments<T> a(bad, Layout::bhsd, layout, layout), b(clean, Layout::bhsd, layout, layout);
        std::vector<T> weights, expected;
        EXPECT_LE(difference(naive(a, any, {}, &weights), naive(b, any, {}, &expected)), allowed<T>()) << "naive";
        EXPECT_LE(difference(weights.data(), expected.data(), static_cast<Index>(expected.size())), allowed<T>());
        for (Isa isa : sets_for<T>())
          EXPECT_LE(difference(flash(a, any, {.isa = isa}), flash(b, any, {.isa = isa})), allowed<T>())
              << to_string(isa);
      }
    }
}

template <class T>
void expect_all_dropped() {
  const auto b = bias_of_keys<float>();
  Tensor<double, 4> large({1, 2, 1, kLen});  // not representable in float
  for (Index i = 0; i < large.size(); ++i)
    large.data()[i] = is_poisoned(i % kLen) ? (sizeof(T) > 4 ? -kInf : -1e300) : static_cast<double>(i % 5);
  expect_dropped<T>("bias", bias(b));
  expect_dropped<T>("bias in double, among other mods", softcap(5) | bias(large) | temperature({0.5, 2}) | causal());
  expect_dropped<T>("relative_bias", relative_bias(bias_of_near_keys()));
  expect_dropped<T>("a lambda that selects", score_mod([](auto x, const Position& p) {
                      return is_poisoned(p.kv) ? -std::numeric_limits<decltype(x)>::infinity() : x;
                    }));
}

TEST(PoisonScores, MinusInfinityScoresAreDroppedFloat) { expect_all_dropped<float>(); }
TEST(PoisonScores, MinusInfinityScoresAreDroppedDouble) { expect_all_dropped<double>(); }
TEST(PoisonScores, MinusInfinityScoresAreDroppedBfloat16) { expect_all_dropped<Eigen::bfloat16>(); }

TEST(PoisonScores, GroupedTokensAndRoundedProducts) {
  Random random(2);
  const Inputs clean({1, 2, 1, 40, kLen, kDim, kDim}, random);
  Arguments<float> a(poisoned(clean, kNaN, kNaN)), b(clean);
  auto grouped = strided_sparse(7);
  grouped.grouping.always = true;
  const auto mods = bias(bias_of_keys<float>()) | grouped;
  EXPECT_LE(difference(flash(a, mods), flash(b, mods)), allowed<float>());
  const auto both = bias(bias_of_keys<float>()) | sinks({0.5, -1});
  EXPECT_LE(difference(flash(a, both, {.compute = Compute::bf16}), flash(b, both, {.compute = Compute::bf16})), 1e-2);
}

template <class Cache>
void expect_dropped_in(Cache cache, Cache clean, const Inputs& in, const Inputs& bad) {
  const auto tensor = [](std::vector<double> from, Index heads, Index len) {
    Tensor<float, 4> t({1, heads, len, kDim});
    std::transform(from.begin(), from.end(), t.data(), [](double x) { return static_cast<float>(x); });
    return t;
  };
  const Sizes& s = in.sizes;
  const auto fill = [&](Cache& to, const Inputs& from) {
    const auto k = tensor(from.k, 1, kLen), v = tensor(from.v, 1, kLen);
    if constexpr (requires { to.add(); })
      to.append(to.add(), k, v);
    else
      to.append(k, v);
  };
  fill(cache, bad);
  fill(clean, in);
  const auto q = tensor(in.q, s.heads, s.q_len);
  const auto mods = bias(bias_of_keys<float>()) | causal();
  const auto call = [&](const Cache& of) {
    if constexpr (requires { of.free_pages(); })
      return attention(q, of.view({0}), mods);
    else
      return attention(q, of, mods);
  };
  EXPECT_LE(difference(call(cache), call(clean)), allowed<float>());
}

TEST(PoisonScores, Caches) {
  Random random(3);
  for (const Index q_len : {1, 40})
    for (const double what : {kNaN, kInf}) {
      const Inputs in({1, 2, 1, q_len, kLen, kDim, kDim}, random), bad = poisoned(in, what, kNaN);
      const KvCacheConfig config{.capacity = kLen, .head_dim = kDim};
      expect_dropped_in(KvCache<float>(config), KvCache<float>(config), in, bad);
      expect_dropped_in(KvCache<std::int8_t>(config), KvCache<std::int8_t>(config), in, bad);
      const PagedKvCacheConfig pages{.pages = 12, .page_size = 16, .head_dim = kDim};
      expect_dropped_in(PagedKvCache<float>(pages), PagedKvCache<float>(pages), in, bad);
    }
}

TEST(PoisonScores, Weights) {
  Random random(4);
  const Inputs clean({1, 2, 1, 40, kLen, kDim, kDim}, random);
  Arguments<float> a(poisoned(clean, kNaN, kNaN)), b(clean);
  const auto b_of_keys = bias_of_keys<float>();
  const auto mass = [&](Arguments<float>& x) {
    const auto lse = attention(x.q.cview(), x.k.cview(), x.v.cview(), bias(b_of_keys)).lse;
    return attention_mass(x.q.cview(), x.k.cview(), lse, bias(b_of_keys));
  };
  const auto got = mass(a), expected = mass(b);
  EXPECT_LE(difference(got.data(), expected.data(), expected.size()), 1e-4);
  for (Index j : kPoisoned) EXPECT_EQ(got(0, 0, j), 0);
}

TEST(PoisonScores, AddingMinusInfinityToNaNDoesNotDrop) {
  // The return value of a lambda decides: NaN + -inf is NaN, and so is +inf + -inf.
  Random random(5);
  const Inputs clean({1, 2, 1, 3, kLen, kDim, kDim}, random);
  const auto added = score_mod([](auto x, const Position& p) {
    return x + (is_poisoned(p.kv) ? -std::numeric_limits<decltype(x)>::infinity() : decltype(x)(0));
  });
  Arguments<float> a(poisoned(clean, kNaN, 0));
  for (const auto& r : {flash(a, added), naive(a, added)})
    for (float x : r.out) EXPECT_TRUE(std::isnan(x));
  // If a later mod makes -inf finite, the pair is kept.
  Arguments<float> b(poisoned(clean, 0, kNaN));
  for (const auto& r :
       {flash(b, bias(bias_of_keys<float>()) | softcap(5)), naive(b, bias(bias_of_keys<float>()) | softcap(5))})
    for (float x : r.out) EXPECT_TRUE(std::isnan(x));
}

}  // namespace
}  // namespace attn::test
