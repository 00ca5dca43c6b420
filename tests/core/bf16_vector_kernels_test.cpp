// Unit tests of the vector kernels for bf16 products, on integers that every intermediate result represents exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "attn/attn.h"

#if ATTN_BF16
namespace attn::test {
namespace {

using Eigen::bfloat16;
constexpr Index kQueries = 32, kKeys = detail::kKeyTile;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

float query_at(Index query, Index d) { return static_cast<float>((5 * query + 3 * d) % 13 - 6); }
float key_at(Index key, Index d) { return static_cast<float>((2 * key + 7 * d) % 17 - 8); }
float weight_at(Index key, Index query) { return static_cast<float>((key + 2 * query) % 5); }
float value_at(Index key, Index column) { return static_cast<float>((3 * key + column) % 11 - 5); }
float before_at(Index column, Index query) { return static_cast<float>(column - query); }
float rescale_at(Index query) { return query % 2 == 0 ? 0.5f : 2; }

struct alignas(64) Line {
  float numbers[16];
};
/// Memory for kernels, filled with NaN.
struct Memory {
  explicit Memory(Index numbers) : lines(static_cast<std::size_t>((numbers + 15) / 16)) {
    std::fill_n(data(), numbers, kNaN);
  }
  float* data() { return lines.front().numbers; }
  bfloat16* pairs() { return reinterpret_cast<bfloat16*>(data()); }
  std::vector<Line> lines;
};

class Bf16VectorKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!detail::cpu_has(detail::VectorSet::avx512) || !detail::cpu_has_bf16_dots())
      GTEST_SKIP() << "this processor has no AVX512-BF16";
  }
  const detail::KernelFamily<float>& family = detail::kBf16VectorFamily<true>;
};

TEST_F(Bf16VectorKernels, ScoresAreProductsOfAllDimensions) {
  for (const Index head_dim : {1, 2, 31, 32, 33, 64, 96})
    for (const Index keys : {1, 7, 8, 9, 33, 63, 64})
      for (const Index gap : {0, 1}) {
        SCOPED_TRACE(std::to_string(keys) + " keys of " + std::to_string(head_dim) + ", gap " + std::to_string(gap));
        const Index depth = (head_dim + 31) / 32 * 32, stride = depth + 2 * gap;
        Memory query(depth / 2 * kQueries), key(kKeys * stride / 2), scores(kKeys * kQueries);
        for (Index d = 0; d < depth; ++d)
          for (Index i = 0; i < kQueries; ++i)
            query.pairs()[(d / 2 * kQueries + i) * 2 + d % 2] = bfloat16(d < head_dim ? query_at(i, d) : 0);
        for (Index j = 0; j < keys; ++j)
          for (Index d = 0; d < depth; ++d) key.pairs()[j * stride + d] = bfloat16(d < head_dim ? key_at(j, d) : 0);
        detail::TileMemory<float> m{};
        m.query = query.data();
        m.scores = scores.data();
        family.by_vectors[0].score(m, {key.data(), stride / 2}, keys, head_dim);
        for (Index j = 0; j < keys; ++j)
          for (Index i = 0; i < kQueries; ++i) {
            float want = 0;
            for (Index d = 0; d < head_dim; ++d) want += query_at(i, d) * key_at(j, d);
            ASSERT_EQ(scores.data()[j * kQueries + i], want) << "key " << j << ", query " << i;
          }
      }
}

TEST_F(Bf16VectorKernels, WeightedValuesUpdateTheOutput) {
  using detail::OutUpdate;
  for (const OutUpdate update : {OutUpdate::overwrite, OutUpdate::add, OutUpdate::rescale_and_add})
    for (const Index v_dim : {1, 7, 8, 32, 40, 64})
      for (const Index keys : {2, 32, 34, 64, 128}) {
        SCOPED_TRACE("update " + std::to_string(static_cast<int>(update)) + ", " + std::to_string(keys) + " keys of " +
                     std::to_string(v_dim));
        const Index columns = (v_dim + 31) / 32 * 32, whole = (keys + 31) / 32 * 32;
        Memory values(whole * columns / 2), weights(whole / 2 * kQueries), out(columns * kQueries), factors(kQueries);
        for (Index j = 0; j < whole; ++j) {
          for (Index c = 0; c < columns; ++c)
            values.pairs()[(j / 32 * columns + c) * 32 + j % 32] = bfloat16(j < keys && c < v_dim ? value_at(j, c) : 0);
          for (Index i = 0; i < kQueries; ++i)
            weights.pairs()[(j / 2 * kQueries + i) * 2 + j % 2] = bfloat16(j < keys ? weight_at(j, i) : 0);
        }
        for (Index i = 0; i < kQueries; ++i) {
          factors.data()[i] = rescale_at(i);
          for (Index c = 0; update != OutUpdate::overwrite && c < v_dim; ++c)
            out.data()[c * kQueries + i] = before_at(c, i);
        }
        detail::TileMemory<float> m{};
        m.weights = weights.data();
        m.out = out.data();
        m.rescale = factors.data();
        family.by_vectors[0].value(m, {values.data(), 0}, keys, v_dim, update, {});
        for (Index c = 0; c < v_dim; ++c)
          for (Index i = 0; i < kQueries; ++i) {
            float want = update == OutUpdate::overwrite ? 0 : before_at(c, i);
            if (update == OutUpdate::rescale_and_add) want *= rescale_at(i);
            for (Index j = 0; j < keys; ++j) want += weight_at(j, i) * value_at(j, c);
            ASSERT_EQ(out.data()[c * kQueries + i], want) << "column " << c << ", query " << i;
          }
      }
}

TEST_F(Bf16VectorKernels, RunOnlyInTiles) {
  using Halves = Eigen::Matrix<bfloat16, Eigen::Dynamic, Eigen::Dynamic>;
  std::srand(1);
  const Halves q = Eigen::MatrixXf::Random(40, 48).cast<bfloat16>(),
               k = Eigen::MatrixXf::Random(90, 48).cast<bfloat16>(),
               v = Eigen::MatrixXf::Random(90, 48).cast<bfloat16>();
  const Options in_bf16{.isa = Isa::avx512_bf16}, in_float{.isa = Isa::avx512};
  const auto out = attention(q, k, v, in_bf16), of_floats = attention(q, k, v, in_float);
  EXPECT_NE(out.lse, of_floats.lse) << "the bf16 vectors were not used";
  EXPECT_LE((out.lse - of_floats.lse).cwiseAbs().maxCoeff(), 1.1e-4f);
  EXPECT_EQ(attention(q.topRows(4), k, v, in_bf16).lse, attention(q.topRows(4), k, v, in_float).lse);
}

}  // namespace
}  // namespace attn::test
#endif
