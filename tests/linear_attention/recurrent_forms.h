// The recurrent forms and their gradients behind a common interface.
#pragma once

#include <algorithm>
#include <vector>

#include "recurrent_paths.h"

namespace attn::test {

/// All inputs of a form that can be differentiated.
template <class T>
struct FormNumbers {
  Tensor<T, 4> q, k, v, gates, a, b;
  Tensor<T, 3> gate, beta;
  Tensor<T, 4> grad_out;

  explicit FormNumbers(const Recurrent& in, std::uint64_t seed = 9)
      : q({in.batch, in.heads, in.q_len, in.head_dim}),
        k(token_tensor<T>(in, in.k, in.head_dim)),
        v({in.batch, in.kv_heads, in.kv_len, in.v_dim}),
        gates(token_tensor<T>(in, in.feature_gate, in.head_dim)),
        a(token_tensor<T>(in, in.a, in.head_dim)),
        b(token_tensor<T>(in, in.b_vector, in.head_dim)),
        gate(token_scalars<T>(in, in.token_gate)),
        beta(token_scalars<T>(in, in.beta)),
        grad_out({in.batch, in.heads, in.q_len, in.v_dim}) {
    std::copy_n(as<T>(in.q).data(), q.size(), q.data());
    std::copy_n(as<T>(in.v).data(), v.size(), v.data());
    Random random(seed);
    std::copy_n(as<T>(random.values(grad_out.size(), 1)).data(), grad_out.size(), grad_out.data());
  }
};

/// The gradients of a form as plain vectors, in the order of the members of FormNumbers that the form uses.
template <class T>
using FormGrads = std::vector<std::vector<T>>;

template <class Map, class M>
struct LinearForm {
  Map map;
  M mods;
  template <class T>
  Tensor<T, 4> out(const FormNumbers<T>& n) const {
    return naive_linear_attention(n.q, n.k, n.v, map, mods, {.executor = serial()}).out;
  }
  template <class T>
  FormGrads<T> grads(const FormNumbers<T>& n, const Options& o) const {
    const auto g = linear_attention_backward(n.grad_out, n.q, n.k, n.v, map, mods, o);
    return {plain(g.query), plain(g.key), plain(g.value)};
  }
  template <class T>
  static std::vector<T*> parts(FormNumbers<T>& n) {
    return {n.q.data(), n.k.data(), n.v.data()};
  }
};
template <class Map, class M>
LinearForm(Map, M) -> LinearForm<Map, M>;

/// The gates of each feature, or of each token.
template <bool kFeatures, class N>
decltype(auto) gate_of(N& n) {
  if constexpr (kFeatures)
    return (n.gates);
  else
    return (n.gate);
}

template <bool kFeatures, class M>
struct GatedForm {
  M mods;
  template <class T>
  Tensor<T, 4> out(const FormNumbers<T>& n) const {
    return naive_gated_attention(n.q, n.k, n.v, gate_of<kFeatures>(n), mods, {.executor = serial()}).out;
  }
  template <class T>
  FormGrads<T> grads(const FormNumbers<T>& n, const Options& o) const {
    const auto g = gated_attention_backward(n.grad_out, n.q, n.k, n.v, gate_of<kFeatures>(n), mods, o);
    return {plain(g.query), plain(g.key), plain(g.value), plain(g.log_gate)};
  }
  template <class T>
  static std::vector<T*> parts(FormNumbers<T>& n) {
    return {n.q.data(), n.k.data(), n.v.data(), gate_of<kFeatures>(n).data()};
  }
};

template <bool kFeatures, class M>
struct DeltaForm {
  M mods;
  template <class T>
  Tensor<T, 4> out(const FormNumbers<T>& n) const {
    return naive_gated_delta_rule(n.q, n.k, n.v, gate_of<kFeatures>(n), n.beta, mods, {.executor = serial()}).out;
  }
  template <class T>
  FormGrads<T> grads(const FormNumbers<T>& n, const Options& o) const {
    const auto g = gated_delta_rule_backward(n.grad_out, n.q, n.k, n.v, gate_of<kFeatures>(n), n.beta, mods, o);
    return {plain(g.query), plain(g.key), plain(g.value), plain(g.log_gate), plain(g.beta)};
  }
  template <class T>
  static std::vector<T*> parts(FormNumbers<T>& n) {
    return {n.q.data(), n.k.data(), n.v.data(), gate_of<kFeatures>(n).data(), n.beta.data()};
  }
};

template <bool kFeatures, class M>
struct DplrForm {
  M mods;
  template <class T>
  Tensor<T, 4> out(const FormNumbers<T>& n) const {
    return naive_dplr_delta_rule(n.q, n.k, n.v, n.a, n.b, gate_of<kFeatures>(n), mods, {.executor = serial()}).out;
  }
  template <class T>
  FormGrads<T> grads(const FormNumbers<T>& n, const Options& o) const {
    const auto g = dplr_delta_rule_backward(n.grad_out, n.q, n.k, n.v, n.a, n.b, gate_of<kFeatures>(n), mods, o);
    return {plain(g.query), plain(g.key), plain(g.value), plain(g.log_gate), plain(g.a), plain(g.b)};
  }
  template <class T>
  static std::vector<T*> parts(FormNumbers<T>& n) {
    return {n.q.data(), n.k.data(), n.v.data(), gate_of<kFeatures>(n).data(), n.a.data(), n.b.data()};
  }
};

/// Calls use(name, form) for all forms, with masks for `len` tokens and a batch of two.
template <class Use>
void for_each_form(Index len, const Use& use) {
  const Mods<> none;
  const auto lengths = key_lengths({len / 2, len});
  const auto halves = documents_at({0, std::min<Index>(len, 3), len});
  use("elu1", LinearForm{elu1(), none});
  use("elu1 causal", LinearForm{elu1(), causal()});
  use("elu1 causal documents", LinearForm{elu1(), causal() | halves});
  use("relu lengths", LinearForm{relu(), lengths});
  use("favor causal", LinearForm{favor(20, 3), causal()});
  use("favor lengths", LinearForm{favor(20, 3), lengths});
  use("lambda causal lengths", LinearForm{feature_map([](auto x) { return x * x + 0.25; }), causal() | lengths});
  use("identity", LinearForm{identity(), causal()});
  use("token gate", GatedForm<false, Mods<>>{none});
  use("token gate lengths", GatedForm<false, decltype(lengths)>{lengths});
  use("feature gate", GatedForm<true, Mods<>>{none});
  use("feature gate documents", GatedForm<true, decltype(halves)>{halves});
  const auto both = lengths | halves;
  use("delta rule", DeltaForm<false, Mods<>>{none});
  use("delta rule lengths documents", DeltaForm<false, decltype(both)>{both});
  use("delta rule feature gate", DeltaForm<true, Mods<>>{none});
  use("delta rule feature gate lengths documents", DeltaForm<true, decltype(both)>{both});
  use("DPLR", DplrForm<true, Mods<>>{none});
  use("DPLR lengths documents", DplrForm<true, decltype(both)>{both});
  use("DPLR token gate", DplrForm<false, Mods<>>{none});
}

}  // namespace attn::test
