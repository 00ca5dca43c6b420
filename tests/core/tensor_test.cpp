// Tensors and views: memory order and ownership.
#include "attn/tensor.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

#include <unsupported/Eigen/CXX11/Tensor>

namespace attn {
namespace {

std::vector<float> count(Index n) {
  std::vector<float> x(static_cast<std::size_t>(n));
  std::iota(x.begin(), x.end(), 0.f);
  return x;
}

TEST(Tensor, HasTheStridesOfItsView) {
  const Tensor<float, 3> t({2, 3, 5});
  for (int i : {0, 1, 2}) EXPECT_EQ(t.stride(i), t.view().stride(i));
  EXPECT_EQ(t.stride(0), 15);
}

TEST(Tensor, IsRowMajorZeroedAndAligned) {
  Tensor<float, 3> t({2, 3, 5});
  EXPECT_EQ(t.size(), 30);
  for (Index i = 0; i < 30; ++i) EXPECT_EQ(t.data()[i], 0);
  t(1, 2, 4) = 7;
  t(0, 1, 0) = 8;
  EXPECT_EQ(t.data()[1 * 15 + 2 * 5 + 4], 7);
  EXPECT_EQ(t.data()[5], 8);
  for (Index n : {1, 3, 100}) {
    const Tensor<double, 1> x({n});
    const Tensor<bool, 1> y({n});
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(x.data()) % 64, 0u);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(y.data()) % 64, 0u);
  }
}

TEST(Tensor, CopiesAreDeepAndMovesLeaveTheSourceEmpty) {
  Tensor<float, 2> a({2, 2});
  a(1, 0) = 3;
  Tensor<float, 2> b = a;
  b(1, 0) = 4;
  EXPECT_EQ(a(1, 0), 3);
  const float* memory = b.data();
  Tensor<float, 2> c = std::move(b);
  EXPECT_EQ(c.data(), memory);
  EXPECT_EQ(b.size(), 0);  // NOLINT: the state of a moved-from tensor is documented
  EXPECT_EQ(b.data(), nullptr);
  a = c;
  EXPECT_EQ(a(1, 0), 4);
  EXPECT_NE(a.data(), c.data());
  a = std::move(c);
  EXPECT_EQ(a.data(), memory);
  a = *&a;
  EXPECT_EQ(a(1, 0), 4);
}

TEST(Tensor, SizesOfZero) {
  const Tensor<float, 2> none;
  EXPECT_EQ(none.size(), 0);
  const Tensor<float, 2> empty({0, 5});
  EXPECT_EQ(empty.size(), 0);
  EXPECT_EQ(empty.dim(1), 5);
  EXPECT_EQ(empty.matrix().rows(), 0);
  const Tensor<float, 2> copy = empty;
  EXPECT_EQ(copy.dim(1), 5);
}

TEST(TensorView, OrdersOfMemory) {
  const auto x = count(2 * 3 * 4 * 5);
  const auto a = bhsd(x.data(), 2, 3, 4, 5);  // batch 2, heads 3, len 4, dim 5
  EXPECT_EQ(a.shape(), (Shape<4>{2, 3, 4, 5}));
  EXPECT_EQ(a(1, 2, 3, 4), 119);
  EXPECT_EQ(a(0, 1, 0, 0), 20);
  EXPECT_EQ(a(0, 0, 1, 0), 5);
  EXPECT_TRUE(a.is_contiguous());

  const auto b = bshd(x.data(), 2, 4, 3, 5);  // sizes in memory order
  EXPECT_EQ(b.shape(), (Shape<4>{2, 3, 4, 5}));
  EXPECT_EQ(b(1, 0, 0, 0), 60);
  EXPECT_EQ(b(0, 1, 0, 0), 5);
  EXPECT_EQ(b(0, 0, 1, 0), 15);
  EXPECT_EQ(b(1, 2, 3, 4), 119);
  EXPECT_FALSE(b.is_contiguous());
}

