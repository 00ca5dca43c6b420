// Single queries of many heads that share a key head: they are computed as the tiles of one head, over splits of keys.
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/random.h"

#include <gtest/gtest.h>

namespace attn::test {
namespace {

template <class T>
Tensor<T, 4> numbers(const Shape<4>& shape, Random& random) {
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(random.uniform(-1, 1));
  return t;
}

template <class A, class B>
double difference(const A& a, const B& b) {
  EXPECT_EQ(a.shape(), b.shape());
  double most = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double d = std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    most = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(most, d);
  }
  return most;
}

template <class A>
bool same(const A& a, const A& b) {
  return a.shape() == b.shape() && std::equal(a.data(), a.data() + a.size(), b.data());
}

/// Results of mods over keys of type K on all sets equal the naive path's, for any number of threads.
template <class T, class K, class M>
void expect_naive(Index heads, Index kv_heads, Index kv_len, const M& mods, double error, bool poisons = false) {
  Random random(3);
  // The matrix unit takes single queries over rows of whole registers.
  const Index head_dim = sizeof(T) == 2 ? 64 : 40, v_dim = sizeof(T) == 2 ? 32 : 24;
  const auto q = numbers<T>({2, heads, 1, head_dim}, random);
  auto k = numbers<K>({2, kv_heads, kv_len, head_dim}, random), v = numbers<K>({2, kv_heads, kv_len, v_dim}, random);
  if (poisons) v(1, 0, kv_len - 2, 7) = static_cast<K>(std::numeric_limits<float>::quiet_NaN());
  const auto want = naive_attention(q, k, v, mods);
  for (const Isa isa : sets_for<K>()) {
    SCOPED_TRACE(std::string(to_string(isa)) + ", " + std::to_string(kv_len) + " keys");
    const auto got = attention(q, k, v, mods, {.executor = serial(), .isa = isa});
    EXPECT_LE(difference(got.out, want.out), error);
    EXPECT_LE(difference(got.lse, want.lse), 4 * error);
    const auto threads = attention(q, k, v, mods, {.executor = eager_threads(5), .isa = isa});
    EXPECT_TRUE(same(got.out, threads.out) && same(got.lse, threads.lse));
  }
}

TEST(JoinedHeads, EqualTheNaivePath) {
  for (const Index kv_len : {1, 100, 2047, 2100, 5000}) {
    expect_naive<float, float>(128, 1, kv_len, causal(), 2e-6);
    expect_naive<double, double>(70, 2, kv_len, Mods<>(), 1e-14);
    expect_naive<float, Eigen::bfloat16>(33, 1, kv_len, softcap(2.0), 2e-6);
  }
  expect_naive<Eigen::half, Eigen::half>(40, 1, 2500, causal(), 1e-3);
}

/// Tiles of 32 heads on the matrix unit, and heads that do not fill such tiles.
TEST(JoinedHeads, MultiplyInBf16) {
  using Eigen::bfloat16;
  for (const Index kv_len : {1, 100, 2100}) {
    expect_naive<bfloat16, bfloat16>(64, 1, kv_len, causal(), 5e-3);
    expect_naive<bfloat16, bfloat16>(128, 2, kv_len, softcap(2.0), 5e-3);
    expect_naive<bfloat16, bfloat16>(40, 1, kv_len, Mods<>(), 5e-3);
  }
  const auto drops = mask_mod([](const Position& p) { return p.kv % 100 != 98 && p.kv != 2998; });
  expect_naive<bfloat16, bfloat16>(32, 1, 3000, drops, 5e-3, true);
  Tensor<Index, 4> lists({2, 1, 1, 2200});
  for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = i % 2200 * 2 + i / 2200;
  expect_naive<bfloat16, bfloat16>(64, 1, 5000, select(lists), 5e-3);
}

/// Splits of the keys do not lose what the rounding of their weights adds to the sums: here, nearly all weights are
/// e^-0.25, which bf16 rounds by 0.2 %.
TEST(JoinedHeads, AverageValuesByRoundedWeights) {
  using Eigen::bfloat16;
  Tensor<bfloat16, 4> q({1, 64, 1, 32}), k({1, 1, 4096, 32}), v({1, 1, 4096, 32});
  for (Index h = 0; h < 64; ++h) q(0, h, 0, 0) = bfloat16(1.0f);
  std::fill_n(v.data(), v.size(), bfloat16(30.0f));
  for (Index j = 0; j < 4096; ++j) k(0, 0, j, 0) = bfloat16(j % 64 == 0 ? 0.0f : -0.25f);
  Tensor<float, 4> out({1, 64, 1, 32});
  Tensor<float, 3> lse({1, 64, 1});
  attention_into(out, lse, q, k, v, {.scale = 1});
  for (Index i = 0; i < out.size(); ++i) EXPECT_NEAR(out.data()[i], 30, 1e-4f);
}

/// Mods see the head of each query, and keys that one head drops may be kept by another.
TEST(JoinedHeads, SeeTheirOwnMods) {
  const auto by_head = mask_mod([](const Position& p) { return (p.kv + p.head) % 3 != 0 && p.kv > 40 * p.head; });
  expect_naive<float, float>(64, 1, 3000, by_head, 2e-6);
  const auto slope = score_mod([](auto s, const Position& p) { return s - 0.01 * static_cast<double>(p.head); });
  expect_naive<double, double>(96, 2, 2200, slope | sliding_window(700), 1e-14);
}

/// A dropped value that is NaN does not reach a result, although its tile is computed.
TEST(JoinedHeads, IgnoreDroppedValues) {
  const auto drops = mask_mod([](const Position& p) { return p.kv % 100 != 98 && p.kv != 2998; });
  expect_naive<float, float>(48, 1, 3000, drops, 2e-6, true);
}

/// Sinks, sigmoids and results of earlier keys take single queries, which are not joined.
TEST(JoinedHeads, OrNot) {
  Random random(4);
  const auto q = numbers<double>({1, 32, 1, 16}, random), k = numbers<double>({1, 1, 2300, 16}, random);
  const std::vector<double> sink(32, 1.5);
  EXPECT_LE(difference(attention(q, k, k, sinks(sink)).out, naive_attention(q, k, k, sinks(sink)).out), 1e-14);
  const Options sigmoid{.normaliser = Normaliser::sigmoid(-5)};
  EXPECT_LE(difference(attention(q, k, k, sigmoid).out, naive_attention(q, k, k, sigmoid).out), 1e-12);
  const auto part = [&](Index begin, Index end) { return Tensor<double, 4>(k.view().slice(2, begin, end)); };
  const auto first = part(0, 1000), rest = part(1000, 2300);
  auto parts = attention(q, first, first);
  attention_into(parts.out, parts.lse, q, rest, rest, {.accumulate = true});
  EXPECT_LE(difference(parts.out, naive_attention(q, k, k).out), 1e-13);
}

/// Pages that split tiles are copied for all tiles of a head together, and results do not depend on them.
TEST(JoinedHeads, ReadPages) {
  Random random(5);
  const auto q = numbers<float>({2, 128, 1, 40}, random), rows = numbers<float>({2, 1, 2500, 40}, random);
  std::vector<Tensor<float, 4>> outs;
  for (const Index page : {16, 64, 2560}) {
    KvCaches<float> caches(
        {.layers = 1, .pages = 2 * (2560 / page), .page_size = page, .latent = {.rank = 32, .rope_dim = 8}});
    const std::vector<Index> both{caches.add(), caches.add()};
    auto step = caches.step(both, 2500);
    step.layer(0).append_latent(rows);
    step.commit();
    outs.push_back(attention(q, caches.view(0, both), causal(), {.executor = eager_threads(3)}).out);
    std::vector<std::byte> memory(workspace_bytes(q, caches.view(0, both), causal()));
    EXPECT_TRUE(same(attention(q, caches.view(0, both), causal(), {.workspace = memory}).out, outs.back()));
    EXPECT_TRUE(same(outs.back(), outs.front())) << page;
  }
  const auto want = naive_attention(q, rows, rows.view().slice(3, 0, 32), causal());
  EXPECT_LE(difference(outs.front(), want.out), 2e-6);
}

}  // namespace
}  // namespace attn::test
