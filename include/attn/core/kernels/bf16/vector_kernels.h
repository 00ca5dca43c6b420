// The two products of a bf16 tile with vector instructions (AVX512-BF16), on the layouts of
// core/kernels/bf16/amx_tile_kernels.h.
//
// Each lane is a query, and a pair of one row is broadcast: two neighbouring dimensions of a key, or two neighbouring
// keys of a column of values. An instruction multiplies two pairs in each lane and adds the products. On Zen 5, calls
// over long sequences are 1.8 to 2 times as fast as in float. Single queries keep the kernels that widen bf16: single
// queries are memory-bound, and bf16 products would round their float queries and weights.
#pragma once

#include "attn/core/kernels/bf16/family.h"

#if ATTN_BF16
namespace attn::detail::inline ATTN_BUILT_FOR {

class Bf16VectorKernels {
  using V = Vec<float, 64>;
  static constexpr int kLanes = V::kLanes, kVectors = 2;
  static constexpr Index kQueries = Bf16Softmax::kQueries;
  static_assert(kQueries == kVectors * kLanes);

 public:
  /// Rows whose sums stay in registers: 8 x 2 vectors of sums, two of queries or weights, and a broadcast pair. 12 rows
  /// were as fast, 4 slower.
  static constexpr int kRows = 8;
  static_assert(kKeyTile % kRows == 0 && Bf16Instructions::kColumns % kRows == 0, "rows are processed kRows at a time");
  using Sums = Array<Array<V, kVectors>, kRows>;

  /// sums (rows, queries) += rows (rows, pairs) * second (pairs, queries). Rows are `stride` bytes apart.
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_products(Sums& sums, const std::byte* rows, Index stride,
                                                          const float* second, Index pairs) {
    Array<const std::byte*, kRows> row;
    ATTN_UNROLL for (int a = 0; a < kRows; ++a) row[a] = rows + a * stride;
    for (Index p = 0; p < pairs; ++p) {
      Array<V, kVectors> x;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) x[v] = V::load(second + p * kQueries + v * kLanes);
      ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
        std::int32_t pair;
        std::memcpy(&pair, row[a] + 4 * p, sizeof(pair));
        const V in_lanes{(V::Raw)(V::IntRaw{} + pair)};
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) Bf16Instructions::add_products(sums[a][v], x[v], in_lanes);
      }
    }
  }

  /// scores = keys * query, eight keys at a time.
  ATTN_TARGET_AVX512 static void score(const TileMemory<float>& m, Rows<float> key, Index keys, Index head_dim) {
    const Index stride = 4 * key.stride, pairs = ceil_div<Index>(head_dim, 2);
    const auto* row = reinterpret_cast<const std::byte*>(key.data);
    for (Index j = 0; j < keys; j += kRows, row += kRows * stride) {
      Sums sums = {};
      add_products(sums, row, stride, m.query, pairs);
      store(sums, m.scores + j * kQueries);
    }
  }

  /// out = values^T * weights, plus the previous out as `update` says; `value` is arranged by
  /// Bf16Packing::transpose_values().
  ATTN_TARGET_AVX512 static void value(const TileMemory<float>& m, Rows<float> value, Index keys, Index v_dim,
                                       OutUpdate update, const PrefetchPlan&) {
    constexpr Index kKeys = Bf16Instructions::kColumns, kBytes = Bf16Instructions::kBytes,
                    kPairs = Bf16Instructions::kPairs;
    const auto* const v = reinterpret_cast<const std::byte*>(value.data);
    const Index columns = padded(v_dim, Bf16Instructions::kColumns), steps = ceil_div(keys, kKeys);
    if (update == OutUpdate::rescale_and_add) Bf16Softmax::rescale_out(m, v_dim);
    for (Index c = 0; c < v_dim; c += kRows) {
      float* const out = m.out + c * kQueries;
      Sums sums = {};
      if (update != OutUpdate::overwrite) load(sums, out);
      for (Index step = 0; step < steps; ++step)
        add_products(sums, v + (step * columns + c) * kBytes, kBytes, m.weights + step * kPairs * kQueries, kPairs);
      store(sums, out);
    }
  }

 private:
  ATTN_TARGET_AVX512 static ATTN_INLINE void load(Sums& sums, const float* from) {
    ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sums[a][v] = V::load(from + a * kQueries + v * kLanes);
    }
  }
  ATTN_TARGET_AVX512 static ATTN_INLINE void store(const Sums& sums, float* to) {
    ATTN_UNROLL for (int a = 0; a < kRows; ++a) {
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sums[a][v].store(to + a * kQueries + v * kLanes);
    }
  }
};

/// The kernel family of AVX512-BF16.
template <bool kOthers>
inline constexpr KernelFamily<float> kBf16VectorFamily =
    bf16_family<Bf16VectorKernels, Bf16Instructions, kOthers>(FamilyOf<float, VectorSet::avx512, kOthers>::kKernels);

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
