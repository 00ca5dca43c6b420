// Outputs that share memory with an input or with each other are refused; outputs interleaved with them are not.
#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "support/refused.h"

namespace attn::test {
namespace {

TEST(Overlaps, InterleavedPartsDoNotOverlap) {
  // Query, key, value and space for the output in one row of memory per token: no elements are shared.
  auto rows = tensor({1, 5, 4, 8});
  const auto all = rows.view();
  for (Index i = 0; i < rows.size(); ++i) rows.data()[i] = static_cast<float>(i % 11) / 8;
  const auto part = [&](Index i) { return all.slice(2, i, i + 1).transpose(1, 2); };
  const Tensor<float, 4> expected = attention(part(0), part(1), part(2)).out;
  attention_into(part(3), part(0), part(1), part(2));
  EXPECT_TRUE(std::ranges::equal(std::span(expected.data(), 40), std::span(Tensor<float, 4>(part(3)).data(), 40)));
  expect_refused("one of them", {"key"}, [&] { attention_into(part(1), part(0), part(1), part(2)); });
}

// An output of 4 x 20 elements and a query of 4 x 2, in one block of memory.
TEST(Overlaps, AreDetectedOnEitherSide) {
  std::vector<float> memory(300);
  const auto k = tensor({1, 1, 3, 2}), v = tensor({1, 1, 3, 20});
  const auto call = [&](Index out, Index query, Index step = 1) {
    const TensorView<float, 4> to(memory.data() + out, {1, 1, 4, 20}, {0, 0, 20 * step, step});
    attention_into(to, bhsd(memory.data() + query, 1, 1, 4, 2), k, v);
  };
  const auto refused = [&](const char* what, Index out, Index query, Index step = 1) {
    expect_refused(what, {"(1, 1, 4, 20)", "query", "(1, 1, 4, 2)"}, [&] { call(out, query, step); });
  };
  refused("around the query", 100, 140);
  refused("the query's end overlaps the output's beginning", 100, 93);
  refused("the query's beginning overlaps the output's end", 100, 179);
  refused("backwards, around it", 179, 140, -1);
  refused("an output with negative stride and the query's end", 179, 93, -1);
  EXPECT_NO_THROW(call(100, 92));
  EXPECT_NO_THROW(call(100, 180));
  EXPECT_NO_THROW(call(179, 92, -1));
  EXPECT_NO_THROW(call(179, 180, -1));
  // The output consists of every third element. The query contains some of these elements, or only elements between
  // them.
  refused("the query's first element belongs to the output", 0, 102, 3);
  const TensorView<float, 4> gaps(memory.data() + 1, {1, 1, 4, 2}, {0, 0, 60, 30});
  const TensorView<float, 4> thirds(memory.data(), {1, 1, 4, 20}, {0, 0, 60, 3});
  EXPECT_NO_THROW(attention_into(thirds, gaps, k, v));
}

TEST(Overlaps, OutputInsideAnInput) {
  std::vector<float> memory(160);
  const auto q = bhsd(memory.data(), 1, 1, 4, 40), k = bhsd(memory.data(), 1, 1, 3, 40);
  const auto v = tensor({1, 1, 3, 1});
  expect_refused("inside", {"out", "query"}, [&] { attention_into(bhsd(memory.data() + 70, 1, 1, 4, 1), q, k, v); });
}

TEST(Overlaps, EveryArgumentIsChecked) {
  auto x = tensor({1, 2, 5, 8});
  const auto q = tensor({1, 2, 5, 8}), k = q, v = q;
  auto out = tensor({1, 2, 5, 8});
  const TensorView<float, 3> lse(x.data(), {1, 2, 5}), in_out(out.data(), {1, 2, 5});
  expect_refused("key", {"out", "key"}, [&] { attention_into(x, q, x, v); });
  expect_refused("value", {"out", "value"}, [&] { attention_into(x, q, k, x); });
  expect_refused("naive", {"out", "value"}, [&] { naive_attention_into(x, q, k, x); });
  expect_refused("lse", {"lse", "key"}, [&] { attention_into(out, lse, q, x, v); });
  expect_refused("lse in out", {"lse", "out"}, [&] { attention_into(out, in_out, q, k, v); });
  KvCache<float> cache({.kv_heads = 2, .head_dim = 8});
  cache.append(k, v);
  expect_refused("over a cache", {"out", "query"}, [&] { attention_into(x, x, cache); });
  const auto r = attention(q, k, v);
  auto a = tensor({1, 2, 5, 8}), b = a;
  expect_refused("gradients", {"grad_query", "grad_key"},
                 [&] { attention_backward_into(a, a, b, q, q, k, v, r.out, r.lse); });
  expect_refused("the first and the last", {"grad_value", "grad_query"},
                 [&] { attention_backward_into(a, b, a, q, q, k, v, r.out, r.lse); });
  expect_refused("and out", {"grad_key", "out"}, [&] { attention_backward_into(a, x, b, q, q, k, v, x, r.lse); });
}

// Recurrent forms of linear attention: each output that overlaps an input or another output is refused, and nothing is
// written.
class OverlapsOfRecurrences : public ::testing::Test {
 protected:
  template <class Call>
  void refused(const char* out, const char* in, const Call& call) {
    expect_refused(out, {std::string(out) + " of shape", std::string("overlaps ") + in + " of shape"}, call);
    for (const Tensor<float, 4>* t : {&q_, &k_, &v_, &grad_out_, &out_, &a_, &b_, &c_})
      for (Index i = 0; i < t->size(); ++i) ASSERT_EQ(t->data()[i], 0.5f) << out << ", " << in;
    for (const Tensor<float, 3>* t : {&gate_, &beta_, &gg_, &gb_})
      for (Index i = 0; i < t->size(); ++i) ASSERT_EQ(t->data()[i], -0.5f) << out << ", " << in;
  }
  static Tensor<float, 4> rows() {
    Tensor<float, 4> t({1, 2, 5, 4});
    std::fill_n(t.data(), t.size(), 0.5f);
    return t;
  }
  static Tensor<float, 3> numbers() {
    Tensor<float, 3> t({1, 2, 5});
    std::fill_n(t.data(), t.size(), -0.5f);
    return t;
  }

