// Gradients of linear attention, its gated forms and the gated delta rule.
#pragma once

#include <utility>

#include "attn/delta_rule.h"
#include "attn/detail/backward/checked_backward.h"

namespace attn {

/// The gradients of gated_attention(): shaped as its arguments, that of decay_per_head() as (kv_heads).
template <class Query, class Key, class Value, class Gate>
struct GatedGradients {
  Query query;    ///< like the query
  Key key;        ///< like the key
  Value value;    ///< like the value
  Gate log_gate;  ///< like log_gate
};

/// The gradients of gated_delta_rule(), likewise.
template <class Query, class Key, class Value, class Gate, class Beta>
struct DeltaGradients {
  Query query;    ///< like the query
  Key key;        ///< like the key
  Value value;    ///< like the value
  Gate log_gate;  ///< like log_gate
  Beta beta;      ///< like beta
};

namespace detail {
inline namespace ATTN_BUILT_FOR {

/// grad_out, checked, and gradients like the caller's tensors.
template <class Gr, class Q, class K, class V, class Call>
class RecurrentBackward {
  const Held<Gr> held_;

 public:
  using T = typename Call::T;

  RecurrentBackward(const Gr& grad_out, const Call& call) : held_(evaluated(grad_out)), call_(call) {
    const Problem& p = call.in.problem;
    grad_out_ = checked_input<T>(held_, {p.batch, p.heads, p.q_len, p.v_dim}, "grad_out");
  }

  auto query() const { return gradient_like<Q>(call_.in.q); }
  auto key() const { return gradient_like<K>(call_.in.k); }
  auto value() const { return gradient_like<V>(call_.in.v); }

  template <class GQ, class GK, class GV>
  void run(GQ& grad_query, GK& grad_key, GV& grad_value, const DTypeView<T>& grad_gate, const DTypeView<T>& grad_beta,
           const Options& options) const {
    recurrence_backward<T>({call_.call_to({}), grad_out_, checked_gradient<T>(grad_query, call_.in.q, "grad_query"),
                            checked_gradient<T>(grad_key, call_.in.k, "grad_key"),
                            checked_gradient<T>(grad_value, call_.in.v, "grad_value"), grad_gate, grad_beta},
                           options);
  }

 private:
  const Call& call_;
  DTypeView<const T> grad_out_;
};

/// Where gradients of gates go before those of all tokens of a head are added up, if the gate is one of a head.
template <class T, class G>
class GateGradient {
  static constexpr bool kPerHead = std::is_same_v<G, HeadDecays>;

 public:
  template <class Grad>
  GateGradient(Grad& grad, const Problem& p) {
    if constexpr (kPerHead) {
      of_tokens_ = Tensor<T, 4>({p.batch, p.kv_heads, p.kv_len, 1});
      view_ = of_tokens_.view();
    } else {
      view_ = GateArgument<T, G>::template token_numbers<T>(grad);
    }
  }
  const TensorView<T, 4>& view() const { return view_; }

  template <class Grad>
  void finish([[maybe_unused]] Grad& grad) const {
    if constexpr (kPerHead)
      for (Index b = 0; b < view_.dim(0); ++b)
        for (Index h = 0; h < view_.dim(1); ++h)
          for (Index t = 0; t < view_.dim(2); ++t) grad(h) += view_(b, h, t, 0);
  }

 private:
  Tensor<T, 4> of_tokens_;
  TensorView<T, 4> view_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace detail

inline namespace ATTN_BUILT_FOR {

/// The gradients of a loss with respect to query, key and value of linear_attention(), given that with respect to its
/// output; the arguments are those of the forward call, and nothing of its result is needed. Through lambdas by dual
/// numbers (see Dual); of favor() the random vectors are constants.
///
/// @param grad_out  shaped as out.
/// @returns tensors .query, .key and .value, shaped as query, key and value.
///
/// Heads that share keys add up their gradients. What no query sees gets gradient 0, as does a query that sees nothing,
/// or whose normaliser is 0. The same bits for any number of threads. Cost: four to seven times the forward call.
/// Memory: for each thread, one state (features, v_dim) in front of each 64 causal tokens, which a first pass computes
/// again; so it grows with the length.
/// @throws std::invalid_argument if sizes disagree; the message has the numbers.
template <class Gr, class Q, class K, class V, class Map, class M = Mods<>>
auto linear_attention_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const Map& map,
                               const M& mods = {}, const Options& options = {}) {
  const detail::CheckedLinear call(query, key, value, map, mods, options);
  const detail::RecurrentBackward<Gr, Q, K, V, decltype(call)> back(grad_out, call);
  auto q = back.query();
  auto k = back.key();
  auto v = back.value();
  back.run(q, k, v, {}, {}, options);
  return Gradients<decltype(q), decltype(k), decltype(v)>{std::move(q), std::move(k), std::move(v)};
}
/// The same with options in the place of mods.
template <class Gr, class Q, class K, class V, class Map>
auto linear_attention_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const Map& map,
                               const Options& options) {
  return linear_attention_backward(grad_out, query, key, value, map, Mods<>(), options);
}

/// The same for gated_attention(): also .log_gate, shaped as the gate.
template <class Gr, class Q, class K, class V, class G, class M = Mods<>>
auto gated_attention_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                              const M& mods = {}, const Options& options = {}) {
  const detail::CheckedGated call(query, key, value, log_gate, detail::NoBeta(), mods, options);
  const detail::RecurrentBackward<Gr, Q, K, V, decltype(call)> back(grad_out, call);
  auto q = back.query();
  auto k = back.key();
  auto v = back.value();
  auto gate = call.gate().gradient();
  const detail::GateGradient<typename decltype(call)::T, G> to(gate, call.in.problem);
  back.run(q, k, v, to.view(), {}, options);
  to.finish(gate);
  return GatedGradients<decltype(q), decltype(k), decltype(v), decltype(gate)>{std::move(q), std::move(k), std::move(v),
                                                                               std::move(gate)};
}
/// The same with options in the place of mods.
template <class Gr, class Q, class K, class V, class G>
auto gated_attention_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                              const Options& options) {
  return gated_attention_backward(grad_out, query, key, value, log_gate, Mods<>(), options);
}

/// The same for gated_delta_rule(): also .log_gate and .beta, shaped as those.
template <class Gr, class Q, class K, class V, class G, class B, class M = Mods<>>
auto gated_delta_rule_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                               const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::CheckedGated call(query, key, value, log_gate, beta, mods, options);
  const detail::RecurrentBackward<Gr, Q, K, V, decltype(call)> back(grad_out, call);
  auto q = back.query();
  auto k = back.key();
  auto v = back.value();
  auto gate = call.gate().gradient();
  auto grad_beta = call.beta().gradient();
  const detail::GateGradient<typename decltype(call)::T, G> to(gate, call.in.problem);
  back.run(q, k, v, to.view(),
           detail::GateArgument<typename decltype(call)::T, B>::template token_numbers<typename decltype(call)::T>(
               grad_beta),
           options);
  to.finish(gate);
  return DeltaGradients<decltype(q), decltype(k), decltype(v), decltype(gate), decltype(grad_beta)>{
      std::move(q), std::move(k), std::move(v), std::move(gate), std::move(grad_beta)};
}
/// The same with options in the place of mods.
template <class Gr, class Q, class K, class V, class G, class B>
auto gated_delta_rule_backward(const Gr& grad_out, const Q& query, const K& key, const V& value, const G& log_gate,
                               const B& beta, const Options& options) {
  return gated_delta_rule_backward(grad_out, query, key, value, log_gate, beta, Mods<>(), options);
}

