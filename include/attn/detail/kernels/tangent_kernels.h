// The kernel that only the forward mode has, one text for all instruction sets.
//
// A tile of queries meets a tile of keys in six products, all of them kernels of attention():
//
//     scores    (keys, queries) = key · query                                     TileKernels::score
//     tangents  (keys, queries) = key · tangent_query and tangent_key · query     likewise
//     out       (v_dim, queries) += valueᵀ · weights                              TileKernels::value
//     tangent   (v_dim, queries) += valueᵀ · (weights * tangents)                 likewise
//                                   and tangent_valueᵀ · weights
#pragma once

#include "attn/detail/kernels/kernel_table.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A tile of queries and a tile of keys in the forward mode.
template <class T>
struct TangentTile {
  T* weights;        ///< (keys, queries), relative to the maxima so far; for sigmoids scores, which become weights
  T* tangents;       ///< (keys, queries): one part of the tangents of scores; becomes weights times tangents
  const T* others;   ///< (keys, queries): the other part
  const T* slopes;   ///< (keys, queries), of the score mods; null: there are none
  const T* rescale;  ///< (queries): e^(old max - new max); null: no maximum moved
  T* sum;            ///< (queries): of weights times tangents so far
  const T* less;     ///< (queries): of sigmoids, what scores are less before they become weights
};

template <class T, int Bytes>
struct TangentKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Adds the two parts of the tangents of scores, and multiplies them by the slopes of the mods and by the weights. A
  /// pair that weighs nothing gets 0: what stands at dropped pairs may be anything.
  static ATTN_INLINE void weigh(const TangentTile<T>& t, Index queries, Index keys) {
    for (Index i = 0; i < queries; i += kLanes) {
      V sum = V::load(t.sum + i);
      if (t.rescale != nullptr) sum *= V::load(t.rescale + i);
      // Sixteen products are added up, then those sums, as for the weights: short chains, which are worked on side by
      // side.
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

  /// The same for sigmoids, after scores have become weights: a weight grows by weight * (1 - weight) times what its
  /// score does, whatever the others do. A dropped pair has none.
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
  /// Both parts of the tangents of a vector of scores, times the slopes of the mods.
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

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
