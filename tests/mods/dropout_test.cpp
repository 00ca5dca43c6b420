// dropout(): which pairs it drops, and that every path drops the same ones. The sweeps include it among all mods.
#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "attn/attn.h"
#include "support/dropout_by_hand.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

std::uint32_t word(const Position& p, std::uint64_t seed) { return dropout_word(seed, p.batch, p.head, p.q, p.kv); }

// Known-answer vectors of Threefry's authors, for zeros, ones and digits of pi. They test the reference implementation,
// with which the other tests compare calls.
TEST(Dropout, ReferenceMatchesKnownAnswers) {
  const struct {
    FourWords counter, key, with_13_rounds, with_20_rounds;
  } known[] = {{{0, 0, 0, 0},
                {0, 0, 0, 0},
                {0x531c7e4f, 0x39491ee5, 0x2c855a92, 0x3d6abf9a},
                {0x9c6ca96a, 0xe17eae66, 0xfc10ecd4, 0x5256a7d8}},
               {{~0u, ~0u, ~0u, ~0u},
                {~0u, ~0u, ~0u, ~0u},
                {0xc4189358, 0x1c9cc83a, 0xd5881c67, 0x6a0a89e0},
                {0x2a881696, 0x57012287, 0xf6c7446e, 0xa16a6732}},
               {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                {0xa4093822, 0x299f31d0, 0x082efa98, 0xec4e6c89},
                {0x4aa71d8f, 0x734738c2, 0x431fc6a8, 0xae6debf1},
                {0x59cd1dbb, 0xb8879579, 0x86b5d00c, 0xac8b6d84}}};
  for (const auto& k : known) {
    EXPECT_EQ(threefry_by_hand(k.counter, k.key, 13), k.with_13_rounds);
    EXPECT_EQ(threefry_by_hand(k.counter, k.key, 20), k.with_20_rounds);
  }
}

TEST(Dropout, AllBitsOfPositionsMatter) {
  constexpr Index kFar = Index(1) << 40, kEdge = Index(1) << 32;
  Tensor<float, 4> all({3, 6, 1, 1});
  std::fill_n(all.data(), all.size(), 1.0f);
  const auto ones = std::as_const(all).view();
  for (const std::uint64_t seed : {std::uint64_t(1), std::uint64_t(1) << 32, ~std::uint64_t(0)})
    for (const Index q : {Index(-3), Index(0), kEdge - 1, kEdge, kFar})
      for (const Index kv : {Index(0), Index(3), 4 * kEdge - 1, 4 * kEdge, kFar + 5}) {
        // One pair per head, whose value is 1.
        const Options options{.q_offset = q, .kv_offset = kv};
        const auto flash = attention(ones, ones, ones, dropout(0.5, seed), options).out,
                   naive = naive_attention(ones, ones, ones, dropout(0.5, seed), options).out;
        for (Index b = 0; b < 3; ++b)
          for (Index h = 0; h < 6; ++h) {
            const float want = word({b, h, q, kv}, seed) >= 0x80000000u ? 2 : 0;
            EXPECT_EQ(flash(b, h, 0, 0), want) << b << " " << h << " " << q << " " << kv;
            EXPECT_EQ(naive(b, h, 0, 0), want) << b << " " << h << " " << q << " " << kv;
          }
      }
}

// A call on some batch elements, whose first has the index that it is given, drops the pairs of the whole batch.
TEST(Dropout, MicroBatchesDropThePairsOfTheWholeBatch) {
  Random random(2);
  Arguments<float> a(Inputs({5, 2, 2, 9, 70, 4, 3}, random));
  const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
  const auto whole = attention(q, k, v, dropout(0.4, 7)).out;
  Tensor<float, 4> grad(whole.shape());
  std::fill_n(grad.data(), grad.size(), 1.0f);
  const auto gradients = attention_backward(grad, q, k, v, attention(q, k, v, dropout(0.4, 7)), dropout(0.4, 7));
  for (const auto& [first, count] : {std::pair<Index, Index>{0, 2}, {2, 3}}) {
    const auto part = [&, first = first, count = count](const auto& t) { return t.slice(0, first, first + count); };
    const auto mods = dropout(0.4, 7, first);
    const auto got = attention(part(q), part(k), part(v), mods);
    const auto naive = naive_attention(part(q), part(k), part(v), mods).out;
    const auto of_part = attention_backward(part(std::as_const(grad).view()), part(q), part(k), part(v), got, mods);
    for (Index b = 0; b < count; ++b)
      for (Index h = 0; h < 2; ++h) {
        EXPECT_TRUE(got.out.matrix(b, h) == whole.matrix(first + b, h)) << first + b;
        EXPECT_TRUE(naive.matrix(b, h).isApprox(whole.matrix(first + b, h), 1e-5f)) << first + b;
        EXPECT_TRUE(of_part.key.matrix(b, h).isApprox(gradients.key.matrix(first + b, h), 1e-5f)) << first + b;
      }
  }
}

