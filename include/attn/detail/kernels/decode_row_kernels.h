// The products of a single query that shares its keys with no other, or is worked on by itself.
#pragma once

#include <algorithm>
#include <type_traits>

#include "attn/detail/base/cpu.h"
#include "attn/detail/kernels/prefetcher.h"
#include "attn/detail/kernels/tile_memory.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// For keys and values that lie in memory as they are computed with. One row gives the processor one multiplication for
/// each vector that is loaded, so what counts is that rows are read in the order of memory and that enough sums are
/// open at a time to hide the latency of an FMA.
template <class T, int Bytes, int kRegisters>
struct DecodeRowKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// scores = query * keys, kLanes keys at a time with a vector of sums each, which a tree of exchanges makes a vector
  /// of scores: in the order of DecodeScoreKernels, 8 heads of 512 keys took 1.1 times as long. Where keys fill no
  /// vector, the last one reaches back. Fetches keys meanwhile; a NoPrefetcher says that they lie in a cache. False,
  /// and nothing is done: other kernels are better for these sizes, or on this processor.
  template <class Fetching>
  static ATTN_INLINE bool score(const TileMemory<T>& m, const RowsToRead& key, Index keys, Index head_dim,
                                Fetching& fetching) {
    if (keys < kLanes) return false;
    constexpr bool kWide = kRegisters >= 32;
    if (fetching.is_empty()) {
      if (head_dim == 2 * kLanes) return score_unrolled<2>(m, key, keys);
      if (head_dim == 4 * kLanes) {
        if constexpr (kFetchesNothing<Fetching> && Bytes == 64)
          return cpu_is_amd() && score_rolled(m, key, keys);
        else
          return score_unrolled<4>(m, key, keys);
      }
      if constexpr (kWide)
        if (head_dim == 8 * kLanes) return score_unrolled<8>(m, key, keys);
    } else if constexpr (kWide && !kFetchesNothing<Fetching>) {
      if (head_dim == 8 * kLanes && fetching.follows_rows()) return score_unrolled<8, true>(m, key, keys);
    }
    if (head_dim % (fetching.is_empty() ? kLanes : kChunk * kLanes) != 0) return false;
    for (Index next = 0; next < keys; next += kLanes) {
      const Index j = std::min(next, keys - kLanes);
      const T* const row = reinterpret_cast<const T*>(key.data) + j * key.stride;
      Array<V, kLanes> sum = {};
      const auto add = [&]<int kVectors>(Index d) __attribute__((always_inline)) {
        Array<V, kVectors> q;
        ATTN_UNROLL for (int c = 0; c < kVectors; ++c) q[c] = V::load(m.query + d + c * kLanes);
        const T* at = row + d;
        ATTN_UNROLL for (int a = 0; a < kLanes; ++a, at += key.stride) {
          if constexpr (kVectors == kChunk)
            if (a % kKeysPerStep == 0) fetching.template step<kKeysPerStep * kVectors * Bytes>();
          ATTN_UNROLL for (int c = 0; c < kVectors; ++c) sum[a] += q[c] * V::load(at + c * kLanes);
        }
      };
      Index d = 0;
      for (; d + kChunk * kLanes <= head_dim; d += kChunk * kLanes) add.template operator()<kChunk>(d);
      for (; d < head_dim; d += kLanes) add.template operator()<1>(d);
      V::sum_lanes(sum).store(m.scores + j);
    }
    return true;
  }

  /// out = rescale * out + weights * values. Fetches what is left to be fetched meanwhile.
  template <class Fetching>
  static ATTN_INLINE void value(const TileMemory<T>& m, const T* value, Index stride, Index keys, Index v_dim,
                                Fetching& fetching) {
    const T *const weights = m.scores, rescale = *m.rescale;
    T* const out = m.out;
    Index c = 0;
    if constexpr (kRegisters >= 32 && !kFetchesNothing<Fetching>)
      if (v_dim == 8 * kLanes && fetching.follows_rows())
        return add_columns<8, true>(out, weights, rescale, value, stride, keys, fetching);
    const auto add = [&]<int kVectors>() __attribute__((always_inline)) {
      for (; c + kVectors * kLanes <= v_dim; c += kVectors * kLanes)
        add_columns<kVectors>(out + c, weights, rescale, value + c, stride, keys, fetching);
    };
    if constexpr (kRegisters >= 32) add.template operator()<16>();
    add.template operator()<8>();
    add.template operator()<4>();
    add.template operator()<2>();
    add.template operator()<1>();
    for (; c < v_dim; ++c) {
      T sum = 0;
      for (Index j = 0; j < keys; ++j) sum += weights[j] * value[j * stride + c];
      out[c] = out[c] * rescale + sum;
    }
  }

  /// As score_unrolled(), for rows of four vectors in a cache, with a loop over the keys, whose sums wait in L1 for
  /// the exchanges. Zen 5 prefetches for each load instruction by its address: unrolled over 16 keys there are 64 of
  /// them, each of which goes on 4 KiB later, and 64 floats a key came from L2 at 135 GB/s, in a loop at 195 to 225. 8
  /// heads of 128 keys took 0.89 of the time, a head of 1000 keys 0.81. Rows of 32 and 128 floats and vectors of 32
  /// bytes took 0.98 to 1.04 of it, keys from memory 1.07 to 1.1. Queries with a bias or the like, whose keys the loop
  /// cannot know to be near, are left to score_unrolled(). So are all on processors of other makers than AMD: on an
  /// Intel server with AMX, where the sums on their way through L1 cost more, 64 floats a key came from L2 at 140 GB/s
  /// in this loop and at 170 unrolled, and 8 heads of 128 keys took 1.08 times as long.
  static ATTN_INLINE bool score_rolled(const TileMemory<T>& m, const RowsToRead& key, Index keys) {
    constexpr int kVectors = 4;
    constexpr Index kBlock = 4 * kLanes;  // up to 4 KiB of sums, a twelfth of L1
    alignas(Bytes) Array<T, kBlock * kLanes> sums;
    Array<V, kVectors> q;
    ATTN_UNROLL for (int c = 0; c < kVectors; ++c) q[c] = V::load(m.query + c * kLanes);
    for (Index next = 0; next < keys; next += kBlock) {
      const Index first = std::min(next, keys - kLanes), count = std::min(kBlock, keys - first);
      const T* row = reinterpret_cast<const T*>(key.data) + first * key.stride;
      ATTN_NO_UNROLL for (Index a = 0; a < count; ++a, row += key.stride) {
        V sum{};
        ATTN_UNROLL for (int c = 0; c < kVectors; ++c) sum += q[c] * V::load(row + c * kLanes);
        sum.store(sums + a * kLanes);
      }
      ATTN_NO_UNROLL for (Index g = 0; g < count; g += kLanes) {
        const Index j = std::min(g, count - kLanes);
        Array<V, kLanes> sum;
        ATTN_UNROLL for (int a = 0; a < kLanes; ++a) sum[a] = V::load(sums + (j + a) * kLanes);
        V::sum_lanes(sum).store(m.scores + first + j);
      }
    }
    return true;
  }

 private:
  template <class Fetching>
  static constexpr bool kFetchesNothing = std::is_same_v<Fetching, NoPrefetcher>;

  /// Vectors of a query that are held while keys go by.
  static constexpr int kChunk = 4;
  static constexpr int kKeysPerStep = std::min(kLanes, 4);

  /// score() for a query that fits into registers beside the sums: no sum leaves its register, and rows are read from
  /// end to end. From L2 a key of 32, 64 or 128 floats took 0.55, 0.52 or 0.6 of the time of the loop above with
  /// AVX-512. Numbers of 16 and 8 bits gained nothing: they are bound by their conversion.
  ///
  /// kFar: each line asks for a later one, in one instruction where a Prefetcher takes five or more. From memory keys
  /// and values of 128 floats came 1.15 to 1.22 times as fast, those of 64 at 0.95 of the speed. Four queries at a
  /// time, which hide a Prefetcher's instructions but not what comes late, ran at 0.7 to 0.95 of theirs. Copies of rows
  /// in pages of 16 tokens ran at 0.7 of theirs: what they are followed by lies elsewhere.
  template <int kVectors, bool kFar = false>
  static ATTN_INLINE bool score_unrolled(const TileMemory<T>& m, const RowsToRead& key, Index keys) {
    Array<V, kVectors> q;
    ATTN_UNROLL for (int c = 0; c < kVectors; ++c) q[c] = V::load(m.query + c * kLanes);
    [[maybe_unused]] Index lead = 0;
    if constexpr (kFar) lead = Prefetcher::lead_of(kVectors * Bytes, key.stride * static_cast<Index>(sizeof(T)));
    for (Index next = 0; next < keys; next += kLanes) {
      const Index j = std::min(next, keys - kLanes);
      const T* row = reinterpret_cast<const T*>(key.data) + j * key.stride;
      Array<V, kLanes> sum = {};
      ATTN_UNROLL for (int a = 0; a < kLanes; ++a, row += key.stride) {
        ATTN_UNROLL for (int c = 0; c < kVectors; ++c) {
          if constexpr (kFar) Prefetcher::line_after(row + c * kLanes, lead);
          sum[a] += q[c] * V::load(row + c * kLanes);
        }
      }
      V::sum_lanes(sum).store(m.scores + j);
    }
    return true;
  }

  /// Keys of a step of add_columns(), each with sums of its own. Eight vectors of columns hide the latency of an FMA by
  /// themselves, fewer need three keys. With two, 8 heads of 128 values of 64 floats took 1.25 times as long from L2
  /// with AVX-512, and of 256 values of 32 floats 1.2 times with AVX2, if the values of a head followed its keys and so
  /// those of two heads lay apart; why is not known, but the addresses of each load then go on by a power of two. Four
  /// keys were no better, and one took 1.1 times as long where values are in L1. (batch, len, heads, dim) memory of 64
  /// floats is read at 0.92 of the speed of two keys.
  template <int kVectors>
  static constexpr int kKeysOf = kVectors >= 8 ? 1 : 3;

  /// kVectors vectors of columns. kFar: whole rows, which are asked for as in score_unrolled().
  template <int kVectors, bool kFar = false, class Fetching>
  static ATTN_INLINE void add_columns(T* out, const T* weights, T rescale, const T* value, Index stride, Index keys,
                                      Fetching& fetching) {
    constexpr int kKeys = kKeysOf<kVectors>;
    Array<Array<V, kVectors>, kKeys> sum = {};
    [[maybe_unused]] Index lead = 0;
    if constexpr (kFar) lead = Prefetcher::lead_of(kVectors * Bytes, stride * static_cast<Index>(sizeof(T)));
    const auto add = [&](V * to, Index j) __attribute__((always_inline)) {
      const T w = weights[j];
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        if constexpr (kFar) Prefetcher::line_after(value + v * kLanes, lead);
        to[v] += V::load(value + v * kLanes) * w;
      }
      value += stride;
    };
    Index j = 0;
    ATTN_NO_UNROLL for (; j + kKeys <= keys; j += kKeys) {
      if constexpr (!kFar) fetching.template step<kKeys * kVectors * Bytes>();
      ATTN_UNROLL for (int i = 0; i < kKeys; ++i) add(sum[i], j + i);
    }
    if constexpr (kKeys > 1) {
      ATTN_NO_UNROLL for (; j < keys; ++j) {
        fetching.template step<kVectors * Bytes>();
        add(sum[0], j);
      }
    }
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
      ATTN_UNROLL for (int i = 1; i < kKeys; ++i) sum[0][v] += sum[i][v];
      sum[0][v] += V::load(out + v * kLanes) * rescale;
      sum[0][v].store(out + v * kLanes);
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
