// Additive attention takes memory that is linear in the lengths.
#include "attn/additive_backward.h"

#include <gtest/gtest.h>

#include "support/allocations.h"

namespace attn::test {
namespace {

/// Bytes that a forward and a backward call take at most, for so many queries and keys.
struct Peaks {
  std::ptrdiff_t forward, backward;
};
Peaks peaks(Index len) {
  const Index hidden = 32, dim = 16;
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;  // values are read in place
  const Rows q = Rows::Random(len, dim);
  const Eigen::MatrixXf weight = Eigen::MatrixXf::Random(hidden, dim);
  const Eigen::VectorXf w = Eigen::VectorXf::Random(hidden);
  const Options options{.executor = serial()};
  const AdditiveScore<float> score{weight, weight, w};
  Rows out(len, dim), grad_q(len, dim), grad_k(len, dim), grad_v(len, dim);
  Eigen::VectorXf lse(len);
  const std::ptrdiff_t forward =
      allocations_of([&] { additive_attention_into(out, lse, q, q, q, score, causal(), options); }).peak;
  const std::ptrdiff_t backward =
      allocations_of([&] {
        additive_attention_backward_into(grad_q, grad_k, grad_v, {}, out, q, q, q, score, out, lse, causal(), options);
      }).peak;
  return {forward, backward};
}

TEST(AdditiveMemory, IsLinearInTheLengths) {
  constexpr Index kLen = 2048;  // twice that are still one stretch of keys
  const Peaks once = peaks(kLen), twice = peaks(2 * kLen);
  // Queries and keys with 32 features each, and working memory that is the same for both.
  constexpr std::ptrdiff_t kRows = 2 * kLen * 32 * sizeof(float);
  EXPECT_GE(once.forward, kRows);
  EXPECT_LT(once.forward, kRows + 200 * 1024);
  EXPECT_LT(twice.forward - once.forward, kRows + 1024);
  // Besides, gradients of both, one of the queries and of what they add to the weights for each of eight parts of the
  // keys, and rows that attention_backward() prepares; all pairs would be 17 MB, and with their features 540 MB.
  EXPECT_LT(once.backward, 10 * 1024 * 1024);
  EXPECT_LT(twice.backward, once.backward * 21 / 10);
}

}  // namespace
}  // namespace attn::test