TEST(TensorView, CopyOfAnyStridesIsPacked) {
  const auto x = count(100);
  const TensorView<const float, 3> view(&x[50], {2, 3, 2}, {-20, 0, 7});
  const Tensor<float, 3> packed(view);
  const float expected[] = {50, 57, 50, 57, 50, 57, 30, 37, 30, 37, 30, 37};
  for (Index i = 0; i < 12; ++i) EXPECT_EQ(packed.data()[i], expected[i]) << i;
  EXPECT_TRUE(packed.view().is_contiguous());
}

TEST(TensorView, ContiguityIgnoresSizesOfOne) {
  const auto x = count(12);
  EXPECT_TRUE((TensorView<const float, 3>(x.data(), {1, 3, 4}, {99, 4, 1}).is_contiguous()));
  EXPECT_TRUE((TensorView<const float, 3>(x.data(), {3, 1, 4}, {4, -5, 1}).is_contiguous()));
  EXPECT_FALSE((TensorView<const float, 3>(x.data(), {2, 3, 1}, {4, 1, 1}).is_contiguous()));
  EXPECT_TRUE((TensorView<const float, 2>(x.data(), {0, 3}, {50, 50}).is_contiguous()));
}

TEST(TensorView, MatrixOfOneHead) {
  auto x = count(2 * 3 * 4 * 5);
  const auto t = bshd(x.data(), 2, 4, 3, 5);
  auto head = t.matrix(1, 2);
  EXPECT_EQ(head.rows(), 4);
  EXPECT_EQ(head.cols(), 5);
  EXPECT_EQ(head(3, 1), 60 + 3 * 15 + 2 * 5 + 1);
  head(0, 0) = -1;
  EXPECT_EQ(t(1, 2, 0, 0), -1);
  const TensorView<const float, 2> flat(x.data(), {3, 4});
  EXPECT_EQ(flat.matrix()(2, 3), 11);
}

TEST(View, EigenMatrices) {
  Eigen::MatrixXf columns(3, 4);
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows(3, 4);
  for (Index i = 0; i < 3; ++i)
    for (Index j = 0; j < 4; ++j) columns(i, j) = rows(i, j) = static_cast<float>(10 * i + j);
  const auto expect = [](const auto& v, Index n, Index m, float first) {
    ASSERT_EQ(v.dim(0), n);
    ASSERT_EQ(v.dim(1), m);
    for (Index i = 0; i < n; ++i)
      for (Index j = 0; j < m; ++j) EXPECT_EQ(v(i, j), first + static_cast<float>(10 * i + j));
  };
  expect(view(columns), 3, 4, 0);
  expect(view(rows), 3, 4, 0);
  expect(view(columns.block(1, 2, 2, 2)), 2, 2, 12);
  expect(view(rows.middleRows(1, 2)), 2, 4, 10);
  const Eigen::MatrixXf transposed = columns.transpose();
  expect(view(transposed.transpose()), 3, 4, 0);
  EXPECT_EQ(view(columns.row(2))(0, 3), 23);
  EXPECT_EQ(view(columns.col(3))(2, 0), 23);
  view(columns)(1, 1) = 5;  // no copy
  EXPECT_EQ(columns(1, 1), 5);
  static_assert(std::is_same_v<decltype(view(std::as_const(columns))), TensorView<const float, 2>>);
}

TEST(View, EigenTensors) {
  Eigen::Tensor<float, 3> columns(2, 3, 4);
  Eigen::Tensor<float, 3, Eigen::RowMajor> rows(2, 3, 4);
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 3; ++j)
      for (Index k = 0; k < 4; ++k) columns(i, j, k) = rows(i, j, k) = static_cast<float>(100 * i + 10 * j + k);
  for (Index i = 0; i < 2; ++i)
    for (Index j = 0; j < 3; ++j)
      for (Index k = 0; k < 4; ++k) {
        EXPECT_EQ(view(columns)(i, j, k), static_cast<float>(100 * i + 10 * j + k));
        EXPECT_EQ(view(rows)(i, j, k), static_cast<float>(100 * i + 10 * j + k));
      }
  EXPECT_EQ(view(columns).data(), columns.data());
  const Tensor<float, 3> packed(TensorView<const float, 3>(view(columns)));
  EXPECT_EQ(packed.data()[23], 123);
}

}  // namespace
}  // namespace attn
