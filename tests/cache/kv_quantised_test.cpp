// Caches of 8-bit integers: quantisation error, and rows of extremes. kv_formats_test.cpp attends to what is stored.
#include "support/cached.h"
#include "support/not_finite.h"

namespace attn::test {
namespace {

/// A token's row of one head as stored.
struct Quantised {
  std::vector<Index> numbers;
  float scale;

  explicit Quantised(const std::vector<float>& row) : Quantised(row, row) {}
  /// The stored key if `as_key`, else the stored value.
  Quantised(const std::vector<float>& key, const std::vector<float>& value, bool as_key = true) {
    const Index k_dim = static_cast<Index>(key.size()), v_dim = static_cast<Index>(value.size());
    KvCache<std::int8_t> cache({.capacity = 2, .head_dim = k_dim, .v_dim = v_dim});
    cache.append(TensorView<const float, 2>(key.data(), {1, k_dim}),
                 TensorView<const float, 2>(value.data(), {1, v_dim}));
    const auto rows = as_key ? cache.keys(0) : cache.values(0);
    for (Index d = 0; d < rows.dim(3); ++d) numbers.push_back(rows(0, 0, 0, d));
    scale = (as_key ? cache.key_scales() : cache.value_scales())(0, 0, 0);
  }
};

// Largest error in steps. The inverse of the scale, the product with it and the scale itself are each rounded to float,
// each with a relative error of 2^-24 in up to 127 steps; scales below 2^-126 have fewer bits, at least 23.
constexpr double kStep = 0.5 + 127 * 4 * 0x1p-24;

TEST(KvQuantised, ErrorIsHalfAStep) {
  Random random(1);
  for (int round = 0; round < 3000; ++round) {
    const double size = std::pow(10.0, random.uniform(-35, 38));
    std::vector<float> row(static_cast<std::size_t>(random.integer(1, 40)));
    for (float& x : row) x = static_cast<float>(random.uniform(-size, size) * (random.chance(0.2) ? 0.01 : 1));
    float largest = 0;
    for (float x : row) largest = std::max(largest, std::abs(x));
    const Quantised key(row), value({1}, row, false);
    EXPECT_EQ(key.numbers, value.numbers);
    EXPECT_EQ(key.scale, value.scale);
    ASSERT_EQ(key.scale, largest / 127);
    Index most = 0;
    for (std::size_t i = 0; i < row.size(); ++i) {
      most = std::max(most, std::abs(key.numbers[i]));
      ASSERT_LE(
          std::abs(static_cast<double>(key.numbers[i]) * static_cast<double>(key.scale) - static_cast<double>(row[i])),
          kStep * static_cast<double>(key.scale))
          << row[i];
    }
    ASSERT_EQ(most, 127);
  }
}

TEST(KvQuantised, RoundsToNearest) {
  const Quantised q({127, -127, 0.25f, 0.75f, -0.75f, 1.5f, 2.5f, -63.3f, 0, 126.6f});
  EXPECT_EQ(q.scale, 1);
  EXPECT_EQ(q.numbers, (std::vector<Index>{127, -127, 0, 1, -1, 2, 2, -63, 0, 127}));
}

TEST(KvQuantised, RowsOfExtremes) {
  const auto expect = [](const std::vector<float>& row, const std::vector<Index>& numbers, float scale) {
    const Quantised q(row);
    EXPECT_EQ(q.numbers, numbers) << row[0];
    EXPECT_TRUE(q.scale == scale || (std::isnan(q.scale) && std::isnan(scale))) << row[0] << " has " << q.scale;
  };
  expect({0, 0, -0.0f}, {0, 0, 0}, 0);
  expect({1e-38f, -1e-38f}, {0, 0}, 0);  // the inverse of the scale would overflow
  expect({1e-45f, 0}, {0, 0}, 0);
  expect({0x1p-120f, -0x1p-121f}, {127, -64}, 0x1p-120f / 127);
  expect({3e38f, -3e38f, 1}, {127, -127, 0}, 3e38f / 127);
  expect({std::numeric_limits<float>::max(), 0}, {127, 0}, std::numeric_limits<float>::max() / 127);
  expect({1, kNaN, 2}, {0, 0, 0}, kNaN);
  expect({kInf, 2}, {0, 0}, kNaN);
  expect({2, -kInf}, {0, 0}, kNaN);
}

/// A non-finite key or value reaches exactly the queries that keep it.
TEST(KvQuantised, NonFiniteRows) {
  Random random(3);
  const TokenSizes sizes{1, 64, 64};
  const Index n = 100, at = 70;
  for (const bool in_keys : {true, false})
    for (Index page_size : {0, 16, 64})
      for (Index q_len : {1, 3, 40, 100}) {
        const Tokens clean = Tokens::exact(sizes, n, random);
        const auto poisoned = [&](Index i, double x, bool here) {
          return here && i == at ? static_cast<double>(kInf) : x;
        };
        const Tokens tokens = Tokens::made(
            sizes, n, [&](Index i, Index h, Index d) { return poisoned(i, clean.k(i, h, d), in_keys); },
            [&](Index i, Index h, Index d) { return poisoned(i, clean.v(i, h, d), !in_keys); });
        const RaggedCall call(2, {clean}, {q_len}, random);
        const PoisonedCache<std::int8_t> cache({tokens}, page_size);
        const auto rest = mask_mod([at](auto p) { return p.kv != at || p.q == 99; });
        for (Isa isa : integer_instruction_sets()) {
          RaggedMemory<float> memory(call);
          const auto q = memory.q.cview();
          attention_into(memory.out.view(), memory.lse3(), q, cache.view(), rest, {.executor = serial(), .isa = isa});
          const Inputs in = call.inputs(0);
          const Truth truth = oracle(in, {[=](const Pair& p) { return p.kv != at; }, {}});
          const auto got = memory.all();
          for (Index h = 0; h < 2; ++h)
            for (Index i = 0; i < q_len; ++i) {
              const std::size_t row = static_cast<std::size_t>(h * q_len + i);
              const bool keeps = i == q_len - 1;  // the query at position 99
              if (keeps && in_keys) {
                ASSERT_TRUE(std::isnan(got.lse[row]));
              }
              for (std::size_t d = 0; d < 64; ++d) {
                const float x = got.out[row * 64 + d];
                if (keeps)
                  ASSERT_TRUE(std::isnan(x));
                else
                  ASSERT_NEAR(x, static_cast<double>(truth.out[row * 64 + d]), 1e-4) << "query " << i;
              }
            }
        }
      }
}

TEST(KvQuantised, HugeAndTinyRowsStayFinite) {
  KvCache<std::int8_t> cache({.head_dim = 2, .v_dim = 2});
  Eigen::MatrixXf k(3, 2), v(3, 2), q(1, 2);
  k << 0, 0, 1e-38f, 0, -3e38f, 3e38f;
  v << 3e38f, -3e38f, 1e-38f, 0, 1, 2;
  cache.append(k, v);
  q << 1, 0;
  const auto r = attention(q, cache, full(), {.scale = 1, .executor = serial()});
  // The third score is -3e38, the others are 0.
  EXPECT_NEAR(r.lse(0), std::log(2.0), 1e-6);
  EXPECT_NEAR(r.out(0, 0) / 1.5e38f, 1, 1e-6);
  EXPECT_NEAR(r.out(0, 1) / -1.5e38f, 1, 1e-6);
}

}  // namespace
}  // namespace attn::test
