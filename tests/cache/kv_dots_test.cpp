// Kernels that multiply 8-bit integers: each kernel against exact sums, and whole calls.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "support/executors.h"
#include "support/not_finite.h"

namespace attn::test {
namespace {

/// 8-bit rows, queries and weights, with padding of NaN or -128 that must have no effect.
class KvDots : public ::testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!available(GetParam()) || !detail::cpu_has_vnni(detail::vectors_of(GetParam())))
      GTEST_SKIP() << to_string(GetParam()) << " is not available here";
    kernels_ = detail::dot_kernels(detail::vectors_of(GetParam()));
    ASSERT_NE(kernels_, nullptr);
  }
  /// The instruction set that has the same vectors, but kernels that multiply floats.
  static Isa of_floats() {
    return detail::isa_with({detail::vectors_of(GetParam()), detail::DotProducts::none, detail::MatrixUnit::none});
  }

  std::int8_t draw_number() { return static_cast<std::int8_t>(std::uniform_int_distribution<int>(-127, 127)(random_)); }
  float draw(float from, float to) { return std::uniform_real_distribution<float>(from, to)(random_); }

  /// Random rows, `stride` elements apart.
  std::vector<std::int8_t> rows(Index count, Index dim, Index stride) {
    std::vector<std::int8_t> all(static_cast<std::size_t>(count * stride), std::int8_t(-128));
    for (Index j = 0; j < count; ++j)
      for (Index d = 0; d < dim; ++d) all[at(j * stride + d)] = draw_number();
    return all;
  }
  static detail::RowsToRead view(const std::vector<std::int8_t>& rows, Index stride) {
    return {reinterpret_cast<const std::byte*>(rows.data()), detail::DType::i8, stride, 1};
  }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  /// The scores of queries (queries, head_dim) with keys, or nothing if a query is not representable.
  std::vector<float> scores(const std::vector<float>& queries, Index head_dim, const std::vector<std::int8_t>& keys,
                            Index key_count, Index stride) {
    const Index count = static_cast<Index>(queries.size()) / head_dim, row = head_dim + kernels_->query_header;
    std::vector<float> arranged(at(count * row)), scores(at(count * detail::kKeyTile), kNaN);
    for (Index r = 0; r < count; ++r)
      if (!kernels_->arrange_query(&queries[at(r * head_dim)], head_dim, &arranged[at(r * row)])) return {};
    detail::TileMemory<float> m{};
    m.arranged_query = arranged.data();
    m.scores = scores.data();
    m.row = detail::kKeyTile;
    detail::Prefetcher nothing;
    kernels_->score(m, count, view(keys, stride), key_count, head_dim, nothing);
    return scores;
  }

  const detail::DotKernels<float>* kernels_ = nullptr;
  std::mt19937 random_{1};
};

TEST_P(KvDots, MultiplyByScales) {
  for (const Index count : {0, 1, 15, 16, 17, 63, 64}) {
    std::vector<float> numbers(65), scales(64);
    for (float& x : numbers) x = draw(-9, 9);
    for (float& x : scales) x = draw(0.01f, 1);
    const std::vector<float> before = numbers;
    kernels_->multiply(numbers.data(), scales.data(), count);
    for (Index j = 0; j < 65; ++j)
      EXPECT_EQ(numbers[at(j)], j < count ? before[at(j)] * scales[at(j)] : before[at(j)]) << j << " of " << count;
  }
}

TEST_P(KvDots, ScoresAreAccurateTo24Bits) {
  for (const Index dim : {kernels_->columns, 2 * kernels_->columns, Index(320)})
    for (const Index count : {1, 2, 4, 5, 16})
      for (const Index key_count : {1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64}) {
        SCOPED_TRACE(std::to_string(dim) + " features, " + std::to_string(count) + " queries, " +
                     std::to_string(key_count) + " keys");
        const Index stride = dim + 5;
        const std::vector<std::int8_t> keys = rows(key_count, dim, stride);
        // Elements are multiples of 2^-30 that use all 24 bits; those of the first query have the largest magnitude.
        std::vector<float> queries(at(count * dim));
        for (std::size_t i = 0; i < queries.size(); ++i)
          queries[i] = 0x1p-30f * (i < at(dim) ? (i % 3 ? 0x1.fffffep22f : -0x1.fffffep22f)
                                               : std::nearbyint(draw(-0x1.fp22f, 0x1.fp22f)));
        const std::vector<float> got = scores(queries, dim, keys, key_count, stride);
        ASSERT_FALSE(got.empty());
        for (Index r = 0; r < count; ++r)
          for (Index j = 0; j < key_count; ++j) {
            double want = 0, sizes = 0;
            for (Index d = 0; d < dim; ++d) {
              const double product = static_cast<double>(queries[at(r * dim + d)]) * keys[at(j * stride + d)];
              want += product;
              sizes += std::abs(product);
            }
            ASSERT_NEAR(got[at(r * detail::kKeyTile + j)], want, 0x1p-23 * sizes) << "query " << r << ", key " << j;
          }
      }
}

