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

}  // namespace attn::test
