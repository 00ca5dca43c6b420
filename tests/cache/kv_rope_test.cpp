// Rotary positions in caches: keys are rotated when appended, and queries when read.
#include "support/cached.h"

namespace attn::test {
namespace {

std::vector<Rope> ropes(Index dim) {
  return {Rope({.head_dim = dim}), Rope({.head_dim = dim, .rotary_dim = dim / 2, .pairs = RopePairs::interleaved}),
          Rope({.head_dim = dim, .scaling = RopeScaling::yarn, .factor = 4, .trained_length = 64})};
}

/// Rotates row-major elements (heads, len, dim), in double.
std::vector<double> rotated(const Rope& rope, std::vector<double> x, Index heads, Index len, Index first) {
  if (!x.empty()) rope.rotate(bhsd(x.data(), 1, heads, len, rope.config().head_dim), first);
  return x;
}

/// Checks that the keys of a cache are the tokens' keys rotated by their positions.
template <class S>
void expect_rotated(const Rope& rope, const Tokens& tokens, const Tokens& kept) {
  const TokenSizes& s = tokens.sizes();
  const auto wanted = rotated(rope, tokens.keys(), s.kv_heads, tokens.size(), 0), got = kept.keys();
  ASSERT_EQ(wanted.size(), got.size());
  const auto dim = static_cast<std::size_t>(s.head_dim);
  for (std::size_t row = 0; row < wanted.size(); row += dim) {
    double largest = 0;
    for (std::size_t d = 0; d < dim; ++d) largest = std::max(largest, std::abs(wanted[row + d]));
    // Allowed error: that of a sum of two products of rounded values, each product at most twice the largest element,
    // plus the rounding to S.
    const double step =
        std::is_same_v<S, std::int8_t> ? largest / 127 : static_cast<double>(epsilon<Given<S>>()) * largest;
    for (std::size_t d = 0; d < dim; ++d)
      ASSERT_NEAR(got[row + d], wanted[row + d],
                  0.5001 * step + 8 * static_cast<double>(epsilon<Wide<Given<S>>>()) * largest)
          << "row " << row / dim;
  }
  if (!std::is_same_v<S, std::int8_t>) {
    ASSERT_EQ(kept.values(), tokens.values());
  }
}

/// The call for the oracle: the keys as stored, and queries rotated in double.
RaggedCall with_rotated_queries(const RaggedCall& call, const Rope& rope, const std::vector<Tokens>& kept,
                                const std::optional<Index>& q_offset = {}) {
  RaggedCall t = call;
  t.tokens = kept;
  for (Index s = 0; s < call.size(); ++s) {
    const auto at = RaggedCall::at(s);
    const Index len = call.q_lens[at];
    t.q[at] = rotated(rope, call.q[at], call.heads, len, q_offset.value_or(call.tokens[at].size() - len));
  }
  return t;
}

template <class T, class S>
void sweep(Index dim) {
  Random random(1);
  const std::vector<std::vector<Index>> all_q_lens{{1, 1, 1, 1}, {4, 5, 5, 0}, {1, 40, 2, 20}};
  for (const Rope& rope : ropes(dim))
    for (const auto& q_lens : all_q_lens)
      for (Index page_size : {0, 16, 64}) {
        SCOPED_TRACE("pages of " + std::to_string(page_size));
        const TokenSizes sizes{1, dim, kDimOfKernels<S>};
        std::vector<Tokens> tokens, kept;
        for (Index length : {64, 150, 3, 100}) tokens.push_back(Tokens::exact(sizes, length, random));
        RaggedCall call(4, tokens, q_lens, random);
        call.round_queries_to<T>();
        const PoisonedCache<S> cache(tokens, page_size, rope);
        for (Index s = 0; s < call.size(); ++s) {
          kept.push_back(cache.tokens(s));
          expect_rotated<S>(rope, tokens[RaggedCall::at(s)], kept.back());
        }
        const RaggedCall of_rotated = with_rotated_queries(call, rope, kept);
        const RaggedRows<T> table(call.lengths(), call.heads, random);
        for (const CachedRow<T>& row : {table.rows[0], table.rows[1]}) {
          const Expected<T> expected(of_rotated, row.meaning);
          for (Isa isa : sets_for<T, S>()) {
            SCOPED_TRACE(row.name + ", " + std::string(to_string(isa)));
            RaggedMemory<T> memory(call);
            row.run(memory, q_lens, cache.view(), {.executor = serial(), .isa = isa});
            expected.expect(memory, lse_error<T>(isa));
            if (::testing::Test::HasFailure()) return;
          }
        }
      }
}

TEST(KvRope, Float) { sweep<float, float>(8); }
TEST(KvRope, Double) { sweep<double, double>(8); }
TEST(KvRope, BFloat16) { sweep<Eigen::bfloat16, Eigen::bfloat16>(32); }
TEST(KvRope, BFloat16OfOddDims) { sweep<Eigen::bfloat16, Eigen::bfloat16>(12); }
TEST(KvRope, FloatOverHalf) { sweep<float, Eigen::half>(32); }
TEST(KvRope, FloatOverEightBits) { sweep<float, std::int8_t>(64); }

// Truncating frees positions, and a fork continues from its own end.
TEST(KvRope, PositionsFollowLengths) {
  Random random(2);
  const TokenSizes sizes{2, 8, 4};
  const Rope rope({.head_dim = 8});
  const Tokens first(sizes, 30, random), second(sizes, 25, random);
  Tokens both = first.part(0, 11);
  both.add(second);
  Appended<float> a(first), b(second);

  KvCache<float> cache({.kv_heads = 2, .capacity = 4, .head_dim = 8, .v_dim = 4, .rope = rope});
  cache.append(a.k(), a.v());
  cache.truncate(0, 11);
  cache.append(b.k(), b.v());
  expect_rotated<float>(rope, both, tokens_of(cache, 0));

  PagedKvCache<float> pages({.pages = 40, .page_size = 4, .kv_heads = 2, .head_dim = 8, .v_dim = 4, .rope = rope});
  const Index whole = pages.add();
  pages.append(whole, a.k(), a.v());
  const Index fork = pages.fork(whole, 11);
  pages.append(fork, b.k(), b.v());
  expect_rotated<float>(rope, both, tokens_of(pages, fork));
  expect_rotated<float>(rope, first, tokens_of(pages, whole));

  // A copy owns its rope.
  std::optional<KvCache<float>> original(cache);
  const KvCache<float> copy = *original;
  original.reset();
  const RaggedCall call(2, {both}, {6}, random);
  for (const std::optional<Index>& q_offset : {std::optional<Index>(), std::optional<Index>(3)}) {
    RaggedMemory<float> memory(call);
    attention_into(memory.out.view(), memory.lse3(), memory.q.cview(), copy, Mods<>(), {.q_offset = q_offset});
    const RaggedCall of_rotated = with_rotated_queries(call, rope, {tokens_of(copy, 0)}, q_offset);
    Expected<float>(of_rotated, {}).expect(memory);
  }
}

}  // namespace
}  // namespace attn::test
