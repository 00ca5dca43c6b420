// Score kernels of additive attention, one source for all instruction sets. Where attention() multiplies a query and a
// key, these kernels add them:
//
//     scores (keys, queries) = sum over features of weight * tanh(query + key)
//
// A tanh takes 13 operations and a division for each pair and feature, so these kernels are compute-bound: the tile
// kernel reaches 0.97 (AVX-512), 0.90 (AVX2) and 0.86 (SSE2) of the rate at which tanh alone runs in the L1 cache.
// Combining the fractions of two or four features before one division was no faster on Zen 4, which overlaps divisions
// with other work.
#pragma once

#include <algorithm>
#include <limits>

#include "attn/core/base/compiled_once.h"
#include "attn/core/kernels/kernel_table.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// For tiles of queries: replaces score() of TileKernels.
template <class T, int Bytes, int kVectors>
struct AdditiveTileKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kQueries = kVectors * kLanes;

  /// Computes the scores of all pairs, and the maximum over keys for each query.
  static ATTN_INLINE void score(const TileMemory<T>& m, Rows<T> key, Index keys, Index features) {
    Array<V, kVectors> highest;
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) highest[v] = V::broadcast(-std::numeric_limits<T>::infinity());
    const T* row = key.data;
    for (Index j = 0; j < keys; ++j, row += key.stride) {
      Array<V, kVectors> sum = {};
      for (Index h = 0; h < features; ++h) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const V x = V::load(m.query + h * kQueries + v * kLanes) + row[h];
          sum[v] += tanh(x) * m.score_weight[h];
        }
      }
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        highest[v] = max(highest[v], sum[v]);
        sum[v].store(m.scores + j * kQueries + v * kLanes);
      }
    }
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) highest[v].store(m.tile_max + v * kLanes);
  }
};

/// For single queries, with lanes along the features: replaces score() of DecodeKernels.
template <class T, int Bytes>
struct AdditiveDecodeKernels {
  using V = Vec<T, Bytes>;
  using Packing = PackingKernels<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Computes the scores of all pairs. Nothing is prefetched: the hardware prefetcher has enough time to fetch keys.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index features,
                                Prefetcher&) {
    const Index size = size_of_element<T>(key.dtype), whole = features / kLanes * kLanes, rest = features - whole;
    for (Index r = 0; r < rows; ++r) {
      const T *const query = m.query + r * features, *const weight = m.score_weight + r * features;
      // The last features have a separate vector, in which missing features have weight 0.
      Array<T, kLanes> last_query = {}, last_weight = {}, last_key = {};
      std::copy_n(query + whole, rest, last_query);
      std::copy_n(weight + whole, rest, last_weight);
      for (Index j = 0; j < keys; j += kLanes) {
        Array<V, kLanes> sum = {};
        ATTN_NO_UNROLL
        for (int a = 0; a < kLanes; ++a) {
          // Past the end, the last key is repeated; its scores are not used.
          const std::byte* const row = key.data + std::min<Index>(j + a, keys - 1) * key.stride * size;
          for (Index h = 0; h < whole; h += kLanes)
            add_terms(sum[a], query + h, Packing::load(key.dtype, row, h), weight + h);
          if (rest == 0) continue;
          for (Index h = 0; h < rest; ++h) last_key[h] = load_number<T>(key.dtype, row + (whole + h) * size);
          add_terms(sum[a], last_query, V::load(last_key), last_weight);
        }
        V::sum_lanes(sum).store(m.scores + r * m.row + j);
      }
    }
  }

 private:
  static ATTN_INLINE void add_terms(V& sum, const T* query, const V& key, const T* weight) {
    sum += V::load(weight) * tanh(V::load(query) + key);
  }
};

/// The kernels of kernel_family(), with additive scores. They read StepMemory::score_weight.
template <class T, class = include_attn_instantiate_h_in_one_unit>
KernelFamily<T> additive_family(VectorSet vectors) {
  KernelFamily<T> family = kernel_family<T>(vectors);
  with_vectors<T>(vectors, [&]<VectorSet kSet>() {
    constexpr int kBytes = kVectorBytes<kSet>;
    static_assert(kMaxVectors == 3, "one kernel per tile width");
    family.by_vectors[0].score = compiled<kSet, AdditiveTileKernels<T, kBytes, 1>::score>;
    family.by_vectors[1].score = compiled<kSet, AdditiveTileKernels<T, kBytes, 2>::score>;
    if constexpr (kWidestTile<kVectorRegisters<kSet>> == kMaxVectors)
      family.by_vectors[2].score = compiled<kSet, AdditiveTileKernels<T, kBytes, 3>::score>;
    // This kernel reads keys of any type.
    for (DecodeProducts<T>& products : family.decode.products)
      products.score = compiled<kSet, AdditiveDecodeKernels<T, kBytes>::score>;
  });
  return family;
}
ATTN_COMPILED_ONCE(additive_family)

/// For the backward pass: OtherScore::add_gradients.
template <class T, int Bytes>
struct AdditiveGradientKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// With t = tanh(query + key) for each pair and feature, the gradient of the weight is the sum of grad * t, and the
  /// gradient of query and key is weight * the sum of grad * (1 - t²). A pair with a gradient of 0 adds nothing, even
  /// if its key is not finite.
  ///
  /// Lanes run over queries. Sums for keys are formed over the lanes, for as many keys at a time as fill a vector of
  /// sums.
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
        for (int a = 0; a < here; ++a) {
          T& grad_key = t.grad_key[(j + a) * t.key_row + h];
          grad_key = V::multiply_add_one(of_keys[a], weight, grad_key);
        }
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
ATTN_COMPILED_ONCE(additive_gradients)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