  Tensor<float, 4> q_ = rows(), k_ = q_, v_ = q_, grad_out_ = q_, out_ = q_, a_ = q_, b_ = q_, c_ = q_;
  Tensor<float, 3> gate_ = numbers(), beta_ = gate_, gg_ = gate_, gb_ = gate_;
  TensorView<float, 3> gate_of_rows_{a_.data(), {1, 2, 5}};  // overlaps a gradient
};

TEST_F(OverlapsOfRecurrences, Forward) {
  RecurrentState<float> state({.kv_heads = 2, .features = 4});
  refused("out", "query", [&] { linear_attention_into(q_, q_, k_, v_, elu1(), causal()); });
  refused("out", "key", [&] { linear_attention_into(k_, state, q_, k_, v_, elu1(), causal()); });
  refused("out", "value", [&] { gated_attention_into(v_, q_, k_, v_, gate_); });
  refused("out", "query", [&] { gated_attention_into(q_, q_, k_, v_, retention_decay(2)); });
  refused("out", "log_gate", [&] { gated_attention_into(a_, q_, k_, v_, gate_of_rows_); });
  refused("out", "log_gate", [&] { gated_attention_into(a_, q_, k_, v_, a_); });
  refused("out", "key", [&] { gated_delta_rule_into(k_, q_, k_, v_, gate_, beta_); });
  refused("out", "value", [&] { gated_delta_rule_into(v_, state, q_, k_, v_, gate_, beta_); });
  refused("out", "beta", [&] { gated_delta_rule_into(a_, q_, k_, v_, gate_, gate_of_rows_); });
  RecurrentState<float> wide({.kv_heads = 2, .features = 4, .v_dim = 16});
  const auto in_state = wide.sums().slice(2, 0, 1);
  refused("out", "the state", [&] {
    linear_attention_into(in_state, wide, q_.slice(2, 0, 1), k_.slice(2, 0, 1), tensor({1, 2, 1, 16}), elu1());
  });
  EXPECT_NO_THROW(gated_delta_rule_into(out_, state, q_, k_, v_, gate_, beta_));
}

TEST_F(OverlapsOfRecurrences, Backward) {
  refused("grad_query", "grad_key",
          [&] { linear_attention_backward_into(a_, a_, b_, grad_out_, q_, k_, v_, elu1(), causal()); });
  refused("grad_query", "grad_value",
          [&] { linear_attention_backward_into(a_, b_, a_, grad_out_, q_, k_, v_, elu1()); });
  refused("grad_value", "grad_out",
          [&] { linear_attention_backward_into(a_, b_, grad_out_, grad_out_, q_, k_, v_, elu1()); });
  refused("grad_key", "query", [&] { gated_attention_backward_into(a_, q_, c_, gg_, grad_out_, q_, k_, v_, gate_); });
  refused("grad_log_gate", "log_gate",
          [&] { gated_attention_backward_into(a_, b_, c_, gate_, grad_out_, q_, k_, v_, gate_); });
  refused("grad_query", "grad_log_gate",
          [&] { gated_attention_backward_into(a_, b_, c_, gate_of_rows_, grad_out_, q_, k_, v_, gate_); });
  const TensorView<float, 1> of_heads(q_.data(), {2});
  refused("grad_log_gate", "query",
          [&] { gated_attention_backward_into(a_, b_, c_, of_heads, grad_out_, q_, k_, v_, retention_decay(2)); });
  refused("grad_log_gate", "grad_beta",
          [&] { gated_delta_rule_backward_into(a_, b_, c_, gg_, gg_, grad_out_, q_, k_, v_, gate_, beta_); });
  refused("grad_beta", "beta",
          [&] { gated_delta_rule_backward_into(a_, b_, c_, gg_, beta_, grad_out_, q_, k_, v_, gate_, beta_); });
  refused("grad_log_gate", "beta",
          [&] { gated_delta_rule_backward_into(a_, b_, c_, beta_, gb_, grad_out_, q_, k_, v_, gate_, beta_); });

  const RecurrentState<float> before({.kv_heads = 2, .features = 4, .v_dim = 16});
  RecurrentState<float> grad_state(before);
  const auto one = [](const Tensor<float, 4>& t) { return t.slice(2, 0, 1); };
  const auto wide = tensor({1, 2, 1, 16});
  const auto in_state = grad_state.sums().slice(2, 0, 1);
  refused("grad_value", "grad_state", [&] {
    linear_attention_backward_into(a_.slice(2, 0, 1), b_.slice(2, 0, 1), in_state, before, grad_state, wide, one(q_),
                                   one(k_), wide, elu1());
  });
  EXPECT_NO_THROW(gated_delta_rule_backward_into(a_, b_, c_, gg_, gb_, grad_out_, q_, k_, v_, gate_, beta_));
}

TEST(Overlaps, AdditiveAttentionIsChecked) {
  auto q = tensor({1, 2, 5, 4}), k = q, v = q, out = q, grad = q, a = q, b = q, c = q;
  Tensor<float, 3> lse({1, 2, 5});
  Eigen::MatrixXf w_q = Eigen::MatrixXf::Ones(4, 4), w_k = w_q, grad_w_q = w_q;
  Eigen::VectorXf w = Eigen::VectorXf::Ones(4), grad_w = w;
  const AdditiveScore<float> score{w_q, w_k, w};
  const TensorView<float, 3> in_query(q.data(), {1, 2, 5});
  const auto forward = [&](auto& to, auto&& to_lse) { additive_attention_into(to, to_lse, q, k, v, score); };
  expect_refused("query", {"out of shape (1, 2, 5, 4) overlaps query"}, [&] { forward(q, lse); });
  expect_refused("value", {"out of shape", "overlaps value"}, [&] { forward(v, lse); });
  expect_refused("lse", {"lse of shape (1, 2, 5) overlaps query"}, [&] { forward(out, in_query); });
  expect_refused("lse in out", {"out of shape", "overlaps lse"}, [&] {
    forward(out, TensorView<float, 3>(out.data(), {1, 2, 5}));
  });
  expect_refused("a parameter", {"overlaps query_weight of shape (1, 1, 4, 4)"}, [&] {
    const TensorView<float, 4> in_weight(w_q.data(), {1, 1, 2, 4});
    Tensor<float, 3> two({1, 1, 2});
    additive_attention_into(in_weight, two, tensor({1, 1, 2, 4}), tensor({1, 1, 2, 4}), tensor({1, 1, 2, 4}), score);
  });
  EXPECT_NO_THROW(forward(out, lse));
  const auto backward = [&](auto& gq, auto& gk, auto& gv, const AdditiveScoreGradients<float>& grads) {
    additive_attention_backward_into(gq, gk, gv, grads, grad, q, k, v, score, out, lse);
  };
  expect_refused("each other", {"grad_query", "overlaps grad_value"}, [&] { backward(a, b, a, {}); });
  expect_refused("out", {"grad_key", "overlaps out"}, [&] { backward(a, out, c, {}); });
  expect_refused("grad_out", {"grad_query", "overlaps grad_out"}, [&] { backward(grad, b, c, {}); });
  expect_refused("a parameter's own", {"the gradient of query_weight", "overlaps query_weight"},
                 [&] { backward(a, b, c, {.query_weight = w_q}); });
  expect_refused("another parameter's", {"the gradient of query_weight", "overlaps the gradient of key_weight"},
                 [&] { backward(a, b, c, {.query_weight = grad_w_q, .key_weight = grad_w_q}); });
  EXPECT_NO_THROW(backward(a, b, c, {.query_weight = grad_w_q, .score_weight = grad_w}));
}

}  // namespace
}  // namespace attn::test
