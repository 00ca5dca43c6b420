// Types with the interface of std::mdspan are accepted wherever a tensor is.
#include "support/mdspan.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "attn/attn.h"
#include "support/random.h"
#include "support/refused.h"

namespace attn::test {
namespace {

std::vector<float> counted(std::size_t count) {
  std::vector<float> numbers(count);
  std::iota(numbers.begin(), numbers.end(), 0.f);
  return numbers;
}

TEST(MdspanViews, HaveTheSizesAndStridesOfTheMdspan) {
  std::vector<float> x = counted(24);
  const auto v = view(rows<float, 3>(x.data(), {2, 3, 4}));
  static_assert(std::is_same_v<decltype(v), const TensorView<float, 3>>);
  EXPECT_EQ(v.shape(), (Shape<3>{2, 3, 4}));
  EXPECT_EQ(v.strides(), (Shape<3>{12, 4, 1}));
  EXPECT_EQ(v(1, 2, 3), 23);
  v(0, 0, 1) = -1;
  EXPECT_EQ(x[1], -1);
  const auto constant = view(rows<const float, 1>(x.data(), {24}));
  static_assert(std::is_same_v<decltype(constant), const TensorView<const float, 1>>);

  // Columns with contiguous elements; only every second column is viewed.
  const Mdspan<float, 2> columns(x.data(), {{4, 3}}, {{1, 8}});
  EXPECT_EQ(view(columns)(3, 2), 19);
  const Mdspan<float, 2> later(x.data(), {{2, 3}}, {{3, 1}, 5});
  EXPECT_EQ(view(later)(1, 2), 10) << "a mapping whose first element is not 0";
  EXPECT_EQ(view(Mdspan<float, 2>(nullptr, {{0, 3}}, {{3, 1}, 5})).size(), 0);
}

TEST(MdspanViews, AreAcceptedForEveryArgument) {
  Random random(1);
  Tensor<float, 4> q({2, 4, 5, 8}), k({2, 2, 7, 8}), v({2, 2, 7, 6}), out({2, 4, 5, 6});
  for (auto* t : {&q, &k, &v})
    for (Index i = 0; i < t->size(); ++i) t->data()[i] = static_cast<float>(random.uniform(-1, 1));
  const auto sq = rows<const float, 4>(q.data(), {2, 4, 5, 8}), sk = rows<const float, 4>(k.data(), {2, 2, 7, 8}),
             sv = rows<const float, 4>(v.data(), {2, 2, 7, 6});
  const auto want = attention(q, k, v, causal());
  const Tensor<float, 4> got = attention(sq, sk, sv, causal()).out;
  const auto same = [](const auto& a, const auto& b) { return std::equal(a.data(), a.data() + a.size(), b.data()); };
  EXPECT_TRUE(same(got, want.out));
  attention_into(rows<float, 4>(out.data(), {2, 4, 5, 6}), sq, k, sv, causal());
  EXPECT_TRUE(same(out, want.out)) << "beside tensors";
  EXPECT_TRUE(same(naive_attention(sq, sk, sv, causal()).out, naive_attention(q, k, v, causal()).out));

  // One head of rank 2 gives tensors of rank 2.
  const Tensor<float, 2> one = attention(rows<const float, 2>(q.data(), {5, 8}), rows<const float, 2>(k.data(), {7, 8}),
                                         rows<const float, 2>(v.data(), {7, 6}))
                                   .out;
  EXPECT_EQ(one.shape(), (Shape<2>{5, 6}));

  // Masks and biases, caches and gradients.
  Tensor<bool, 2> kept({5, 7});
  for (Index i = 0; i < kept.size(); ++i) kept.data()[i] = i % 3 != 0;
  EXPECT_TRUE(same(attention(sq, sk, sv, keep(rows<const bool, 2>(kept.data(), {5, 7}))).out,
                   attention(q, k, v, keep(kept)).out));
  const auto some = counted(35);
  const Tensor<float, 2> bias_of_pairs(TensorView<const float, 2>(some.data(), {5, 7}));
  EXPECT_TRUE(same(attention(sq, sk, sv, bias(rows<const float, 2>(some.data(), {5, 7}))).out,
                   attention(q, k, v, bias(bias_of_pairs)).out));
  KvCache<float> cache({.batch = 2, .kv_heads = 2, .capacity = 7, .head_dim = 8, .v_dim = 6});
  cache.append(sk, sv);
  EXPECT_TRUE(same(attention(sq, cache, causal()).out, attention(q, cache, causal()).out));
  EXPECT_TRUE(same(attention_backward(out, sq, sk, sv, want, causal()).query,
                   attention_backward(out, q, k, v, want, causal()).query));
}

TEST(MdspanViews, WrongSizesAreReported) {
  const std::vector<float> x = counted(60);
  expect_refused("head_dim", {"8", "7"}, [&] {
    attention(rows<const float, 2>(x.data(), {2, 8}), rows<const float, 2>(x.data(), {3, 7}),
              rows<const float, 2>(x.data(), {3, 7}));
  });
}

}  // namespace
}  // namespace attn::test
