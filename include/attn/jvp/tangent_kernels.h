// The kernels that only forward mode needs, one source for all instruction sets.
//
// A tile of queries and a tile of keys need six products, all computed by kernels of attention():
//
//     scores    (keys, queries) = key · query                                     TileKernels::score
//     tangents  (keys, queries) = key · tangent_query and tangent_key · query     TileKernels::score
//     out       (v_dim, queries) += valueᵀ · weights                              TileKernels::value
//     tangent   (v_dim, queries) += valueᵀ · (weights * tangents)                 TileKernels::value
//                                   and tangent_valueᵀ · weights
#pragma once

#include "attn/core/kernels/kernel_table.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tile of queries and a tile of keys in forward mode.
template <class T>
struct TangentTile {
  T* weights;        ///< (keys, queries), relative to the maxima so far; for sigmoids, scores that become weights
  T* tangents;       ///< (keys, queries): one part of the tangents of scores; becomes weights times tangents
  const T* others;   ///< (keys, queries): the other part
  const T* slopes;   ///< (keys, queries), of the score mods; null if none
  const T* rescale;  ///< (queries): e^(old max - new max); null if no maximum moved
  T* sum;            ///< (queries): the sum of weights times tangents so far
  const T* less;     ///< (queries): for sigmoids, subtracted from scores before they become weights
};

template <class T, int Bytes>
struct TangentKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Adds the two parts of the tangents of scores, and multiplies them by the slopes of the mods and by the weights. A
  /// pair of weight 0 gets 0, because tangents of dropped pairs may be anything.
  static ATTN_INLINE void weigh(const TangentTile<T>& t, Index queries, Index keys) {
    for (Index i = 0; i < queries; i += kLanes) {
      V sum = V::load(t.sum + i);
      if (t.rescale != nullptr) sum *= V::load(t.rescale + i);
      // Sums sixteen products at a time, then those sums, as for the weights: short chains, which run in parallel.
      for (Index j = 0; j < keys;) {
        V some{};
        for (const Index end = std::min<Index>(j + 16, keys); j < end; ++j) {
          const Index at = j * queries + i;
          const V weight = V::load(t.weights + at), tangent = select(weight == V{}, V{}, weight * load_tangent(t, at));
          some += tangent;
          tangent.store(t.tangents + at);
        }
        sum += some;
      }
      sum.store(t.sum + i);
    }
  }

  /// Like weigh(), for sigmoids; also turns scores into weights. The tangent of a weight is weight * (1 - weight) times
  /// that of its score, and 0 for a dropped pair.
  static ATTN_INLINE void weigh_sigmoids(const TangentTile<T>& t, Index queries, Index keys) {
    const V dropped = V::broadcast(-std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += kLanes) {
      const V less = V::load(t.less + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        const V score = V::load(t.weights + at);
        const auto [weight, rest] = sigmoid(score - less);
        const V tangent = weight * rest * load_tangent(t, at);
        weight.store(t.weights + at);
        select(score == dropped, V{}, tangent).store(t.tangents + at);
      }
    }
  }

 private:
  /// The sum of both parts of the tangents of a vector of scores, times the slopes of the mods.
  static ATTN_INLINE V load_tangent(const TangentTile<T>& t, Index at) {
    const V tangent = V::load(t.tangents + at) + V::load(t.others + at);
    return t.slopes == nullptr ? tangent : tangent * V::load(t.slopes + at);
  }
};

/// The kernel for this set of vectors, which must be available; see kernel_family().
template <class T>
auto weigh_tangents(VectorSet vectors, bool of_sigmoids) {
  using Kernel = void (*)(const TangentTile<T>&, Index queries, Index keys);
  return with_vectors<T>(vectors, [of_sigmoids]<VectorSet kSet>() -> Kernel {
    using Kernels = TangentKernels<T, kVectorBytes<kSet>>;
    return of_sigmoids ? compiled<kSet, Kernels::weigh_sigmoids> : compiled<kSet, Kernels::weigh>;
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
