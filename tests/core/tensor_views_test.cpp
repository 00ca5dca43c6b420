// Views derived from views: sizes, strides, and errors.
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <type_traits>
#include <vector>

#include "attn/tensor.h"
#include "support/refused.h"

namespace attn {
namespace {

using test::expect_refused;

Tensor<float, 3> counted() {
  Tensor<float, 3> t({2, 3, 4});
  std::iota(t.data(), t.data() + t.size(), 0.f);
  return t;
}

TEST(TensorViews, Reshape) {
  const Tensor<float, 3> t = counted();
  const TensorView<const float, 2> flat = t.reshape(6, 4);
  EXPECT_EQ(flat.shape(), (Shape<2>{6, 4}));
  EXPECT_EQ(flat(4, 1), 17);
  EXPECT_EQ(flat.data(), t.data());
  EXPECT_EQ(t.reshape(24)(23), 23);
  EXPECT_EQ(t.reshape(-1)(23), 23);
  EXPECT_EQ(t.reshape(2, -1, 2).shape(), (Shape<3>{2, 6, 2}));
  EXPECT_EQ(t.reshape(2, 3, 2, -1, 1).shape(), (Shape<5>{2, 3, 2, 2, 1}));
  EXPECT_EQ(t.slice(0, 1, 2).reshape(12)(0), 12);  // contiguous, although a part
  const Tensor<float, 2> empty({0, 5});
  EXPECT_EQ(empty.reshape(5, 0, 2).size(), 0);
  EXPECT_EQ(empty.reshape(3, -1).shape(), (Shape<2>{3, 0}));

  expect_refused("other number", {"(2, 3, 4)", "(5, 5)", "24", "25"}, [&] { t.reshape(5, 5); });
  expect_refused("no multiple", {"(2, 3, 4)", "(5, -1)", "24", "5"}, [&] { t.reshape(5, -1); });
  expect_refused("nothing left over", {"(0, -1)", "0"}, [&] { empty.reshape(0, -1); });
  expect_refused("two of -1", {"(-1, -1)"}, [&] { t.reshape(-1, -1); });
  expect_refused("negative", {"(-2, -12)"}, [&] { t.reshape(-2, -12); });
  const Index big = Index(1) << 62;
  expect_refused("overflow", {std::to_string(big)}, [&] { t.reshape(big, 8, 3); });
  expect_refused("overflow to 0", {std::to_string(big)}, [&] { empty.reshape(big, 4); });
  expect_refused("not contiguous", {"(2, 4, 3)", "(12, 1, 4)"}, [&] { t.transpose(1, 2).reshape(24); });
}

TEST(TensorViews, Slice) {
  Tensor<float, 3> t = counted();
  const TensorView<float, 3> s = t.slice(1, 1, 3);
  EXPECT_EQ(s.shape(), (Shape<3>{2, 2, 4}));
  EXPECT_EQ(s(1, 0, 2), 18);
  s(0, 1, 3) = -1;
  EXPECT_EQ(t(0, 2, 3), -1);
  EXPECT_EQ(t.slice(2, 0, 4).shape(), t.shape());
  EXPECT_EQ(t.slice(0, 2, 2).shape(), (Shape<3>{0, 3, 4}));
  EXPECT_EQ(t.slice(2, 1, 2).slice(0, 1, 2)(0, 2, 0), 21);
  expect_refused("beyond the end", {"dimension 1", "(2, 3, 4)", "3", "4"}, [&] { t.slice(1, 0, 4); });
  expect_refused("before the beginning", {"-1"}, [&] { t.slice(1, -1, 2); });
  expect_refused("backwards", {"2", "1"}, [&] { t.slice(1, 2, 1); });
  expect_refused("dimension", {"slice", "3", "0..2", "(2, 3, 4)"}, [&] { t.slice(3, 0, 1); });
  expect_refused("dimension", {"-1", "0..2"}, [&] { t.slice(-1, 0, 1); });
}

TEST(TensorViews, SelectSqueezeUnsqueeze) {
  Tensor<float, 3> t = counted();
  const TensorView<float, 2> row = t.select(0, 1);
  EXPECT_EQ(row.shape(), (Shape<2>{3, 4}));
  EXPECT_EQ(row(2, 3), 23);
  EXPECT_EQ(t.select(1, 2)(1, 0), 20);
  EXPECT_EQ(t.select(2, 3).select(0, 0)(1), 7);
  const auto wide = t.unsqueeze(1);
  EXPECT_EQ(wide.shape(), (Shape<4>{2, 1, 3, 4}));
  EXPECT_EQ(wide(1, 0, 2, 3), 23);
  EXPECT_TRUE(wide.is_contiguous());
  EXPECT_EQ(t.unsqueeze(0).shape(), (Shape<4>{1, 2, 3, 4}));
  EXPECT_EQ(t.unsqueeze(3).shape(), (Shape<4>{2, 3, 4, 1}));
  EXPECT_EQ(t.unsqueeze(3)(1, 0, 2, 0), 14);
  EXPECT_EQ(wide.squeeze(1).shape(), t.shape());
  EXPECT_EQ(wide.squeeze(1).strides(), t.view().strides());
  expect_refused("element", {"dimension 0", "(2, 3, 4)", "2"}, [&] { t.select(0, 2); });
  expect_refused("element", {"-1"}, [&] { t.select(0, -1); });
  expect_refused("squeeze", {"dimension 1", "(2, 3, 4)", "3"}, [&] { t.squeeze(1); });
  expect_refused("dimension", {"squeeze", "3", "0..2"}, [&] { t.squeeze(3); });
  expect_refused("dimension", {"unsqueeze", "4", "0..3"}, [&] { t.unsqueeze(4); });
  const Tensor<float, 2> empty({0, 5});
  expect_refused("nothing to select", {"(0, 5)", "0"}, [&] { empty.select(0, 0); });
  EXPECT_EQ(empty.select(1, 4).size(), 0);
}

TEST(TensorViews, TransposeAndPermute) {
  const Tensor<float, 3> t = counted();
  const auto transposed = t.transpose(0, 2);
  EXPECT_EQ(transposed.shape(), (Shape<3>{4, 3, 2}));
  EXPECT_EQ(transposed(3, 2, 1), 23);
  EXPECT_EQ(transposed(1, 0, 0), 1);
  EXPECT_EQ(t.transpose(1, 1).strides(), t.view().strides());
  const auto moved = t.permute(2, 0, 1);
  EXPECT_EQ(moved.shape(), (Shape<3>{4, 2, 3}));
  EXPECT_EQ(moved(3, 1, 0), 15);
  EXPECT_EQ(moved.permute(1, 2, 0).strides(), t.view().strides());
  // PyTorch's idiom for heads.
  const auto heads = t.reshape(2, 3, 2, 2).permute(0, 2, 1, 3), as_bshd = bshd(t.data(), 2, 3, 2, 2);
  EXPECT_EQ(heads.shape(), as_bshd.shape());
  EXPECT_EQ(heads.strides(), as_bshd.strides());
  expect_refused("dimension", {"transpose", "3", "0..2"}, [&] { t.transpose(0, 3); });
  expect_refused("dimension", {"permute", "-1", "0..2"}, [&] { t.permute(0, 1, -1); });
  expect_refused("twice", {"dimension 1", "(2, 3, 4)", "twice"}, [&] { t.permute(0, 1, 1); });
}

TEST(TensorViews, AnyStrides) {
  const Tensor<float, 3> t = counted();
  const TensorView<const float, 3> back(t.data() + 23, {2, 3, 4}, {-12, -4, -1});
  EXPECT_EQ(back.slice(1, 1, 3)(0, 0, 0), 19);
  EXPECT_EQ(back.select(2, 3)(1, 2), 0);
  const TensorView<const float, 3> repeated(t.data(), {2, 3, 4}, {0, 4, 1});
  EXPECT_EQ(repeated.select(0, 1)(1, 1), 5);
}

TEST(TensorViews, ConvertToEigen) {
  Tensor<float, 2> t({2, 3});
  for (Index i = 0; i < 6; ++i) t.data()[i] = static_cast<float>(i);
  const auto v = t.view();
  Eigen::MatrixXf want(2, 3);
  want << 0, 1, 2, 3, 4, 5;
  const Eigen::MatrixXf of_view = v, of_tensor = t, direct(v);
  const Eigen::Matrix<float, 2, 3, Eigen::RowMajor> fixed = v;
  const Eigen::ArrayXXf array = v;
  Eigen::MatrixXf assigned;
  assigned = v;
  for (const Eigen::MatrixXf& m : {of_view, of_tensor, direct, assigned, Eigen::MatrixXf(fixed)}) EXPECT_EQ(m, want);
  EXPECT_EQ(array.matrix(), want);
  const Eigen::MatrixXf transposed = v.transpose(0, 1);
  EXPECT_EQ(transposed, want.transpose());
  // Vectors of rank 1, and of rank 2 with one row or column, become rows or columns.
  const Eigen::VectorXf column = v.select(1, 2), row_as_column = v.slice(0, 1, 2);
  const Eigen::RowVector3f row = v.select(0, 1), column_as_row = v.transpose(0, 1).slice(1, 1, 2);
  EXPECT_EQ(column, want.col(2));
  EXPECT_EQ(row, want.row(1));
  EXPECT_EQ(row_as_column, want.row(1).transpose());
  EXPECT_EQ(column_as_row, want.row(1));
  EXPECT_EQ(Eigen::MatrixXf(v.slice(0, 0, 0)).cols(), 3);
#ifndef ATTN_NO_EXCEPTIONS
  EXPECT_THROW((Eigen::VectorXf(v)), std::invalid_argument);
  EXPECT_THROW((Eigen::Vector2f(v.select(0, 0))), std::invalid_argument);
  EXPECT_THROW((Eigen::Matrix2f(v)), std::invalid_argument);
  using AtMostTwo = Eigen::Matrix<float, Eigen::Dynamic, 1, 0, 2, 1>;
  EXPECT_EQ(AtMostTwo(v.select(1, 0)).size(), 2);
  EXPECT_THROW((AtMostTwo(v.select(0, 0))), std::invalid_argument);
#endif
}

TEST(TensorViews, ArePrinted) {
  Tensor<int, 4> t({2, 1, 2, 2});
  for (int i = 0; i < 8; ++i) t.data()[i] = i;
  const auto text = [](const auto& x) {
    std::ostringstream out;
    out << x;
    return out.str();
  };
  EXPECT_EQ(text(t), "[0, 0]\n0 1\n2 3\n[1, 0]\n4 5\n6 7");
  EXPECT_EQ(text(t.select(1, 0)), "[0]\n0 1\n2 3\n[1]\n4 5\n6 7");
  EXPECT_EQ(text(t.select(0, 1).select(0, 0)), "4 5\n6 7");
  EXPECT_EQ(text(t.select(0, 1).select(0, 0).select(0, 1)), "6 7");
}

template <class X>
concept Sliceable = requires(X&& x) {
  std::forward<X>(x).slice(0, 0, 1);
};
template <class X>
concept Reshapeable = requires(X&& x) {
  std::forward<X>(x).reshape(4);
};

// Views of temporaries do not compile: compile_fail/slice_of_temporary.
TEST(TensorViews, AreWritableWhereTheTensorIs) {
  static_assert(Sliceable<Tensor<float, 2>&> && Sliceable<const Tensor<float, 2>&>);
  static_assert(Reshapeable<Tensor<float, 2>&>);
  static_assert(Sliceable<TensorView<float, 2>>);  // does not own its elements
  static_assert(
      std::is_same_v<decltype(std::declval<const Tensor<float, 2>&>().slice(0, 0, 1)), TensorView<const float, 2>>);
  static_assert(std::is_same_v<decltype(std::declval<Tensor<float, 2>&>().permute(1, 0)), TensorView<float, 2>>);
}

}  // namespace
}  // namespace attn
