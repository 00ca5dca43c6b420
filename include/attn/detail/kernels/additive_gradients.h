// The kernel that only additive attention's backward pass has, one text for all instruction sets.
#pragma once

#include "attn/detail/kernels/additive_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T, int Bytes>
struct AdditiveGradientKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// With t = tanh(query + key) for each pair and feature, the gradient of the weight is the sum of grad * t, and that
  /// of query and key is weight * the sum of grad * (1 - t²). A pair without gradient adds nothing, whatever its key
  /// is.
  ///
  /// Lanes run over queries. Sums for keys are formed over the lanes, as many keys at a time as make a vector of sums.
  static ATTN_INLINE void add_gradients(const ScoreGradientTile<T>& t, Index queries, Index keys, Index features) {
    for (Index j = 0; j < keys; j += kLanes) {
      const int here = static_cast<int>(std::min<Index>(kLanes, keys - j));
      const T* const grads = t.grad_scores + j * queries;
      for (Index h = 0; h < features; ++h) {
        const T *key = t.key.data + j * t.key.stride + h, weight = t.weight[h];
        Array<V, kLanes> sums = {};
        for (Index i = 0; i < queries; i += kLanes) {
          const V query = V::load(t.query + h * queries + i);
          V of_query{}, of_weight{};
          for (int a = 0; a < here; ++a) {
            const V x = tanh(query + key[a * t.key.stride]), grad = V::load(grads + a * queries + i),
                    weighed = grad * x, slope = select(grad == V{}, V{}, grad - weighed * x);
            of_weight += select(grad == V{}, V{}, weighed);
            of_query += slope;
            sums[a] += slope;
          }
          add(t.grad_query + h * queries + i, of_query * weight);
          add(t.grad_weight + h * queries + i, of_weight);
        }
        Array<T, kLanes> of_keys;
        V::sum_lanes(sums).store(of_keys);
        for (int a = 0; a < here; ++a) t.grad_key[(j + a) * t.key_row + h] += of_keys[a] * weight;
      }
    }
  }

 private:
  static ATTN_INLINE void add(T* to, const V& x) { (V::load(to) + x).store(to); }
};

/// The kernel for these vectors, as OtherScore::add_gradients.
template <class T, class = include_attn_instantiate_h_in_one_unit>
typename OtherScore<T>::AddGradients additive_gradients(VectorSet vectors) {
  return with_vectors<T>(vectors, []<VectorSet kSet>() {
    return compiled<kSet, AdditiveGradientKernels<T, kVectorBytes<kSet>>::add_gradients>;
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
