// Helpers that collect the weights of small calls.
#pragma once

#include <string>

#include "attn/attn.h"

namespace attn::test {

/// All weights of a call, (batch, heads, q_len, kv_len), from for_each_weight_tile(). They are accumulated, so that a
/// tile visited twice is detected.
template <class Q, class K, class Lse, class M>
Tensor<float, 4> weights_by_tiles(const Q& q, const K& k, const Lse& lse, const M& mods, const Options& options) {
  const auto queries = attn::view(q), keys = attn::view(k);
  Tensor<float, 4> weights({queries.dim(0), queries.dim(1), queries.dim(2), keys.dim(2)});
  for_each_weight_tile(
      queries, keys, lse, mods,
      [&](const WeightTile<float>& t) {
        for (Index i = 0; i < t.rows.size(); ++i)
          for (Index j = 0; j < t.keys.size(); ++j)
            weights(t.batch, t.head, t.rows.begin + i, t.keys.begin + j) += t.weights(i, j);
      },
      options);
  return weights;
}

/// The keys, out of 4, that each of 2 queries keeps, for each of `batch` batch elements: "1110 1111 " for one of
/// causal().
template <class M>
std::string kept_keys(Index batch, const M& mods, const Options& options) {
  const Tensor<float, 4> q({batch, 1, 2, 1}), k({batch, 1, 4, 1});
  const auto weights = naive_attention(q, k, k, mods, options).weights;
  std::string text;
  for (Index i = 0; i < weights.size(); ++i) {
    text += weights.data()[i] > 0 ? '1' : '0';
    if (i % 4 == 3) text += ' ';
  }
  return text;
}

}  // namespace attn::test
