// The random vectors of favor(), recovered from the features of unit vectors.
#pragma once

#include <cmath>
#include <cstdint>

#include "attn/linear_attention.h"

namespace attn::test {

/// Returns the vectors w of favor(features, seed), (features, dim). The sum of keys in the state after one key x is a
/// multiple of its features e^(w_i * x - |x|^2 / 2). With a head for each x = e_d and one for x = 0, quotients of these
/// features are e^(w_i(d) - 1/2).
template <class T>
Tensor<T, 2> favor_vectors(Index features, Index dim, std::uint64_t seed) {
  Tensor<T, 4> x({1, dim + 1, 1, dim});
  const Tensor<T, 4> v({1, dim + 1, 1, 1});
  for (Index d = 0; d < dim; ++d) x(0, d, 0, d) = 1;
  RecurrentState<T> state({.kv_heads = dim + 1, .features = features, .v_dim = 1});
  linear_attention(state, x, x, v, favor(features, seed), causal(), {.scale = 1, .executor = serial()});
  const auto sum = state.normaliser();
  Tensor<T, 2> w({features, dim});
  for (Index i = 0; i < features; ++i)
    for (Index d = 0; d < dim; ++d) w(i, d) = std::log(sum(0, d, i) / sum(0, dim, i)) + T(1) / 2;
  return w;
}

}  // namespace attn::test
