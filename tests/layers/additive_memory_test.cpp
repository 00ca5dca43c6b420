// Memory of additive attention, which is linear in the lengths.
#include "attn/additive_backward.h"

#include <gtest/gtest.h>

#include "attn/mods.h"
#include "support/allocations.h"
#include "support/refused.h"

namespace attn::test {
namespace {

/// Peak bytes of a forward and a backward call.
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
  constexpr Index kLen = 2048;  // twice as many keys still fit one stretch
  const Peaks once = peaks(kLen), twice = peaks(2 * kLen);
  // Projected queries and keys with 32 features each, plus constant working memory.
  constexpr std::ptrdiff_t kRows = 2 * kLen * 32 * sizeof(float);
  EXPECT_GE(once.forward, kRows);
  EXPECT_LT(once.forward, kRows + 200 * 1024);
  EXPECT_LT(twice.forward - once.forward, kRows + 1024);
  // In addition: gradients of both, gradients of queries and weights for each of eight parts of the keys, and the rows
  // that attention_backward() prepares. All pairs would take 17 MB, and 540 MB with their features.
  EXPECT_LT(once.backward, 10 * 1024 * 1024);
  EXPECT_LT(twice.backward, once.backward * 21 / 10);
}

/// With a workspace of exactly the reported size, a call allocates copies of the parameters and the working memory of
/// linear maps, but not the 80 kB of projected queries or keys.
TEST(AdditiveMemory, UsesTheWorkspace) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Index len = 500, hidden = 40;
  const Rows q = Rows::Random(len, 12), k = Rows::Random(len, 9), own = Rows::Random(len, hidden);
  const Eigen::MatrixXf query_weight = Eigen::MatrixXf::Random(hidden, 12),
                        key_weight = Eigen::MatrixXf::Random(hidden, 9);
  const Eigen::VectorXf w = Eigen::VectorXf::Random(hidden);
  const auto check = [&](const Rows& key, const AdditiveScore<float>& score, const auto& mods) {
    Options options{.executor = serial()};
    const auto want = additive_attention(q, key, k, score, mods, options);
    const std::size_t bytes = additive_workspace_bytes(q, key, k, score, mods, options);
    EXPECT_EQ(static_cast<std::size_t>(explain_additive(q, key, k, score, mods, options).workspace_bytes), bytes);
    std::vector<std::byte> memory(bytes + 64, std::byte{0x5a});
    Rows out(len, 9);
    Eigen::VectorXf lse(len);
    for (const std::size_t shift : {std::size_t(0), std::size_t(17)}) {
      options.workspace = std::span(memory).subspan(shift, bytes);
      const std::ptrdiff_t peak =
          allocations_of([&] { additive_attention_into(out, lse, q, key, k, score, mods, options); }).peak;
      EXPECT_LT(peak, 64 * 1024);
      EXPECT_TRUE(out == want.out && lse == want.lse);
      for (std::size_t i = bytes + shift; i < memory.size(); ++i) EXPECT_EQ(memory[i], std::byte{0x5a});
    }
    options.workspace = std::span(memory).first(bytes - 1);
    expect_refused("a byte less", {std::to_string(bytes), std::to_string(bytes - 1)},
                   [&] { additive_attention_into(out, lse, q, key, k, score, mods, options); });
  };
  check(k, {query_weight, key_weight, w}, causal());
  check(own, {query_weight, {}, w}, strided_sparse(9));
}

TEST(AdditiveMemory, IsExplained) {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Random(200, 16);
  const Eigen::VectorXf w = Eigen::VectorXf::Random(16);
  const Explanation e = explain_additive(q, q, q, {{}, {}, w}, causal(), {.executor = serial(), .isa = Isa::generic});
  EXPECT_EQ(e.isa, Isa::generic);
  EXPECT_EQ(e.amx, Amx::unsupported);
  EXPECT_EQ(e.threads, 1);
  EXPECT_GT(e.skipped_tiles, 0);
  EXPECT_EQ(e.skipped_tiles, explain(q, q, q, causal(), {.executor = serial(), .isa = Isa::generic}).skipped_tiles);
  EXPECT_EQ(explain_additive(q, q, q, {{}, {}, w}, {.isa = Isa::generic}).skipped_tiles, 0);
}

}  // namespace
}  // namespace attn::test
