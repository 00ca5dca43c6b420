// Calls of the recurrent forms on the same inputs in any layout, with results as plain vectors.
#pragma once

#include <functional>
#include <string>

#include "support/paths.h"
#include "support/recurrence_oracle.h"

namespace attn::test {

/// A recurrent form on given inputs: the expected result and the calls that compute it.
template <class T>
struct Form {
  using In = TensorView<const T, 4>;
  using Out = TensorView<T, 4>;
  std::string name;
  RecurrentTruth truth;
  std::function<void(const Out&, const In& q, const In& k, const In& v, const Options&)> chunked;
  std::function<Tensor<T, 4>(const In& q, const In& k, const In& v)> naive;
};

template <class T, int kRank>
std::vector<T> plain(const Tensor<T, kRank>& t) {
  return t.size() == 0 ? std::vector<T>() : std::vector<T>(t.data(), t.data() + t.size());
}

template <class T>
std::vector<T> as(const std::vector<double>& numbers) {
  std::vector<T> to;
  for (const double x : numbers) to.push_back(static_cast<T>(x));
  return to;
}

/// Linear attention with a map and mods.
template <class T, class Map, class M>
Form<T> linear_form(const std::string& name, const RecurrentTruth& truth, const Map& map, const M& mods,
                    std::optional<Index> q_offset = {}) {
  using F = Form<T>;
  return {name, truth,
          [map, mods, q_offset](const typename F::Out& out, const typename F::In& q, const typename F::In& k,
                                const typename F::In& v, Options options) {
            options.q_offset = q_offset;
            linear_attention_into(out, q, k, v, map, mods, options);
          },
          [map, mods, q_offset](const typename F::In& q, const typename F::In& k, const typename F::In& v) {
            return naive_linear_attention(q, k, v, map, mods, {.q_offset = q_offset, .executor = serial()}).out;
          }};
}

/// Gated attention, where `gate` makes the gate from values of type T.
template <class T, class Gate, class M>
Form<T> gated_form(const std::string& name, const RecurrentTruth& truth, const Gate& gate, const M& mods) {
  using F = Form<T>;
  return {name, truth,
          [gate, mods](const typename F::Out& out, const typename F::In& q, const typename F::In& k,
                       const typename F::In& v,
                       const Options& options) { gated_attention_into(out, q, k, v, gate, mods, options); },
          [gate, mods](const typename F::In& q, const typename F::In& k, const typename F::In& v) {
            return naive_gated_attention(q, k, v, gate, mods, {.executor = serial()}).out;
          }};
}
template <class T, class Gate, class Beta, class M>
Form<T> delta_form(const std::string& name, const RecurrentTruth& truth, const Gate& gate, const Beta& beta,
                   const M& mods) {
  using F = Form<T>;
  return {name, truth,
          [gate, beta, mods](const typename F::Out& out, const typename F::In& q, const typename F::In& k,
                             const typename F::In& v, const Options& options) {
            gated_delta_rule_into(out, q, k, v, gate, beta, mods, options);
          },
          [gate, beta, mods](const typename F::In& q, const typename F::In& k, const typename F::In& v) {
            return naive_gated_delta_rule(q, k, v, gate, beta, mods, {.executor = serial()}).out;
          }};
}

template <class T, class Vectors, class Gate, class M>
Form<T> dplr_form(const std::string& name, const RecurrentTruth& truth, const Vectors& a, const Vectors& b,
                  const Gate& gate, const M& mods) {
  using F = Form<T>;
  return {name, truth,
          [a, b, gate, mods](const typename F::Out& out, const typename F::In& q, const typename F::In& k,
                             const typename F::In& v,
                             const Options& options) { dplr_delta_rule_into(out, q, k, v, a, b, gate, mods, options); },
          [a, b, gate, mods](const typename F::In& q, const typename F::In& k, const typename F::In& v) {
            return naive_dplr_delta_rule(q, k, v, a, b, gate, mods, {.executor = serial()}).out;
          }};
}

/// Per-token values as a tensor (batch, kv_heads, len, n), or of rank 3.
template <class T>
Tensor<T, 4> token_tensor(const Recurrent& in, const std::vector<double>& numbers, Index of_token) {
  Tensor<T, 4> t({in.batch, in.kv_heads, in.kv_len, of_token});
  std::copy_n(as<T>(numbers).data(), t.size(), t.data());
  return t;
}
template <class T>
Tensor<T, 3> token_scalars(const Recurrent& in, const std::vector<double>& numbers) {
  Tensor<T, 3> t({in.batch, in.kv_heads, in.kv_len});
  std::copy_n(as<T>(numbers).data(), t.size(), t.data());
  return t;
}

}  // namespace attn::test