// Query positions just below and above ±2^32, where the upper word changes within a tile, and negative ones.
TEST(Dropout, TilesMayCrossWordBoundaries) {
  Random random(1);
  Arguments<float> a(Inputs({1, 1, 1, 70, 9, 4, 3}, random));
  for (const Index first : {(Index(1) << 32) - 30, -(Index(1) << 32) - 30, Index(-20)})
    for (Isa isa : instruction_sets()) {
      const Options options{.q_offset = first, .isa = isa};
      const auto naive = naive_attention(a.q.cview(), a.k.cview(), a.v.cview(), dropout(0.5, 3), options).out;
      const auto flash = attention(a.q.cview(), a.k.cview(), a.v.cview(), dropout(0.5, 3), options).out;
      for (Index i = 0; i < flash.size(); ++i) ASSERT_NEAR(flash.data()[i], naive.data()[i], 1e-6) << first;
    }
}

/// A generator to test: word(position, seed).
using Generator = std::function<std::uint32_t(const Position&, std::uint64_t seed)>;
constexpr Index kSide = 512;  // statistics cover all pairs of kSide queries and keys
constexpr double kPairs = static_cast<double>(kSide) * kSide;

/// Deviation of Pearson's chi-squared of `counts`, over equally likely cells, from its mean, in standard deviations.
double deviation(const std::vector<int>& counts) {
  double total = 0, sum = 0;
  for (int c : counts) total += c;
  const double expected = total / static_cast<double>(counts.size()), freedom = static_cast<double>(counts.size()) - 1;
  for (int c : counts) sum += (c - expected) * (c - expected) / expected;
  return (sum - freedom) / std::sqrt(2 * freedom);
}

/// The largest such deviation over windows of eight neighbouring bits of the words.
double worst_bits(const Generator& random, std::uint64_t seed) {
  double worst = 0;
  for (int shift = 0; shift <= 24; shift += 4) {
    std::vector<int> counts(256);
    for (Index q = 0; q < kSide; ++q)
      for (Index kv = 0; kv < kSide; ++kv) ++counts[random({0, 0, q, kv}, seed) >> shift & 255];
    worst = std::max(worst, std::abs(deviation(counts)));
  }
  return worst;
}

/// The same for the joint distribution of the upper four bits of a word and of the word at distance `by` under another
/// seed.
double dependence(const Generator& random, std::uint64_t seed, const Position& by, std::uint64_t other_seed) {
  std::vector<int> counts(256);
  for (Index q = 0; q < kSide; ++q)
    for (Index kv = 0; kv < kSide; ++kv)
      ++counts[(random({0, 0, q, kv}, seed) >> 28) * 16 +
               (random({by.batch, by.head, q + by.q, kv + by.kv}, other_seed) >> 28)];
  return std::abs(deviation(counts));
}

double worst_dependence(const Generator& random, std::uint64_t seed) {
  double worst = 0;
  for (const Position& by :
       {Position{0, 0, 0, 1}, Position{0, 0, 0, 2}, Position{0, 0, 0, 3}, Position{0, 0, 0, 4}, Position{0, 0, 0, 64},
        Position{0, 0, 1, 0}, Position{0, 0, 2, 0}, Position{0, 0, 1, 1}, Position{0, 0, -1, 1}, Position{0, 0, 48, 0},
        Position{0, 1, 0, 0}, Position{0, 8, 0, 0}, Position{1, 0, 0, 0}, Position{1, 1, 0, 0}})
    worst = std::max(worst, dependence(random, seed, by, seed));
  for (const std::uint64_t other : {seed + 1, seed + 2, seed ^ (std::uint64_t(1) << 32), ~seed})
    worst = std::max(worst, dependence(random, seed, {}, other));
  return worst;
}

