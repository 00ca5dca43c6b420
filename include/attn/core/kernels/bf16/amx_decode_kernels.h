// Kernels for single queries on the matrix unit: up to 16 queries with the same keys are the rows of one tile.
//
// Scores, weights, out and the softmax are in float, as in core/kernels/decode_kernels.h. Keys and values are read in
// place as bf16, in whole tiles of 64 keys. The two products take a third of the time that they take in
// decode_kernels.h, so decoding many query heads over few key heads is memory-bound.
//
// The next tile is prefetched in memory order. With prefetches in the order in which tiles are read here, 64 bytes of
// each row in turn, a call took 1.4 times as long, the same as without prefetches: the hardware prefetcher follows
// rising addresses. Prefetching in bursts instead of evenly took 4 % longer. Pairing up all values before the first
// product took a fifth longer, because the pairs evict keys and rows from L1.
#pragma once

#include "attn/core/kernels/bf16/amx_registers.h"
#include "attn/core/kernels/bf16/packing.h"
#include "attn/core/kernels/decode_kernels.h"

#if ATTN_AMX
namespace attn::detail::inline ATTN_BUILT_FOR {

template <class Tiles>
struct AmxDecodeKernels {
  static constexpr Index kMost = AmxTiles::kRows;

  /// scores = scale * keys * query. Queries are read as load_columns() stores them in m.arranged_query: (head_dim / 2,
  /// 32) pairs, of which the first 16 columns are used. There must be exactly kKeyTile keys, and head_dim must be a
  /// multiple of 32.
  ATTN_TARGET_AVX512 static void score(const TileMemory<float>& m, Index rows, const RowsToRead& key, Index,
                                       Index head_dim, Prefetcher& fetching) {
    alignas(64) Array<float, kKeyTile * kMost> products;  // (keys, queries)
    const Index stride = 2 * key.stride;
    const std::byte* k = key.data;
    const float* q = m.arranged_query;
    // Half of the lines of the keys are prefetched between these products.
    Tiles::zero(tmm0);
    Tiles::zero(tmm1);
    Tiles::zero(tmm2);
    Tiles::zero(tmm3);
    for (Index d = 0; d < head_dim; d += kStep, k += AmxTiles::kBytes, q += kMost * kQueryColumns) {
      Tiles::load(tmm6, q, 4 * kQueryColumns);
      Tiles::load(tmm4, k, stride);
      Tiles::multiply(tmm0, tmm4, tmm6);
      fetching.lines<8>();
      Tiles::load(tmm5, k + 16 * stride, stride);
      Tiles::multiply(tmm1, tmm5, tmm6);
      fetching.lines<8>();
      Tiles::load(tmm4, k + 32 * stride, stride);
      Tiles::multiply(tmm2, tmm4, tmm6);
      fetching.lines<8>();
      Tiles::load(tmm5, k + 48 * stride, stride);
      Tiles::multiply(tmm3, tmm5, tmm6);
      fetching.lines<8>();
    }
    Tiles::store(tmm0, products, kRowBytes);
    Tiles::store(tmm1, products + 16 * kMost, kRowBytes);
    Tiles::store(tmm2, products + 32 * kMost, kRowBytes);
    Tiles::store(tmm3, products + 48 * kMost, kRowBytes);
    for (Index r = 0; r < rows; r += 4)
      for (Index j = 0; j < kKeyTile; j += kLanes) {
        for (Index d = 0; r == 0 && d < head_dim; d += kStep) fetching.lines<8>();
        Array<V, 4> x;
        load_queries(x, products + j * kMost + r);
        for (Index i = 0; i < std::min<Index>(4, rows - r); ++i) (x[i] * m.scale).store(m.scores + (r + i) * m.row + j);
      }
  }

