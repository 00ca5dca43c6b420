// Kernels of the backward pass on the matrix unit, in bf16.
//
// Of the five products in detail/kernels/backward_kernels.h, scores, grad_weights and grad_query use the kernels of
// detail/kernels/bf16/amx_tile_kernels.h. The gradients of keys and values are here:
//
//     grad_value (keys, v_dim)    += weights (keys, queries) · grad_out (queries, v_dim)
//     grad_key   (keys, head_dim) += grad_scores (keys, queries) · query (queries, head_dim)
//
// A tile's 32 queries are one step of these products. The left factors are rows of scores, rounded to bf16; the right
// ones are pairs of rows. Pairing up two rows changes the order of the columns, and the sums keep that order until
// finish_rows(); see Bf16Packing::pair_up().
#pragma once

#include "attn/detail/kernels/backward_kernels.h"
#include "attn/detail/kernels/bf16/amx_tile_kernels.h"

#if ATTN_AMX
namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class Tiles>
struct AmxBackwardKernels {
  static constexpr Index kQueries = Bf16Softmax::kQueries, kColumns = AmxTiles::kColumns;

  /// Packs up to 32 rows of bf16 as pairs: for every 32 columns, two tiles of (queries / 2, 16) pairs. Missing queries
  /// are zeros. The factor is ignored, because products are scaled in float.
  ATTN_TARGET_AVX512 static void pack_panels(Rows<float> rows, Index count, Index dim, float, float* to) {
    alignas(64) static constexpr Array<std::byte, AmxTiles::kBytes> kZeros = {};
    const auto* const first = reinterpret_cast<const std::byte*>(rows.data);
    auto* block = reinterpret_cast<std::byte*>(to);
    for (Index c = 0; c < dim; c += kColumns, block += 2 * kTileBytes) {
      const auto row = [&](Index i) { return i < count ? first + 4 * i * rows.stride + 2 * c : kZeros; };
      for (Index i = 0; i < kQueries; i += 2)
        Bf16Packing::pair_up(row(i), row(i + 1), block + i / 2 * AmxTiles::kBytes,
                             block + kTileBytes + i / 2 * AmxTiles::kBytes);
    }
  }

  /// to (keys, row) += weights (keys, 32) * panels (32, row), the weights rounded to bf16, over the first `count`
  /// queries. The weights of the other queries may be anything.
  ATTN_TARGET_AVX512 static void add_rows(const float* weights, Index, Index keys, const float* panels, Index count,
                                          Index row, float* to) {
    IntRaw lane, first, second;
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    first = lane < static_cast<std::int32_t>(count);
    second = lane + kLanes < static_cast<std::int32_t>(count);
    alignas(64) Array<float, kKeyTile * kLanes> rounded;  // (keys, 32) of bf16
    for (Index j = 0; j < keys; ++j) {
      V low = only(first, weights + j * kQueries);
      const V high = only(second, weights + j * kQueries + kLanes);
      Tiles::round_to_bf16(low, high);
      low.store(rounded + j * kLanes);
    }
    const Index whole = keys / kStep * kStep;
    if (whole < keys) std::fill(rounded + keys * kLanes, rounded + (whole + kStep) * kLanes, 0.0f);
    const auto* panel = reinterpret_cast<const std::byte*>(panels);
    for (Index c = 0; c < row; c += kColumns, panel += 2 * kTileBytes) {
      Tiles::load(tmm6, panel, AmxTiles::kBytes);
      Tiles::load(tmm7, panel + kTileBytes, AmxTiles::kBytes);
      for (Index j = 0; j < whole; j += kStep) add_square(rounded + j * kLanes, to + j * row + c, row);
      if (whole == keys) continue;
      // The memory after the last key's sums belongs to other data, so the last sums are computed in `rest` first.
      alignas(64) Array<float, kStep* kColumns> rest = {};
      add_square(rounded + whole * kLanes, rest, kColumns);
      for (Index j = whole; j < keys; ++j)
        for (Index i = 0; i < kColumns; i += kLanes) {
          float* const sum = to + j * row + c + i;
          (V::load(sum) + V::load(rest + (j - whole) * kColumns + i)).store(sum);
        }
    }
  }

