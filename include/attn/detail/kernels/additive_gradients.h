// The kernel that only additive attention's backward pass has, one text for all instruction sets.
#pragma once

#include "attn/detail/kernels/additive_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T, int Bytes>
struct AdditiveGradientKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

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
        Array<Vec, kLanes> sums = {};
        for (Index i = 0; i < queries; i += kLanes) {
          Vec query, of_query = {}, of_weight = {};
          S::load(query, t.query + h * queries + i);
          for (int a = 0; a < here; ++a) {
            Vec x = query + key[a * t.key.stride], grad;
            S::tanh(x);
            S::load(grad, grads + a * queries + i);
            Vec weighed = grad * x, slope = grad - weighed * x;
            weighed = grad == Vec{} ? Vec{} : weighed;
            slope = grad == Vec{} ? Vec{} : slope;
            of_weight += weighed;
            of_query += slope;
            sums[a] += slope;
          }
          add(t.grad_query + h * queries + i, of_query * weight);
          add(t.grad_weight + h * queries + i, of_weight);
        }
        S::sum_lanes(sums);
        Array<T, kLanes> of_keys;
        S::store(of_keys, sums[0]);
        for (int a = 0; a < here; ++a) t.grad_key[(j + a) * t.key_row + h] += of_keys[a] * weight;
      }
    }
  }

 private:
  static ATTN_INLINE void add(T* to, const Vec& x) {
    Vec sum;
    S::load(sum, to);
    sum += x;
    S::store(to, sum);
  }
};

template <VectorSet, class Kernels>
struct CompiledAdditiveGradients;
#define ATTN_COMPILED(set, target, ...)                                                             \
  template <class Kernels>                                                                          \
  struct CompiledAdditiveGradients<VectorSet::set, Kernels> {                                       \
    template <class Tile>                                                                           \
    target static void add_gradients(const Tile& tile, Index queries, Index keys, Index features) { \
      Kernels::add_gradients(tile, queries, keys, features);                                        \
    }                                                                                               \
  };
ATTN_FOR_EACH_VECTOR_SET(ATTN_COMPILED)
#undef ATTN_COMPILED

/// The kernel for these vectors, as OtherScore::add_gradients.
template <class T, class = include_attn_instantiate_h_in_one_unit>
typename OtherScore<T>::AddGradients additive_gradients(VectorSet vectors) {
  return with_vectors(vectors, []<VectorSet kSet>() -> typename OtherScore<T>::AddGradients {
    constexpr VectorSet kOwn = Simd<T, 16>::kVector ? kSet : VectorSet::generic;
    using Kernels = AdditiveGradientKernels<T, kVectorBytes<kOwn>>;
    return CompiledAdditiveGradients<kOwn, Kernels>::template add_gradients<ScoreGradientTile<T>>;
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
