// Attention over ranks, and its gradients, against the oracle: all mods, layouts and numbers of ranks.
#include "rank_case.h"

namespace attn::test {

Sizes draw_rank_sizes(Random& random) {
  Sizes s;
  const Index lengths[] = {0, 1, 3, 6, 17, 40, 65};
  s.q_len = random.pick(lengths);
  s.kv_len = random.chance(0.7) ? s.q_len : random.pick(lengths);
  s.batch = random.integer(1, 2);
  s.kv_heads = random.integer(1, 2);
  s.heads = s.kv_heads * random.integer(1, 2);
  s.head_dim = random.integer(1, 9);
  s.v_dim = random.integer(1, 9);
  return s;
}

template <class T>
void check_every_mod() {
  for_each_ring(21, [&](mpi::Ring& ring, Random& random, Sample& sample) {
    RankCase<T> c(draw_rank_sizes(random), random);
    each_erased_row({c.sizes, c.numbers, random}, [&](const auto& row) {
      if (sample.takes_next()) c.check(ring, row);
    });
  });
}

TEST(Ring, EveryMod) { check_every_mod<float>(); }
TEST(Ring, EveryModBFloat16) { check_every_mod<Eigen::bfloat16>(); }

/// Lengths that the number of ranks does not divide, and fewer tokens than ranks.
TEST(Ring, EveryLength) {
  for_each_ring(22, [&](mpi::Ring& ring, Random& random, Sample&) {
    for (const Index len : {0, 1, 2, 5, 6, 13, 14, 15, 28}) {
      RankCase<float> c({1, 2, 1, len, len, 3, 2}, random);
      const auto causal = attn::causal();
      c.check(ring, Row<decltype(causal)>{"causal", causal, {[](const Pair& p) { return p.kv <= p.q; }, {}}});
    }
  });
}

/// Keys that arrive in several parcels from each rank, some of which are not needed.
TEST(Ring, ManyParcels) {
  for (const int count : {2, 3}) {
    const FirstRanks ranks(count);
    for (const mpi::Layout layout : kRankLayouts) {
      if (!ranks.takes_part()) continue;
      mpi::Ring ring(ranks.get(), layout);
      Random random(23);
      RankCase<float> c({1, 2, 1, 40, 3700, 3, 2}, random);
      c.numbers.q_offset = 1900;
      c.check(ring, Row<Mods<>>{"plain", Mods<>(), {}});
      const auto window = attn::sliding_window(1500, 1000);
      c.check(ring,
              Row<decltype(window)>{
                  "window", window, {[](const Pair& p) { return p.kv >= p.q - 1500 && p.kv <= p.q + 1000; }, {}}});
    }
  }
}

TEST(Ring, Sigmoid) {
  for_each_ring(24, [&](mpi::Ring& ring, Random& random, Sample&) {
    RankCase<float> c({2, 4, 2, 30, 30, 5, 4}, random);
    c.numbers.sigmoid_bias = -2;
    const auto causal = attn::causal();
    c.check(ring, Row<decltype(causal)>{"causal", causal, {[](const Pair& p) { return p.kv <= p.q; }, {}}});
  });
}

}  // namespace attn::test
