// Kernels that compute weights with a sigmoid instead of the softmax, one source for all instruction sets.
//
// A sigmoid is a softmax of a score and one other score, -bias. The state of a query is then {max = -bias, sum = 1}
// from the first key to the last, and the loops' operations on states (rescaling, merging, dividing by the sum) change
// nothing.
#pragma once

#include "attn/core/base/compiled_once.h"
#include "attn/core/kernels/backward_kernels.h"
#include "attn/core/kernels/kernel_table.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// For tiles of queries: replaces softmax() of TileKernels.
template <class T, int Bytes, int kVectors>
struct SigmoidTileKernels {
  using V = Vec<T, Bytes>;
  static constexpr Index kQueries = kVectors * V::kLanes;

  /// Turns scores into weights. Returns false, because no maximum changes.
  static ATTN_INLINE bool softmax(const TileMemory<T>& m, Index keys, Rows<T>, Index) {
    Array<V, kVectors> from;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) from[v] = V::load(m.max + v * V::kLanes);
    for (Index j = 0; j < keys; ++j) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        T* const at = m.scores + j * kQueries + v * V::kLanes;
        sigmoid(V::load(at) - from[v]).value.store(at);
      }
    }
    return false;
  }
};

/// For single queries: replaces softmax() of DecodeKernels.
template <class T, int Bytes>
struct SigmoidDecodeKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  static ATTN_INLINE void softmax(const TileMemory<T>& m, Index row, Index keys, Prefetcher& fetching) {
    T* const scores = m.scores + row * m.row;
    const T from = m.max[row];
    m.rescale[row] = 1;
    // The last vector may reach past the keys, into allocated memory whose contents are not used.
    for (Index j = 0; j < keys; j += kLanes) {
      fetching.template lines<4>();
      sigmoid(V::load(scores + j) - from).value.store(scores + j);
    }
  }
};

/// For the backward pass: replaces softmax() of BackwardKernels.
template <class T, int Bytes>
struct SigmoidBackwardKernels {
  using V = Vec<T, Bytes>;

  /// Turns scores into weights P, and gradients of weights into gradients of scores, dX = P * (1 - P) * dP, times the
  /// slope of the score mods. The gradient of a dropped pair is 0, even if its value is not finite.
  static ATTN_INLINE void softmax(const BackwardTile<T>& t, Index queries, Index keys) {
    const V dropped = V::broadcast(-std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += V::kLanes) {
      const V from = V::load(t.lse + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        const V score = V::load(t.scores + at);
        const auto [weight, rest] = sigmoid(score - from);
        V grad = V::load(t.grad_scores + at) * (weight * rest);
        if (t.slopes != nullptr) grad *= V::load(t.slopes + at);
        weight.store(t.scores + at);
        select(score == dropped, V{}, grad).store(t.grad_scores + at);
      }
    }
  }
};

/// Returns the family with sigmoids in place of the softmax.
template <class T>
KernelFamily<T> with_sigmoid(KernelFamily<T> family, VectorSet vectors) {
  with_vectors<T>(vectors, [&]<VectorSet kSet>() {
    constexpr int kBytes = kVectorBytes<kSet>;
    static_assert(kMaxVectors == 3, "one kernel per tile width");
    family.by_vectors[0].softmax = compiled<kSet, SigmoidTileKernels<T, kBytes, 1>::softmax>;
    family.by_vectors[1].softmax = compiled<kSet, SigmoidTileKernels<T, kBytes, 2>::softmax>;
    if constexpr (kWidestTile<kVectorRegisters<kSet>> == kMaxVectors)
      family.by_vectors[2].softmax = compiled<kSet, SigmoidTileKernels<T, kBytes, 3>::softmax>;
    family.decode.softmax = compiled<kSet, SigmoidDecodeKernels<T, kBytes>::softmax>;
  });
  return family;
}

/// kernel_family() with sigmoids.
template <class T, bool kOthers = true, class = include_attn_instantiate_h_in_one_unit>
const KernelFamily<T>& sigmoid_family(VectorSet vectors) {
  return with_vectors<T>(vectors, []<VectorSet kSet>() -> const KernelFamily<T>& {
    static const KernelFamily<T> family = with_sigmoid(kernel_family<T, kOthers>(kSet), kSet);
    return family;
  });
}
ATTN_COMPILED_ONCE(sigmoid_family)
ATTN_COMPILED_ONCE(sigmoid_family, false)

/// The kernel that replaces the softmax of the backward pass.
template <class T>
auto sigmoid_backward(VectorSet vectors) {
  return with_vectors<T>(
      vectors, []<VectorSet kSet>() { return compiled<kSet, SigmoidBackwardKernels<T, kVectorBytes<kSet>>::softmax>; });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
