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
  const T* weights;  ///< (keys, queries), relative to the maxima so far
  T* tangents;       ///< (keys, queries): one part of the tangents of scores; becomes weights times tangents
  const T* others;   ///< (keys, queries): the other part
  const T* slopes;   ///< (keys, queries), of the score mods; null: there are none
  const T* rescale;  ///< (queries): e^(old max - new max); null: no maximum moved
  T* sum;            ///< (queries): of weights times tangents so far
};

template <class T, int Bytes>
struct TangentKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  /// Adds the two parts of the tangents of scores, and multiplies them by the slopes of the mods and by the weights. A
  /// pair that weighs nothing gets 0: what stands at dropped pairs may be anything.
  static ATTN_INLINE void weigh(const TangentTile<T>& t, Index queries, Index keys) {
    for (Index i = 0; i < queries; i += kLanes) {
      Vec sum, factor;
      S::load(sum, t.sum + i);
      if (t.rescale != nullptr) {
        S::load(factor, t.rescale + i);
        sum *= factor;
      }
      // Sixteen products are added up, then those sums, as for the weights: short chains, which are worked on side by
      // side.
      for (Index j = 0; j < keys;) {
        Vec some = {};
        for (const Index end = std::min<Index>(j + 16, keys); j < end; ++j) {
          const Index at = j * queries + i;
          Vec weight, tangent, other;
          S::load(weight, t.weights + at);
          S::load(tangent, t.tangents + at);
          S::load(other, t.others + at);
          tangent += other;
          if (t.slopes != nullptr) {
            S::load(other, t.slopes + at);
            tangent *= other;
          }
          tangent = weight == Vec{} ? Vec{} : weight * tangent;
          some += tangent;
          S::store(t.tangents + at, tangent);
        }
        sum += some;
      }
      S::store(t.sum + i, sum);
    }
  }
};

template <VectorSet, class Kernels>
struct CompiledTangents;
#define ATTN_COMPILED(set, target, ...)                                     \
  template <class Kernels>                                                  \
  struct CompiledTangents<VectorSet::set, Kernels> {                        \
    template <class Tile>                                                   \
    target static void weigh(const Tile& tile, Index queries, Index keys) { \
      Kernels::weigh(tile, queries, keys);                                  \
    }                                                                       \
  };
ATTN_FOR_EACH_VECTOR_SET(ATTN_COMPILED)
#undef ATTN_COMPILED

/// The kernel for this set of vectors, which must be available; see kernel_family().
template <class T>
auto weigh_tangents(VectorSet vectors) {
  using Kernel = void (*)(const TangentTile<T>&, Index queries, Index keys);
  return with_vectors(vectors, []<VectorSet kSet>() -> Kernel {
    constexpr VectorSet kOwn = Simd<T, 16>::kVector ? kSet : VectorSet::generic;
    return CompiledTangents<kOwn, TangentKernels<T, kVectorBytes<kOwn>>>::template weigh<TangentTile<T>>;
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
