// Gradients of all recurrent forms: in long double against central differences of the definitions, in float and double
// against long double; NaN and threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "recurrent_forms.h"
#include "support/executors.h"

namespace attn::test {
namespace {

TEST(RecurrentGradients, CentralDifferencesOfTheDefinition) {
  using T = long double;
  Random random(4);
  for (const Index len : {1, 5, 17, 40, 66, 131})
    for (const double strength : {0.1, 3.0}) {
      const Recurrent in(random, 2, 2, 1, len, len, 5, 6, strength);
      for_each_form(len, [&](const char* name, const auto& form) {
        if (std::string(name) == "identity") return;  // the normaliser may be near 0
        FormNumbers<T> n(in);
        const FormGrads<T> grads = form.grads(n, {.executor = serial()});
        const auto loss = [&] {
          const Tensor<T, 4> out = form.out(n);
          T sum = 0;
          for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * n.grad_out.data()[i];
          return sum;
        };
        const auto parts = form.parts(n);
        ASSERT_EQ(parts.size(), grads.size());
        for (std::size_t p = 0; p < parts.size(); ++p) {
          const auto size = static_cast<Index>(grads[p].size());
          for (int sample = 0; sample < 4; ++sample) {
            const Index i = sample == 0 ? 0 : random.integer(0, size - 1);
            constexpr T kStep = 1e-6L;
            T& x = parts[p][i];
            const T before = x;
            x = before + kStep;
            const T above = loss();
            x = before - kStep;
            const T below = loss();
            x = before;
            const T numeric = (above - below) / (2 * kStep), got = grads[p][static_cast<std::size_t>(i)];
            EXPECT_NEAR(static_cast<double>(got), static_cast<double>(numeric),
                        1e-9 * (1 + static_cast<double>(std::abs(numeric))))
                << name << ", " << len << " tokens, part " << p << ", element " << i;
          }
        }
      });
    }
}

/// Calls in which queries and keys do not correspond one to one.
TEST(RecurrentGradients, DifferentNumbersOfQueriesAndKeys) {
  using T = long double;
  Random random(5);
  // In the last case the first queries precede all keys and the last ones follow them.
  for (const auto& [q_len, kv_len, q_offset] :
       {Shape<3>{3, 70, 67}, Shape<3>{70, 3, -67}, Shape<3>{5, 0, -5}, Shape<3>{0, 5, 5}, Shape<3>{9, 4, -2}}) {
    const Options options{.q_offset = q_offset};
    const Recurrent in(random, 2, 2, 1, q_len, kv_len, 4, 3);
    FormNumbers<T> n(in);
    for (const bool is_causal : {false, true}) {
      const auto out = [&] {
        const auto o = is_causal ? naive_linear_attention(n.q, n.k, n.v, elu1(), causal(), options).out
                                 : naive_linear_attention(n.q, n.k, n.v, elu1(), options).out;
        T sum = 0;
        for (Index i = 0; i < o.size(); ++i) sum += o.data()[i] * n.grad_out.data()[i];
        return sum;
      };
      const auto g = is_causal ? linear_attention_backward(n.grad_out, n.q, n.k, n.v, elu1(), causal(), options)
                               : linear_attention_backward(n.grad_out, n.q, n.k, n.v, elu1(), options);
      const auto check = [&](Tensor<T, 4>& x, const Tensor<T, 4>& grad) {
        for (Index i = 0; i < x.size(); ++i) {
          const T before = x.data()[i];
          x.data()[i] = before + 1e-6L;
          const T above = out();
          x.data()[i] = before - 1e-6L;
          const T below = out();
          x.data()[i] = before;
          EXPECT_NEAR(static_cast<double>(grad.data()[i]), static_cast<double>((above - below) / 2e-6L), 1e-9)
              << n.q.dim(2) << ", " << n.k.dim(2) << ", " << is_causal << ": " << i;
        }
      };
      check(n.q, g.query), check(n.k, g.key), check(n.v, g.value);
    }
  }
}

template <class T>
void expect_grads_of_long_double() {
  Random random(6);
  for (const Index len : {5, 64, 130})
    for (const double strength : {0.1, 20.0}) {
      const Recurrent in(random, 2, 4, 2, len, len, 20, 24, strength);
      for_each_form(len, [&](const char* name, const auto& form) {
        if (std::string(name) == "identity") return;
        const auto want = form.grads(FormNumbers<long double>(in), {.executor = serial()});
        for (const Isa isa : instruction_sets()) {
          const auto got = form.grads(FormNumbers<T>(in), {.executor = serial(), .isa = isa});
          for (std::size_t p = 0; p < got.size(); ++p) {
            LongReal largest = 0;
            for (const LongReal x : want[p]) largest = std::max(largest, std::abs(x));
            // Sums over up to 130 tokens and 24 features, whose terms may be several times the largest result.
            EXPECT_LE(largest_error(want[p], got[p]), 300 * epsilon<T>() * (largest + 1))
                << name << " on " << to_string(isa) << ", " << len << " tokens, part " << p;
          }
        }
      });
    }
}
TEST(RecurrentGradients, FloatOnEveryInstructionSet) { expect_grads_of_long_double<float>(); }
TEST(RecurrentGradients, DoubleOnEveryInstructionSet) { expect_grads_of_long_double<double>(); }

TEST(RecurrentGradients, ThreadsDoNotChangeResults) {
  Random random(7);
  const Recurrent in(random, 2, 4, 2, 100, 100, 16, 16);
  const FormNumbers<float> n(in);
  for_each_form(100, [&](const char* name, const auto& form) {
    const auto one = form.grads(n, {.executor = serial()});
    for (const int workers : {2, 3}) {
      const auto more = form.grads(n, {.executor = eager_threads(workers)});
      for (std::size_t p = 0; p < one.size(); ++p) EXPECT_TRUE(same_bits(one[p], more[p])) << name << ' ' << workers;
    }
  });
}

/// NaN in keys, values, gates and betas after a sequence's length reaches no gradient.
TEST(RecurrentGradients, MaskedNaNReachesNoGradient) {
  Random random(8);
  const Index len = 90, good = 45;
  const Recurrent in(random, 2, 2, 1, len, len, 16, 16, 0.5);
  const FormNumbers<float> clean(in);
  FormNumbers<float> poisoned = clean;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Index t = good; t < len; ++t)
    for (Index d = 0; d < 16; ++d) {
      poisoned.k(0, 0, t, d) = poisoned.v(0, 0, t, d) = poisoned.gates(0, 0, t, d) = poisoned.a(0, 0, t, d) =
          poisoned.b(0, 0, t, d) = nan;
      poisoned.gate(0, 0, t) = poisoned.beta(0, 0, t) = nan;
    }
  const auto lengths = key_lengths({good, len});
  const auto expect_same = [&](const char* name, const auto& form) {
    const auto want = form.grads(clean, {.executor = serial()}), got = form.grads(poisoned, {.executor = serial()});
    for (std::size_t p = 0; p < want.size(); ++p) EXPECT_TRUE(same_bits(want[p], got[p])) << name << ", part " << p;
  };
  expect_same("elu1", LinearForm{elu1(), lengths});
  expect_same("elu1 causal", LinearForm{elu1(), causal() | lengths});
  expect_same("favor", LinearForm{favor(16, 1), lengths});
  expect_same("token gate", GatedForm<false, decltype(lengths)>{lengths});
  expect_same("feature gate", GatedForm<true, decltype(lengths)>{lengths});
  expect_same("delta rule", DeltaForm<false, decltype(lengths)>{lengths});
  expect_same("delta rule, feature gate", DeltaForm<true, decltype(lengths)>{lengths});
  expect_same("DPLR", DplrForm<true, decltype(lengths)>{lengths});
}

/// The gradient of a head's decay is the sum of its tokens' gradients.
TEST(RecurrentGradients, DecaysOfHeads) {
  Random random(9);
  const Recurrent in(random, 2, 2, 2, 70, 70, 4, 3);
  FormNumbers<double> n(in);
  const auto loss = [&](double first) {
    const auto out = naive_gated_attention(n.q, n.k, n.v, decay_per_head({first, -0.3})).out;
    double sum = 0;
    for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * n.grad_out.data()[i];
    return sum;
  };
  const auto g = gated_attention_backward(n.grad_out, n.q, n.k, n.v, decay_per_head({-0.1, -0.3}));
  EXPECT_NEAR(g.log_gate(0), (loss(-0.1 + 1e-6) - loss(-0.1 - 1e-6)) / 2e-6, 1e-6 * std::abs(g.log_gate(0)) + 1e-7);
  const auto delta = gated_delta_rule_backward(n.grad_out, n.q, n.k, n.v, decay_per_head({-0.1, -0.3}), n.beta);
  EXPECT_EQ(delta.log_gate.dim(0), 2);
}

/// The caller's workspace does not change gradients, and a smaller one is refused.
TEST(RecurrentGradients, Workspaces) {
  Random random(10);
  const Recurrent in(random, 2, 2, 1, 90, 90, 8, 6);
  const FormNumbers<float> n(in);
  const auto check = [](const auto& form, std::size_t bytes, const auto& numbers) {
    std::vector<std::byte> workspace(bytes);
    const auto want = form.grads(numbers, {.executor = serial()}),
               got = form.grads(numbers, {.executor = serial(), .workspace = workspace});
    for (std::size_t p = 0; p < want.size(); ++p) EXPECT_TRUE(same_bits(want[p], got[p])) << p;
    workspace.pop_back();
    EXPECT_THROW(form.grads(numbers, {.executor = serial(), .workspace = workspace}), std::invalid_argument);
  };
  const Options o{.executor = serial()};
  const Mods<> none;
  check(LinearForm{elu1(), causal()}, linear_backward_workspace_bytes(n.q, n.k, n.v, elu1(), causal(), o), n);
  check(GatedForm<true, Mods<>>{none}, gated_backward_workspace_bytes(n.q, n.k, n.v, n.gates, none, o), n);
  check(DplrForm<true, Mods<>>{none}, dplr_backward_workspace_bytes(n.q, n.k, n.v, n.a, n.b, n.gates, none, o), n);
  check(DeltaForm<false, Mods<>>{none}, delta_backward_workspace_bytes(n.q, n.k, n.v, n.gate, n.beta, none, o), n);
  // Documents share the workspace of the longest one.
  const auto bytes = [&](const auto& mods) { return linear_backward_workspace_bytes(n.q, n.k, n.v, elu1(), mods, o); };
  const auto two = causal() | documents_at({0, 45, 90}), four = causal() | documents_at({0, 45, 60, 75, 90});
  check(LinearForm{elu1(), four}, bytes(four), n);
  EXPECT_EQ(bytes(four), bytes(two));
  EXPECT_LT(bytes(four), bytes(causal()));
}

}  // namespace
}  // namespace attn::test
