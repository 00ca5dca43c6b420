// MultiHeadAttention's memory is linear in the length. The tests count all heap allocations.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "attn/attn.h"
#include "support/allocations.h"
#include "support/executors.h"

namespace attn::test {
namespace {

constexpr Index kBatch = 4, kEmbed = 64, kHeads = 8;

std::ptrdiff_t peak(Index len, const MultiHeadOptions& options) {
  const MultiHeadAttention<float> layer({.embed_dim = kEmbed, .heads = kHeads});
  const Tensor<float, 3> x({kBatch, len, kEmbed});
  layer(x, x, x, causal(), options);  // warm-up: one-time initialisation
  return allocations_of([&] { layer(x, x, x, causal(), options); }).peak;
}

constexpr std::ptrdiff_t token_bytes(Index len) { return kBatch * len * kEmbed * Index(sizeof(float)); }
constexpr std::ptrdiff_t score_bytes(Index len) { return kBatch * kHeads * len * len * Index(sizeof(float)); }

// A tile of the flash path per worker: 19 kB with one and 58 kB with three workers were measured at both lengths. The
// limit is an eighth of the size of a tensor of all tokens, so that one more live tensor at the peak fails the test.
constexpr std::ptrdiff_t kConstant = 256 * 1024;
static_assert(kConstant == token_bytes(2048) / 8);

TEST(MultiHeadMemory, HoldsAtMostProjectionsAndHeads) {
  for (const Executor& executor : {serial(), eager_threads(3)}) {
    const MultiHeadOptions options{.attention = {.executor = executor}};
    const std::ptrdiff_t half = peak(1024, options), whole = peak(2048, options);
    // Queries, keys and values, and the results of the heads; the layer's result is allocated after the first three are
    // freed.
    EXPECT_LE(whole, 4 * token_bytes(2048) + kConstant);
    EXPECT_LE(whole, 2 * half + kConstant);
    EXPECT_LT(whole, score_bytes(2048) / 16);
  }
}

/// A copy of the input would be freed before the peak, so the test counts allocations.
TEST(MultiHeadMemory, OnlyInputsWithGapsAreCopied) {
  const MultiHeadAttention<float> layer({.embed_dim = kEmbed, .heads = kHeads});
  const Tensor<float, 3> memory({kBatch, 20, kEmbed});
  const TensorView<const float, 3> packed(memory.data(), {kBatch, 10, kEmbed});
  const TensorView<const float, 3> gaps(memory.data(), {kBatch, 10, kEmbed}, {20 * kEmbed, 2 * kEmbed, 1});
  const auto calls = [&](const auto& x) {
    const MultiHeadOptions options{.attention = {.executor = serial()}};
    return allocations_of([&] { layer(x, x, x, causal(), options); }).calls;
  };
  calls(packed);  // warm-up: one-time initialisation
  EXPECT_EQ(calls(gaps), calls(packed) + 1);
}

/// Both paths give the same results, so only their memory tells which one ran: the naive one holds all pairs of a head.
TEST(MultiHeadMemory, DiffersBetweenPaths) {
  const std::ptrdiff_t flash = peak(512, {.attention = {.executor = serial()}});
  const std::ptrdiff_t naive = peak(512, {.path = Path::naive, .attention = {.executor = serial()}});
  EXPECT_GE(naive, flash + score_bytes(512) / (kBatch * kHeads) - kConstant);
}

std::ptrdiff_t peak_of_backward(Index len, const MultiHeadOptions& options) {
  MultiHeadAttention<float> layer({.embed_dim = kEmbed, .heads = kHeads});
  const Tensor<float, 3> x({kBatch, len, kEmbed});
  const auto kept = layer(x, x, x, causal(), {.keep = true});
  layer.backward(x, x, x, x, kept, causal(), options);  // allocates the gradients of parameters
  return allocations_of([&] { layer.backward(x, x, x, x, kept, causal(), options); }).peak;
}

TEST(MultiHeadMemory, OfBackwardIsLinear) {
  const MultiHeadOptions options{.attention = {.executor = serial()}};
  const std::ptrdiff_t half = peak_of_backward(1024, options), whole = peak_of_backward(2048, options);
  // Gradients of the three projections and of the three inputs. Before the latter are allocated, the heads' backward
  // pass has ended and has freed the gradient of the heads' results and its working memory, the documented size for one
  // group of heads.
  EXPECT_LE(whole, 6 * token_bytes(2048) + 4 * kConstant);
  EXPECT_LE(whole, 2 * half + kConstant);
  EXPECT_LT(whole, score_bytes(2048) / 16);
}

/// Without backward() calls, gradients take no memory.
TEST(MultiHeadMemory, GradientsAreAllocatedByTheFirstBackward) {
  MultiHeadAttention<float> layer({.embed_dim = kEmbed, .heads = kHeads});
  const Tensor<float, 3> x({1, 8, kEmbed});
  const auto in_use_after = [&](const auto& call) { return allocations_of(call).in_use; };
  const auto forward = [&] { return layer(x, x, x, {.keep = true}); };
  const auto kept = forward();
  constexpr std::ptrdiff_t kParameters = (4 * kEmbed * kEmbed + 4 * kEmbed) * Index(sizeof(float));
  const auto backward = [&] { layer.backward(x, x, x, x, kept); };
  EXPECT_EQ(in_use_after([&] { forward(), layer.zero_gradients(); }), 0);
  const std::ptrdiff_t first = in_use_after(backward);
  EXPECT_GE(first, kParameters);
  EXPECT_LT(first, kParameters + 8192);  // names
  EXPECT_EQ(in_use_after([&] { backward(), layer.zero_gradients(); }), 0);
}

/// If any allocation fails, backward() adds no gradients of the parameters or of the mods.
TEST(MultiHeadMemory, FailedBackwardAddsNothing) {
  if (!memory_can_run_out()) GTEST_SKIP() << "sanitizers replace the heap, so allocations cannot be made to fail";
  const Rope rope({.head_dim = 8});
  for (const bool gaps : {false, true})
    for (const Path path : {Path::flash, Path::naive}) {
      MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 2, .key_dim = gaps ? 12 : 16, .rope = rope});
      Tensor<float, 3> memory({2, 10, 16}), grad({2, 5, 16});
      for (Index i = 0; i < memory.size(); ++i) memory.data()[i] = static_cast<float>(i % 7) / 4;
      for (Index i = 0; i < grad.size(); ++i) grad.data()[i] = static_cast<float>(i % 5) / 4;
      const TensorView<const float, 3> x(memory.data(), {2, 5, 16}, {160, gaps ? 32 : 16, 1});
      const auto key = x.slice(2, 0, gaps ? 12 : 16);
      const MultiHeadOptions options{.path = path, .attention = {.executor = serial()}};
      Tensor<float, 2> table({5, 5}), grad_table({5, 5});
      Tensor<double, 1> grad_sinks({2});
      const auto mods = causal() | bias(table, grad_table) | sinks({0.5, 0.25}, grad_sinks);
      const auto kept = layer(x, key, x, mods, {.keep = true, .attention = {.executor = serial()}});
      const auto backward = [&] { layer.backward(grad, x, key, x, kept, mods, options); };
      const auto gradients = [&] {  // the gradients of the mods come first
        std::vector<float> all(grad_table.data(), grad_table.data() + grad_table.size());
        for (Index h = 0; h < 2; ++h) all.push_back(static_cast<float>(grad_sinks(h)));
        layer.for_each_parameter(
            [&](const auto&, const auto&, const auto& g) { all.insert(all.end(), g.begin(), g.end()); });
        return all;
      };
      std::ptrdiff_t first = 0;
      for (; runs_out(first, backward); ++first)
        for (const float g : gradients()) ASSERT_EQ(g, 0) << first;
      EXPECT_GT(first, 5);
      const std::vector<float> before = gradients();
      EXPECT_GT(std::count_if(before.begin(), before.end(), [](float g) { return g != 0; }), 0);
      std::ptrdiff_t count = 0;
      for (; runs_out(count, backward); ++count) ASSERT_EQ(gradients(), before) << count;
      EXPECT_GT(count, 5);
      EXPECT_NE(gradients(), before);
    }
}

TEST(MultiHeadMemory, WeightsTakeMemoryForAllPairs) {
  // Control: the same measurement does show the weights.
  EXPECT_GE(peak(512, {.weights = true, .attention = {.executor = serial()}}), score_bytes(512));
}

}  // namespace
}  // namespace attn::test
