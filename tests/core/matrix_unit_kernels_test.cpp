// Unit tests of the matrix unit's kernels, on emulated registers. In whole calls a faulty kernel would only seem slow,
// because non-finite results are recomputed without the matrix unit; these tests call the kernels directly.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "attn/attn.h"

#if ATTN_AMX
namespace attn::test {
namespace {

constexpr Index kQueries = 32, kKeys = detail::kKeyTile;
constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

struct alignas(64) SoftmaxMemory {
  float max[kQueries], sum[kQueries] = {}, sum_rest[kQueries] = {}, excess[kQueries] = {}, rescale[kQueries],
                       scores[kKeys * kQueries], weights[kKeys * kQueries / 2];
};

class MatrixUnitKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::cpu_has(detail::VectorSet::avx512)) GTEST_SKIP() << "this processor has no AVX-512";
    std::fill(std::begin(memory_.max), std::end(memory_.max), -kInf);
  }

  /// Runs one step over `keys` keys with these scores, still to be scaled; scores after them are NaN. Returns whether a
  /// maximum changed.
  bool step(Index keys, float scale, const std::function<float(Index key, Index query)>& score) {
    std::fill(std::begin(memory_.scores), std::end(memory_.scores), kNaN);
    std::fill(std::begin(memory_.rescale), std::end(memory_.rescale), kNaN);
    for (Index j = 0; j < keys; ++j)
      for (Index i = 0; i < kQueries; ++i) memory_.scores[j * kQueries + i] = score(j, i);
    detail::TileMemory<float> m{};
    m.max = memory_.max;
    m.sum = memory_.sum;
    m.sum_rest = memory_.sum_rest;
    m.excess = memory_.excess;
    m.rescale = memory_.rescale;
    m.scores = memory_.scores;
    m.weights = memory_.weights;
    m.scale = scale;
    return detail::software_tiles_family().by_vectors[0].softmax(m, keys, {}, 0);
  }
  /// The weight of a pair; weights are stored as pairs of keys.
  float weight(Index key, Index query) const {
    std::uint16_t pair[2];
    std::memcpy(pair, &memory_.weights[key / 2 * kQueries + query], sizeof(pair));
    return float(Eigen::numext::bit_cast<Eigen::bfloat16>(pair[key % 2]));
  }
  float lse(Index query) const { return memory_.max[query] + std::log(memory_.sum[query]); }

  SoftmaxMemory memory_;
};

TEST_F(MatrixUnitKernels, MaximaRiseBeforeWeightsOverflow) {
  EXPECT_TRUE(step(kKeys, 0.5f, [](Index, Index) { return 0.0f; })) << "from -inf";
  // The maximum of query i rises by 10 i: weights relative to 0 would be infinite from the ninth query on.
  const auto rising = [](Index j, Index i) { return j == 5 ? 20.0f * static_cast<float>(i) : 0.0f; };
  EXPECT_TRUE(step(kKeys, 0.5f, rising));
  for (Index i = 0; i < kQueries; ++i) {
    const float rise = 10 * static_cast<float>(i);
    EXPECT_NEAR(lse(i), rise + std::log1p((2 * kKeys - 1) * std::exp(-rise)), 2e-4f) << i;
    if (rise > 80) continue;  // the remaining weight of other keys is denormal
    EXPECT_NEAR(memory_.rescale[i] / std::exp(-memory_.max[i]), 1, 1e-5f) << i;
    for (Index j : {Index(0), Index(5), kKeys - 1})
      EXPECT_NEAR(weight(j, i) / std::exp(0.5f * rising(j, i) - memory_.max[i]), 1, 0x1p-8f) << j << " " << i;
  }
  EXPECT_EQ(memory_.max[kQueries - 1], 310);
}

TEST_F(MatrixUnitKernels, QueriesWithoutAKeyHaveNoWeights) {
  // Of every three queries, the first never keeps a key, the second keeps keys only in the second tile, and the third
  // in both.
  const auto score = [](int tile) {
    return [tile](Index j, Index i) { return i % 3 > (tile == 0 ? 1 : 0) && j % 2 == 1 ? 3.0f : -kInf; };
  };
  for (int tile : {0, 1}) {
    step(kKeys, 1, score(tile));
    for (Index i = 0; i < kQueries; ++i) {
      SCOPED_TRACE("tile " + std::to_string(tile) + ", query " + std::to_string(i));
      const Index kept = i % 3 == 0 ? 0 : i % 3 == 1 ? tile * kKeys / 2 : (tile + 1) * kKeys / 2;
      EXPECT_EQ(memory_.max[i], kept == 0 ? -kInf : 3);
      EXPECT_NEAR(memory_.sum[i], static_cast<float>(kept), 1e-4f * static_cast<float>(kept));
      for (Index j = 0; j < kKeys; ++j) EXPECT_EQ(weight(j, i), kept > 0 && j % 2 == 1 ? 1 : 0) << j;
    }
  }
}

TEST_F(MatrixUnitKernels, EntriesAfterTheLastKeyHaveZeroWeight) {
  for (Index keys : {1, 2, 31, 32, 33, 63}) {
    SCOPED_TRACE(keys);
    for (float& sum : memory_.sum) sum = 0;
    step(keys, 1, [](Index, Index) { return 0.0f; });
    for (Index i = 0; i < kQueries; ++i) {
      EXPECT_EQ(memory_.sum[i], static_cast<float>(keys));
      for (Index j = 0; j < (keys + 31) / 32 * 32; ++j) ASSERT_EQ(weight(j, i), j < keys ? 1 : 0) << j;
    }
  }
}

TEST_F(MatrixUnitKernels, ValuesAfterTheLastKeyAreZero) {
  using Eigen::bfloat16;
  for (const Index v_dim : {32, 64})
    for (const Index keys : {1, 31, 32, 33, 63, 64}) {
      SCOPED_TRACE(std::to_string(keys) + " keys of " + std::to_string(v_dim));
      // Small integers, which bf16 represents exactly; rows have a gap.
      const auto value = [](Index j, Index c) { return static_cast<float>((7 * j + 3 * c) % 251 + 1); };
      const Index stride = v_dim + 2;
      std::vector<bfloat16> values(static_cast<std::size_t>(kKeys * stride), bfloat16(kNaN));
      for (Index j = 0; j < keys; ++j)
        for (Index c = 0; c < v_dim; ++c) values[static_cast<std::size_t>(j * stride + c)] = bfloat16(value(j, c));
      // 32 keys of each column, for all columns, then the next 32 keys.
      struct alignas(64) Line {
        bfloat16 numbers[32];
      };
      std::vector<Line> arranged(static_cast<std::size_t>(kKeys / 32 * v_dim));
      detail::software_tiles_family().arrange_values({reinterpret_cast<const float*>(values.data()), stride / 2}, keys,
                                                     v_dim, reinterpret_cast<float*>(arranged.data()));
      for (Index j = 0; j < (keys + 31) / 32 * 32; ++j)
        for (Index c = 0; c < v_dim; ++c)
          ASSERT_EQ(float(arranged[static_cast<std::size_t>(j / 32 * v_dim + c)].numbers[j % 32]),
                    j < keys ? value(j, c) : 0)
              << j << " " << c;
    }
}

}  // namespace
}  // namespace attn::test
#endif