  /// Stores gradients of scores (keys, 32) as pairs of keys (keys / 2, 32), the order in which the value product reads
  /// weights.
  ATTN_TARGET_AVX512 static float* arrange_weights(float* weights, Index, Index keys, float* to) {
    constexpr auto kAll = std::make_integer_sequence<int, 32>();
    for (Index j = 0; j < padded(keys, kStep); j += 2)
      for (Index i = 0; i < kQueries; i += kLanes) {
        V first{}, second{};
        if (j < keys) first = V::load(weights + j * kQueries + i);
        if (j + 1 < keys) second = V::load(weights + (j + 1) * kQueries + i);
        Tiles::round_to_bf16(first, second);
        halves_in_turn(first, kAll).store(to + j / 2 * kQueries + i);
      }
    return to;
  }

  /// See BackwardKernelSet::take_rests.
  ATTN_TARGET_AVX512 static void take_rests(float* x, Index, Index keys) {
    for (float* const end = x + keys * kQueries; x < end; x += kLanes) {
      const V all = V::load(x);
      const IntRaw bits = (IntRaw)all.raw;
      (all - V{(V::Raw)((bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff)}).store(x);
    }
  }

  /// Restores the column order of the sums of add_rows(), and multiplies them by a factor.
  ATTN_TARGET_AVX512 static void finish_rows(float* sums, Index rows, Index row, float factor) {
    for (float* at = sums; at < sums + rows * row; at += kColumns) {
      const V low = V::load(at), high = V::load(at + kLanes);
      (Bf16Packing::in_order<0>(low, high) * factor).store(at);
      (Bf16Packing::in_order<8>(low, high) * factor).store(at + kLanes);
    }
  }

 private:
  using V = Vec<float, 64>;
  using IntRaw = V::IntRaw;
  typedef std::int16_t Words __attribute__((vector_size(64)));
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kStep = 2 * AmxTiles::kRows, kTileBytes = AmxTiles::kRows * AmxTiles::kBytes;
  static_assert(kQueries == AmxTiles::kColumns, "a tile of queries must be one step of the products over queries");

  /// Adds the products for 32 keys and 32 columns, whose pairs are in registers 6 and 7.
  static ATTN_INLINE void add_square(const float* rounded, float* sums, Index row) {
    const Index stride = 4 * row;
    float* const below = sums + AmxTiles::kRows * row;
    Tiles::load(tmm4, rounded, AmxTiles::kBytes);
    Tiles::load(tmm5, rounded + AmxTiles::kRows * kLanes, AmxTiles::kBytes);
    Tiles::load(tmm0, sums, stride);
    Tiles::load(tmm1, sums + kLanes, stride);
    Tiles::load(tmm2, below, stride);
    Tiles::load(tmm3, below + kLanes, stride);
    Tiles::multiply(tmm0, tmm4, tmm6);
    Tiles::multiply(tmm1, tmm4, tmm7);
    Tiles::multiply(tmm2, tmm5, tmm6);
    Tiles::multiply(tmm3, tmm5, tmm7);
    Tiles::store(tmm0, sums, stride);
    Tiles::store(tmm1, sums + kLanes, stride);
    Tiles::store(tmm2, below, stride);
    Tiles::store(tmm3, below + kLanes, stride);
  }

  /// Loads the lanes that a mask keeps; the others are 0.
  ATTN_TARGET_AVX512 static ATTN_INLINE V only(const IntRaw& kept, const float* from) {
    return {(V::Raw)((IntRaw)V::load(from).raw & kept)};
  }

  template <int... i>
  ATTN_TARGET_AVX512 static ATTN_INLINE V halves_in_turn(const V& x, std::integer_sequence<int, i...>) {
    const Words words = (Words)x.raw;
    return {(V::Raw)__builtin_shufflevector(words, words, (i / 2 + i % 2 * 16)...)};
  }
};

/// Returns the backward kernels of the matrix unit. Kernels that work in float come from `kernels`, which must be
/// AVX-512's.
template <class Tiles>
BackwardKernelSet<float> amx_backward_kernels(BackwardKernelSet<float> kernels) {
  using Kernels = AmxBackwardKernels<Tiles>;
  kernels.columns = Kernels::kColumns;
  kernels.pack_panels = Kernels::pack_panels;
  kernels.add_rows = Kernels::add_rows;
  kernels.arrange_weights = Kernels::arrange_weights;
  kernels.take_rests = Kernels::take_rests;
  kernels.finish_rows = Kernels::finish_rows;
  return kernels;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
#endif