/// Compares the variance of the number of kept pairs per row, or column, of kSide pairs with the binomial variance.
/// Returns how far their ratio is from 1, in standard deviations of the ratio.
double spread(const Generator& random, std::uint64_t seed, bool rows) {
  double sum = 0;
  for (Index a = 0; a < kSide; ++a) {
    double kept = 0;
    for (Index b = 0; b < kSide; ++b)
      kept += random(rows ? Position{0, 0, a, b} : Position{0, 0, b, a}, seed) >= 0x40000000u;
    sum += (kept - 0.75 * kSide) * (kept - 0.75 * kSide);
  }
  return std::abs(sum / kSide / (0.75 * 0.25 * kSide) - 1) / std::sqrt(2.0 / kSide);
}

// The seeds are fixed, so these tests do not fail by chance: with them all deviations are below four standard
// deviations.
constexpr double kMost = 4.5;

TEST(Dropout, WordsAreUniform) {
  for (const std::uint64_t seed : {0u, 1u, 12345u}) EXPECT_LT(worst_bits(word, seed), kMost) << seed;
}
TEST(Dropout, WordsAreIndependent) {
  for (const std::uint64_t seed : {0u, 12345u}) EXPECT_LT(worst_dependence(word, seed), kMost) << seed;
}
TEST(Dropout, KeptPairsPerRowAndColumnAreBinomial) {
  for (const bool rows : {true, false})
    for (const std::uint64_t seed : {0u, 7u, 12345u}) EXPECT_LT(spread(word, seed, rows), kMost) << seed;
}
TEST(Dropout, TheStatisticsRejectBadGenerators) {
  const Generator by_column =
                      [](const Position&p, std::uint64_t seed) {
                        return word({0, 0, 0, p.kv}, seed);
                      },
                  product = [](const Position&p, std::uint64_t seed) {
                    const auto line = static_cast<std::uint64_t>(p.q * 40503 + p.kv);
                    return static_cast<std::uint32_t>(line * 2654435761u + seed);
                  };
  EXPECT_GT(spread(by_column, 0, false), 100);
  EXPECT_GT(worst_dependence(by_column, 0), 100);
  EXPECT_GT(worst_dependence(product, 0), 100);
  EXPECT_GT(worst_bits([](const Position& p, std::uint64_t s) { return word(p, s) | 1u << 20; }, 0), 100);
  EXPECT_GT(worst_dependence([](const Position& p, std::uint64_t s) { return word(p, s / 4); }, 0), 100);
}

TEST(Dropout, KeepsTheRequestedFraction) {
  // With equal scores and values of 1, an output is the kept share of its row, divided by 1 - p.
  const Tensor<float, 4> zeros({1, 1, kSide, 1});
  Tensor<float, 4> ones({1, 1, kSide, 1});
  std::fill_n(ones.data(), kSide, 1.0f);
  for (const double p : {0.001, 0.1, 0.5, 0.9, 0.999}) {
    for (const auto& out :
         {attention(zeros, zeros, ones, dropout(p, 9)).out, naive_attention(zeros, zeros, ones, dropout(p, 9)).out}) {
      const double kept = (1 - p) * kSide * std::accumulate(out.data(), out.data() + kSide, 0.0);
      EXPECT_LT(std::abs(kept - (1 - p) * kPairs), 4 * std::sqrt(p * (1 - p) * kPairs)) << p;
    }
  }
}

template <class T>
class DropoutCall : public ::testing::Test {
 protected:
  Random random_{4};
  const Sizes sizes_{2, 4, 2, 70, 150, 16, 8};
  Arguments<T> a_{Inputs(sizes_, random_)};

  template <class M>
  auto call(const M& mods, const Options& options = {}) {
    return attention(a_.q.cview(), a_.k.cview(), a_.v.cview(), mods, options);
  }
  template <class M, class R>
  auto gradients(const M& mods, const R& r) {
    return attention_backward(r.out, a_.q.cview(), a_.k.cview(), a_.v.cview(), r, mods);
  }
};
using Scalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(DropoutCall, Scalars);