/// The bytes that Options::workspace must have for the gradients of such calls: for each thread, one state in front of
/// each 64 causal tokens of the longest sequence, and some chunks.
template <class Q, class K, class V, class Map, class M = Mods<>>
std::size_t linear_backward_workspace_bytes(const Q& query, const K& key, const V& value, const Map& map,
                                            const M& mods = {}, const Options& options = {}) {
  const detail::CheckedLinear call(query, key, value, map, mods, options);
  return static_cast<std::size_t>(detail::recurrence_backward_bytes(call.call_to({}), options));
}
/// That of gated_attention_backward_into().
template <class Q, class K, class V, class G, class M = Mods<>>
std::size_t gated_backward_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate,
                                           const M& mods = {}, const Options& options = {}) {
  const detail::CheckedGated call(query, key, value, log_gate, detail::NoBeta(), mods, options);
  return static_cast<std::size_t>(detail::recurrence_backward_bytes(call.call_to({}), options));
}
/// That of gated_delta_rule_backward_into().
template <class Q, class K, class V, class G, class B, class M = Mods<>>
std::size_t delta_backward_workspace_bytes(const Q& query, const K& key, const V& value, const G& log_gate,
                                           const B& beta, const M& mods = {}, const Options& options = {}) {
  const detail::CheckedGated call(query, key, value, log_gate, beta, mods, options);
  return static_cast<std::size_t>(detail::recurrence_backward_bytes(call.call_to({}), options));
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
