// Gradients through states: a sequence fed in parts has the gradients of the whole, and the gradient of a state agrees
// with differences of the definition. Gradients in the caller's memory are tested, too.
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "recurrent_paths.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using T = double;
using Tensors = std::vector<Tensor<T, 4>>;
constexpr Index kBatch = 2, kHeads = 4, kKvHeads = 2, kDim = 7, kVDim = 9;

/// A sequence, the gradient of its outputs, and memory for gradients.
struct Sequence {
  explicit Sequence(Index len)
      : in(random, kBatch, kHeads, kKvHeads, len, len, kDim, kVDim, 0.3),
        q({kBatch, kHeads, len, kDim}),
        k(token_tensor<T>(in, in.k, kDim)),
        v(token_tensor<T>(in, in.v, kVDim)),
        gates(token_tensor<T>(in, in.feature_gate, kDim)),
        a(token_tensor<T>(in, in.a, kDim)),
        b(token_tensor<T>(in, in.b_vector, kDim)),
        grad_out({kBatch, kHeads, len, kVDim}),
        gate(token_scalars<T>(in, in.token_gate)),
        beta(token_scalars<T>(in, in.beta)) {
    std::copy_n(in.q.data(), q.size(), q.data());
    std::copy_n(random.values(grad_out.size(), 1).data(), grad_out.size(), grad_out.data());
  }
  Random random{3};
  Recurrent in;
  Tensor<T, 4> q, k, v, gates, a, b, grad_out;
  Tensor<T, 3> gate, beta;

  static RecurrentState<T> empty_state() {
    return RecurrentState<T>({.batch = kBatch, .kv_heads = kKvHeads, .features = kDim, .v_dim = kVDim});
  }

  /// Returns the outputs of tokens begin .. end - 1 in form number `form`, and updates the state.
  Tensor<T, 4> run(int form, RecurrentState<T>& state, Index begin, Index end) const {
    const auto part = [&](const auto& t) { return t.view().slice(2, begin, end); };
    const auto x = part(q), y = part(k), z = part(v);
    if (form == 0) return linear_attention(state, x, y, z, elu1(), causal()).out;
    if (form == 1) return gated_attention(state, x, y, z, part(gate)).out;
    if (form == 2) return gated_attention(state, x, y, z, part(gates)).out;
    if (form == 3) return gated_delta_rule(state, x, y, z, part(gate), part(beta)).out;
    if (form == 5) return gated_delta_rule(state, x, y, z, part(gates), part(beta)).out;
    if (form == 6) return dplr_delta_rule(state, x, y, z, part(a), part(b), part(gates)).out;
    return linear_attention(state, x, y, z, elu1()).out;  // not causal: every row sees every key of its call
  }
  /// Writes the gradients of those tokens to the same tokens of `to`: query, key, value, gate, beta. If the states are
  /// null, the call is made without a state.
  void gradients(int form, const RecurrentState<T>* before, RecurrentState<T>* grad_state, Index begin, Index end,
                 Tensors& to) const {
    const auto part = [&](auto& t) { return t.view().slice(2, begin, end); };
    const auto into = [&](auto& t) {  // of rank 3
      return TensorView<T, 3>(t.data(), {kBatch, kKvHeads, t.dim(2)}, {t.view().stride(0), t.view().stride(1), 1})
          .slice(2, begin, end);
    };
    const auto x = part(q), y = part(k), z = part(v), g = part(grad_out);
    const auto gx = part(to[0]), gy = part(to[1]), gz = part(to[2]);
    const Mods<> none;
    const auto linear = [&](const auto& mods) {
      if (before)
        linear_attention_backward_into(gx, gy, gz, *before, *grad_state, g, x, y, z, elu1(), mods);
      else
        linear_attention_backward_into(gx, gy, gz, g, x, y, z, elu1(), mods);
    };
    if (form == 0) return linear(causal());
    if (form == 4) return linear(none);
    if (form == 1) {
      if (before)
        gated_attention_backward_into(gx, gy, gz, into(to[3]), *before, *grad_state, g, x, y, z, part(gate));
      else
        gated_attention_backward_into(gx, gy, gz, into(to[3]), g, x, y, z, part(gate));
    } else if (form == 2) {
      if (before)
        gated_attention_backward_into(gx, gy, gz, part(to[4]), *before, *grad_state, g, x, y, z, part(gates));
      else
        gated_attention_backward_into(gx, gy, gz, part(to[4]), g, x, y, z, part(gates));
    } else if (form == 5) {
      if (before)
        gated_delta_rule_backward_into(gx, gy, gz, part(to[4]), into(to[5]), *before, *grad_state, g, x, y, z,
                                       part(gates), part(beta));
      else
        gated_delta_rule_backward_into(gx, gy, gz, part(to[4]), into(to[5]), g, x, y, z, part(gates), part(beta));
    } else if (form == 6) {
      const auto ga = part(to[6]), gb = part(to[7]);
      if (before)
        dplr_delta_rule_backward_into(gx, gy, gz, ga, gb, part(to[4]), *before, *grad_state, g, x, y, z, part(a),
                                      part(b), part(gates));
      else
        dplr_delta_rule_backward_into(gx, gy, gz, ga, gb, part(to[4]), g, x, y, z, part(a), part(b), part(gates));
    } else {
      if (before)
        gated_delta_rule_backward_into(gx, gy, gz, into(to[3]), into(to[5]), *before, *grad_state, g, x, y, z,
                                       part(gate), part(beta));
      else
        gated_delta_rule_backward_into(gx, gy, gz, into(to[3]), into(to[5]), g, x, y, z, part(gate), part(beta));
    }
  }
  Tensors room() const {
    const Index len = q.dim(2);
    Tensors to;
    for (const Shape<4>& shape : {q.shape(), k.shape(), v.shape(), Shape<4>{kBatch, kKvHeads, len, 1}, gates.shape(),
                                  Shape<4>{kBatch, kKvHeads, len, 1}, gates.shape(), gates.shape()})
      to.emplace_back(shape);
    return to;
  }
};

