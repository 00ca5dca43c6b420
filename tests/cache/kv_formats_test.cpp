// Caches of 8-bit floats, and of 4-bit and 8-bit integers: conversions, and attention over what is stored.
#include "support/cached.h"
#include "support/not_finite.h"
#include "support/sample.h"

namespace attn::test {
namespace {

/// The number that bits of an 8-bit float mean, by the definition of OFP8.
template <int kFraction>
double meaning(int code) {
  constexpr int kBias = kFraction == 3 ? 7 : 15;
  const int magnitude = code & 0x7f, exponent = magnitude >> kFraction, fraction = magnitude & ((1 << kFraction) - 1);
  const double sign = code & 0x80 ? -1 : 1, nan = std::numeric_limits<double>::quiet_NaN();
  if (kFraction == 3 && magnitude == 0x7f) return nan;
  if (kFraction == 2 && exponent == 31) return fraction ? nan : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - kBias - kFraction);
  return sign * std::ldexp(1 + std::ldexp(fraction, -kFraction), exponent - kBias);
}

/// Every code has its meaning, and a float becomes the nearest code, ties to even.
template <class S, int kFraction>
void check_codes() {
  const auto coded = [](float x) { return static_cast<int>(S(x).bits); };
  for (int code = 0; code < 256; ++code) {
    SCOPED_TRACE(code);
    S s;
    s.bits = static_cast<std::uint8_t>(code);
    const float x = static_cast<float>(s);
    const double wanted = meaning<kFraction>(code);
    if (std::isnan(wanted)) {
      EXPECT_TRUE(std::isnan(x) && std::isnan(static_cast<float>(S(x))));
      continue;
    }
    ASSERT_EQ(static_cast<double>(x), wanted);
    ASSERT_EQ(coded(x), code);
    const double next = meaning<kFraction>(code + 1);
    if (!std::isfinite(wanted) || (code & 0x7f) == 0x7f || !std::isfinite(next)) continue;
    const float middle = static_cast<float>((wanted + next) / 2);
    ASSERT_EQ(coded(middle), code % 2 ? code + 1 : code);
    ASSERT_EQ(coded(std::nextafter(middle, x)), code);
    ASSERT_EQ(coded(std::nextafter(middle, static_cast<float>(next))), code + 1);
  }
  constexpr int kLargest = kFraction == 3 ? 0x7e : 0x7b;
  for (const float beyond : {1e6f, std::numeric_limits<float>::max()}) {
    EXPECT_EQ(coded(beyond), kLargest);
    EXPECT_EQ(coded(-beyond), kLargest | 0x80);
  }
  EXPECT_EQ(coded(kInf), kFraction == 3 ? 0x7f : 0x7c);
  EXPECT_EQ(coded(0x1p-30f), 0);
}

TEST(Float8, E4M3) { check_codes<Float8E4M3, 3>(); }
TEST(Float8, E5M2) { check_codes<Float8E5M2, 2>(); }

/// Blocks of 32 numbers between -size and size around `offset` are off by at most `step(block)` for each number.
template <class S>
void check_errors(double offset) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const double size = std::pow(10.0, random.uniform(-30, 37));
    std::vector<float> x(32);
    for (float& number : x)
      number = static_cast<float>(size * (offset + random.uniform(-1, 1) * (random.chance(0.2) ? 0.01 : 1)));
    const S block(x.data());
    const double scale = std::abs(static_cast<double>(static_cast<float>(block.scale)));
    float most = 0;
    for (float number : x) most = std::max(most, std::abs(number));
    for (Index i = 0; i < 32; ++i) {
      const double number = static_cast<double>(x[static_cast<std::size_t>(i)]);
      const double error = std::abs(static_cast<double>(block[i]) - number);
      const bool is_clamped = std::is_same_v<S, Int4> && block.digit(i) == 15;
      ASSERT_LE(error, scale * (is_clamped ? 1.04 : 0.5001) + 1e-7 * static_cast<double>(most))
          << number << ", scale " << scale << ", digit " << block.digit(i);
    }
    if constexpr (std::is_same_v<S, Int4>) {
      ASSERT_NEAR(scale * 8 / static_cast<double>(most), 1, 0x1p-8);
    } else {
      const auto [least, largest] = std::minmax_element(x.begin(), x.end());
      ASSERT_LE(scale, (static_cast<double>(*largest) - static_cast<double>(*least)) / 15 * (1 + 0x1p-8) +
                           std::abs(static_cast<double>(*least)) * 0x1p-7 / 15);
    }
  }
}

TEST(Int4, ErrorIsHalfAStep) { check_errors<Int4>(0); }
TEST(Int4Asymmetric, ErrorIsHalfAStep) { check_errors<Int4Asymmetric>(0); }
TEST(Int4Asymmetric, FollowsNumbersWithACommonPart) { check_errors<Int4Asymmetric>(20); }

