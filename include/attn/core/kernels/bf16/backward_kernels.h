// Kernels of the backward pass in bf16, with vector instructions or on the matrix unit.
//
// Of the five products in core/kernels/backward_kernels.h, scores, grad_weights and grad_query use the kernels of the
// forward pass, on the layouts of core/kernels/bf16/amx_tile_kernels.h. The gradients of keys and values are here:
//
//     grad_value (keys, v_dim)    += weights (keys, queries) · grad_out (queries, v_dim)
//     grad_key   (keys, head_dim) += grad_scores (keys, queries) · query (queries, head_dim)
//
// A tile's 32 queries are one step of these products. The left factors are rows of scores, rounded to bf16; the right
// ones are panels: pairs of rows. Pairing up two rows changes the order of the columns, and the sums keep that order
// until finish_rows(); see Bf16Packing::pair_up().
#pragma once

#include "attn/core/kernels/backward_kernels.h"
#include "attn/core/kernels/bf16/amx_tile_kernels.h"
#include "attn/core/kernels/bf16/vector_kernels.h"

#if ATTN_BF16
namespace attn::detail::inline ATTN_BUILT_FOR {

/// `Panels` multiplies by a panel of 32 columns: Bf16VectorPanels or AmxPanels.
template <class Panels>
struct Bf16BackwardKernels {
  static constexpr Index kQueries = Bf16Softmax::kQueries, kColumns = Bf16Instructions::kColumns;

  /// Packs up to 32 rows of bf16 as panels. Missing queries are zeros. The factor is ignored, because products are
  /// scaled in float.
  ATTN_TARGET_AVX512 static void pack_panels(Rows<float> rows, Index count, Index dim, float, float* to) {
    alignas(64) static constexpr Array<std::byte, Bf16Instructions::kBytes> kZeros = {};
    const auto* const first = reinterpret_cast<const std::byte*>(rows.data);
    auto* panel = reinterpret_cast<std::byte*>(to);
    for (Index c = 0; c < dim; c += kColumns, panel += kPanelBytes) {
      const auto row = [&](Index i) { return i < count ? first + 4 * i * rows.stride + 2 * c : kZeros; };
      for (Index i = 0; i < kQueries; i += 2)
        Bf16Packing::pair_up(row(i), row(i + 1), panel + Panels::at(i / 2, 0), panel + Panels::at(i / 2, 1));
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
      Bf16Instructions::round_to_bf16(low, high);
      low.store(rounded + j * kLanes);
    }
    std::fill(rounded + keys * kLanes, rounded + padded(keys, Panels::kKeys) * kLanes, 0.0f);
    const auto* panel = reinterpret_cast<const std::byte*>(panels);
    for (Index c = 0; c < row; c += kColumns, panel += kPanelBytes) Panels::add(rounded, keys, panel, to + c, row);
  }

  /// Stores gradients of scores (keys, 32) as pairs of keys (keys / 2, 32), the order in which the value product reads
  /// weights.
  ATTN_TARGET_AVX512 static float* arrange_weights(float* weights, Index, Index keys, float* to) {
    constexpr auto kAll = std::make_integer_sequence<int, 32>();
    for (Index j = 0; j < padded(keys, Bf16Instructions::kColumns); j += 2)
      for (Index i = 0; i < kQueries; i += kLanes) {
        V first{}, second{};
        if (j < keys) first = V::load(weights + j * kQueries + i);
        if (j + 1 < keys) second = V::load(weights + (j + 1) * kQueries + i);
        Bf16Instructions::round_to_bf16(first, second);
        halves_in_turn(first, kAll).store(to + j / 2 * kQueries + i);
      }
    return to;
  }

