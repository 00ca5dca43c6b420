// MultiHeadAttention's memory is linear in the length: what it takes from the heap is counted, all of it.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/allocations.h"

namespace attn::test {
namespace {

constexpr Index kBatch = 4, kEmbed = 64, kHeads = 8;

std::ptrdiff_t peak(Index len, const MultiHeadOptions& options) {
  const MultiHeadAttention<float> layer({.embed_dim = kEmbed, .heads = kHeads});
  const Tensor<float, 3> x({kBatch, len, kEmbed});
  layer(x, x, x, causal(), options);  // what is started once is started now
  return allocations_of([&] { layer(x, x, x, causal(), options); }).peak;
}

constexpr std::ptrdiff_t token_bytes(Index len) { return kBatch * len * kEmbed * Index(sizeof(float)); }
constexpr std::ptrdiff_t score_bytes(Index len) { return kBatch * kHeads * len * len * Index(sizeof(float)); }

// A tile of the flash path for each worker: 19 kB with one and 58 kB with three were measured at both lengths. An
// eighth of one copy of the tokens, so that a needless copy is seen.
constexpr std::ptrdiff_t kConstant = 256 * 1024;
static_assert(kConstant == token_bytes(2048) / 8);

TEST(MultiHeadMemory, HoldsProjectionsAndHeadsAtMost) {
  for (const Executor& executor : {serial(), threads(3)}) {
    const MultiHeadOptions options{.attention = {.executor = executor}};
    const std::ptrdiff_t half = peak(1024, options), whole = peak(2048, options);
    // Queries, keys and values, and the results of the heads; the layer's result comes when the first three are gone.
    EXPECT_LE(whole, 4 * token_bytes(2048) + kConstant);
    EXPECT_LE(whole, 2 * half + kConstant);
    EXPECT_LT(whole, score_bytes(2048) / 16);
  }
}

TEST(MultiHeadMemory, WeightsTakeAllPairs) {
  // The negative control: the same count sees the weights.
  EXPECT_GE(peak(512, {.weights = true, .attention = {.executor = serial()}}), score_bytes(512));
}

}  // namespace
}  // namespace attn::test