TEST(Int4, BlocksOfExtremes) {
  const auto filled = [](float with, float first) {
    std::vector<float> x(32, with);
    x[0] = first;
    return x;
  };
  constexpr float kMost = std::numeric_limits<float>::max();
  for (const float bad : {kInf, -kInf, kNaN}) {
    const std::vector<float> x = filled(1, bad);
    for (Index i : {0, 1, 16, 31}) {
      EXPECT_TRUE(std::isnan(Int4(x.data())[i])) << bad;
      EXPECT_TRUE(std::isnan(Int4Asymmetric(x.data())[i])) << bad;
    }
  }
  for (const auto& x : {filled(0, 0), filled(0, -0.0f), filled(1e-38f, -1e-40f)})
    for (Index i = 0; i < 32; ++i) {
      EXPECT_EQ(Int4(x.data())[i], 0);
      EXPECT_NEAR(Int4Asymmetric(x.data())[i], 0, 1e-35);
    }
  const std::vector<float> wide = filled(-kMost, kMost);
  EXPECT_NEAR(Int4(wide.data())[0] / kMost, 1, 0x1p-8);
  EXPECT_NEAR(Int4(wide.data())[1] / kMost, -1, 0.14);
  const std::vector<float> half = filled(-kMost / 4, kMost / 4);
  for (Index i = 0; i < 32; ++i) EXPECT_NEAR(Int4Asymmetric(half.data())[i] / kMost, i == 0 ? 0.25 : -0.25, 0.01) << i;
  EXPECT_TRUE(std::isfinite(Int4Asymmetric(wide.data())[0]));
  const std::vector<float> equal(32, 3.3f);
  EXPECT_NEAR(Int4(equal.data())[5], 3.3, 3.3 * 0x1p-8);
  EXPECT_NEAR(Int4Asymmetric(equal.data())[5], 3.3, 3.3 * 0x1p-8);
}

template <class S>
class KvFormats : public ::testing::Test {};
using Formats = ::testing::Types<Float8E4M3, Float8E5M2, Int4, Int4Asymmetric, std::int8_t>;
TYPED_TEST_SUITE(KvFormats, Formats);

/// Attention over what is stored, to float accuracy: all mods, prompts and single queries, in pages of any size.
TYPED_TEST(KvFormats, AttendsToWhatIsStored) {
  Random random(2);
  Sample sample;
  SCOPED_TRACE("a sample" + sample.text());
  const std::vector<Index> q_lens{1, 4, 5, 40};
  for (const TokenSizes sizes :
       {TokenSizes{2, 32, 64}, TokenSizes{1, 7, 3}, TokenSizes{1, 1, 1}, TokenSizes{2, 48, 80}, TokenSizes{2, 128, 64}})
    for (Index page_size : {0, 5, 16, 64}) {
      SCOPED_TRACE("pages of " + std::to_string(page_size));
      std::vector<Tokens> tokens;
      for (Index length : {130, 64, 5, 200}) tokens.emplace_back(sizes, length, random);
      const PoisonedCache<TypeParam> cache(tokens, page_size);
      RaggedCall call(sizes.kv_heads * 2, tokens, q_lens, random);
      for (Index s = 0; s < call.size(); ++s) call.tokens[RaggedCall::at(s)] = cache.tokens(s);
      const RaggedRows<float> table(call.lengths(), call.heads, random);
      for (const CachedRow<float>& row : table.rows) {
        if (!sample.takes_next()) continue;
        const Expected<float> expected(call, row.meaning);
        for (Isa isa : integer_instruction_sets()) {
          SCOPED_TRACE(row.name + ", " + std::string(to_string(isa)));
          RaggedMemory<float> memory(call);
          row.run(memory, q_lens, cache.view(), {.executor = serial(), .isa = isa});
          expected.expect(memory);
          if (this->HasFailure()) return;
        }
      }
    }
}

/// 16-bit queries and results.
TYPED_TEST(KvFormats, TakesQueriesOf16Bits) {
  Random random(4);
  const TokenSizes sizes{2, 64, 32};
  const std::vector<Tokens> tokens{Tokens(sizes, 100, random), Tokens(sizes, 30, random)};
  const PoisonedCache<TypeParam> cache(tokens, 16);
  const std::vector<Index> q_lens{1, 20};
  RaggedCall call(4, tokens, q_lens, random);
  call.round_queries_to<Eigen::bfloat16>();
  for (Index s = 0; s < call.size(); ++s) call.tokens[RaggedCall::at(s)] = cache.tokens(s);
  const RaggedRows<Eigen::bfloat16> table(call.lengths(), call.heads, random);
  for (const CachedRow<Eigen::bfloat16>& row : table.rows) {
    const Expected<Eigen::bfloat16> expected(call, row.meaning);
    for (Isa isa : all_instruction_sets()) {
      SCOPED_TRACE(row.name + ", " + std::string(to_string(isa)));
      RaggedMemory<Eigen::bfloat16> memory(call);
      row.run(memory, q_lens, cache.view(), {.executor = serial(), .isa = isa});
      expected.expect(memory);
      if (this->HasFailure()) return;
    }
  }
}