TEST(RecurrentStateGradients, PartsHaveTheGradientsOfTheWhole) {
  const Index len = 150;
  const Sequence sequence(len);
  for (const int form : {0, 1, 2, 3, 5, 6})
    for (const std::vector<Index>& ends : {std::vector<Index>{150}, {1, 2, 150}, {70, 71, 150}, {64, 128, 150}}) {
      Tensors whole = sequence.room(), parts = sequence.room();
      sequence.gradients(form, nullptr, nullptr, 0, len, whole);
      std::vector<RecurrentState<T>> before;
      auto state = Sequence::empty_state(), grad_state = state;
      Index at = 0;
      for (const Index end : ends) {
        before.push_back(state);
        sequence.run(form, state, at, end);
        at = end;
      }
      for (std::size_t p = ends.size(); p-- > 0;)
        sequence.gradients(form, &before[p], &grad_state, p == 0 ? 0 : ends[p - 1], ends[p], parts);
      for (std::size_t i = 0; i < whole.size(); ++i)
        for (Index n = 0; n < whole[i].size(); ++n)
          ASSERT_NEAR(parts[i].data()[n], whole[i].data()[n], 1e-11 * (1 + std::abs(whole[i].data()[n])))
              << "form " << form << ", " << ends.size() << " parts, tensor " << i << ", element " << n;
    }
}

/// The loss depends on the outputs and, with random weights, on the final state.
TEST(RecurrentStateGradients, CentralDifferences) {
  const Index len = 70;
  const Sequence sequence(len);
  for (int form = 0; form < 7; ++form) {
    Random random(5);
    const bool is_linear = form == 0 || form == 4;
    auto before = Sequence::empty_state(), of_loss = before;
    const auto fill = [&](RecurrentState<T>& state, double least) {
      for (Index b = 0; b < kBatch; ++b)
        for (Index h = 0; h < kKvHeads; ++h)
          for (Index f = 0; f < kDim; ++f) {
            if (is_linear) state.normaliser()(b, h, f) = least + random.uniform(0, 1);
            for (Index e = 0; e < kVDim; ++e) state.sums()(b, h, f, e) = random.uniform(-1, 1);
          }
    };
    fill(before, 1), fill(of_loss, -0.5);
    const auto loss = [&] {
      auto state = before;
      const Tensor<T, 4> out = sequence.run(form, state, 0, len);
      T sum = 0;
      for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * sequence.grad_out.data()[i];
      for (Index b = 0; b < kBatch; ++b)
        for (Index h = 0; h < kKvHeads; ++h)
          for (Index f = 0; f < kDim; ++f) {
            sum += state.normaliser()(b, h, f) * of_loss.normaliser()(b, h, f);
            for (Index e = 0; e < kVDim; ++e) sum += state.sums()(b, h, f, e) * of_loss.sums()(b, h, f, e);
          }
      return sum;
    };
    auto grad_state = of_loss;
    Tensors to = sequence.room();
    sequence.gradients(form, &before, &grad_state, 0, len, to);
    const auto expect_slope = [&](T& x, T got, const char* what) {
      const T was = x, step = 1e-5;
      x = was + step;
      const T above = loss();
      x = was - step;
      const T below = loss();
      x = was;
      EXPECT_NEAR(got, (above - below) / (2 * step), 1e-6 * (1 + std::abs(got))) << what << " of form " << form;
    };
    for (const auto& [b, h, f, e] : {Shape<4>{0, 0, 0, 0}, Shape<4>{1, 1, 6, 8}, Shape<4>{0, 1, 3, 5}}) {
      expect_slope(before.sums()(b, h, f, e), grad_state.sums()(b, h, f, e), "sums");
      if (is_linear) expect_slope(before.normaliser()(b, h, f), grad_state.normaliser()(b, h, f), "normaliser");
      auto& mutable_sequence = const_cast<Sequence&>(sequence);
      expect_slope(mutable_sequence.k(b, h, 69, f), to[1](b, h, 69, f), "last key");
      expect_slope(mutable_sequence.v(b, h, 2, e), to[2](b, h, 2, e), "value");
    }
  }
}