  /// out = rescale * out + weights * values, the weights rounded to bf16. Unlike in tiles of queries, their sum after
  /// rounding is not used (TileState::excess), so `out` is wrong by up to 2^-9 of what all values have in common. Not
  /// tried: multiplying the products of each row and tile by the ratio of the two sums, which takes two sums over
  /// lanes. There must be exactly kKeyTile values, and v_dim must be a multiple of 32.
  ATTN_TARGET_AVX512 static void value(const TileMemory<float>& m, Index rows, const RowsToRead& value, Index,
                                       Index v_dim, Prefetcher& fetching) {
    // (queries, keys / 2) pairs; unused rows hold garbage, and their sums are not used.
    alignas(64) Array<float, kMost * kStep> weights;
    for (Index r = 0; r < rows; ++r)
      for (Index j = 0; j < kKeyTile; j += kStep) {
        V low = V::load(m.scores + r * m.row + j);
        const V high = V::load(m.scores + r * m.row + j + kLanes);
        Tiles::round_to_bf16(low, high);
        low.store(weights + r * kStep + j / 2);
      }
    Tiles::load(tmm2, weights, 4 * kStep);
    Tiles::load(tmm5, weights + kLanes, 4 * kStep);
    const Index stride = 2 * value.stride;
    for (Index c = 0; c < v_dim; c += kStep) {
      alignas(64) Array<std::byte, 4 * kTileBytes> pairs;
      pair_up(value.data + 2 * c, stride, pairs, fetching);
      Tiles::zero(tmm0);
      Tiles::zero(tmm1);
      Tiles::load(tmm3, pairs, AmxTiles::kBytes);
      Tiles::multiply(tmm0, tmm2, tmm3);
      Tiles::load(tmm4, pairs + kTileBytes, AmxTiles::kBytes);
      Tiles::multiply(tmm1, tmm2, tmm4);
      Tiles::load(tmm6, pairs + 2 * kTileBytes, AmxTiles::kBytes);
      Tiles::multiply(tmm0, tmm5, tmm6);
      Tiles::load(tmm7, pairs + 3 * kTileBytes, AmxTiles::kBytes);
      Tiles::multiply(tmm1, tmm5, tmm7);
      alignas(64) Array<float, kMost * kStep> sums;  // (queries, columns), with the columns in the order of pair_up()
      Tiles::store(tmm0, sums, 4 * kStep);
      Tiles::store(tmm1, sums + kLanes, 4 * kStep);
      for (Index r = 0; r < rows; ++r) add_sums(sums + r * kStep, m.rescale[r], m.out + r * v_dim + c);
    }
  }

 private:
  using V = Vec<float, 64>;
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kStep = AmxTiles::kColumns, kQueryColumns = 32, kRowBytes = 4 * kMost,
                         kTileBytes = AmxTiles::kRows * AmxTiles::kBytes;
  static_assert(kKeyTile == 4 * AmxTiles::kRows, "the products of a tile of keys must fill registers 0 to 3");

  /// Selects the elements of each 16-byte block of the result: indices 0 to 3 are elements of a, 4 to 7 elements of b.
  template <int i0, int i1, int i2, int i3, int... e>
  ATTN_TARGET_AVX512 static ATTN_INLINE V choose(const V& a, const V& b, std::integer_sequence<int, e...>) {
    constexpr int kFrom[] = {i0, i1, i2, i3};
    return {
        __builtin_shufflevector(a.raw, b.raw, (e / 4 * 4 + (kFrom[e % 4] < 4 ? kFrom[e % 4] : kFrom[e % 4] + 12))...)};
  }
  template <int i0, int i1, int i2, int i3>
  ATTN_TARGET_AVX512 static ATTN_INLINE V choose(const V& a, const V& b) {
    return choose<i0, i1, i2, i3>(a, b, std::make_integer_sequence<int, 16>());
  }

  /// Transposes four queries of 16 keys, from (keys, 16) products, to a vector of keys for each query.
  ATTN_TARGET_AVX512 static ATTN_INLINE void load_queries(Array<V, 4>& x, const float* from) {
    Array<V, 4> k;  // the 16-byte block i of k[j] has key 4i + j
    ATTN_UNROLL for (int j = 0; j < 4; ++j) Bf16Packing::load_lanes(k[j].raw, from + j * kMost, 4 * kRowBytes);
    const V low = choose<0, 4, 1, 5>(k[0], k[1]), high = choose<0, 4, 1, 5>(k[2], k[3]),
            low2 = choose<2, 6, 3, 7>(k[0], k[1]), high2 = choose<2, 6, 3, 7>(k[2], k[3]);
    x[0] = choose<0, 1, 4, 5>(low, high);
    x[1] = choose<2, 3, 6, 7>(low, high);
    x[2] = choose<0, 1, 4, 5>(low2, high2);
    x[3] = choose<2, 3, 6, 7>(low2, high2);
  }

  /// Packs 64 rows of 32 columns into tiles of pairs: for the first 32 rows, columns 0 to 3, 8 to 11, 16 to 19 and 24
  /// to 27, then the other columns. The next 32 rows follow in the same order. In this order, two rows take two
  /// instructions, neither of which crosses the 16-byte lanes of a vector.
  ATTN_TARGET_AVX512 static ATTN_INLINE void pair_up(const std::byte* row, Index stride, std::byte* to,
                                                     Prefetcher& fetching) {
    for (Index half = 0; half < 2; ++half, to += kTileBytes)
      for (Index i = 0; i < AmxTiles::kRows; ++i, row += 2 * stride, to += AmxTiles::kBytes) {
        Bf16Packing::pair_up(row, row + stride, to, to + kTileBytes);
        fetching.template lines<2>();
      }
  }

  ATTN_TARGET_AVX512 static ATTN_INLINE void add_sums(const float* sums, float rescale, float* out) {
    const V a = V::load(sums), b = V::load(sums + kLanes);
    (V::load(out) * rescale + Bf16Packing::in_order<0>(a, b)).store(out);
    (V::load(out + kLanes) * rescale + Bf16Packing::in_order<8>(a, b)).store(out + kLanes);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
