// Masks from tensors, which are queried for many pairs at once: they keep the pairs that their elements select, in any
// memory layout.
#include <limits>

#include "attn/attn.h"
#include "support/paths.h"

#include <gtest/gtest.h>

namespace attn::test {
namespace {

/// A random tensor of pairs, and the same in other memory layouts.
struct Pairs {
  Pairs(Index heads, Index q_len, Index kv_len, Random& random)
      : rows({1, heads, q_len, kv_len}), columns_({1, heads, kv_len, q_len}), thirds_({1, heads, q_len, 3 * kv_len}) {
    for (Index h = 0; h < heads; ++h)
      for (Index i = 0; i < q_len; ++i)
        for (Index j = 0; j < kv_len; ++j) {
          // Includes uniform tiles and rows that keep nothing.
          const bool kept = i / 20 == 1 ? j / 70 == 1 : i % 31 != 30 && random.chance(0.6);
          rows(0, h, i, j) = columns_(0, h, j, i) = thirds_(0, h, i, 3 * j) = kept;
          thirds_(0, h, i, 3 * j + 1) = thirds_(0, h, i, 3 * j + 2) = !kept;
        }
  }
  TensorView<const bool, 4> columns() const {
    const Index heads = rows.dim(1), q_len = rows.dim(2), kv_len = rows.dim(3);
    return {columns_.data(), rows.shape(), {heads * q_len * kv_len, q_len * kv_len, 1, q_len}};
  }
  TensorView<const bool, 4> every_third() const {
    const Index heads = rows.dim(1), q_len = rows.dim(2), kv_len = rows.dim(3);
    return {thirds_.data(), rows.shape(), {3 * heads * q_len * kv_len, 3 * q_len * kv_len, 3 * kv_len, 3}};
  }

  Tensor<bool, 4> rows;

 private:
  Tensor<bool, 4> columns_, thirds_;
};

template <class T>
class TensorMasks : public ::testing::Test {
 protected:
  static constexpr Index kHeads = 2;

  /// Compares results bit for bit: a mask decides only which pairs are dropped.
  template <class M, class Expected>
  void expect_same(const char* what, const M& mods, const Expected& expected, Index q_len, Index kv_len) {
    SCOPED_TRACE(::testing::Message() << what << ", " << q_len << " x " << kv_len);
    Random random(3);
    Arguments<T> a(Inputs({1, kHeads, 1, q_len, kv_len, 12, 9}, random));
    for (const Isa isa : instruction_sets()) {
      const Computed<T> want = flash(a, expected, {.isa = isa}), got = flash(a, mods, {.isa = isa});
      EXPECT_EQ(got.out, want.out) << to_string(isa);
      EXPECT_EQ(got.lse, want.lse) << to_string(isa);
    }
  }
};

using Scalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(TensorMasks, Scalars);

TYPED_TEST(TensorMasks, OfPairs) {
  for (const auto& [q_len, kv_len] : {std::pair<Index, Index>{100, 150}, {17, 70}, {3, 33}, {48, 48}}) {
    Random random(2);
    const Pairs pairs(TestFixture::kHeads, q_len, kv_len, random);
    const Index offset = kv_len - q_len;
    const auto kept = mask_mod([&](auto p) { return pairs.rows(0, p.head, p.q - offset, p.kv); });
    const auto dropped = mask_mod([&](auto p) { return !pairs.rows(0, p.head, p.q - offset, p.kv); });
    this->expect_same("keep", keep(pairs.rows), kept, q_len, kv_len);
    this->expect_same("drop", drop(pairs.rows), dropped, q_len, kv_len);
    this->expect_same("columns", keep(pairs.columns()), kept, q_len, kv_len);
    this->expect_same("columns dropped", drop(pairs.columns()), dropped, q_len, kv_len);
    this->expect_same("every third", keep(pairs.every_third()), kept, q_len, kv_len);
    this->expect_same("with others", keep(pairs.rows) | softcap(4) | causal() | drop(pairs.columns()) | causal(),
                      kept | softcap(4) | causal() | dropped | causal(), q_len, kv_len);
    this->expect_same("beside a lambda", mask_mod([](auto p) { return (p.q + p.kv) % 3 != 0; }) | keep(pairs.columns()),
                      mask_mod([](auto p) { return (p.q + p.kv) % 3 != 0; }) | kept, q_len, kv_len);
  }
}

TYPED_TEST(TensorMasks, OfKeys) {
  for (const Index kv_len : {1, 15, 16, 17, 64, 150}) {
    Random random(5);
    Tensor<bool, 2> ignored({1, 3 * kv_len});
    for (Index j = 0; j < ignored.size(); ++j) ignored.data()[j] = random.chance(0.4);
    const TensorView<const bool, 2> first(ignored.data(), {1, kv_len}, {0, 1}),
        thirds(ignored.data(), {1, kv_len}, {0, 3});
    this->expect_same("padding", padding(first), mask_mod([&](auto p) { return !first(0, p.kv); }), 20, kv_len);
    this->expect_same("keep_keys", keep_keys(thirds), mask_mod([&](auto p) { return thirds(0, p.kv); }), 20, kv_len);
  }
}

TYPED_TEST(TensorMasks, ASingleKeptKeyGivesTheMaximum) {
  // Without subtracting the maximum, exp(score) would overflow. The key is at various places in a tile.
  using Matrix = Eigen::Matrix<TypeParam, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  for (const Index kv_len : {1, 2, 3, 6, 8, 65, 67, 130}) {
    const Matrix q = Matrix::Constant(20, 4, 100), k = Matrix::Constant(kv_len, 4, 100), v = Matrix::Random(kv_len, 3);
    Tensor<bool, 1> last({kv_len});
    last(kv_len - 1) = true;
    for (const Isa isa : instruction_sets())
      EXPECT_EQ(attention(q, k, v, keep(last), {.isa = isa}).out, v.bottomRows(1).replicate(20, 1))
          << kv_len << " keys, " << to_string(isa);
  }
}

TYPED_TEST(TensorMasks, CoverageOfTilesIsExact) {
  Random random(7);
  const Pairs pairs(1, 60, 90, random);
  Problem problem;
  problem.q_len = 60;
  problem.kv_len = 90;
  const auto rows = keep(pairs.rows).make(problem), columns = keep(pairs.columns()).make(problem),
             thirds = keep(pairs.every_third()).make(problem);
  for (Index first = 0; first < 60; first += 5)
    for (const Index keys : {1, 8, 20})
      for (Index j = 0; j + keys <= 90; j += 7) {
        Index count = 0;
        for (Index i = first; i < first + 5; ++i)
          for (Index kv = j; kv < j + keys; ++kv) count += pairs.rows(0, 0, i, kv);
        const Coverage want = count == 0 ? Coverage::none : count == 5 * keys ? Coverage::all : Coverage::some;
        const Tile tile{0, 0, {first, first + 5}, {j, j + keys}};
        EXPECT_EQ(rows.coverage(tile), want);
        EXPECT_EQ(columns.coverage(tile), want);
        EXPECT_EQ(thirds.coverage(tile), want);
      }
}

}  // namespace
}  // namespace attn::test