TEST_P(KvDots, SmallIntegersAreExact) {
  // Products and sums that need few bits are exact, as with floats.
  const Index dim = 64;
  std::vector<std::int8_t> keys(at(dim * 16));
  for (std::size_t i = 0; i < keys.size(); ++i) keys[i] = static_cast<std::int8_t>(static_cast<int>(i % 255) - 127);
  for (const float unit : {1.0f, 0x1p-90f, 0x1p90f}) {
    std::vector<float> query(at(dim));
    for (Index d = 0; d < dim; ++d) query[at(d)] = unit * static_cast<float>(d % 7 - 3) / 4;
    const std::vector<float> got = scores(query, dim, keys, 16, dim);
    ASSERT_FALSE(got.empty());
    for (Index j = 0; j < 16; ++j) {
      double want = 0;
      for (Index d = 0; d < dim; ++d) want += static_cast<double>(query[at(d)]) * keys[at(j * dim + d)];
      EXPECT_EQ(got[at(j)], want) << unit << " " << j;
    }
  }
  EXPECT_EQ(scores(std::vector<float>(at(dim)), dim, keys, 16, dim)[5], 0);
}

TEST_P(KvDots, UnrepresentableQueriesAreRejected) {
  const std::vector<std::int8_t> keys = rows(4, 64, 64);
  for (const float x : {kNaN, kInf, -kInf, 0x1p101f, 0x1p-102f}) {
    std::vector<float> query(64, std::isnan(x) ? 1 : 0x1p-120f);
    query[37] = x;
    EXPECT_TRUE(scores(query, 64, keys, 4, 64).empty()) << x;
  }
}

TEST_P(KvDots, ValuesAreWeighted) {
  for (const Index dim : {kernels_->columns, 3 * kernels_->columns})
    for (const Index count : {1, 3, 4, 6, 16})
      for (const Index keys : {1, 2, 5, 16, 31, 63, 64}) {
        SCOPED_TRACE(std::to_string(dim) + " features, " + std::to_string(count) + " queries, " + std::to_string(keys) +
                     " keys");
        const Index stride = dim + 3;
        const std::vector<std::int8_t> values = rows(keys, dim, stride);
        std::vector<float> weights(at(count * detail::kKeyTile), kNaN), out(at(count * dim)), rescale(at(count));
        for (Index r = 0; r < count; ++r) {
          rescale[at(r)] = draw(0, 1);
          const float size = std::ldexp(1.0f, static_cast<int>(r) * 8 - 60);
          for (Index j = 0; j < keys; ++j)
            weights[at(r * detail::kKeyTile + j)] = j % 5 == 3 ? 0 : size * draw(0.01f, 1);
          for (Index c = 0; c < dim; ++c) out[at(r * dim + c)] = size * draw(-9, 9);
        }
        const std::vector<float> before = out;
        detail::TileMemory<float> m{};
        m.scores = weights.data();
        m.row = detail::kKeyTile;
        m.rescale = rescale.data();
        m.out = out.data();
        detail::Prefetcher nothing;
        ASSERT_TRUE(kernels_->value(m, count, view(values, stride), keys, dim, nothing));
        for (Index r = 0; r < count; ++r)
          for (Index c = 0; c < dim; ++c) {
            // Rounding changes a weight by at most 2^-24 of the largest weight of its query.
            double want = static_cast<double>(before[at(r * dim + c)]) * rescale[at(r)], sizes = std::abs(want),
                   largest = 0, values_sizes = 0;
            for (Index j = 0; j < keys; ++j) {
              const double product =
                  static_cast<double>(weights[at(r * detail::kKeyTile + j)]) * values[at(j * stride + c)];
              want += product;
              sizes += std::abs(product);
              largest = std::max<double>(largest, weights[at(r * detail::kKeyTile + j)]);
              values_sizes += std::abs(values[at(j * stride + c)]);
            }
            ASSERT_NEAR(out[at(r * dim + c)], want, 0x1p-23 * sizes + 0x1p-24 * largest * values_sizes)
                << "query " << r << ", column " << c;
          }
        // A single unrepresentable weight makes value() fail and leave the output unchanged.
        const std::vector<float> after = out;
        for (const float x : {kNaN, kInf, -1.0f, -0.0f, 0x1p-101f}) {
          std::vector<float> others(at(count * detail::kKeyTile));
          others[at((count - 1) * detail::kKeyTile + keys - 1)] = x;
          m.scores = others.data();
          ASSERT_FALSE(kernels_->value(m, count, view(values, stride), keys, dim, nothing)) << x;
          ASSERT_EQ(out, after);
        }
      }
}

