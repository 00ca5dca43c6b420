// A call over ranks, forward and backward, against the oracle.
#pragma once

#include <sstream>
#include <utility>
#include <vector>

#include "ranks.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/gradient_oracle.h"
#include "support/paths.h"

namespace attn::test {

/// Passes keys from rank to rank.
struct RingAlgorithm {
  template <class... A>
  auto forward(mpi::Ring& ring, const A&... a) const {
    return ring.attention(a...);
  }
  template <class... A>
  auto backward(mpi::Ring& ring, const A&... a) const {
    return ring.attention_backward(a...);
  }
};
/// Exchanges tokens for heads.
struct HeadsAlgorithm {
  template <class... A>
  auto forward(mpi::Ring& ring, const A&... a) const {
    return ring.attention_by_heads(a...);
  }
  template <class... A>
  auto backward(mpi::Ring& ring, const A&... a) const {
    return ring.attention_by_heads_backward(a...);
  }
};

/// A call that all ranks draw identically; rank 0 compares it with the oracle.
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

  /// `algorithm`: how the ranks share the work, RingAlgorithm or HeadsAlgorithm.
  template <class M, class Algorithm = RingAlgorithm>
  void check(mpi::Ring& ring, const Row<M>& row, const Algorithm& algorithm = {}) {
    std::ostringstream text;
    text << row.name << ", " << sizes << (grad_lse_.empty() ? "" : ", with grad_lse");
    if (numbers.q_offset) text << ", q_offset " << *numbers.q_offset;
    if (numbers.scale) text << ", scale " << *numbers.scale;
    SCOPED_TRACE(text.str());
    if (numbers.sigmoid_bias && row.meaning.sink) return;  // refused
    if (numbers.sigmoid_bias) grad_lse_.clear();           // sigmoid weights have no lse

    Arguments<T> a(inputs);
    Strided<T> grad_out(Layout::bhsd, {sizes.batch, sizes.heads, sizes.q_len, sizes.v_dim}, grad_out_);
    Tensor<Wide<T>, 3> grad_lse({sizes.batch, sizes.heads, numbers.sigmoid_bias ? 0 : sizes.q_len});
    for (std::size_t i = 0; i < grad_lse_.size(); ++i) grad_lse.data()[i] = static_cast<Wide<T>>(grad_lse_[i]);
    static int turn = 0;
    static const Executor executors[] = {serial(), eager_threads(2)};
    Options options = options_of(numbers);
    options.executor = executors[(ring.rank() + ++turn) % 2];

    const auto q = ring.scatter(a.q.cview()), k = ring.scatter(a.k.cview()), v = ring.scatter(a.v.cview());
    const auto r = algorithm.forward(ring, q, k, v, row.mod, options);
    const Result into{ring.scatter(grad_out.cview()),
                      numbers.sigmoid_bias ? Tensor<Wide<T>, 3>(grad_lse) : ring.scatter(grad_lse)};
    const auto g = algorithm.backward(ring, into, q, k, v, r, row.mod, options);
    const Computed<T> got{plain(ring.gather(r.out, 0)),
                          numbers.sigmoid_bias ? std::vector<Wide<T>>() : plain(ring.gather(r.lse, 0))};
    const ComputedGradients<T> gradients{plain(ring.gather(g.query, 0)), plain(ring.gather(g.key, 0)),
                                         plain(ring.gather(g.value, 0))};
    if (ring.rank() != 0 || ::testing::Test::HasFailure()) return;  // one failing case is enough

    const Truth truth = oracle(inputs, row.meaning, numbers);
    expect_close(truth, naive(a, row.mod, options_of(numbers)), got, lse_error<T>(default_isa()));
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

}  // namespace attn::test
