// The output gate of a layer: sigmoids that multiply the results of the heads.
#pragma once

#include <cmath>

#include "attn/layers/multi_head_inputs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Calls use(gates, corresponding elements of `x`, batch element, head, token) for each head of each token. x is
/// (batch, len, heads * v_head_dim), gate (batch, heads, len, v_head_dim).
template <class T, class X, class Use>
void for_each_gated_head(const TensorView<T, 4>& gate, X& x, const Executor& executor, const Use& use) {
  const Index dim = gate.dim(3);
  for_each_token_block(gate, executor, [&](const TensorView<T, 4>& gates, Index b, Index begin) {
    for (Index i = 0; i < gates.dim(2); ++i)
      for (Index h = 0; h < gates.dim(1); ++h) use(&gates(0, h, i, 0), &x(b, begin + i, h * dim), b, h, begin + i);
  });
}

template <class T>
computed_t<T> sigmoid_of_gate(T gate) {
  using std::exp;
  return 1 / (1 + exp(-static_cast<computed_t<T>>(gate)));
}

/// Computes joined * sigmoid(gate) for results of heads (batch, len, heads * v_head_dim), with a gate for each feature.
template <class T>
Tensor<T, 3> gated(const Tensor<T, 3>& joined, const TensorView<T, 4>& gate, const Executor& executor) {
  using Number = computed_t<T>;
  auto result = Tensor<T, 3>::uninitialized(joined.shape());
  const Index dim = gate.dim(3);
  for_each_gated_head(gate, joined, executor, [&](const T* g, const T* x, Index b, Index h, Index i) {
    T* const y = &result(b, i, h * dim);
    for (Index c = 0; c < dim; ++c) y[c] = static_cast<T>(static_cast<Number>(x[c]) * sigmoid_of_gate(g[c]));
  });
  return result;
}

/// Converts the gradient of gated() into that of `joined` in place, and writes the gradient of the gate to `grad_gate`.
template <class T>
void gate_gradient(Tensor<T, 3>& grad, const TensorView<T, 4>& grad_gate, const Tensor<T, 3>& joined,
                   const TensorView<T, 4>& gate, const Executor& executor) {
  using Number = computed_t<T>;
  const Index dim = gate.dim(3);
  for_each_gated_head(gate, grad, executor, [&](const T* g, T* of_gated, Index b, Index h, Index i) {
    const T* const x = &joined(b, i, h * dim);
    T* const of_gate = &grad_gate(b, h, i, 0);
    for (Index c = 0; c < dim; ++c) {
      const Number factor = sigmoid_of_gate(g[c]), of_x = static_cast<Number>(of_gated[c]) * factor;
      of_gate[c] = static_cast<T>(of_x * static_cast<Number>(x[c]) * (1 - factor));
      of_gated[c] = static_cast<T>(of_x);
    }
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
