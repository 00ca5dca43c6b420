// Kernels that make weights of scores by a sigmoid in place of the softmax, one text for all instruction sets.
//
// A sigmoid is a softmax of a score beside one other score, -bias. The state of a query is then {max = -bias, sum = 1}
// from the first key to the last, and what the loops do with states (rescaling, merging, dividing by the sum) changes
// nothing.
#pragma once

#include "attn/detail/kernels/backward_kernels.h"
#include "attn/detail/kernels/kernel_table.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// For tiles of queries: replaces softmax() of TileKernels.
template <class T, int Bytes, int kVectors>
struct SigmoidTileKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr Index kQueries = kVectors * S::kLanes;

  /// Scores become weights. No maximum moves.
  static ATTN_INLINE bool softmax(const TileMemory<T>& m, Index keys, Rows<T>, Index) {
    Array<Vec, kVectors> from;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) S::load(from[v], m.max + v * S::kLanes);
    for (Index j = 0; j < keys; ++j) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        T* const at = m.scores + j * kQueries + v * S::kLanes;
        Vec x, rest;
        S::load(x, at);
        x -= from[v];
        S::sigmoid(x, rest);
        S::store(at, x);
      }
    }
    return false;
  }
};

/// For single queries: replaces softmax() of DecodeKernels.
template <class T, int Bytes>
struct SigmoidDecodeKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;

  static ATTN_INLINE void softmax(const TileMemory<T>& m, Index row, Index keys, Prefetcher& fetching) {
    T* const scores = m.scores + row * m.row;
    const T from = m.max[row];
    m.rescale[row] = 1;
    // The last vector may reach past the keys, where there is room and nobody reads.
    for (Index j = 0; j < keys; j += kLanes) {
      Vec x, rest;
      S::load(x, scores + j);
      x -= from;
      S::sigmoid(x, rest);
      fetching.template lines<4>();
      S::store(scores + j, x);
    }
  }
};

/// For the backward pass: replaces softmax() of BackwardKernels.
template <class T, int Bytes>
struct SigmoidBackwardKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;

  /// Scores become weights P, and gradients of weights become gradients of scores, dX = P * (1 - P) * dP, times the
  /// slope of the score mods. The gradient of a dropped pair is 0, whatever its value is.
  static ATTN_INLINE void softmax(const BackwardTile<T>& t, Index queries, Index keys) {
    Vec dropped;
    S::splat(dropped, -std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += S::kLanes) {
      Vec from;
      S::load(from, t.lse + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        Vec score, grad, slope, rest;
        S::load(score, t.scores + at);
        S::load(grad, t.grad_scores + at);
        Vec weight = score - from;
        S::sigmoid(weight, rest);
        grad *= weight * rest;
        if (t.slopes != nullptr) {
          S::load(slope, t.slopes + at);
          grad *= slope;
        }
        grad = score == dropped ? Vec{} : grad;
        S::store(t.scores + at, weight);
        S::store(t.grad_scores + at, grad);
      }
    }
  }
};

template <VectorSet, class Kernels>
struct CompiledSigmoid;
#define ATTN_COMPILED(set, target, ...)             \
  template <class Kernels>                          \
  struct CompiledSigmoid<VectorSet::set, Kernels> { \
    template <class... Args>                        \
    target static auto softmax(Args... args) {      \
      return Kernels::softmax(args...);             \
    }                                               \
  };
ATTN_FOR_EACH_VECTOR_SET(ATTN_COMPILED)
#undef ATTN_COMPILED

/// A family of the same vectors with sigmoids in place of the softmax.
template <class T>
KernelFamily<T> with_sigmoid(KernelFamily<T> family, VectorSet vectors) {
  with_vectors(vectors, [&]<VectorSet kSet>() {
    constexpr VectorSet kOwn = Simd<T, 16>::kVector ? kSet : VectorSet::generic;
    constexpr int kBytes = kVectorBytes<kOwn>;
    static_assert(kMaxVectors == 3, "a kernel for each width of a tile");
    family.by_vectors[0].softmax = CompiledSigmoid<kOwn, SigmoidTileKernels<T, kBytes, 1>>::softmax;
    family.by_vectors[1].softmax = CompiledSigmoid<kOwn, SigmoidTileKernels<T, kBytes, 2>>::softmax;
    family.by_vectors[2].softmax = CompiledSigmoid<kOwn, SigmoidTileKernels<T, kBytes, 3>>::softmax;
    family.decode.softmax = CompiledSigmoid<kOwn, SigmoidDecodeKernels<T, kBytes>>::softmax;
    family.decode.attend = nullptr;
  });
  return family;
}

/// kernel_family(), or native_family(), with sigmoids.
template <class T, bool kOthers>
const KernelFamily<T>& sigmoid_family_of(VectorSet vectors) {
  return with_vectors(vectors, [&]<VectorSet kSet>() -> const KernelFamily<T>& {
    static const KernelFamily<T> family = with_sigmoid(family_of<T, kOthers>(kSet), kSet);
    return family;
  });
}
template <class T, class = include_attn_instantiate_h_in_one_unit>
const KernelFamily<T>& sigmoid_family(VectorSet vectors) {
  return sigmoid_family_of<T, true>(vectors);
}
template <class T, class = include_attn_instantiate_h_in_one_unit>
const KernelFamily<T>& native_sigmoid_family(VectorSet vectors) {
  return sigmoid_family_of<T, false>(vectors);
}

/// The kernel of the backward pass that stands in place of its softmax.
template <class T>
auto sigmoid_backward(VectorSet vectors) {
  return with_vectors(vectors, []<VectorSet kSet>() -> decltype(BackwardKernelSet<T>::softmax) {
    constexpr VectorSet kOwn = Simd<T, 16>::kVector ? kSet : VectorSet::generic;
    return CompiledSigmoid<kOwn, SigmoidBackwardKernels<T, kVectorBytes<kOwn>>>::softmax;
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
