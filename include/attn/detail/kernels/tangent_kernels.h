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
          Vec weight, tangent;
          S::load(weight, t.weights + at);
          load_tangent(tangent, t, at);
          tangent = weight == Vec{} ? Vec{} : weight * tangent;
          some += tangent;
          S::store(t.tangents + at, tangent);
        }
        sum += some;
      }
      S::store(t.sum + i, sum);
    }
  }

  /// The same for sigmoids, after scores have become weights: a weight grows by weight * (1 - weight) times what its
  /// score does, whatever the others do. A dropped pair has none.
  static ATTN_INLINE void weigh_sigmoids(const TangentTile<T>& t, Index queries, Index keys) {
    Vec dropped;
    S::splat(dropped, -std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += kLanes) {
      Vec less;
      S::load(less, t.less + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        Vec score, tangent, rest;
        S::load(score, t.weights + at);
        load_tangent(tangent, t, at);
        Vec weight = score - less;
        S::sigmoid(weight, rest);
        tangent = score == dropped ? Vec{} : weight * rest * tangent;
        S::store(t.weights + at, weight);
        S::store(t.tangents + at, tangent);
      }
    }
  }

 private:
  /// Both parts of the tangents of a vector of scores, times the slopes of the mods.
  static ATTN_INLINE void load_tangent(Vec& tangent, const TangentTile<T>& t, Index at) {
    Vec other;
    S::load(tangent, t.tangents + at);
    S::load(other, t.others + at);
    tangent += other;
    if (t.slopes != nullptr) {
      S::load(other, t.slopes + at);
      tangent *= other;
    }
  }
};

template <VectorSet, class Kernels>
struct CompiledTangents;
#define ATTN_COMPILED(set, target, ...)                                              \
  template <class Kernels>                                                           \
  struct CompiledTangents<VectorSet::set, Kernels> {                                 \
    template <class Tile>                                                            \
    target static void weigh(const Tile& tile, Index queries, Index keys) {          \
      Kernels::weigh(tile, queries, keys);                                           \
    }                                                                                \
    template <class Tile>                                                            \
    target static void weigh_sigmoids(const Tile& tile, Index queries, Index keys) { \
      Kernels::weigh_sigmoids(tile, queries, keys);                                  \
    }                                                                                \
  };
ATTN_FOR_EACH_VECTOR_SET(ATTN_COMPILED)
#undef ATTN_COMPILED

/// The kernel for this set of vectors, which must be available; see kernel_family().
template <class T>
auto weigh_tangents(VectorSet vectors, bool of_sigmoids) {
  using Kernel = void (*)(const TangentTile<T>&, Index queries, Index keys);
  return with_vectors(vectors, [of_sigmoids]<VectorSet kSet>() -> Kernel {
    constexpr VectorSet kOwn = Simd<T, 16>::kVector ? kSet : VectorSet::generic;
    using Compiled = CompiledTangents<kOwn, TangentKernels<T, kVectorBytes<kOwn>>>;
    return of_sigmoids ? Compiled::template weigh_sigmoids<TangentTile<T>> : Compiled::template weigh<TangentTile<T>>;
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
