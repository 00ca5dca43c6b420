// Errors of linear maps and their messages.
#include "attn/linear.h"

#include <gtest/gtest.h>

#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

TEST(LinearErrors, RefusesWrongSizes) {
  const RowMajor<float> x(7, 11), weight(13, 11), grad_y(7, 13);
  RowMajor<float> y(7, 13), grad_x(7, 11), grad_weight(13, 11);
  Eigen::VectorXf bias(13), grad_bias(13);
  const Eigen::VectorXf long_bias(14);
  expect_refused("inputs", {"weight has shape (13, 12)", "x has 11 features", "y has 13"},
                 [&] { linear_into(y, x, RowMajor<float>(13, 12)); });
  expect_refused("outputs", {"weight has shape (17, 11)", "x has 11 features", "y has 13"},
                 [&] { linear_into(y, x, RowMajor<float>(17, 11), bias); });
  expect_refused("tokens", {"x has 9", "y has 7"}, [&] { linear_into(y, RowMajor<float>(9, 11), weight); });
  expect_refused("bias", {"bias has 14 elements", "13 outputs"}, [&] { linear_into(y, x, weight, long_bias); });
  expect_refused("a transposed weight", {"(11, 13)"}, [&] { linear_into(y, x, RowMajor<float>(weight.transpose())); });
  expect_refused("inputs of a gradient", {"weight has shape (13, 12)", "grad_x has 11 features", "grad_y has 13"},
                 [&] { linear_gradient_into(grad_x, grad_y, RowMajor<float>(13, 12)); });
  expect_refused("tokens of a gradient", {"grad_x has 7", "grad_y has 9"},
                 [&] { linear_gradient_into(grad_x, RowMajor<float>(9, 13), weight); });
  RowMajor<float> wide(13, 12);
  expect_refused("a gradient's shape", {"(13, 12)", "x has 11 features", "grad_y has 13"},
                 [&] { add_linear_gradients(wide, grad_bias, x, grad_y); });
  expect_refused("a gradient's shape", {"(13, 12)", "x has 11 features", "grad_y has 13"},
                 [&] { add_linear_gradients(wide, x, grad_y); });
  expect_refused("a bias's gradient", {"bias has 14 elements", "13 outputs"}, [&] {
    Eigen::VectorXf b(14);
    add_linear_gradients(grad_weight, b, x, grad_y);
  });
  expect_refused("tokens of a gradient", {"x has 7", "grad_y has 8"},
                 [&] { add_linear_gradients(grad_weight, x, RowMajor<float>(8, 13)); });
}

TEST(LinearErrors, RefusesOverlaps) {
  RowMajor<float> x = RowMajor<float>::Ones(4, 4), y = x, weight = x, grad_weight = x;
  Eigen::VectorXf bias = Eigen::VectorXf::Ones(4), grad_bias = bias;
  Eigen::Map<RowMajor<float>> halves(x.data(), 2, 4), others(x.data() + 8, 2, 4), across(x.data() + 4, 2, 4);
  expect_refused("x", {"y of shape (4, 4) overlaps x of shape (4, 4)", "y needs its own memory"},
                 [&] { linear_into(x, x, weight); });
  expect_refused("some rows of x", {"y of shape (2, 4) overlaps x"},
                 [&] { linear_into(across, halves, weight, bias); });
  expect_refused("weight", {"y of shape", "overlaps weight"}, [&] { linear_into(weight, x, weight, bias); });
  expect_refused("bias", {"y of shape (1, 4) overlaps bias of shape (4)"},
                 [&] { linear_into(Eigen::Map<RowMajor<float>>(bias.data(), 1, 4), x.topRows(1), weight, bias); });
  expect_refused("grad_y", {"grad_x of shape", "overlaps grad_y"}, [&] { linear_gradient_into(y, y, weight); });
  expect_refused("weight", {"grad_x of shape", "overlaps weight"}, [&] { linear_gradient_into(weight, y, weight); });
  expect_refused("x", {"grad_weight of shape", "overlaps x"}, [&] { add_linear_gradients(x, grad_bias, x, y); });
  expect_refused("grad_y", {"grad_weight of shape", "overlaps grad_y"}, [&] { add_linear_gradients(y, x, y); });
  expect_refused("grad_bias", {"grad_weight of shape (4, 4) overlaps grad_bias of shape (4)"},
                 [&] { add_linear_gradients(grad_weight, Eigen::Map<Eigen::VectorXf>(grad_weight.data(), 4), x, y); });
  EXPECT_TRUE((x.array() == 1).all() && (y.array() == 1).all() && (weight.array() == 1).all());
  EXPECT_TRUE((grad_weight.array() == 1).all() && (bias.array() == 1).all());
  linear_into(others, halves, weight, bias);
  EXPECT_EQ(x(3, 3), 5);
}

TEST(LinearErrors, RefusesRowsWithGaps) {
  const RowMajor<float> x(7, 11), weight(13, 11), wide = RowMajor<float>::Zero(20, 20), grad_y(7, 13);
  RowMajor<float> y(7, 13), out = wide, grad_x(7, 11), grad_weight(13, 11);
  const Said gaps{"strides", "must be contiguous"};
  const auto said = [&](std::string name, std::string shape) {
    Said all = gaps;
    all.push_back(name + " of shape " + shape);
    return all;
  };
  expect_refused("x", said("x", "(1, 7, 11)"), [&] { linear_into(y, wide.topLeftCorner(7, 11), weight); });
  expect_refused("y", said("y", "(1, 7, 13)"), [&] { linear_into(out.topLeftCorner(7, 13), x, weight); });
  expect_refused("weight", said("weight", "(1, 13, 11)"), [&] { linear_into(y, x, wide.topLeftCorner(13, 11)); });
  expect_refused("columns", said("x", "(1, 7, 11)"), [&] { linear_into(y, Eigen::MatrixXf(7, 11), weight); });
  expect_refused("grad_y", said("grad_y", "(1, 7, 13)"),
                 [&] { linear_gradient_into(grad_x, wide.topLeftCorner(7, 13), weight); });
  expect_refused("grad_weight", said("grad_weight", "(1, 13, 11)"),
                 [&] { add_linear_gradients(out.topLeftCorner(13, 11), x, grad_y); });
  Eigen::VectorXf bias(26);
  expect_refused("bias", {"bias has a stride of 2", "must be contiguous"}, [&] {
    linear_into(y, x, weight, Eigen::Map<Eigen::VectorXf, 0, Eigen::InnerStride<2>>(bias.data(), 13));
  });
}

}  // namespace
}  // namespace attn::test
