// Kernels for one tile on the matrix unit, in bf16.
//
// As in core/kernels/tile_kernels.h, lanes run over queries. A tile has 32 queries:
//
//     query    (head_dim / 2, queries)  pairs of bf16, (d, d + 1) of a query in the space of a float; not scaled
//     scores   (keys, queries)          float, not yet scaled
//     weights  (keys / 2, queries)      pairs of bf16, of the keys j and j + 1
//     out      (v_dim, queries)         float, not yet divided by the sum
//
// A row of each array is two register rows of 64 bytes. Keys are read in place, 16 rows of 64 bytes at a time; values
// are transposed once for all tiles of queries that read them.
//
// At head_dim 64 with 64 keys, measured separately with everything in L1 (Emerald Rapids), the score product takes 1.3
// times as long as its multiplications alone (256 cycles), the value product 1.4 times, and the softmax 3.1 times as
// long as the multiplications of one product. A call of 2048 keys takes 1.5 times as long as the three together: keys
// and values come from L2. That is 23 % of the matrix unit's peak (31 % at head_dim 128).
//
// The softmax cannot be hidden behind the products. While any tile instruction is in flight, even a load, vectors of 64
// bytes have one unit for multiply-adds instead of two: 32 of them take 32 cycles beside a tdpbf16ps, and 16 alone. Of
// the softmax's operations, two thirds need that unit. Both products, issued in parts between the steps of the softmax,
// took 1.15 times as long as all three in turn at head_dim 64, and 1.3 times at 128.
//
// Also tried without success: computing only the next scores between the instructions of the softmax (no gain at
// head_dim 64, 5 % at 128, and the clock of the core falls by a sixth); tiles of 128 keys (worse than several of 64
// whose weights wait for one value product); rounding weights with vcvtne2ps2bf16 (two cycles, more than an addition
// and a permutation); summing rounded weights with masks and shifts instead of vdpbf16ps, and merging them with vpshufb
// (within 1 %); prefetching the next keys into L1, a few rows per step of the softmax (0.95 times as long, but only in
// a loop without the rest of the call) or all before the score product (1.25 times as long). The hardware prefetcher
// already fetches the values, and prefetching them as well took 1.5 times as long.
#pragma once

#include <algorithm>

#include "attn/core/kernels/bf16/amx_decode_kernels.h"
#include "attn/core/kernels/bf16/amx_registers.h"
#include "attn/core/kernels/bf16/family.h"

#if ATTN_AMX
namespace attn::detail::inline ATTN_BUILT_FOR {

template <class Tiles>
struct AmxKernels {
  static constexpr Index kQueries = Bf16Softmax::kQueries;
  static_assert(kQueries == 2 * AmxTiles::kRows,
                "a square of sums takes 2 x 2 registers: keys or value columns x queries");
  static_assert(AmxTiles::kColumns == 2 * AmxTiles::kRows,
                "a row of one factor must have as many pairs as the other has rows");
  static_assert(kKeyTile % AmxTiles::kColumns == 0,
                "a tile of keys must be a whole number of steps of the value product");

  /// scores = keys * query. Rows of keys are read up to the next multiple of 32 columns.
  ATTN_TARGET_AVX512 static void score(const TileMemory<float>& m, Rows<float> key, Index keys, Index head_dim) {
    const Index stride = 4 * key.stride, depth = padded(head_dim, kStep);
    const auto* row = reinterpret_cast<const std::byte*>(key.data);
    for (Index j = 0; j < keys; j += kStep, row += kStep * stride) {
      const std::byte* k = row;
      const float* q = m.query;
      zero_square();
      for (Index d = 0; d < depth; d += kStep, k += AmxTiles::kBytes, q += kRows * kQueries) {
        Tiles::load(tmm6, q, kRowBytes);
        Tiles::load(tmm4, k, stride);
        Tiles::load(tmm7, q + kLanes, kRowBytes);
        Tiles::load(tmm5, k + kRows * stride, stride);
        multiply_square();
      }
      store_square(m.scores + j * kQueries);
    }
  }

