// Keys and values in (batch, len, heads, dim) order that exceed the cache: their heads are interleaved, one step of
// keys at a time. Results are bitwise equal to those of heads processed one after the other.
#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/compare.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/strided.h"

namespace attn::test {
namespace {

struct CallSizes {
  Index batch, heads, kv_heads, q_len, kv_len, dim;
};

/// Queries, and keys and values both by head and by token.
template <class T, class S>
struct BothOrders {
  explicit BothOrders(const CallSizes& s)
      : q(Layout::bhsd, {s.batch, s.heads, s.q_len, s.dim}, numbers(s.batch * s.heads * s.q_len * s.dim)),
        k(numbers(s.batch * s.kv_heads * s.kv_len * s.dim)),
        v(numbers(s.batch * s.kv_heads * s.kv_len * s.dim)),
        k_by_head(Layout::bhsd, shape(s), k),
        v_by_head(Layout::bhsd, shape(s), v),
        k_by_token(Layout::bshd, shape(s), k),
        v_by_token(Layout::bshd, shape(s), v) {}
  std::vector<double> numbers(Index count) {
    std::vector<double> all(static_cast<std::size_t>(count));
    for (double& x : all) x = static_cast<double>(++drawn_ * 7919 % 1009 - 504) / 504;
    return all;
  }
  static Shape<4> shape(const CallSizes& s) { return {s.batch, s.kv_heads, s.kv_len, s.dim}; }

 private:
  Index drawn_ = 0;

 public:
  Strided<T> q;
  std::vector<double> k, v;
  Strided<S> k_by_head, v_by_head, k_by_token, v_by_token;
};

/// The output bits of a call in exactly the workspace it requests. An accumulating call continues from a constant
/// result.
template <class T, class S, class M>
std::vector<T> bits_of(Strided<T>& q, Strided<S>& k, Strided<S>& v, const M& mods, Options options) {
  const auto query = q.view();
  Tensor<T, 4> out({query.dim(0), query.dim(1), query.dim(2), v.view().dim(3)});
  Tensor<Wide<T>, 3> lse({query.dim(0), query.dim(1), query.dim(2)});
  std::fill_n(out.data(), out.size(), T(0.25f));
  std::vector<std::byte> memory(workspace_bytes(query, k.view(), v.view(), mods, options));
  options.workspace = memory;
  attention_into(out, lse, query, k.view(), v.view(), mods, options);
  std::vector<T> all(out.data(), out.data() + out.size());
  for (Index i = 0; i < lse.size(); ++i) all.push_back(static_cast<T>(lse.data()[i]));
  return all;
}

template <class T, class S, class M>
void expect_bits(const std::string& name, BothOrders<T, S>& n, const M& mods, const Options& given = {}) {
  SCOPED_TRACE(name);
  for (const Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    Options options = given;
    options.isa = isa;
    options.executor = serial();
    const std::vector<T> wanted = bits_of(n.q, n.k_by_head, n.v_by_head, mods, options);
    EXPECT_GT(workspace_bytes(n.q.view(), n.k_by_token.view(), n.v_by_token.view(), mods, options),
              workspace_bytes(n.q.view(), n.k_by_head.view(), n.v_by_head.view(), mods, options))
        << "heads are not interleaved";
    EXPECT_TRUE(same_bits(bits_of(n.q, n.k_by_token, n.v_by_head, mods, options), wanted)) << "values by head";
    for (const int workers : {1, 2, 3}) {
      options.executor = eager_threads(workers);
      EXPECT_TRUE(same_bits(bits_of(n.q, n.k_by_token, n.v_by_token, mods, options), wanted)) << workers << " workers";
    }
  }
}

template <class T, class S = T>
void expect_bits(const CallSizes& s) {
  BothOrders<T, S> n(s);
  expect_bits("plain", n, Mods<>());
  // The first visited key is not at the beginning of a tile, or of a step of tiles, in memory.
  expect_bits("window", n, sliding_window(s.kv_len - 301));
  // Each head visits a different range of keys; some visit none.
  const auto end = [len = s.kv_len](Index head) { return head % 5 == 3 ? 0 : len - 37 * head; };
  const auto begin = [](Index head) { return head % 2 * 37; };
  const auto by_head = [](const auto& first, const auto& last) {
    return mask_mod([=](const Position& p) { return first(p.head) <= p.kv && p.kv < last(p.head); },
                    [=](const Tile& t) {
                      const Range kept = intersect(t.kv, {first(t.head), last(t.head)});
                      return kept.empty() ? Coverage::none : kept == t.kv ? Coverage::all : Coverage::some;
                    },
                    [=](const Tile& t) {
                      return Range{first(t.head), std::max(first(t.head), last(t.head))};
                    });
  };
  expect_bits("ends per head", n, by_head([](Index) { return Index(0); }, end));
  expect_bits("beginnings per head", n, by_head(begin, [len = s.kv_len](Index) { return len; }));
  expect_bits("sinks", n, causal() | sinks(std::vector<float>(static_cast<std::size_t>(s.heads), 0.5f)));
  expect_bits("accumulated", n, Mods<>(), {.accumulate = true});
}

// Enough heads for three workers to have several each.
TEST(AdjacentHeads, OneQueryHeadPerKeyHead) { expect_bits<float>({1, 32, 32, 1, 1300, 32}); }
TEST(AdjacentHeads, WholeRowsOfEightVectors) { expect_bits<float>({1, 33, 33, 1, 550, 128}); }
TEST(AdjacentHeads, WholeRowsOfDoubles) { expect_bits<double>({1, 33, 33, 1, 550, 64}); }
TEST(AdjacentHeads, SplitKeys) { expect_bits<float>({1, 16, 8, 1, 4200, 32}); }
TEST(AdjacentHeads, FourQueryHeadsPerKeyHead) { expect_bits<float>({1, 96, 24, 1, 900, 32}); }
TEST(AdjacentHeads, ThreeQueryTokens) { expect_bits<float>({1, 48, 24, 3, 900, 32}); }
TEST(AdjacentHeads, SeveralSequences) { expect_bits<float>({3, 24, 12, 1, 700, 32}); }
TEST(AdjacentHeads, Halves) { expect_bits<float, Eigen::half>({1, 48, 24, 1, 1300, 32}); }
TEST(AdjacentHeads, BFloat16) { expect_bits<Eigen::bfloat16>({1, 96, 24, 1, 1300, 32}); }

// All heads view the same memory: the stride between heads is 0.
TEST(AdjacentHeads, TheSameRowsForAllHeads) {
  const CallSizes s{1, 48, 24, 1, 900, 32};
  BothOrders<float, float> n(s);
  const auto repeated = [&](std::vector<double> numbers) {
    repeat_first(numbers, s.kv_heads);
    return numbers;
  };
  const std::vector<double> k = repeated(n.k), v = repeated(n.v);
  Strided<float> k_by_head(Layout::bhsd, n.shape(s), k), v_by_head(Layout::bhsd, n.shape(s), v),
      k_once(Layout::repeated, n.shape(s), k), v_once(Layout::repeated, n.shape(s), v);
  const Options options{.executor = serial()};
  EXPECT_TRUE(same_bits(bits_of(n.q, k_once, v_once, Mods<>(), options),
                        bits_of(n.q, k_by_head, v_by_head, Mods<>(), options)));
}

}  // namespace
}  // namespace attn::test
