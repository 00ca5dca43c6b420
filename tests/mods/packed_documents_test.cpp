// documents_at() with two tables of offsets, packed cross-attention: each document equals a separate call.
#include <gtest/gtest.h>

#include "attn/attn.h"
#include "support/compare.h"

namespace attn::test {
namespace {

using View = TensorView<const float, 4>;

/// Documents of all kinds: without queries, without keys, without both, with one of each, and across tiles.
struct Packed {
  const std::vector<Index> queries{0, 40, 40, 100, 103, 103, 104, 150}, keys{0, 70, 90, 91, 91, 91, 92, 200};
  Random random{1};
  const Tensor<float, 4> q = drawn<float>({2, 4, 150, 24}, random, 1), k = drawn<float>({2, 2, 200, 24}, random, 1),
                         v = drawn<float>({2, 2, 200, 16}, random, 1),
                         grad_out = drawn<float>({2, 4, 150, 16}, random, 1);

  Index documents() const { return static_cast<Index>(queries.size()) - 1; }
  Range rows(Index i) const { return range(queries, i); }
  Range tokens(Index i) const { return range(keys, i); }

 private:
  static Range range(const std::vector<Index>& offsets, Index i) {
    return {offsets[static_cast<std::size_t>(i)], offsets[static_cast<std::size_t>(i) + 1]};
  }
};

View part(const Tensor<float, 4>& t, const Range& tokens) { return t.view().slice(2, tokens.begin, tokens.end); }

void expect_near(const View& got, const View& expected, const char* what) {
  ASSERT_EQ(got.shape(), expected.shape()) << what;
  for (Index b = 0; b < got.dim(0); ++b)
    for (Index h = 0; h < got.dim(1); ++h)
      for (Index i = 0; i < got.dim(2); ++i)
        for (Index d = 0; d < got.dim(3); ++d)
          ASSERT_NEAR(got(b, h, i, d), expected(b, h, i, d), 2e-5)
              << what << " (" << b << ", " << h << ", " << i << ", " << d << ")";
}

/// Expects that `mods` give every document the results and gradients of a separate call with `own`.
template <class M, class Own>
void expect_separate_calls(const Packed& p, const M& mods, const Own& own, const Options& options = {}) {
  const auto all = attention(p.q, p.k, p.v, mods, options);
  const auto gradients = attention_backward(p.grad_out, p.q, p.k, p.v, all, mods, options);
  for (Index i = 0; i < p.documents(); ++i) {
    SCOPED_TRACE(::testing::Message() << "document " << i);
    const View q = part(p.q, p.rows(i)), k = part(p.k, p.tokens(i)), v = part(p.v, p.tokens(i));
    const auto one = attention(q, k, v, own);
    expect_near(part(all.out, p.rows(i)), one.out, "out");
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 4; ++h)
        for (Index row = 0; row < q.dim(2); ++row) {
          const float got = all.lse(b, h, p.rows(i).begin + row), expected = one.lse(b, h, row);
          ASSERT_TRUE(got == expected || std::abs(got - expected) < 2e-5f) << got << ", not " << expected;
        }
    const auto g = attention_backward(part(p.grad_out, p.rows(i)), q, k, v, one, own);
    expect_near(part(gradients.query, p.rows(i)), g.query, "gradient of query");
    expect_near(part(gradients.key, p.tokens(i)), g.key, "gradient of key");
    expect_near(part(gradients.value, p.tokens(i)), g.value, "gradient of value");
  }
}

TEST(PackedDocuments, EqualSeparateCalls) {
  const Packed p;
  expect_separate_calls(p, documents_at(p.queries, p.keys), full());
}

// The positions of the queries have no effect, and may differ between batch elements.
TEST(PackedDocuments, CountRowsWhateverTheirPositions) {
  const Packed p;
  const auto mods = documents_at(p.queries, p.keys);
  expect_separate_calls(p, mods, full(), {.q_offset = 0});
  expect_separate_calls(p, mods, full(), {.q_offset = -1000});
  expect_separate_calls(p, mods, full(), {.q_offsets = {7, 100000}});
}

// The lambda of the mods page.
TEST(PackedDocuments, MayBeCausalWithinEachDocument) {
  const Packed p;
  std::vector<Index> last_key(150);
  for (Index i = 0; i < p.documents(); ++i)
    for (Index row = p.rows(i).begin; row < p.rows(i).end; ++row)
      last_key[static_cast<std::size_t>(row)] = p.tokens(i).end - p.rows(i).end + row;
  const auto is_past = mask_mod([&](const Position& at) { return at.kv <= last_key[static_cast<std::size_t>(at.q)]; });
  expect_separate_calls(p, documents_at(p.queries, p.keys) | is_past, causal(), {.q_offset = 0});
}

// Each part passes the offsets of all keys, as for documents_at() with one table.
TEST(PackedDocuments, WithKeysInParts) {
  const Packed p;
  const auto mods = documents_at(p.queries, p.keys);
  const auto expected = attention(p.q, p.k, p.v, mods);
  Tensor<float, 4> out({2, 4, 150, 16});
  Tensor<float, 3> lse({2, 4, 150});
  for (const Range& keys : {Range{0, 80}, Range{80, 91}, Range{91, 200}})
    attention_into(out, lse, p.q, part(p.k, keys), part(p.v, keys), mods,
                   {.q_offset = 0, .kv_offset = keys.begin, .accumulate = keys.begin > 0});
  expect_near(out, expected.out, "out");
}

// Tiles between two documents cost nothing, although a tile of queries sees keys before and after them.
TEST(PackedDocuments, SkipKeysThatNoQuerySees) {
  const std::vector<Index> queries{0, 4, 4, 8}, keys{0, 10, 1000, 1010};
  Problem problem;
  problem.q_len = 8;
  problem.kv_len = 1010;
  problem.q_offset = 1002;
  const auto mod = documents_at(queries, keys);
  const auto mask = mod.make(problem);
  const auto coverage = [&](Range rows, Range kv) {
    return mask.coverage({0, 0, {1002 + rows.begin, 1002 + rows.end}, kv});
  };
  EXPECT_EQ(coverage({0, 8}, {10, 1000}), Coverage::none);
  EXPECT_EQ(coverage({0, 8}, {9, 1000}), Coverage::some);
  EXPECT_EQ(coverage({0, 8}, {10, 1001}), Coverage::some);
  EXPECT_EQ(coverage({0, 4}, {0, 10}), Coverage::all);
  EXPECT_EQ(coverage({0, 5}, {0, 10}), Coverage::some);
  EXPECT_EQ(coverage({4, 8}, {0, 1000}), Coverage::none);
  EXPECT_EQ(mask.kv_range({0, 0, {1002, 1006}, {0, 1010}}), (Range{0, 10}));
  EXPECT_EQ(mask.kv_range({0, 0, {1006, 1010}, {0, 1010}}), (Range{1000, 1010}));
}

}  // namespace
}  // namespace attn::test