/// A call of several heads over an 8-bit cache.
struct Decoding {
  Decoding(Index heads, Index q_len, Index kv_len, Index dim, std::uint64_t seed)
      : q({1, heads, q_len, dim}),
        k({1, 2, kv_len, dim}),
        v({1, 2, kv_len, dim}),
        cache({.kv_heads = 2, .head_dim = dim}) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    for (auto* t : {&q, &k, &v})
      for (Index i = 0; i < t->size(); ++i) t->data()[i] = normal(random);
    cache.append(k, v);
  }
  std::vector<float> out(const Options& options) const {
    const auto r = attention(q, cache, causal(), options);
    return {r.out.data(), r.out.data() + r.out.size()};
  }
  Tensor<float, 4> q, k, v;
  KvCache<std::int8_t> cache;
};

TEST_P(KvDots, AreUsedForDecodingEightBitCachesOnly) {
  const Options forced{.isa = GetParam()};
  const auto isa = [&](const Decoding& d) { return explain(d.q, d.cache, causal(), forced).isa; };
  EXPECT_EQ(isa(Decoding(8, 1, 300, 64, 1)), GetParam());
  EXPECT_EQ(isa(Decoding(8, 40, 300, 64, 1)), of_floats()) << "tiles of queries";
  EXPECT_EQ(isa(Decoding(8, 1, 300, 80, 1)), of_floats()) << "rows that are not whole vectors";
  const Decoding d(8, 1, 300, 64, 1);
  EXPECT_EQ(explain(d.q, d.k, d.v, causal(), forced).isa, of_floats());
  EXPECT_EQ(explain(d.q, d.cache, causal(), {.isa = of_floats()}).isa, of_floats());
}

TEST_P(KvDots, AreCloseToFloatKernels) {
  // Both are close to the exact result but differ in bits; equal results would mean that one of them did not run.
  for (const Index q_len : {1, 3}) {
    const Decoding d(8, q_len, 1000, 128, 2);
    const std::vector<float> of_integers = d.out({.isa = GetParam()}), floats = d.out({.isa = of_floats()});
    EXPECT_NE(of_integers, floats);
    for (std::size_t i = 0; i < floats.size(); ++i) ASSERT_NEAR(of_integers[i], floats[i], 5e-7) << i;
  }
}

TEST_P(KvDots, UnrepresentableQueriesAreComputedInFloat) {
  Decoding d(8, 1, 300, 64, 3);
  d.q(0, 2, 0, 5) = kNaN;
  d.q(0, 3, 0, 5) = 1e33f;
  const std::vector<float> of_integers = d.out({.isa = GetParam()}), floats = d.out({.isa = of_floats()});
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (i / 64 == 2)
      ASSERT_TRUE(std::isnan(of_integers[i])) << i;
    else
      ASSERT_NEAR(of_integers[i], floats[i], 1e-6) << i;
  }
}

TEST_P(KvDots, ThreadsDoNotChangeResults) {
  const Decoding d(8, 2, 9000, 64, 4);
  const std::vector<float> one = d.out({.executor = serial(), .isa = GetParam()});
  for (int n : {2, 5}) EXPECT_EQ(one, d.out({.executor = eager_threads(n), .isa = GetParam()}));
}

INSTANTIATE_TEST_SUITE_P(EachSet, KvDots, ::testing::Values(Isa::avx2_vnni, Isa::avx512_vnni),
                         [](const auto& with) { return std::string(to_string(with.param)); });

}  // namespace
}  // namespace attn::test