  /// See BackwardKernelSet::take_lost.
  ATTN_TARGET_AVX512 static void take_lost(float* x, Index keys) {
    for (float* const end = x + keys * kQueries; x < end; x += kLanes) {
      const V all = V::load(x);
      const IntRaw bits = (IntRaw)all.raw;
      const V rounded{(V::Raw)((bits + 0x7fff + ((bits >> 16) & 1)) & ~0xffff)};  // to nearest, ties to even
      (all - rounded).store(x);
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
  using Words = Bf16Instructions::Words;
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kPanelBytes = kQueries * Bf16Instructions::kBytes;
  static_assert(kQueries == kColumns, "a tile of queries must be one step of the products over queries");

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

/// Panels as the vector products read them: one pair of rows after the other.
struct Bf16VectorPanels {
  static constexpr Index kKeys = Bf16VectorKernels::kRows;  ///< processed at a time

  /// Offset, in bytes, of half number `half` of the pairs of two rows, pair number `pair` of a panel.
  static constexpr Index at(Index pair, Index half) { return (2 * pair + half) * Bf16Instructions::kBytes; }

  /// sums (keys, row) += rounded (keys, 32) * panel (32, 32). `rounded` has zeros after the last key, in whole kKeys.
  ATTN_TARGET_AVX512 static void add(const float* rounded, Index keys, const std::byte* panel, float* sums, Index row) {
    constexpr Index kBytes = Bf16Instructions::kBytes, kPairs = Bf16Instructions::kPairs;
    for (Index j = 0; j < keys; j += kKeys) {
      Bf16VectorKernels::Sums product = {};
      Bf16VectorKernels::add_products(product, reinterpret_cast<const std::byte*>(rounded + j * kPairs), kBytes,
                                      reinterpret_cast<const float*>(panel), kPairs);
      float* to = sums + j * row;
      ATTN_UNROLL for (int a = 0; a < kKeys; ++a, to += row) {
        if (j + a >= keys) break;
        for (Index half : {0, 1}) (V::load(to + half * kPairs) + product[a][half]).store(to + half * kPairs);
      }
    }
  }

 private:
  using V = Vec<float, 64>;
};

#if ATTN_AMX
/// Panels as two tiles for the matrix unit.
template <class Tiles>
struct AmxPanels {
  static constexpr Index kKeys = 2 * AmxTiles::kRows;

  static constexpr Index at(Index pair, Index half) { return half * kTileBytes + pair * AmxTiles::kBytes; }

  static ATTN_TARGET_AVX512 void add(const float* rounded, Index keys, const std::byte* panel, float* sums, Index row) {
    Tiles::load(tmm6, panel, AmxTiles::kBytes);
    Tiles::load(tmm7, panel + kTileBytes, AmxTiles::kBytes);
    const Index whole = keys / kKeys * kKeys;
    for (Index j = 0; j < whole; j += kKeys) add_square(rounded + j * kLanes, sums + j * row, row);
    if (whole == keys) return;
    // The memory after the last key's sums belongs to other data, so the last sums are computed in `rest` first.
    alignas(64) Array<float, kKeys* AmxTiles::kColumns> rest = {};
    add_square(rounded + whole * kLanes, rest, AmxTiles::kColumns);
    for (Index j = whole; j < keys; ++j)
      for (Index i = 0; i < AmxTiles::kColumns; i += kLanes) {
        float* const sum = sums + j * row + i;
        (V::load(sum) + V::load(rest + (j - whole) * AmxTiles::kColumns + i)).store(sum);
      }
  }

 private:
  using V = Vec<float, 64>;
  static constexpr Index kLanes = V::kLanes, kTileBytes = AmxTiles::kRows * AmxTiles::kBytes;

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
};
#endif

/// Returns the backward kernels for bf16. Kernels that work in float come from `kernels`, which must be AVX-512's.
template <class Panels>
BackwardKernelSet<float> bf16_backward_kernels(BackwardKernelSet<float> kernels) {
  using Kernels = Bf16BackwardKernels<Panels>;
  kernels.columns = Kernels::kColumns;
  kernels.pack_panels = Kernels::pack_panels;
  kernels.add_rows = Kernels::add_rows;
  kernels.arrange_weights = Kernels::arrange_weights;
  kernels.take_lost = Kernels::take_lost;
  kernels.finish_rows = Kernels::finish_rows;
  return kernels;
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
