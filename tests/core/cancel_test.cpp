// Cancelling a call from a hint, as on the examples' page: the program's own exception reaches the caller, and the
// executor serves the next call.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "attn/attn.h"
#include "support/executors.h"
#include "support/paths.h"

namespace attn::test {
namespace {

/// What the program throws: unrelated to the exceptions of attn and of the standard library.
struct Cancelled {
  int request;
};

/// Keeps every pair, and throws if `is_cancelled` when a call is about to compute a tile.
auto unless(const std::atomic<bool>& is_cancelled) {
  return mask_mod([](const Position&) { return true; },
                  [&](const Tile&) {
                    if (is_cancelled.load(std::memory_order_relaxed)) throw Cancelled{7};
                    return Coverage::all;
                  });
}

class Cancel : public ::testing::Test {
 protected:
  /// Counts tiles in its hint. From the 20th tile on, the hint waits until the call is cancelled, so that no call ends
  /// before.
  auto waiting() {
    return mask_mod([](const Position&) { return true; },
                    [this](const Tile&) {
                      if (++tiles >= 20)
                        while (!is_cancelled) std::this_thread::yield();
                      return Coverage::all;
                    });
  }

  /// Returns the number of tiles that a call with `mods` had begun when it returned or threw. Another thread cancels
  /// it while it runs.
  template <class Call>
  Index tiles_of_cancelled(const Call& call) {
    tiles = 0, is_cancelled = false;
    std::thread other([&] {
      while (tiles < 10) std::this_thread::yield();
      is_cancelled = true;
    });
    try {
      call();
    } catch (...) {
      other.join();
      is_cancelled = false;
      throw;
    }
    other.join();
    is_cancelled = false;
    return tiles;
  }

  Random random{1};
  Arguments<float> a{Inputs({2, 4, 2, 700, 800, 16, 16}, random)};
  const TensorView<const float, 4> q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
  const Computed<float> expected = flash(a, causal(), {.executor = serial()});
  const Index all_tiles = 2 * 4 * 700 / 48 * 6;  // fewer than a causal call computes
  std::atomic<bool> is_cancelled{false};
  std::atomic<Index> tiles{0};
};

TEST_F(Cancel, ThrowsToTheCallerAndTheExecutorServesTheNextCall) {
  for (const Executor& executor : {serial(), threads(2), eager_threads(3)}) {
    const Options options{.executor = executor};
    for (int repeat = 0; repeat < 5; ++repeat) {
      try {
        tiles_of_cancelled([&] { attention(q, k, v, causal() | waiting() | unless(is_cancelled), options); });
        ADD_FAILURE() << "nothing was thrown";
      } catch (const Cancelled& cancelled) {
        EXPECT_EQ(cancelled.request, 7);
      }
      EXPECT_LT(tiles, all_tiles / 2);
      ASSERT_TRUE(same_bits(expected, flash(a, causal() | unless(is_cancelled), options)));
    }
  }
}

TEST_F(Cancel, EveryCallThatTakesMasks) {
  const auto mods = causal() | unless(is_cancelled);
  const Options options{.executor = eager_threads(2)};
  const auto result = attention(q, k, v, mods, options);
  KvCache<float> cache({.batch = 2, .kv_heads = 2, .head_dim = 16});
  cache.append(k, v);
  const auto token = q.slice(2, 699, 700);
  MultiHeadAttention<float> layer({.embed_dim = 64, .heads = 4, .kv_heads = 2});
  const Tensor<float, 3> x({2, 20, 64});
  const Tensor<Index, 2> lists({700, 5});
  is_cancelled = true;
  EXPECT_THROW(layer(x, cache, mods, options), Cancelled);
  EXPECT_EQ(cache.length(0), 800);
  EXPECT_THROW(attention(q, k, v, strided_sparse(3) | mods, options), Cancelled);
  EXPECT_THROW(attention(q, k, v, select(lists) | mods, options), Cancelled);
  EXPECT_THROW(attention(q, k, v, mods, options), Cancelled);
  EXPECT_THROW(attention(token, k, v, mods, options), Cancelled);
  EXPECT_THROW(attention(token, cache, mods, options), Cancelled);
  EXPECT_THROW(attention_backward(q, q, k, v, result, mods, options), Cancelled);
  EXPECT_THROW(attention_jvp(q, k, v, q, k, v, mods, options), Cancelled);
  EXPECT_THROW(attention_mass(q, k, result.lse, mods, options), Cancelled);
  is_cancelled = false;
  EXPECT_TRUE(same_bits(expected, flash(a, mods, options)));
}

// For programs without exceptions: the rest of the call drops all pairs.
TEST_F(Cancel, ByDroppingTheRest) {
  const auto rest = mask_mod(
      [&](const Position&) { return !is_cancelled.load(std::memory_order_relaxed); },
      [&](const Tile&) { return is_cancelled.load(std::memory_order_relaxed) ? Coverage::none : Coverage::all; },
      [&](const Tile& tile) { return is_cancelled.load(std::memory_order_relaxed) ? Range{} : tile.kv; });
  const Options options{.executor = eager_threads(2)};
  const auto mods = causal() | waiting() | rest;
  EXPECT_LT(tiles_of_cancelled([&] { attention(q, k, v, mods, options); }), all_tiles / 2);
  EXPECT_TRUE(same_bits(expected, flash(a, causal() | rest, options)));
}

}  // namespace
}  // namespace attn::test
