// Concurrent calls may share what they only read: an executor, options, mods, a cache, its views, a layer, a feature
// map. Run under the thread sanitizer, this also finds hidden writes.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "attn/attn.h"
#include "support/random.h"

namespace attn::test {
namespace {

/// Makes the same call on four threads at once, several times, and expects the result of a later call on one thread. No
/// other call comes first, so that the threads race for everything that is initialised on first use.
template <class Call>
void expect_same_on_four_threads(const char* what, const Call& call) {
  std::vector<decltype(call())> results(40);
  std::atomic<std::size_t> waiting{4};
  std::vector<std::thread> callers;
  for (std::size_t caller = 0; caller < 4; ++caller)
    callers.emplace_back([&, caller] {
      --waiting;
      while (waiting > 0) std::this_thread::yield();
      for (std::size_t i = caller; i < results.size(); i += 4) results[i] = call();
    });
  for (std::thread& t : callers) t.join();
  const auto expected = call();
  for (const auto& got : results) {
    ASSERT_EQ(got.shape(), expected.shape()) << what;
    EXPECT_TRUE(std::equal(got.data(), got.data() + got.size(), expected.data())) << what;
  }
}

TEST(Sharing, ConcurrentCallsShareWhatTheyRead) {
  Random random(1);
  const auto q = drawn<float>({2, 4, 60, 16}, random, 1), k = drawn<float>({2, 2, 70, 16}, random, 1),
             v = drawn<float>({2, 2, 70, 16}, random, 1), token = drawn<float>({2, 4, 1, 16}, random, 1),
             grad_out = drawn<float>({2, 4, 60, 16}, random, 1);
  Tensor<Index, 2> lists({60, 7});
  for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = i * 37 % 70;
  const Options options{.executor = threads(2)};
  const auto attend = [&](const char* what, const auto& mods) {
    expect_same_on_four_threads(what, [&] { return attention(q, k, v, mods, options).out; });
  };
  attend("packed", documents_at({0, 20, 60}, {0, 50, 70}) | key_lengths({70, 60}) | dropout(0.1, 3));
  attend("ids", documents(std::vector<int>(70, 1)) | alibi({1, 0.5, 0.25, 0.125}));
  attend("grouped", strided_sparse(5));
  attend("lambda", mask_mod([&](const Position& p) { return lists(p.q % 60, 0) != p.kv; }) | softcap(5));

  // Gradients list the queries of each key, on first use.
  const auto result = attention(q, k, v, select(lists), options);
  for (int made = 0; made < 20; ++made) {
    const auto mods = select(lists);
    expect_same_on_four_threads("lists",
                                [&] { return attention_backward(grad_out, q, k, v, result, mods, options).key; });
  }

  const Rope rope({.head_dim = 16});
  KvCache<float> cache({.batch = 2, .kv_heads = 2, .head_dim = 16, .rope = rope});
  cache.append(k, v);
  expect_same_on_four_threads("cache", [&] { return attention(token, std::as_const(cache), causal(), options).out; });
  PagedKvCache<float> pages({.pages = 20, .page_size = 8, .kv_heads = 2, .head_dim = 16});
  const Index a = pages.add(), b = pages.fork(a);
  pages.append({a, b}, k, v);
  const auto view = pages.view({a, b});
  expect_same_on_four_threads("view", [&] { return attention(token, view, causal(), options).out; });
  expect_same_on_four_threads("views made by each caller", [&] {
    return attention(token, std::as_const(pages).view({b, a}), causal(), options).out;
  });

  MultiHeadAttention<float> layer({.embed_dim = 16, .heads = 4, .bias = true});
  layer.load("in_proj_weight", drawn<float, 2>({48, 16}, random, 1));
  layer.load("out_proj.weight", drawn<float, 2>({16, 16}, random, 1));
  const auto x = drawn<float, 3>({2, 30, 16}, random, 1);
  expect_same_on_four_threads("layer", [&] { return std::as_const(layer)(x, x, x, causal(), options).out; });

  const auto features = favor(32, 1);
  expect_same_on_four_threads("feature map",
                              [&] { return linear_attention(q, k, v, features, causal(), options).out; });
}

}  // namespace
}  // namespace attn::test