template <class A, class B>
bool equal(const A& a, const B& b) {
  return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.size(), b.data());
}

TYPED_TEST(DropoutCall, ProbabilitiesZeroAndOne) {
  const auto plain = this->call(causal()), none = this->call(causal() | dropout(0, 5)),
             some = this->call(causal() | dropout(0.5, 5)), all = this->call(causal() | dropout(1, 5));
  EXPECT_TRUE(equal(none.out, plain.out));
  EXPECT_FALSE(equal(some.out, plain.out));
  for (Index i = 0; i < all.out.size(); ++i) EXPECT_EQ(all.out.data()[i], 0);
  for (const auto* r : {&none, &some, &all}) EXPECT_TRUE(equal(r->lse, plain.lse));
  const auto g = this->gradients(causal() | dropout(1, 5), all);
  for (const auto* t : {&g.query, &g.key, &g.value})
    for (Index i = 0; i < t->size(); ++i) EXPECT_EQ(t->data()[i], 0);
  const auto of_none = this->gradients(causal() | dropout(0, 5), plain), of_plain = this->gradients(causal(), plain);
  EXPECT_TRUE(equal(of_none.query, of_plain.query) && equal(of_none.key, of_plain.key));
}

TYPED_TEST(DropoutCall, SeedsDetermineResults) {
  const auto one = this->call(dropout(0.3, 1)), again = this->call(dropout(0.3, 1), {.executor = eager_threads(3)}),
             two = this->call(dropout(0.3, 2));
  EXPECT_TRUE(equal(one.out, again.out));
  EXPECT_FALSE(equal(one.out, two.out));
}

/// Naive weights are those of a call without dropout times the product of all factors, each 0 or 1 / (1 - p).
TYPED_TEST(DropoutCall, FactorsOfSeveralDropoutsMultiply) {
  const auto weights = [&](const auto& mods) {
    return naive_attention(this->a_.q.cview(), this->a_.k.cview(), this->a_.v.cview(), mods).weights;
  };
  const auto plain = weights(Mods<>()), both = weights(dropout(0.5, 1) | dropout(0.2, 2));
  std::map<int, int> seen;
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 70; ++i)
        for (Index j = 0; j < 150; ++j) {
          const long double factor = dropout_factor(0.5, 1, b, h, 80 + i, j) * dropout_factor(0.2, 2, b, h, 80 + i, j);
          ASSERT_NEAR(both(b, h, i, j), plain(b, h, i, j) * static_cast<TypeParam>(factor), 1e-6);
          ++seen[factor > 0];
        }
  EXPECT_NEAR(seen[1], 0.4 * 2 * 4 * 70 * 150, 700);
}

// Calls over caches process prompts in tiles, and tokens and drafts as single queries, over contiguous and paged keys.
TYPED_TEST(DropoutCall, CachesDropTheSamePairs) {
  using T = TypeParam;
  const auto mods = causal() | dropout(0.4, 6);
  const auto whole = this->call(mods);
  KvCache<T> kept({.batch = 2, .kv_heads = 2, .capacity = 150, .head_dim = 16, .v_dim = 8});
  PagedKvCache<T> paged({.pages = 64, .page_size = 16, .kv_heads = 2, .head_dim = 16, .v_dim = 8});
  const auto k = this->a_.k.cview(), v = this->a_.v.cview(), q = this->a_.q.cview();
  std::vector<Index> sequences{paged.add(), paged.add()};
  kept.append(k, v);
  paged.append(sequences, k, v);
  for (const Index count : {1, 3, 20}) {
    const auto rows = [&](const auto& t) { return t.slice(2, 70 - count, 70); };
    const auto a = attention(rows(q), kept, mods).out, b = attention(rows(q), paged.view(sequences), mods).out;
    const auto want = rows(whole.out.view());
    for (Index s = 0; s < 2; ++s)
      for (Index h = 0; h < 4; ++h)
        for (Index i = 0; i < count; ++i)
          for (Index c = 0; c < 8; ++c) {
            ASSERT_NEAR(a(s, h, i, c), want(s, h, i, c), 1e-5) << count;
            ASSERT_NEAR(b(s, h, i, c), want(s, h, i, c), 1e-5) << count;
          }
  }
}

