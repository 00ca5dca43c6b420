// Every Eigen type that a call accepts, in either storage order, gives the same bits as a packed tensor.
#include <unsupported/Eigen/CXX11/Tensor>

#include "support/paths.h"

namespace attn::test {
namespace {

using ColMajor = Eigen::MatrixXf;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

class EigenTypes : public ::testing::Test {
 protected:
  static constexpr Index kQueries = 37, kKeys = 71, kDim = 9, kWide = 6;

  EigenTypes() : EigenTypes(Inputs(Sizes{1, 1, 1, kQueries, kKeys, kDim, kWide}, random())) {}

  /// Expects each path to give the same results as for packed tensors, in an output of type Out.
  template <class Out, class Q, class K, class V>
  void expect_same(const Q& query, const K& key, const V& value) {
    const auto r = attention(query, key, value, causal());
    const auto n = naive_attention(query, key, value, causal());
    static_assert(std::is_same_v<std::remove_cvref_t<decltype(r.out)>, Out>);
    static_assert(std::is_same_v<std::remove_cvref_t<decltype(n.out)>, Out>);
    ASSERT_EQ(r.out.rows(), kQueries);
    ASSERT_EQ(r.out.cols(), kWide);
    ASSERT_EQ(n.weights.rows(), kQueries);
    ASSERT_EQ(n.weights.cols(), kKeys);
    for (Index i = 0; i < kQueries; ++i) {
      EXPECT_EQ(r.lse(i), flash_.lse[static_cast<std::size_t>(i)]);
      EXPECT_EQ(n.lse(i), naive_.lse[static_cast<std::size_t>(i)]);
      for (Index e = 0; e < kWide; ++e) {
        EXPECT_EQ(r.out(i, e), flash_.out[static_cast<std::size_t>(i * kWide + e)]);
        EXPECT_EQ(n.out(i, e), naive_.out[static_cast<std::size_t>(i * kWide + e)]);
      }
    }
  }

  /// The same into the caller's output.
  template <class Out>
  void expect_into(Out&& out, const char* what) {
    attention_into(out, q_, k_, v_, causal());
    for (Index i = 0; i < kQueries; ++i)
      for (Index e = 0; e < kWide; ++e)
        ASSERT_EQ(out(i, e), flash_.out[static_cast<std::size_t>(i * kWide + e)]) << what << ", flash";
    // The weights of this call have another layout, so Eigen may sum in another order.
    naive_attention_into(out, q_, k_, v_, causal());
    for (Index i = 0; i < kQueries; ++i)
      for (Index e = 0; e < kWide; ++e)
        ASSERT_NEAR(out(i, e), naive_.out[static_cast<std::size_t>(i * kWide + e)], 2e-6) << what << ", naive";
  }

  ColMajor q_, k_, v_;
  Computed<float> flash_, naive_;

