// Kernels of gates that have a number for each feature. They form pairs of near tokens, whose decays cannot be split
// between query and key.
#pragma once

#include "attn/detail/kernels/feature_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Some neighbouring tokens, at most kNearTokens: rows of queries, of keys, and of factors, e^gate of each feature.
template <class T>
struct NearTokens {
  Rows<T> query, key, factor;
  Index tokens;
  Index columns;  ///< a multiple of the vectors' lanes
};
/// How many neighbouring tokens form their pairs one by one. A pair of a query and a key takes two operations for each
/// feature and a sum over lanes; tokens further apart are products of matrices.
constexpr Index kNearTokens = 16;

template <class T, int Bytes>
struct GateKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// scores(i, j) = sum over features of query_i * key_j * factor_(j + 1) * .. * factor_i, for j <= i. The key decays
  /// as it passes from query to query, so that no decay is ever divided by another.
  static ATTN_INLINE void near_scores(const NearTokens<T>& n, const Block<T>& scores) {
    for (Index i = 0; i < n.tokens; ++i) std::fill_n(scores.row(i), i + 1, T(0));
    for (Index c = 0; c < n.columns; c += kLanes)
      for (Index j = 0; j < n.tokens; ++j) {
        V key = V::load(n.key.data + j * n.key.stride + c);
        for (Index i = j; i < n.tokens; ++i) {
          if (i > j) key *= V::load(n.factor.data + i * n.factor.stride + c);
          scores.row(i)[j] += (V::load(n.query.data + i * n.query.stride + c) * key).total();
        }
      }
  }

  /// Adds the gradients of queries, keys and gates, given those of the scores. The gate of token t is part of all pairs
  /// j < t <= i.
  static ATTN_INLINE void near_gradients(const NearTokens<T>& n, Rows<T> grad_scores, const Block<T>& grad_query,
                                         const Block<T>& grad_key, const Block<T>& grad_gate) {
    for (Index c = 0; c < n.columns; c += kLanes)
      for (Index j = 0; j < n.tokens; ++j) {
        // For each token i >= j: what the later queries make of key_j, with the decays between i and them.
        Array<V, kNearTokens> asked;
        V sum{};
        for (Index i = n.tokens; i-- > j;) {
          sum += V::load(n.query.data + i * n.query.stride + c) * grad_scores.data[i * grad_scores.stride + j];
          asked[i] = sum;
          if (i > j) sum *= V::load(n.factor.data + i * n.factor.stride + c);
        }
        add(grad_key.row(j) + c, sum);
        V key = V::load(n.key.data + j * n.key.stride + c);
        for (Index i = j; i < n.tokens; ++i) {
          if (i > j) {
            key *= V::load(n.factor.data + i * n.factor.stride + c);
            add(grad_gate.row(i) + c, key * asked[i]);
          }
          add(grad_query.row(i) + c, key * grad_scores.data[i * grad_scores.stride + j]);
        }
      }
  }

 private:
  static ATTN_INLINE void add(T* to, const V& x) { (V::load(to) + x).store(to); }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