  /// out = values^T * weights, plus the previous out as `update` says; `value` is arranged by
  /// Bf16Packing::transpose_values(). The more keys one call covers, the less often `out` is loaded from the L2 cache
  /// and stored there.
  ATTN_TARGET_AVX512 static void value(const TileMemory<float>& m, Rows<float> value, Index keys, Index v_dim,
                                       OutUpdate update, const PrefetchPlan&) {
    const auto* v = reinterpret_cast<const std::byte*>(value.data);
    const Index columns = padded(v_dim, kStep), steps = padded(keys, kStep) / kStep;
    const Index to_next = columns / kRows * kTileBytes;  // 32 keys
    if (update == OutUpdate::rescale_and_add) Bf16Softmax::rescale_out(m, columns);
    for (Index c = 0; c < columns; c += kStep, v += 2 * kTileBytes) {
      float* const out = m.out + c * kQueries;
      if (update == OutUpdate::overwrite)
        zero_square();
      else
        load_square(out);
      const float* weights = m.weights;
      for (Index step = 0; step < steps; ++step, weights += kRows * kQueries) {
        Tiles::load(tmm6, weights, kRowBytes);
        Tiles::load(tmm4, v + step * to_next, AmxTiles::kBytes);
        Tiles::load(tmm7, weights + kLanes, kRowBytes);
        Tiles::load(tmm5, v + step * to_next + kTileBytes, AmxTiles::kBytes);
        multiply_square();
      }
      store_square(out);
    }
  }

 private:
  using V = Vec<float, 64>;
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kStep = AmxTiles::kColumns, kRows = AmxTiles::kRows;
  static constexpr Index kRowBytes = 4 * kQueries, kTileBytes = kRows * AmxTiles::kBytes;

  // Sums are in registers 0 to 3: 2 x 16 rows by 2 x 16 queries.
  static ATTN_INLINE void zero_square() {
    Tiles::zero(tmm0);
    Tiles::zero(tmm1);
    Tiles::zero(tmm2);
    Tiles::zero(tmm3);
  }
  static ATTN_INLINE void multiply_square() {
    Tiles::multiply(tmm0, tmm4, tmm6);
    Tiles::multiply(tmm1, tmm4, tmm7);
    Tiles::multiply(tmm2, tmm5, tmm6);
    Tiles::multiply(tmm3, tmm5, tmm7);
  }
  static ATTN_INLINE void load_square(const float* from) {
    Tiles::load(tmm0, from, kRowBytes);
    Tiles::load(tmm1, from + kLanes, kRowBytes);
    Tiles::load(tmm2, from + kRows * kQueries, kRowBytes);
    Tiles::load(tmm3, from + kRows * kQueries + kLanes, kRowBytes);
  }
  static ATTN_INLINE void store_square(float* to) {
    Tiles::store(tmm0, to, kRowBytes);
    Tiles::store(tmm1, to + kLanes, kRowBytes);
    Tiles::store(tmm2, to + kRows * kQueries, kRowBytes);
    Tiles::store(tmm3, to + kRows * kQueries + kLanes, kRowBytes);
  }
};

/// Returns the family of the matrix unit. Without kOthers, single queries keep the kernels of `family`, because those
/// of the matrix unit read bf16 keys and values.
template <class Tiles, bool kOthers = true>
constexpr KernelFamily<float> amx_family(KernelFamily<float> family) {
  family = bf16_family<AmxKernels<Tiles>, Tiles, kOthers>(family);
  if constexpr (kOthers)
    family.decode.products[static_cast<int>(DType::bf16)] = {AmxDecodeKernels<Tiles>::score,
                                                             AmxDecodeKernels<Tiles>::value};
  family.begin = Tiles::begin;
  family.end = Tiles::end;
  return family;
}
template <bool kOthers>
inline constexpr KernelFamily<float> kAmxFamily =
    amx_family<AmxTiles, kOthers>(FamilyOf<float, VectorSet::avx512, kOthers>::kKernels);

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
