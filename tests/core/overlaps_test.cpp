// Outputs that share memory with what a call reads, or with each other, are refused; those that lie between are not.
#include <algorithm>
#include <span>
#include <vector>

#include "support/refused.h"

namespace attn::test {
namespace {

TEST(Overlaps, PartsBetweenOthersDoNot) {
  // Query, key, value and room for the output in one row of memory for each token: nothing is shared.
  auto rows = tensor({1, 5, 4, 8});
  const auto all = rows.view();
  for (Index i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(i % 11) / 8;
  const auto part = [&](Index i) { return all.slice(2, i, i + 1).transpose(1, 2); };
  const Tensor<float, 4> expected = attention(part(0), part(1), part(2)).out;
  attention_into(part(3), part(0), part(1), part(2));
  EXPECT_TRUE(std::ranges::equal(std::span(expected.data(), 40), std::span(Tensor<float, 4>(part(3)).data(), 40)));
  expect_refused("one of them", {"key"}, [&] { attention_into(part(1), part(0), part(1), part(2)); });
}

// An output of 4 x 20 numbers and a query of 4 x 2, in one piece of memory.
TEST(Overlaps, FromAnySide) {
  std::vector<float> memory(300);
  const auto k = tensor({1, 1, 3, 2}), v = tensor({1, 1, 3, 20});
  const auto call = [&](Index out, Index query, Index step = 1) {
    const TensorView<float, 4> to(memory.data() + out, {1, 1, 4, 20}, {0, 0, 20 * step, step});
    attention_into(to, bhsd(memory.data() + query, 1, 1, 4, 2), k, v);
  };
  const auto refused = [&](const char* what, Index out, Index query, Index step = 1) {
    expect_refused(what, {"(1, 1, 4, 20)", "query", "(1, 1, 4, 2)"}, [&] { call(out, query, step); });
  };
  refused("around the query", 100, 140);
  refused("the query's end in front", 100, 93);
  refused("its begin behind", 100, 179);
  refused("backwards, around it", 179, 140, -1);
  refused("backwards, its end", 179, 93, -1);
  EXPECT_NO_THROW(call(100, 92));
  EXPECT_NO_THROW(call(100, 180));
  EXPECT_NO_THROW(call(179, 92, -1));
  EXPECT_NO_THROW(call(179, 180, -1));
  // Every third number is the output's: the query's rows lie there, or between.
  refused("its begin is one of them", 0, 102, 3);
  const TensorView<float, 4> gaps(memory.data() + 1, {1, 1, 4, 2}, {0, 0, 60, 30});
  const TensorView<float, 4> thirds(memory.data(), {1, 1, 4, 20}, {0, 0, 60, 3});
  EXPECT_NO_THROW(attention_into(thirds, gaps, k, v));
}

TEST(Overlaps, InsideAnInput) {
  std::vector<float> memory(160);
  const auto q = bhsd(memory.data(), 1, 1, 4, 40), k = bhsd(memory.data(), 1, 1, 3, 40);
  const auto v = tensor({1, 1, 3, 1});
  expect_refused("inside", {"out", "query"}, [&] { attention_into(bhsd(memory.data() + 70, 1, 1, 4, 1), q, k, v); });
}

TEST(Overlaps, OfEveryArgument) {
  auto x = tensor({1, 2, 5, 8});
  const auto q = tensor({1, 2, 5, 8}), k = q, v = q;
  auto out = tensor({1, 2, 5, 8});
  const TensorView<float, 3> lse(x.data(), {1, 2, 5}), in_out(out.data(), {1, 2, 5});
  expect_refused("key", {"out", "key"}, [&] { attention_into(x, q, x, v); });
  expect_refused("value", {"out", "value"}, [&] { attention_into(x, q, k, x); });
  expect_refused("naive", {"out", "value"}, [&] { naive_attention_into(x, q, k, x); });
  expect_refused("lse", {"lse", "key"}, [&] { attention_into(out, lse, q, x, v); });
  expect_refused("lse in out", {"lse", "out"}, [&] { attention_into(out, in_out, q, k, v); });
  KvCache<float> cache({.kv_heads = 2, .head_dim = 8});
  cache.append(k, v);
  expect_refused("over a cache", {"out", "query"}, [&] { attention_into(x, x, cache); });
  const auto r = attention(q, k, v);
  auto a = tensor({1, 2, 5, 8}), b = a;
  expect_refused("gradients", {"grad_query", "grad_key"},
                 [&] { attention_backward_into(a, a, b, q, q, k, v, r.out, r.lse); });
  expect_refused("the first and the last", {"grad_value", "grad_query"},
                 [&] { attention_backward_into(a, b, a, q, q, k, v, r.out, r.lse); });
  expect_refused("and out", {"grad_key", "out"}, [&] { attention_backward_into(a, x, b, q, q, k, v, x, r.lse); });
}

}  // namespace
}  // namespace attn::test