 private:
  static Random& random() {
    static Random r(1);
    return r;
  }
  static ColMajor matrix(const std::vector<double>& x, Index rows, Index cols) {
    ColMajor m(rows, cols);
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < cols; ++j) m(i, j) = static_cast<float>(x[static_cast<std::size_t>(i * cols + j)]);
    return m;
  }
  explicit EigenTypes(const Inputs& in)
      : q_(matrix(in.q, kQueries, kDim)), k_(matrix(in.k, kKeys, kDim)), v_(matrix(in.v, kKeys, kWide)) {
    Arguments<float> a(in);
    flash_ = flash(a, causal());
    naive_ = naive(a, causal());
  }
};

TEST_F(EigenTypes, MatricesOfEitherOrder) {
  expect_same<ColMajor>(q_, k_, v_);
  expect_same<RowMajor>(RowMajor(q_), RowMajor(k_), RowMajor(v_));
  expect_same<ColMajor>(q_, RowMajor(k_), v_);
  expect_same<RowMajor>(RowMajor(q_), k_, RowMajor(v_));
}

TEST_F(EigenTypes, BlocksMapsRefsAndTransposes) {
  ColMajor big = ColMajor::Constant(200, 40, 1e30f);
  big.block(3, 5, kQueries, kDim) = q_;
  big.block(50, 7, kKeys, kDim) = k_;
  big.block(125, 20, kKeys, kWide) = v_;
  expect_same<ColMajor>(big.block(3, 5, kQueries, kDim), big.block(50, 7, kKeys, kDim),
                        big.block(125, 20, kKeys, kWide));
  const ColMajor& constant = big;
  expect_same<ColMajor>(constant.block(3, 5, kQueries, kDim), constant.block(50, 7, kKeys, kDim), v_);

  const ColMajor qt = q_.transpose(), kt = k_.transpose(), vt = v_.transpose();
  expect_same<RowMajor>(qt.transpose(), kt.transpose(), vt.transpose());

  const Eigen::Map<const ColMajor> map(k_.data(), kKeys, kDim);
  expect_same<ColMajor>(q_, map, v_);
  expect_same<ColMajor>(Eigen::Ref<ColMajor>(q_), Eigen::Ref<const ColMajor>(k_), v_);

  // Every second row and every third column of a larger matrix.
  ColMajor wide = ColMajor::Constant(2 * kKeys, 3 * kDim, 1e30f);
  using Stride = Eigen::Stride<Eigen::Dynamic, Eigen::Dynamic>;
  Eigen::Map<ColMajor, 0, Stride> sparse(wide.data(), kKeys, kDim, Stride(3 * 2 * kKeys, 2));
  sparse = k_;
  expect_same<ColMajor>(q_, sparse, v_);
  expect_same<ColMajor>(q_, k_.rowwise().reverse().eval().rowwise().reverse(), v_);
}

TEST_F(EigenTypes, FixedSizesAndArrays) {
  const Eigen::Matrix<float, Eigen::Dynamic, kDim> k = k_;
  const Eigen::Matrix<float, kKeys, kWide, Eigen::RowMajor> v = v_;
  expect_same<ColMajor>(q_, k, v);
  const Eigen::ArrayXXf q = q_;
  expect_same<ColMajor>(q, k_, v_);
  // One query as a row vector, values as a column vector; with few rows or columns the summation order may differ.
  const Eigen::RowVectorXf row = q_.row(kQueries - 1);
  EXPECT_NEAR(attention(row, k_, v_).out(0, 2), flash_.out[(kQueries - 1) * kWide + 2], 1e-6);
  const Eigen::VectorXf column = v_.col(3);
  EXPECT_NEAR(attention(q_, k_, column, causal()).out(20, 0), flash_.out[20 * kWide + 3], 1e-6);
}

TEST_F(EigenTypes, Expressions) {
  expect_same<ColMajor>(2 * q_ - q_, k_ + ColMajor::Zero(kKeys, kDim), v_.array().matrix());
  const Eigen::MatrixXd wide = q_.cast<double>();
  expect_same<ColMajor>(wide.cast<float>(), k_, v_);
}

/// A class derived from a matrix, as in Eigen's manual.
struct Embeddings : ColMajor {
  using ColMajor::ColMajor;
};

TEST_F(EigenTypes, DerivedClasses) {
  const Embeddings q(q_), k(k_), v(v_);
  expect_same<ColMajor>(q, k, v);
  Embeddings out(kQueries, kWide);
  expect_into(out, "derived");
}

TEST_F(EigenTypes, IndexedRows) {
  // Every second row, which is strided, and rows from a list, which form an expression.
  const auto want = attention(ColMajor(q_(Eigen::seq(0, 4, Eigen::fix<2>), Eigen::all)), k_, v_);
  const auto strided = attention(q_(Eigen::seq(0, 4, Eigen::fix<2>), Eigen::all), k_, v_);
  const auto listed = attention(q_(std::vector<Index>{0, 2, 4}, Eigen::all), k_, v_);
  EXPECT_EQ(want.out.rows(), 3);
  EXPECT_EQ(strided.out, want.out);
  EXPECT_EQ(listed.out, want.out);
  EXPECT_EQ(naive_attention(q_(Eigen::seq(0, 4, Eigen::fix<2>), Eigen::all), k_, v_).out.rows(), 3);
  expect_same<ColMajor>(q_(Eigen::seq(0, Eigen::last), Eigen::all), k_(Eigen::seq(0, Eigen::last), Eigen::all), v_);
}

TEST_F(EigenTypes, VectorsInModsBelongToKeys) {
  // Square, so that a column over the queries would also fit.
  const ColMajor q = q_, k = k_.topRows(kQueries), v = v_.topRows(kQueries);
  Eigen::Array<bool, Eigen::Dynamic, 1> kept(kQueries);
  Eigen::VectorXf added(kQueries);
  for (Index j = 0; j < kQueries; ++j) {
    kept(j) = j % 3 != 1;
    added(j) = static_cast<float>(j % 5) / 2;
  }
  const auto of_keys = [&](const auto& vector) {
    Tensor<typename std::remove_cvref_t<decltype(vector)>::Scalar, 1> t({kQueries});
    for (Index j = 0; j < kQueries; ++j) t(j) = vector(j);
    return t;
  };
  const auto same = [&](const auto& mods, const auto& want, const char* what) {
    EXPECT_EQ(attention(q, k, v, mods).out, attention(q, k, v, want).out) << what;
    EXPECT_EQ(naive_attention(q, k, v, mods).out, naive_attention(q, k, v, want).out) << what;
    EXPECT_NE(attention(q, k, v, mods).out, attention(q, k, v).out) << what;
  };
  same(keep(kept), keep(of_keys(kept)), "keep");
  same(keep(kept.transpose()), keep(of_keys(kept)), "keep of a row");
  same(drop(kept), drop(of_keys(kept)), "drop");
  same(drop(!kept), keep(of_keys(kept)), "drop of an expression");
  same(bias(added), bias(of_keys(added)), "bias");
  same(bias(added.transpose()), bias(of_keys(added)), "bias of a row");
  same(bias(Eigen::VectorXf(added)), bias(of_keys(added)), "bias of a temporary");
  const Eigen::MatrixXf in_matrix = added.replicate(1, 3);
  same(bias(in_matrix.col(1)), bias(of_keys(added)), "bias of a column");
  // With q_len != kv_len, only a vector of kv_len elements is accepted.
  const Eigen::VectorXf longer = Eigen::VectorXf::Zero(kKeys);
  EXPECT_NO_THROW(attention(q_, k_, v_, bias(longer)));
  EXPECT_THROW(attention(q_, k_, v_, bias(added)), std::invalid_argument);
}

TEST_F(EigenTypes, NoValues) {
  // v_dim 0: the output is empty, the log-sum-exp is not.
  const auto want = attention(q_, k_, v_, causal());
  const auto r = attention(q_, k_, ColMajor(kKeys, 0), causal());
  EXPECT_EQ(r.out.rows(), kQueries);
  EXPECT_EQ(r.out.cols(), 0);
  EXPECT_EQ(r.lse, want.lse);
  EXPECT_EQ(attention(q_, k_, RowMajor(kKeys, 0), causal()).lse, want.lse);
  EXPECT_EQ(naive_attention(q_, k_, ColMajor(kKeys, 0), causal()).lse, naive_attention(q_, k_, v_, causal()).lse);

  const RowMajor q = q_, k = k_;
  float* const none = nullptr;
  Tensor<float, 3> lse({1, 1, kQueries});
  attention_into(bshd(none, 1, kQueries, 1, 0), lse, bshd(q.data(), 1, kQueries, 1, kDim),
                 bshd(k.data(), 1, kKeys, 1, kDim), bshd<const float>(none, 1, kKeys, 1, 0), causal());
  for (Index i = 0; i < kQueries; ++i) EXPECT_EQ(lse(0, 0, i), want.lse(i));
}

TEST_F(EigenTypes, TensorsOfRankTwo) {
  Tensor<float, 2> k({kKeys, kDim});
  k.matrix() = k_;
  expect_same<ColMajor>(q_, k, v_);
  const auto r = attention(view(q_), k, view(v_), causal());
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(r.out)>, Tensor<float, 2>>);
  static_assert(std::is_same_v<std::remove_cvref_t<decltype(r.lse)>, Tensor<float, 1>>);
  EXPECT_EQ(r.out(11, 3), flash_.out[11 * kWide + 3]);
  EXPECT_EQ(r.lse(11), flash_.lse[11]);
}

