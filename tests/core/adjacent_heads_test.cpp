// Keys and values in memory that is (batch, len, heads, dim), so many that they come from far: a token's heads are read
// together. Results have the bits of heads that are read one after the other.
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/compare.h"
#include "support/paths.h"

namespace attn::test {
namespace {

/// Keys or values, as they lie in memory of either order.
template <class S>
struct BothOrders {
  BothOrders(Index batch, Index heads, Index len, Index dim, Index seed)
      : by_head(Tensor<S, 4>::uninitialized({batch, heads, len, dim})),
        by_token(Tensor<S, 4>::uninitialized({batch, len, heads, dim})) {
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index j = 0; j < len; ++j)
          for (Index d = 0; d < dim; ++d)
            by_head(b, h, j, d) = by_token(b, j, h, d) =
                static_cast<S>(static_cast<float>((++seed * 7919 % 1009 - 504)) / 504);
  }
  TensorView<const S, 4> heads_first() const { return by_head.view(); }
  TensorView<const S, 4> tokens_first() const {
    return bshd(by_token.data(), by_token.dim(0), by_token.dim(1), by_token.dim(2), by_token.dim(3));
  }
  Tensor<S, 4> by_head, by_token;
};

struct CallSizes {
  Index batch, heads, kv_heads, q_len, kv_len, dim;
};

template <class S, class M>
void expect_bits_of_heads_by_themselves(const std::string& name, const CallSizes& s, const M& mods) {
  SCOPED_TRACE(name);
  const BothOrders<S> k(s.batch, s.kv_heads, s.kv_len, s.dim, 1), v(s.batch, s.kv_heads, s.kv_len, s.dim, 2);
  const BothOrders<float> q(s.batch, s.heads, s.q_len, s.dim, 3);
  const auto run = [&](const TensorView<const S, 4>& keys, const TensorView<const S, 4>& values,
                       const Options& options) {
    const auto result = attention(q.heads_first(), keys, values, mods, options);
    std::vector<float> all(result.out.data(), result.out.data() + result.out.size());
    all.insert(all.end(), result.lse.data(), result.lse.data() + result.lse.size());
    return all;
  };
  for (const Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    const auto wanted = run(k.heads_first(), v.heads_first(), {.executor = serial(), .isa = isa});
    for (const Executor& executor : {serial(), threads(2), threads(3)})
      EXPECT_TRUE(same_bits(run(k.tokens_first(), v.tokens_first(), {.executor = executor, .isa = isa}), wanted));
    // One order of keys, another of values.
    EXPECT_TRUE(same_bits(run(k.tokens_first(), v.heads_first(), {.executor = serial(), .isa = isa}), wanted));
  }
}

template <class S>
void expect_bits(const CallSizes& s) {
  const auto expect = [&](const char* name, const auto& mods) { expect_bits_of_heads_by_themselves<S>(name, s, mods); };
  expect("plain", Mods<>());
  // The first key that is visited is none at which a tile, or a step of tiles, begins in memory.
  expect("window", sliding_window(s.kv_len - 901));
  // Each head visits keys of its own.
  const auto first = [](Index head) { return 37 * head; };
  expect("by head", mask_mod([=](const Position& p) { return p.kv >= first(p.head); },
                             [=](const Tile& t) {
                               return t.kv.begin >= first(t.head) ? Coverage::all
                                      : t.kv.end <= first(t.head) ? Coverage::none
                                                                  : Coverage::some;
                             },
                             [=](const Tile& t) {
                               return Range{first(t.head), t.kv.end};
                             }));
}

TEST(AdjacentHeads, OneQueryForEachKey) { expect_bits<float>({1, 8, 8, 1, 2300, 64}); }
TEST(AdjacentHeads, WholeRowsOfEightVectors) { expect_bits<float>({1, 9, 9, 1, 1200, 128}); }
TEST(AdjacentHeads, FourQueriesForEachKey) { expect_bits<float>({2, 8, 2, 1, 1700, 64}); }
TEST(AdjacentHeads, SomeTokens) { expect_bits<float>({1, 8, 4, 3, 1700, 64}); }
TEST(AdjacentHeads, Halves) { expect_bits<Eigen::half>({1, 16, 8, 1, 2300, 64}); }
TEST(AdjacentHeads, OneHeadOfKeys) { expect_bits<float>({2, 8, 1, 1, 3300, 64}); }

// Heads that are the same memory: the step from one to the next is 0.
TEST(AdjacentHeads, TheSameRowsForAllHeads) {
  const Index heads = 8, len = 5000, dim = 32;
  const BothOrders<float> k(1, 1, len, dim, 1), v(1, 1, len, dim, 2), q(1, heads, 1, dim, 3);
  const auto spread = [&](const BothOrders<float>& t) {
    return TensorView<const float, 4>(t.by_head.data(), {1, heads, len, dim}, {0, 0, dim, 1});
  };
  const auto wanted = attention(q.heads_first(), k.heads_first(), v.heads_first(), {}, {.executor = serial()});
  const auto got = attention(q.heads_first(), spread(k), spread(v), {}, {.executor = serial()});
  for (Index i = 0; i < wanted.out.size(); ++i) EXPECT_NEAR(got.out.data()[i], wanted.out.data()[i], 1e-6f) << i;
}

}  // namespace
}  // namespace attn::test