/// Keys that no row sees are part of the final state, and have gradients from it.
TEST(RecurrentStateGradients, KeysAfterAllRows) {
  for (const Index q_len : {0, 3}) {
    const Sequence sequence(70);
    Random random(6);
    const auto before = Sequence::empty_state();
    auto grad_state = before;
    for (Index f = 0; f < kDim; ++f) {
      grad_state.normaliser()(1, 1, f) = random.uniform(-1, 1);
      for (Index e = 0; e < kVDim; ++e) grad_state.sums()(1, 1, f, e) = random.uniform(-1, 1);
    }
    const auto of_state = grad_state;
    Tensors to = sequence.room();
    const auto rows = [&](const auto& t) { return t.view().slice(2, 0, q_len); };
    linear_attention_backward_into(to[0].view().slice(2, 0, q_len), to[1], to[2], before, grad_state,
                                   rows(sequence.grad_out), rows(sequence.q), sequence.k, sequence.v, elu1(), causal(),
                                   {.q_offset = 0});
    for (const Index j : {Index(5), Index(64), Index(69)})
      for (Index f = 0; f < kDim; ++f) {
        const T x = sequence.k(1, 1, j, f);
        T sum = of_state.normaliser()(1, 1, f);
        for (Index e = 0; e < kVDim; ++e) sum += of_state.sums()(1, 1, f, e) * sequence.v(1, 1, j, e);
        EXPECT_NEAR(to[1](1, 1, j, f), sum * (x > 0 ? 1 : std::exp(x)), 1e-12) << q_len << ": key " << j;
      }
  }
}

TEST(RecurrentStateGradients, IntoWritesTheSameGradients) {
  const Sequence sequence(80);
  const auto before = Sequence::empty_state();
  const Mods<> none;
  auto grad_state = before, other_state = before;
  Tensors to = sequence.room();
  Tensor<T, 1> of_heads({kKvHeads});
  std::fill_n(of_heads.data(), kKvHeads, T(7));  // overwritten
  const HeadDecays decays = retention_decay(kKvHeads);
  const auto want =
      gated_attention_backward(before, grad_state, sequence.grad_out, sequence.q, sequence.k, sequence.v, decays);
  gated_attention_backward_into(to[0], to[1], to[2], of_heads, before, other_state, sequence.grad_out, sequence.q,
                                sequence.k, sequence.v, decays, none, {.executor = eager_threads(2)});
  for (Index i = 0; i < sequence.q.size(); ++i) ASSERT_EQ(to[0].data()[i], want.query.data()[i]);
  for (Index i = 0; i < sequence.k.size(); ++i) ASSERT_EQ(to[1].data()[i], want.key.data()[i]);
  for (Index h = 0; h < kKvHeads; ++h) EXPECT_EQ(of_heads(h), want.log_gate(h));
  EXPECT_EQ(grad_state.sums()(1, 1, 6, 8), other_state.sums()(1, 1, 6, 8));
}

TEST(RecurrentStateGradients, RefusesBadArguments) {
  const Sequence sequence(5);
  auto state = Sequence::empty_state(), grad_state = state;
  RecurrentState<T> small({.batch = 1, .kv_heads = kKvHeads, .features = kDim, .v_dim = kVDim});
  Tensors to = sequence.room();
  EXPECT_THROW(
      linear_attention_backward(state, state, sequence.grad_out, sequence.q, sequence.k, sequence.v, elu1(), causal()),
      std::invalid_argument);
  EXPECT_THROW(linear_attention_backward(small, grad_state, sequence.grad_out, sequence.q, sequence.k, sequence.v,
                                         elu1(), causal()),
               std::invalid_argument);
  EXPECT_THROW(
      linear_attention_backward(state, small, sequence.grad_out, sequence.q, sequence.k, sequence.v, elu1(), causal()),
      std::invalid_argument);
  EXPECT_THROW(gated_attention_backward_into(to[0], to[1], to[2], to[4], sequence.grad_out, sequence.q, sequence.k,
                                             sequence.v, sequence.gate),
               std::invalid_argument);
  Tensor<T, 1> of_heads({kKvHeads + 1});
  EXPECT_THROW(gated_attention_backward_into(to[0], to[1], to[2], of_heads, sequence.grad_out, sequence.q, sequence.k,
                                             sequence.v, retention_decay(kKvHeads)),
               std::invalid_argument);
}

}  // namespace
}  // namespace attn::test
