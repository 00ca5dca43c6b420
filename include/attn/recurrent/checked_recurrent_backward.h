// The checked arguments of the gradients of a recurrent form.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/core/backward/checked_backward.h"
#include "attn/recurrent/checked_recurrence.h"
#include "attn/recurrent/recurrence.h"
#include "attn/result.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// For calls without states.
struct NoStates {};

/// The state before a call, and the gradient of the state after it, which is replaced by the gradient of the state
/// before it.
template <class T>
struct StateGradient {
  const RecurrentState<T>& before;
  RecurrentState<T>& grad;
};

/// The destination of the gradient of gates or betas, if the form has them. The gradient of a gate per head is a sum
/// over tokens, whose terms are kept here.
template <class T, class G>
class GateGradient {
  static constexpr bool kPerHead = std::is_same_v<G, HeadDecays>, kIsNone = std::is_same_v<G, NoGates>;

 public:
  /// @throws std::invalid_argument unless `grad` has the shape of the argument `like`; gates are (batch, kv_heads, len,
  /// 1 or features).
  template <class Grad>
  GateGradient([[maybe_unused]] Grad&& grad, [[maybe_unused]] const DTypeView<const T>& like,
               [[maybe_unused]] const Problem& p, [[maybe_unused]] const char* name) {
    if constexpr (kIsNone) {
      return;
    } else if constexpr (kPerHead) {
      const TensorView<T, 1> to = of_heads(grad);
      const Shape<1> want{p.kv_heads};
      require(to.shape() == want, name, " has shape ", to.shape(), ", expected ", want, " as (kv_heads)");
      written_ = to;
      of_tokens_ = Tensor<T, 4>({p.batch, p.kv_heads, p.kv_len, 1});
      view_ = of_tokens_.view();
    } else {
      const TensorView<T, 4> v = GateArgument<T, G>::template token_numbers<T>(grad);
      check_written<4>(DTypeView<T>(v), like.shape(), name, "(batch, kv_heads, len, values per token)");
      view_ = v;
      written_ = view_;
    }
  }
  const DTypeView<T>& view() const { return view_; }
  /// The caller's memory that gradients are written to.
  const Footprint& written() const { return written_; }

  template <class Grad>
  void finish([[maybe_unused]] Grad&& grad) const {
    if constexpr (kPerHead) {
      const TensorView<T, 1> to = of_heads(grad);
      for (Index h = 0; h < to.dim(0); ++h) {
        to(h) = 0;
        for (Index b = 0; b < of_tokens_.dim(0); ++b)
          for (Index t = 0; t < of_tokens_.dim(2); ++t) to(h) += of_tokens_(b, h, t, 0);
      }
    }
  }

 private:
  template <class Grad>
  static TensorView<T, 1> of_heads(Grad& grad) {
    static_assert(Viewable<Grad> && rank_of<Grad> == 1,
                  "attn: the gradient of decay_per_head() must be a rank-1 tensor (kv_heads) of the scalar type of the "
                  "query (float for 16-bit queries)");
    return attn::view(grad);
  }

  Tensor<T, 4> of_tokens_;
  DTypeView<T> view_;
  Footprint written_ = view_;
};

template <class T>
struct RuleGradients {
  DTypeView<T> beta{}, a{}, b{};
};
/// The destinations of the gradients of what a form has besides gates; null for what it lacks.
template <class Rule, class T, class Grad>
RuleGradients<T> rule_gradients(Grad&& grad, const RecurrenceCall<T>& of) {
  if constexpr (requires { grad.a; })
    return {.a = checked_gradient<T>(grad.a, of.a, "grad_a"), .b = checked_gradient<T>(grad.b, of.b, "grad_b")};
  else
    return {.beta = GateGradient<T, Rule>(grad, of.beta, of.problem, "grad_beta").view()};
}

