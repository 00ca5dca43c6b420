// Both paths of forward mode against the oracle over sizes, layouts and all mods.
#pragma once

#include "attn/attn.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/jvp_oracle.h"
#include "support/paths.h"

namespace attn::test {

/// A call and the direction in which its tensors move.
template <class T>
class JvpCase {
 public:
  JvpCase(const Sizes& s, Random& random) : sizes(s), inputs(s, random), direction(s, random) {
    if (random.chance(0.4)) numbers.q_offset = random.integer(-5, s.kv_len + 5);
    if (random.chance(0.4)) numbers.scale = random.pick(std::vector{1.0, 0.25, -0.5, 0.0});
    if (random.chance(0.3)) numbers.sigmoid_bias = random.pick(std::vector{0.0, 1.5, -4.0, 6.0});
    inputs.round_to<T>();
    direction.round_to<T>();
    for (Layout& layout : layouts_) layout = random.pick(kOutputLayouts);
  }

  Sizes sizes;
  Numbers numbers;
  Inputs inputs, direction;

  template <class M>
  void check(const Row<M>& row) {
    if (::testing::Test::HasFailure()) return;             // one failing case is enough
    if (numbers.sigmoid_bias && row.meaning.sink) return;  // refused
    std::ostringstream text;
    text << row.name << ", " << sizes;
    if (numbers.q_offset) text << ", q_offset " << *numbers.q_offset;
    if (numbers.scale) text << ", scale " << *numbers.scale;
    if (numbers.sigmoid_bias) text << ", sigmoid of bias " << *numbers.sigmoid_bias;
    SCOPED_TRACE(text.str());
    const Truth forward = oracle(inputs, row.meaning, numbers);
    const TangentTruth truth = jvp_oracle(inputs, direction, row.meaning, numbers);
    Arguments<T> a(inputs, layouts_[0], layouts_[1], layouts_[2]), d(direction, layouts_[3], layouts_[4], layouts_[5]);
    const auto plain = [](const auto& t) { return std::vector<T>(t.data(), t.data() + t.size()); };

    const auto naive = attn::naive_attention_jvp(a.q.cview(), a.k.cview(), a.v.cview(), d.q.cview(), d.k.cview(),
                                                 d.v.cview(), row.mod, options_of(numbers));
    const Real naive_error = largest_error(truth.tangent, plain(naive.tangent)),
               naive_out = largest_error(forward.out, plain(naive.out));
    // The error of a weight is that of its score; the error of a tangent is twice that plus the rounding of its sums.
    // The oracle's slopes are finite differences, accurate to about 1e-13.
    const Real eps = epsilon<Wide<T>>(), narrow = Errors<T>::kNarrowEps,
               terms = static_cast<Real>(sizes.kv_len + sizes.head_dim);
    EXPECT_LE(naive_error, (eps * (4 * score_error(forward, sizes) + terms + 16) + 1e-12L + 1.1L * narrow) * truth.size)
        << "naive";
    static int turn = 0;
    for (Isa isa : sets_for<T>()) {
      SCOPED_TRACE(to_string(isa));
      Options options = options_of(numbers);
      options.isa = isa;
      if (++turn % 2 == 0) options.executor = eager_threads(2);
      const auto r = attn::attention_jvp(a.q.cview(), a.k.cview(), a.v.cview(), d.q.cview(), d.k.cview(), d.v.cview(),
                                         row.mod, options);
      const Real unit = eps * (1 + forward.largest_score);
      EXPECT_LE(largest_error(truth.tangent, plain(r.tangent)),
                2 * naive_error + (8 * unit + 1e-12L + narrow) * truth.size)
          << "naive errs by " << naive_error;
      EXPECT_LE(largest_error(forward.out, plain(r.out)),
                2 * naive_out + (kOutFloor * unit + narrow / 2) * forward.largest_value)
          << "out; naive errs by " << naive_out;
      if (std::is_same_v<T, long double>) break;  // all instruction sets share one kernel
    }
  }

 private:
  std::array<Layout, 6> layouts_;
};

template <class T>
class JvpSweep : public ::testing::Test {
 protected:
  static Sizes draw(Random& random) {
    static constexpr Index kLengths[] = {0, 1, 2, 15, 17, 47, 49, 63, 65, 130};
    static constexpr Index kDims[] = {1, 3, 8, 16, 17, 33, 64, 65};
    Sizes s;
    s.q_len = random.pick(kLengths), s.kv_len = random.pick(kLengths);
    const Index many = s.q_len * s.kv_len > 1500 ? 1 : 2;
    s.batch = random.integer(1, many);
    s.kv_heads = random.integer(1, many);
    s.heads = s.kv_heads * random.integer(1, 2);
    s.head_dim = random.pick(kDims), s.v_dim = random.pick(kDims);
    return s;
  }
};
TYPED_TEST_SUITE_P(JvpSweep);

TYPED_TEST_P(JvpSweep, EverySize) {
  Random random(21);
  for (int i = 0; i < 40; ++i) JvpCase<TypeParam>(this->draw(random), random).check(Row<Mods<>>{"plain", Mods<>(), {}});
}

TYPED_TEST_P(JvpSweep, EveryMod) {
  Random random(22);
  for (int round = 0; round < ATTN_TEST_ROUNDS; ++round) {
    JvpCase<TypeParam> c(this->draw(random), random);
    each_erased_row({c.sizes, c.numbers, random}, [&](const auto& row) { c.check(row); });
  }
}

/// Several blocks of queries, and more keys than a stretch.
TYPED_TEST_P(JvpSweep, LongSequences) {
  Random random(23);
  for (const Sizes& s : {Sizes{1, 4, 2, 300, 70, 5, 3}, Sizes{1, 1, 1, 3, 9000, 2, 3}}) {
    JvpCase<TypeParam> c(s, random);
    c.check(Row<Mods<>>{"plain", Mods<>(), {}});
    const auto window = attn::sliding_window(5000, 20);
    c.check(Row<decltype(window)>{
        "window", window, {[](const Pair& p) { return p.kv >= p.q - 5000 && p.kv <= p.q + 20; }, {}}});
  }
}

REGISTER_TYPED_TEST_SUITE_P(JvpSweep, EverySize, EveryMod, LongSequences);

}  // namespace attn::test
