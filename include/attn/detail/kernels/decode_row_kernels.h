// The value product of a single query that shares its keys with no other: lanes run along v_dim.
#pragma once

#include <type_traits>

#include "attn/detail/kernels/prefetcher.h"
#include "attn/detail/kernels/tile_memory.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// For values that lie in memory as they are computed with. One row gives the processor one multiplication for each
/// vector that is loaded, so what counts is that values are read in the order of memory and that enough sums are open
/// at a time to hide the latency of an FMA: two for each column, of the even keys and of the odd ones, and as many
/// columns as there are registers for.
template <class T, int Bytes, int kRegisters>
struct DecodeRowKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  static constexpr int kLanes = S::kLanes;
  static constexpr int kWidest = kRegisters >= 32 ? 8 : 4;  // vectors of columns

  /// out = rescale * out + weights * values, of the first row. Fetches what is left to be fetched meanwhile.
  template <class Fetching>
  static ATTN_INLINE void value(const TileMemory<T>& m, const T* value, Index stride, Index keys, Index v_dim,
                                Fetching& fetching) {
    const T *const weights = m.scores, rescale = *m.rescale;
    T* const out = m.out;
    Index c = 0;
    if constexpr (kWidest == 8 && std::is_same_v<Fetching, Prefetcher>) {
      if (v_dim == kWidest * kLanes && fetching.follows_rows())
        return add_columns<kWidest, true>(out, weights, rescale, value, stride, keys, fetching);
    }
    for (; c + kWidest * kLanes <= v_dim; c += kWidest * kLanes)
      add_columns<kWidest>(out + c, weights, rescale, value + c, stride, keys, fetching);
    if constexpr (kWidest > 4)
      for (; c + 4 * kLanes <= v_dim; c += 4 * kLanes)
        add_columns<4>(out + c, weights, rescale, value + c, stride, keys, fetching);
    for (; c + 2 * kLanes <= v_dim; c += 2 * kLanes)
      add_columns<2>(out + c, weights, rescale, value + c, stride, keys, fetching);
    for (; c + kLanes <= v_dim; c += kLanes)
      add_columns<1>(out + c, weights, rescale, value + c, stride, keys, fetching);
    for (; c < v_dim; ++c) {
      T sum = 0;
      for (Index j = 0; j < keys; ++j) sum += weights[j] * value[j * stride + c];
      out[c] = out[c] * rescale + sum;
    }
  }

 private:
  /// kVectors vectors of columns. kFar: whole rows, which are asked for as in DecodeScoreKernels::score_whole().
  template <int kVectors, bool kFar = false, class Fetching>
  static ATTN_INLINE void add_columns(T* out, const T* weights, T rescale, const T* value, Index stride, Index keys,
                                      Fetching& fetching) {
    Array<Vec, kVectors> even = {}, odd = {};
    [[maybe_unused]] Index lead = 0;
    if constexpr (kFar) lead = Prefetcher::lead_of(kVectors * Bytes, stride * static_cast<Index>(sizeof(T)));
    const auto add = [&](Vec * sum, Index j) __attribute__((always_inline)) {
      const T w = weights[j];
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        Vec x;
        if constexpr (kFar) Prefetcher::line_after(value + v * kLanes, lead);
        S::load(x, value + v * kLanes);
        S::add_product(sum[v], x, w);
      }
      value += stride;
    };
    Index j = 0;
    for (; j + 2 <= keys; j += 2) {
      if constexpr (!kFar) fetching.template step<2 * kVectors * Bytes>();
      add(even, j);
      add(odd, j + 1);
    }
    if (j < keys) add(even, j);
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      Vec before;
      S::load(before, out + v * kLanes);
      even[v] += odd[v];
      S::add_product(even[v], before, rescale);
      S::store(out + v * kLanes, even[v]);
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