// Four keys share a counter, and a window may begin at any of them.
TYPED_TEST(DropoutCall, WindowsMayBeginAtAnyKey) {
  for (const Index window : {0, 1, 2, 3, 4, 37, 66, 129})
    for (Isa isa : instruction_sets()) {
      const auto mods = sliding_window(window) | dropout(0.5, 8);
      const auto row = this->a_.q.cview().slice(2, 69, 70);
      const auto flash = attention(row, this->a_.k.cview(), this->a_.v.cview(), mods, {.isa = isa});
      const auto naive = naive_attention(row, this->a_.k.cview(), this->a_.v.cview(), mods);
      for (Index i = 0; i < flash.out.size(); ++i)
        ASSERT_NEAR(flash.out.data()[i], naive.out.data()[i], 1e-5) << window << " " << to_string(isa);
    }
}

// Several steps of keys, and splits whose results are merged.
TYPED_TEST(DropoutCall, ManyKeysOfOneQuery) {
  Random random(9);
  Arguments<TypeParam> a(Inputs({1, 2, 1, 1, 5003, 8, 8}, random));
  for (Isa isa : instruction_sets())
    for (const Index window : {4700, 5003}) {
      const auto mods = sliding_window(window) | dropout(0.5, 8);
      const auto flash =
          attention(a.q.cview(), a.k.cview(), a.v.cview(), mods, {.executor = eager_threads(2), .isa = isa});
      const auto naive = naive_attention(a.q.cview(), a.k.cview(), a.v.cview(), mods);
      for (Index i = 0; i < flash.out.size(); ++i)
        ASSERT_NEAR(flash.out.data()[i], naive.out.data()[i], 1e-5) << window << " " << to_string(isa);
    }
}

// Passes over groups of tokens renumber the tokens within each group.
TYPED_TEST(DropoutCall, PassesDropTheSamePairs) {
  const auto compare = [&](auto mask) {
    mask.grouping.always = true;
    const auto mods = mask | dropout(0.4, 6);
    for (const Index first : {0, 67}) {
      const auto view = this->a_.q.cview().slice(2, first, 70);
      for (Isa isa : instruction_sets()) {
        const auto flash = attention(view, this->a_.k.cview(), this->a_.v.cview(), mods, {.isa = isa});
        const auto naive = naive_attention(view, this->a_.k.cview(), this->a_.v.cview(), mods);
        for (Index i = 0; i < flash.out.size(); ++i)
          ASSERT_NEAR(flash.out.data()[i], naive.out.data()[i], 1e-5) << first << to_string(isa);
      }
    }
  };
  compare(strided_sparse(7));
  compare(fixed_sparse(8, 2));
  compare(dilated(6, 5, 2));
}

// Each dropout has a factor, 2 and 4 here. The weights of a row are then multiples of 8 / 40.
TEST(Dropout, FactorsOfTwoDropoutsAreMultiplied) {
  const Tensor<float, 4> zeros({1, 1, 30, 4});
  Tensor<float, 4> ones({1, 1, 40, 4});
  std::fill_n(ones.data(), ones.size(), 1.0f);
  const Tensor<float, 4> keys({1, 1, 40, 4});
  const auto mods = dropout(0.5, 1) | dropout(0.75, 2);
  const Options options{.q_offset = 0};
  for (const auto& out :
       {attention(zeros, keys, ones, mods, options).out, naive_attention(zeros, keys, ones, mods, options).out})
    for (Index i = 0; i < 30; ++i) {
      int kept = 0;
      for (Index j = 0; j < 40; ++j)
        kept += dropout_factor(0.5, 1, 0, 0, i, j) != 0 && dropout_factor(0.75, 2, 0, 0, i, j) != 0;
      EXPECT_NEAR(out(0, 0, i, 0), static_cast<float>(kept) * 8 / 40, 1e-6);
    }
}

TEST(Dropout, RefusesValuesOutsideZeroToOne) {
  expect_refused("negative", {"dropout", "-0.1"}, [] { dropout(-0.1, 1); });
  expect_refused("above 1", {"dropout", "1.5"}, [] { dropout(1.5, 1); });
  expect_refused("NaN", {"dropout", "nan"}, [] { dropout(std::numeric_limits<double>::quiet_NaN(), 1); });
}

}  // namespace
}  // namespace attn::test
