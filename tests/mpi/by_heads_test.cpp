// Tokens exchanged for heads, forward and backward, against the oracle.
#include "rank_case.h"

namespace attn::test {

/// Key heads that a single rank needs, and those that several or all ranks share.
template <class T>
void check_every_mod_by_heads() {
  for_each_ring(51, [&](mpi::Ring& ring, Random& random, Sample& sample) {
    Sizes s{random.integer(1, 2), 1, random.integer(1, 4), random.integer(0, 40), 0, random.integer(1, 9),
            random.integer(1, 9)};
    s.kv_len = random.chance(0.5) ? s.q_len : random.integer(0, 50);
    s.heads = s.kv_heads * ((ring.ranks() + s.kv_heads - 1) / s.kv_heads + random.integer(0, 1));
    RankCase<T> c(s, random);
    each_erased_row({c.sizes, c.numbers, random}, [&](const auto& row) {
      if (sample.takes_next()) c.check(ring, row, HeadsAlgorithm());
    });
  });
}

TEST(ByHeads, EveryMod) { check_every_mod_by_heads<float>(); }
TEST(ByHeads, EveryModHalf) { check_every_mod_by_heads<Eigen::half>(); }

TEST(ByHeads, Sigmoid) {
  for_each_ring(52, [&](mpi::Ring& ring, Random& random, Sample&) {
    RankCase<float> c({2, 8, 2, 30, 30, 5, 4}, random);
    c.numbers.sigmoid_bias = -2;
    const auto causal = attn::causal();
    c.check(ring, Row<decltype(causal)>{"causal", causal, {[](const Pair& p) { return p.kv <= p.q; }, {}}},
            HeadsAlgorithm());
  });
}

/// Some lengths are smaller than the number of ranks, so that some ranks have no rows.
TEST(ByHeads, EveryLength) {
  for_each_ring(53, [&](mpi::Ring& ring, Random& random, Sample&) {
    for (const Index len : {0, 1, 2, 5, 6, 13}) {
      RankCase<float> c({1, 7, 1, len, len, 3, 2}, random);
      c.check(ring, Row<Mods<>>{"plain", Mods<>(), {}}, HeadsAlgorithm());
    }
  });
}

/// The bits of a single call, for prompts and for single queries, whose heads are computed together.
template <class T>
void check_row_invariance() {
  for_each_ring(54, [&](mpi::Ring& ring, Random&, Sample&) {
    const Options options{.row_invariant = true};
    std::vector<double> logits(14);
    for (std::size_t h = 0; h < logits.size(); ++h) logits[h] = static_cast<double>(h % 3) - 1;
    const auto mods = attn::causal() | attn::sinks(logits) | attn::dropout(0.2, 9);
    for (const Index kv_heads : {1, 2, 7})
      for (const Index q_len : {1, 45}) {
        SCOPED_TRACE(std::to_string(kv_heads) + " key heads, " + std::to_string(q_len) + " queries");
        const auto q = drawn<T>({2, 14, q_len, 9}, 1), k = drawn<T>({2, kv_heads, 130, 9}, 2),
                   v = drawn<T>({2, kv_heads, 130, 5}, 3);
        const auto whole = attn::attention(q, k, v, mods, options);
        const auto r = ring.attention_by_heads(ring.scatter(q), ring.scatter(k), ring.scatter(v), mods, options);
        EXPECT_TRUE(same_bits(plain(ring.gather(r.out)), plain(whole.out)));
        EXPECT_TRUE(same_bits(plain(ring.gather(r.lse)), plain(whole.lse)));
      }
  });
}

TEST(ByHeads, RowInvariantResultsHaveTheBitsOfASingleCall) { check_row_invariance<float>(); }
TEST(ByHeads, RowInvariantHalfResultsHaveTheBitsOfASingleCall) { check_row_invariance<Eigen::half>(); }

}  // namespace attn::test