TEST_F(EigenTypes, Outputs) {
  ColMajor columns(kQueries, kWide);
  RowMajor rows(kQueries, kWide);
  expect_into(columns, "column-major");
  expect_into(rows, "row-major");
  ColMajor big = ColMajor::Constant(60, 20, 7);
  expect_into(big.block(2, 3, kQueries, kWide), "block");
  big.block(2, 3, kQueries, kWide).setConstant(7);
  EXPECT_TRUE((big.array() == 7).all()) << "wrote outside the block";
  ColMajor transposed(kWide, kQueries);
  expect_into(transposed.transpose(), "transpose");
  expect_into(Eigen::Map<RowMajor>(rows.data(), kQueries, kWide), "map");
  Tensor<float, 2> tensor({kQueries, kWide});
  expect_into(tensor, "tensor");
  expect_into(tensor.view(), "view");

  Eigen::VectorXf lse(kQueries);
  Eigen::RowVectorXf lse_row(kQueries);
  ColMajor lse_in_matrix(5, kQueries);
  attention_into(columns, lse, q_, k_, v_, causal());
  attention_into(columns, lse_row, q_, k_, v_, causal());
  attention_into(columns, lse_in_matrix.row(2), q_, k_, v_, causal());
  Eigen::VectorXf longer = Eigen::VectorXf::Constant(3 * kQueries, 7);
  attention_into(columns, longer.head(kQueries), q_, k_, v_, causal());
  attention_into(columns, longer.segment(kQueries + 1, kQueries), q_, k_, v_, causal());
  for (Index i = 0; i < kQueries; ++i) {
    EXPECT_EQ(lse(i), flash_.lse[static_cast<std::size_t>(i)]);
    EXPECT_EQ(lse_row(i), lse(i));
    EXPECT_EQ(lse_in_matrix(2, i), lse(i));
    EXPECT_EQ(longer(i), lse(i));
    EXPECT_EQ(longer(kQueries + 1 + i), lse(i));
  }
  EXPECT_EQ(longer(kQueries), 7) << "wrote between the segments";
  EXPECT_TRUE((longer.tail(kQueries - 1).array() == 7).all()) << "wrote after the segment";
}