/// What a cache represents exactly is stored exactly; removing tokens, copies and forks keep the bits.
TYPED_TEST(KvFormats, KeepsBits) {
  Random random(3);
  const TokenSizes sizes{2, 64, 32};
  std::vector<Tokens> model;
  for (int s = 0; s < 2; ++s) model.push_back(Tokens::exact<TypeParam>(sizes, 50, random));
  KvCache<TypeParam> cache({.batch = 2, .kv_heads = 2, .capacity = 4, .head_dim = 64, .v_dim = 32});
  Appended<float> given(model);
  cache.append(given.k(), given.v());
  ASSERT_TRUE(holds(cache, model));
  cache.drop(0, 10, 20);
  cache.reorder({1, 0});
  Tokens kept = model[0].part(0, 10);
  kept.add(model[0].part(20, 50));
  ASSERT_TRUE(holds(cache, {model[1], kept}));
  const KvCache<TypeParam> copy = cache;
  ASSERT_TRUE(holds(copy, {model[1], kept}));

  PagedKvCache<TypeParam> pages({.pages = 40, .page_size = 4, .kv_heads = 2, .head_dim = 64, .v_dim = 32});
  const Index first = pages.add();
  Appended<float> one(model[0]);
  pages.append(first, one.k(), one.v());
  const Index second = pages.fork(first, 33);
  pages.drop(second, 10, 20);
  EXPECT_TRUE(holds(pages, first, model[0]));
  Tokens branch = model[0].part(0, 10);
  branch.add(model[0].part(20, 33));
  EXPECT_TRUE(holds(pages, second, branch));
}

/// A non-finite key reaches the queries that keep it, and no others.
TYPED_TEST(KvFormats, NonFiniteKeys) {
  Random random(3);
  const TokenSizes sizes{1, 64, 64};
  const Index n = 100, at = 70;
  for (Index page_size : {0, 16})
    for (Index q_len : {1, 3, 40}) {
      const Tokens clean = Tokens::exact<TypeParam>(sizes, n, random);
      const Tokens tokens = Tokens::made(
          sizes, n,
          [&](Index i, Index h, Index d) { return i == at && d == 40 ? static_cast<double>(kNaN) : clean.k(i, h, d); },
          [&](Index i, Index h, Index d) { return clean.v(i, h, d); });
      const RaggedCall call(2, {clean}, {q_len}, random);
      const PoisonedCache<TypeParam> cache({tokens}, page_size);
      const auto rest = mask_mod([](auto p) { return p.kv != 70 || p.q == 99; });
      for (Isa isa : integer_instruction_sets()) {
        RaggedMemory<float> memory(call);
        const auto q = memory.q.cview();
        attention_into(memory.out.view(), memory.lse3(), q, cache.view(), rest, {.executor = serial(), .isa = isa});
        const Truth truth = oracle(call.inputs(0), {[=](const Pair& p) { return p.kv != at; }, {}});
        const auto got = memory.all();
        for (Index row = 0; row < 2 * q_len; ++row)
          for (Index d = 0; d < 64; ++d) {
            const std::size_t i = static_cast<std::size_t>(row * 64 + d);
            if (row % q_len == q_len - 1)  // the query at position 99
              ASSERT_TRUE(std::isnan(got.out[i]));
            else
              ASSERT_NEAR(got.out[i], static_cast<double>(truth.out[i]), 1e-4) << "row " << row;
          }
      }
    }
}

TEST(KvFormats4Bits, TakeNineHalfBytes) {
  EXPECT_EQ(KvCache<Int4>({.kv_heads = 3, .capacity = 10, .head_dim = 64, .v_dim = 96}).bytes(), 3 * 10 * 160 * 9 / 16);
  EXPECT_EQ(KvCache<Int4Asymmetric>({.kv_heads = 3, .capacity = 10, .head_dim = 64}).bytes(), 3 * 10 * 128 * 5 / 8);
  EXPECT_EQ(KvCache<Int4>({.capacity = 10, .head_dim = 80, .v_dim = 16}).bytes(), 10 * 4 * 18);
  EXPECT_EQ(KvCache<Float8E5M2>({.kv_heads = 3, .capacity = 10, .head_dim = 7}).bytes(), 3 * 10 * 14);
}

}  // namespace
}  // namespace attn::test
