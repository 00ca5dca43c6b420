// Attention over ranks, and its gradients, against the oracle: all mods, layouts and numbers of ranks.
#include "ranks.h"
#include "support/erased_rows.h"
#include "support/gradient_oracle.h"
#include "support/paths.h"

namespace attn::test {

/// A call that all ranks draw alike; rank 0 knows the truth.
template <class T>
class RankCase {
 public:
  RankCase(const Sizes& s, Random& random)
      : sizes(s), inputs(s, random), grad_out_(random.values(s.batch * s.heads * s.q_len * s.v_dim)) {
    if (random.chance(0.3)) numbers.q_offset = random.integer(-5, s.kv_len + 5);
    if (random.chance(0.3)) numbers.scale = random.pick(std::vector{1.0, 0.25, -0.5});
    if (random.chance(0.3)) grad_lse_ = random.values(s.batch * s.heads * s.q_len);
    inputs.round_to<T>();
    if constexpr (sizeof(T) == 2)
      for (double& x : grad_out_) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
  }

  Sizes sizes;
  Numbers numbers;
  Inputs inputs;

  template <class M>
  void check(mpi::Ring& ring, const Row<M>& row) {
    std::ostringstream text;
    text << row.name << ", " << sizes << (grad_lse_.empty() ? "" : ", with grad_lse");
    if (numbers.q_offset) text << ", q_offset " << *numbers.q_offset;
    if (numbers.scale) text << ", scale " << *numbers.scale;
    SCOPED_TRACE(text.str());
    if (numbers.sigmoid_bias && row.meaning.sink) return;  // refused
    if (numbers.sigmoid_bias) grad_lse_.clear();           // there is no lse

    Arguments<T> a(inputs);
    Strided<T> grad_out(Layout::bhsd, {sizes.batch, sizes.heads, sizes.q_len, sizes.v_dim}, grad_out_);
    Tensor<Wide<T>, 3> grad_lse({sizes.batch, sizes.heads, numbers.sigmoid_bias ? 0 : sizes.q_len});
    for (std::size_t i = 0; i < grad_lse_.size(); ++i) grad_lse.data()[i] = static_cast<Wide<T>>(grad_lse_[i]);
    static int turn = 0;
    static const Executor executors[] = {serial(), threads(2)};
    Options options = options_of(numbers);
    options.executor = executors[(ring.rank() + ++turn) % 2];

    const auto q = ring.scatter(a.q.cview()), k = ring.scatter(a.k.cview()), v = ring.scatter(a.v.cview());
    const auto r = ring.attention(q, k, v, row.mod, options);
    const Result into{ring.scatter(grad_out.cview()),
                      numbers.sigmoid_bias ? Tensor<Wide<T>, 3>(grad_lse) : ring.scatter(grad_lse)};
    const auto g = ring.attention_backward(into, q, k, v, r, row.mod, options);
    const Computed<T> got{plain(ring.gather(r.out, 0)),
                          numbers.sigmoid_bias ? std::vector<Wide<T>>() : plain(ring.gather(r.lse, 0))};
    const ComputedGradients<T> gradients{plain(ring.gather(g.query, 0)), plain(ring.gather(g.key, 0)),
                                         plain(ring.gather(g.value, 0))};
    if (ring.rank() != 0 || ::testing::Test::HasFailure()) return;  // one case tells enough

    const Truth truth = oracle(inputs, row.meaning, numbers);
    expect_close(truth, naive(a, row.mod, options_of(numbers)), got);
    const GradientTruth gradient_truth = gradient_oracle(inputs, grad_out_, grad_lse_, row.meaning, numbers);
    const auto definition = attn::naive_attention_backward(Result{grad_out.cview(), grad_lse.view()}, a.q.cview(),
                                                           a.k.cview(), a.v.cview(), row.mod, options_of(numbers));
    expect_gradients_close(
        gradient_truth, truth,
        ComputedGradients<T>{plain(definition.query), plain(definition.key), plain(definition.value)}, gradients);
  }

 private:
  std::vector<double> grad_out_, grad_lse_;
};

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
    each_erased_row<Wide<T>, true>({c.sizes, c.numbers, random}, [&](const auto& row) {
      if (sample.takes_next()) c.check(ring, row);
    });
  });
}

TEST(Ring, EveryMod) { check_every_mod<float>(); }
TEST(Ring, EveryModBFloat16) { check_every_mod<Eigen::bfloat16>(); }

/// Lengths that ranks do not divide, and fewer tokens than ranks.
TEST(Ring, EveryLength) {
  for_each_ring(22, [&](mpi::Ring& ring, Random& random, Sample&) {
    for (const Index len : {0, 1, 2, 5, 6, 13, 14, 15, 28}) {
      RankCase<float> c({1, 2, 1, len, len, 3, 2}, random);
      const auto causal = attn::causal();
      c.check(ring, Row<decltype(causal)>{"causal", causal, {[](const Pair& p) { return p.kv <= p.q; }, {}}});
    }
  });
}

/// Keys that come in several parcels from each rank, of which some are not needed.
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