template <int Order>
void expect_eigen_tensor() {
  Random random(2);
  const Sizes s{2, 4, 2, 20, 33, 8, 5};
  const Inputs in(s, random);
  Arguments<double> a(in);
  const auto expected = flash(a, causal());
  const auto expected_naive = naive(a, causal());
  const auto fill = [](const std::vector<double>& x, Index b, Index h, Index n, Index d) {
    Eigen::Tensor<double, 4, Order> t(b, h, n, d);
    std::size_t at = 0;
    for (Index i = 0; i < b; ++i)
      for (Index j = 0; j < h; ++j)
        for (Index l = 0; l < n; ++l)
          for (Index e = 0; e < d; ++e) t(i, j, l, e) = x[at++];
    return t;
  };
  const auto q = fill(in.q, 2, 4, 20, 8), k = fill(in.k, 2, 2, 33, 8), v = fill(in.v, 2, 2, 33, 5);
  Eigen::Tensor<double, 4, Order> out(2, 4, 20, 5);
  Eigen::Tensor<double, 3, Order> lse(2, 4, 20);
  const auto expect = [&](const auto& got, const std::vector<double>& want) {
    std::size_t at = 0;
    for (Index i = 0; i < 2; ++i)
      for (Index j = 0; j < 4; ++j)
        for (Index l = 0; l < 20; ++l)
          for (Index e = 0; e < 5; ++e) ASSERT_EQ(got(i, j, l, e), want[at++]);
  };
  attention_into(out, lse, q, k, v, causal());
  expect(out, expected.out);
  EXPECT_EQ(lse(1, 2, 13), expected.lse[(1 * 4 + 2) * 20 + 13]);
  const Eigen::TensorMap<const Eigen::Tensor<double, 4, Order>> map(q.data(), q.dimensions());
  expect(attention(map, k, v, causal()).out, expected.out);
  expect(naive_attention(q, k, v, causal()).out, expected_naive.out);
}

TEST(EigenTensors, ColumnMajor) { expect_eigen_tensor<Eigen::ColMajor>(); }
TEST(EigenTensors, RowMajor) { expect_eigen_tensor<Eigen::RowMajor>(); }

}  // namespace
}  // namespace attn::test
