// Column-major tensors give the same results as row-major ones, although their rows are copied into and out of tiles
// differently.
#include <limits>

#include "attn/attn.h"
#include "support/paths.h"

#include <gtest/gtest.h>

namespace attn::test {
namespace {

template <class T>
class StorageOrder : public ::testing::Test {
 protected:
  using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  using ColMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

  /// Columns with NaN before, between and after them, to detect accesses past a column's end.
  struct Columns {
    explicit Columns(const RowMajor& rows)
        : all(ColMajor::Constant(rows.rows() + 2 * kMargin, rows.cols(), kNan)),
          inside(all.middleRows(kMargin, rows.rows())) {
      inside = rows;
    }
    bool margins_are_untouched() const {
      return all.topRows(kMargin).array().isNaN().all() && all.bottomRows(kMargin).array().isNaN().all();
    }
    static constexpr Index kMargin = 3;
    static constexpr T kNan = std::numeric_limits<T>::quiet_NaN();
    ColMajor all;
    Eigen::Block<ColMajor> inside;
  };

  /// Tiles of queries use the same values in the same order. Single queries sum their products in another order.
  template <class M>
  void expect_same(Index q_len, Index kv_len, Index dim, Index v_dim, const M& mods) {
    SCOPED_TRACE(::testing::Message() << "q_len " << q_len << ", kv_len " << kv_len << ", head_dim " << dim
                                      << ", v_dim " << v_dim);
    const RowMajor q = RowMajor::Random(q_len, dim), k = RowMajor::Random(kv_len, dim),
                   v = RowMajor::Random(kv_len, v_dim);
    const Columns q_columns(q), k_columns(k), v_columns(v);
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      const Options options{.executor = serial(), .isa = isa};
      RowMajor expected(q_len, v_dim);
      attention_into(expected, q, k, v, mods, options);
      const auto check = [&](const char* what, const auto& queries, const auto& keys, const auto& values) {
        Columns out(RowMajor::Constant(q_len, v_dim, T(7)));
        attention_into(out.inside, queries, keys, values, mods, options);
        const T bound = q_len > 4 ? T(0) : 40 * std::numeric_limits<T>::epsilon();
        EXPECT_LE((out.inside - expected).cwiseAbs().maxCoeff(), bound) << what;
        EXPECT_TRUE(out.margins_are_untouched()) << what;
      };
      check("all", q_columns.inside, k_columns.inside, v_columns.inside);
      check("keys", q, k_columns.inside, v);
      check("values", q, k, v_columns.inside);
      check("queries", q_columns.inside, k, v);
    }
  }
};

using Scalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(StorageOrder, Scalars);

// Lengths just below and above those of vectors, half vectors and tiles; single queries have separate kernels.
TYPED_TEST(StorageOrder, TilesOfQueries) {
  for (const Index q_len : {5, 7, 8, 15, 16, 17, 31, 49, 130}) this->expect_same(q_len, 70, 20, 9, Mods<>());
  for (const Index kv_len : {1, 3, 4, 7, 9, 16, 31, 63, 65, 130, 300})
    this->expect_same(20, kv_len, 16, 33, causal() | softcap(5));
  for (const Index dim : {1, 2, 3, 5, 8, 64, 70}) this->expect_same(18, 21, dim, dim + 1, Mods<>());
}

TYPED_TEST(StorageOrder, SingleQueries) {
  for (const Index q_len : {1, 2, 3, 4})
    for (const Index kv_len : {1, 5, 15, 16, 17, 40, 64, 65, 79, 80, 300, 1100})
      this->expect_same(q_len, kv_len, 20, 13, causal());
  for (const Index dim : {1, 2, 3, 8, 64}) this->expect_same(1, 100, dim, 65 - dim, Mods<>());
}

TYPED_TEST(StorageOrder, ANonFiniteValueAffectsOnlyItsKey) {
  // Key 7 of 20 has an infinite value. The last vector may overlap keys that have already been added; it must not add
  // them again, even with weight 0 (0 * inf is NaN). The last key's NaN is dropped.
  using T = TypeParam;
  for (const Index q_len : {1, 4, 6}) {
    Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic> q(q_len, 8), k(21, 8), v(21, 5);
    q.setConstant(T(0.5)), k.setConstant(T(0.25)), v.setConstant(T(1));
    v(7, 1) = std::numeric_limits<T>::infinity();
    v.row(20).setConstant(std::numeric_limits<T>::quiet_NaN());
    for (const Isa isa : instruction_sets()) {
      const auto out = attention(q, k, v, key_lengths({20}), {.isa = isa}).out.eval();
      EXPECT_TRUE((out.col(1).array() == std::numeric_limits<T>::infinity()).all()) << to_string(isa) << '\n' << out;
      EXPECT_TRUE((out.col(0).array() - 1).abs().maxCoeff() < 1e-6) << to_string(isa) << '\n' << out;
    }
  }
}

}  // namespace
}  // namespace attn::test