/// Computes the gradients of a checked call into the caller's memory. `grad_gate` and `grad_rule` are NoGates if the
/// form has none. `states` is a StateGradient or NoStates.
template <class Gr, class Call, class States, class GQ, class GK, class GV, class GG, class GR>
void recurrent_gradients_into(const Gr& grad_out, const Call& checked, const States& states, GQ&& grad_query,
                              GK&& grad_key, GV&& grad_value, GG&& grad_gate = {}, GR&& grad_rule = {}) {
  using T = typename Call::T;
  const Held<Gr> held(evaluated(grad_out));
  const Problem& p = checked.in.problem;
  const RecurrenceCall<T> forward = checked.call_to({});
  const GateGradient<T, typename Call::Gate> gate(grad_gate, forward.gate, p, "grad_log_gate");
  const RuleGradients<T> rule = rule_gradients<typename Call::Rule>(grad_rule, forward);
  RecurrenceBackwardCall<T> call{forward,
                                 checked_input<T>(held, {p.batch, p.heads, p.q_len, p.v_dim}, "grad_out"),
                                 checked_gradient<T>(grad_query, forward.q, "grad_query"),
                                 checked_gradient<T>(grad_key, forward.k, "grad_key"),
                                 checked_gradient<T>(grad_value, forward.v, "grad_value"),
                                 gate.view(),
                                 rule.beta,
                                 rule.a,
                                 rule.b};
  const auto check = [&](const Footprint& state_read, const Footprint& state_written) {
    check_all_apart({{"grad_query", call.grad_q},
                     {"grad_key", call.grad_k},
                     {"grad_value", call.grad_v},
                     {"grad_log_gate", gate.written()},
                     {"grad_beta", rule.beta},
                     {"grad_a", rule.a},
                     {"grad_b", rule.b},
                     {"grad_state", state_written}},
                    {{"grad_out", call.grad_out},
                     {"query", forward.q},
                     {"key", forward.k},
                     {"value", forward.v},
                     {"log_gate", forward.gate},
                     {"beta", forward.beta},
                     {"a", forward.a},
                     {"b", forward.b},
                     {"the state", state_read}});
  };
  if constexpr (std::is_same_v<States, NoStates>) {
    check(DTypeView<T>(), DTypeView<T>());
  } else {
    require(&states.before != &states.grad, "grad_state must not be the state that the call began with");
    call.before = state_memory(states.before, forward);
    call.grad_state = state_memory(states.grad, forward, "grad_state");
    check(states.before.sums(), states.grad.sums());
  }
  recurrence_backward<T>(call, checked.in.options);
  gate.finish(grad_gate);
}

/// Returns all gradients of a call, in new tensors.
template <class Gr, class Call, class States = NoStates>
auto recurrent_gradients(const Gr& grad_out, const Call& call, const States& states = {}) {
  auto q = gradient_like<typename Call::Query>(call.in.q);
  auto k = gradient_like<typename Call::Key>(call.in.k);
  auto v = gradient_like<typename Call::Value>(call.in.v);
  auto gate = call.gate().gradient();
  auto rule = call.rule().gradient();
  recurrent_gradients_into(grad_out, call, states, q, k, v, gate, rule);
  if constexpr (std::is_same_v<decltype(gate), NoGates>)
    return Gradients<decltype(q), decltype(k), decltype(v)>{std::move(q), std::move(k), std::move(v)};
  else if constexpr (std::is_same_v<decltype(rule), NoGates>)
    return GatedGradients<decltype(q), decltype(k), decltype(v), decltype(gate)>{std::move(q), std::move(k),
                                                                                 std::move(v), std::move(gate)};
  else if constexpr (requires { rule.a; })
    return DplrGradients<decltype(q), decltype(k), decltype(v), decltype(rule.a), decltype(rule.b), decltype(gate)>{
        std::move(q), std::move(k), std::move(v), std::move(rule.a), std::move(rule.b), std::move(gate)};
  else
    return DeltaGradients<decltype(q), decltype(k), decltype(v), decltype(gate), decltype(rule)>{
        std::move(q), std::move(k), std::move(v), std::move(gate), std::move(rule)};
}

template <class Call>
std::size_t recurrent_backward_workspace_bytes(const Call& call) {
  return static_cast<std::size_t>(recurrence_backward_bytes(call.call_to({}), call.in.options));
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
