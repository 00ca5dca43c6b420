// Both backward paths against the oracle over sizes, layouts and all mods. Each scalar has its own test binary.
#pragma once

#include "gradient_case.h"

namespace attn::test {

/// All pairs of lengths without mods, and all mods at random lengths.
template <class T>
class BackwardSweep : public ::testing::Test {
 protected:
  static Sizes draw(Index q_len, Index kv_len, Random& random) {
    Sizes s;
    s.q_len = q_len, s.kv_len = kv_len;
    const Index many = q_len * kv_len > 1500 ? 1 : 2;
    s.batch = random.integer(1, many);
    s.kv_heads = random.integer(1, many);
    s.heads = s.kv_heads * random.integer(1, 2);
    s.head_dim = random.pick(kGradientDims), s.v_dim = random.pick(kGradientDims);
    return s;
  }
};
TYPED_TEST_SUITE_P(BackwardSweep);

TYPED_TEST_P(BackwardSweep, EveryLength) {
  Random random(11);
  for (Index q_len : kGradientLengths)
    for (Index kv_len : kGradientLengths)
      GradientCase<TypeParam>(this->draw(q_len, kv_len, random), random).check(Row<Mods<>>{"plain", Mods<>(), {}});
}

TYPED_TEST_P(BackwardSweep, EveryMod) {
  Random random(12);
  for (int round = 0; round < ATTN_TEST_ROUNDS; ++round) {
    GradientCase<TypeParam> c(this->draw(random.pick(kGradientLengths), random.pick(kGradientLengths), random), random);
    each_erased_row({c.sizes, c.numbers, random}, [&](const auto& row) { c.check(row); });
    each_weight_row({c.sizes, c.numbers, random}, [&](const auto& row) { c.check(row); });
  }
}

/// Long enough for several parts of the keys, of the queries, and both.
TYPED_TEST_P(BackwardSweep, Parts) {
  Random random(13);
  for (const Sizes& s :
       {Sizes{1, 1, 1, 70, 600, 5, 3}, Sizes{1, 4, 1, 160, 90, 9, 17}, Sizes{1, 2, 1, 300, 530, 3, 8}}) {
    GradientCase<TypeParam> c(s, random);
    c.check(Row<Mods<>>{"plain", Mods<>(), {}});
    const auto window = attn::sliding_window(100, 20);
    c.check(Row<decltype(window)>{
        "window", window, {[](const Pair& p) { return p.kv >= p.q - 100 && p.kv <= p.q + 20; }, {}}});
  }
}

/// Keys and values with a common offset, such as from projections with a bias. In exact arithmetic no gradient depends
/// on either offset.
TYPED_TEST_P(BackwardSweep, CommonOffsets) {
  Random random(14);
  const auto causal = attn::causal();
  for (const Sizes& s :
       {Sizes{1, 2, 1, 128, 128, 64, 64}, Sizes{2, 2, 2, 60, 300, 33, 17}, Sizes{1, 1, 1, 3, 40, 16, 8}})
    for (const auto& [features, of_keys, of_values] :
         {std::tuple<Index, double, double>{s.head_dim, 4, 0}, {s.head_dim, 30, 1}, {s.head_dim, -30, 0}, {3, 60, 4}}) {
      SCOPED_TRACE(::testing::Message() << features << " features of keys + " << of_keys << ", values + " << of_values);
      GradientCase<TypeParam> c(s, random);
      c.numbers = {};
      c.add_in_common(c.inputs.k, s.head_dim, features, of_keys);
      c.add_in_common(c.inputs.v, s.v_dim, s.v_dim, of_values);
      c.check_as_exact(Row<Mods<>>{"plain", Mods<>(), {}});
      c.check_as_exact(Row<decltype(causal)>{"causal", causal, {[](const Pair& p) { return p.kv <= p.q; }, {}}});
    }
}

REGISTER_TYPED_TEST_SUITE_P(BackwardSweep, EveryLength, EveryMod, Parts, CommonOffsets);

}  // namespace attn::test
