// Layer 2: the kernels of one tile on the matrix unit, for numbers of bf16.
//
// As in detail/kernels.h, lanes run over queries, of which a tile has 32:
//
//     query    (head_dim / 2, queries)  pairs of bf16, (d, d + 1) of a query in the room of a float; not scaled
//     scores   (keys, queries)          float, still to be scaled
//     weights  (keys / 2, queries)      pairs of bf16, of the keys j and j + 1
//     out      (v_dim, queries)         float, not yet divided by the sum
//
// A row of each is two tile rows of 64 bytes. Keys are read in place, 16 rows of 64 bytes at a time; values are
// transposed once for all tiles of queries that read them.
#pragma once

#include <algorithm>
#include <limits>
#include <numbers>

#include "attn/detail/amx_packing.h"
#include "attn/detail/kernel_set.h"

#if ATTN_AMX
namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

struct AmxKernels {
  static constexpr Index kQueries = 32;

  /// scores = keys * query. Rows of keys are read up to the next multiple of 32.
  ATTN_TARGET_AVX512 static void score(const TileMemory<float>& m, Rows<float> key, Index keys, Index head_dim) {
    const Index stride = 4 * key.stride, depth = padded(head_dim, kStep);
    const auto* row = reinterpret_cast<const std::byte*>(key.data);
    if (depth == 2 * kStep) return score_depth_64(m, row, stride, keys);
    for (Index j = 0; j < keys; j += kStep, row += kStep * stride) {
      const std::byte* k = row;
      const float* q = m.query;
      zero_square();
      for (Index d = 0; d < depth; d += kStep, k += AmxTiles::kBytes, q += kRows * kQueries) {
        AmxTiles::load<6>(q, kRowBytes);
        AmxTiles::load<4>(k, stride);
        AmxTiles::load<7>(q + kLanes, kRowBytes);
        AmxTiles::load<5>(k + kRows * stride, stride);
        multiply_square();
      }
      store_square(m.scores + j * kQueries);
    }
  }

  ATTN_TARGET_AVX512 static void scale_scores(const TileMemory<float>& m, Index keys) {
    for (Index i = 0; i < keys * kQueries; i += kLanes) {
      Vec x;
      S::load(x, m.scores + i);
      x *= m.scale;
      S::store(m.scores + i, x);
    }
  }

  /// One step of the online softmax: as in TileKernels, but the maximum lags behind. As long as no weight gets large,
  /// relative to the old one, a single pass is enough and `out` stays as it is. bf16 has the exponents of float, so that
  /// loses nothing.
  ATTN_TARGET_AVX512 static bool softmax(const TileMemory<float>& m, Index keys, Rows<float>, Index) {
    const Index whole = padded(keys, kStep);
    Vec infinity, most;
    S::splat(infinity, std::numeric_limits<float>::infinity());
    S::splat(most, kMostSum);
    for (Index i = keys * kQueries; i < whole * kQueries; i += kLanes) S::store(m.scores + i, -infinity);

    Array<Vec, 2> max, sum, tile_sum;
    for (int h : {0, 1}) {
      S::load(max[h], m.max + h * kLanes);
      S::load(sum[h], m.sum + h * kLanes);
    }
    if (!any<kEqual>(max[0], -infinity) && !any<kEqual>(max[1], -infinity)) {
      weigh(m, whole, max, tile_sum);
      // A NaN is not less or equal either.
      if (!any<kNotLessEqual>(tile_sum[0], most) && !any<kNotLessEqual>(tile_sum[1], most)) {
        for (int h : {0, 1}) S::store(m.sum + h * kLanes, sum[h] + tile_sum[h]);
        return false;
      }
    }
    for (int h : {0, 1}) raise_max(m, whole, h, max[h], sum[h]);
    weigh(m, whole, max, tile_sum);
    for (int h : {0, 1}) S::store(m.sum + h * kLanes, sum[h] + tile_sum[h]);
    return true;
  }

  /// out = carried out + values^T * weights; `value` as AmxPacking::transpose_values() left it. The more keys at a time, the
  /// less often `out` goes to and from the L2 cache.
  ATTN_TARGET_AVX512 static void value(const TileMemory<float>& m, Rows<float> value, Index keys, Index v_dim,
                                       Carry carry, const FetchAhead&) {
    const auto* v = reinterpret_cast<const std::byte*>(value.data);
    const Index columns = padded(v_dim, kStep), steps = padded(keys, kStep) / kStep;
    const Index to_next = columns / kRows * kTileBytes;  // 32 keys
    if (carry == Carry::rescale) rescale_out(m, columns);
    if (steps == 2) return value_keys_64(m, v, columns, carry);
    for (Index c = 0; c < columns; c += kStep, v += 2 * kTileBytes) {
      float* const out = m.out + c * kQueries;
      if (carry == Carry::zero)
        zero_square();
      else
        load_square(out);
      const float* weights = m.weights;
      for (Index step = 0; step < steps; ++step, weights += kRows * kQueries) {
        AmxTiles::load<6>(weights, kRowBytes);
        AmxTiles::load<4>(v + step * to_next, AmxTiles::kBytes);
        AmxTiles::load<7>(weights + kLanes, kRowBytes);
        AmxTiles::load<5>(v + step * to_next + kTileBytes, AmxTiles::kBytes);
        multiply_square();
      }
      store_square(out);
    }
  }

 private:
  using S = Simd<float, 64>;
  using Vec = S::Vec;
  using IntVec = S::IntVec;
  typedef std::int16_t Words __attribute__((vector_size(64)));
  static constexpr int kLanes = S::kLanes;
  static constexpr Index kStep = AmxTiles::kColumns, kRows = AmxTiles::kRows;
  static constexpr Index kRowBytes = 4 * kQueries, kTileBytes = kRows * AmxTiles::kBytes;
  static constexpr float kLog2e = std::numbers::log2e_v<float>;

  /// The weights of a tile may add up to so much before the maximum is brought up to date.
  static constexpr float kMostSum = 4096;

  // Sums are in registers 0 to 3: two times 16 rows, two times 16 queries.
  static ATTN_INLINE void zero_square() {
    AmxTiles::zero<0>();
    AmxTiles::zero<1>();
    AmxTiles::zero<2>();
    AmxTiles::zero<3>();
  }
  static ATTN_INLINE void multiply_square() {
    AmxTiles::multiply<0, 4, 6>();
    AmxTiles::multiply<1, 4, 7>();
    AmxTiles::multiply<2, 5, 6>();
    AmxTiles::multiply<3, 5, 7>();
  }
  static ATTN_INLINE void load_square(const float* from) {
    AmxTiles::load<0>(from, kRowBytes);
    AmxTiles::load<1>(from + kLanes, kRowBytes);
    AmxTiles::load<2>(from + kRows * kQueries, kRowBytes);
    AmxTiles::load<3>(from + kRows * kQueries + kLanes, kRowBytes);
  }
  static ATTN_INLINE void store_square(float* to) {
    AmxTiles::store<0>(to, kRowBytes);
    AmxTiles::store<1>(to + kLanes, kRowBytes);
    AmxTiles::store<2>(to + kRows * kQueries, kRowBytes);
    AmxTiles::store<3>(to + kRows * kQueries + kLanes, kRowBytes);
  }

  /// All of a query of 64 dimensions, or of the weights of 64 keys, stays in registers 4 to 7.
  static ATTN_INLINE void load_second(const float* from) {
    AmxTiles::load<4>(from, kRowBytes);
    AmxTiles::load<5>(from + kLanes, kRowBytes);
    AmxTiles::load<6>(from + kRows * kQueries, kRowBytes);
    AmxTiles::load<7>(from + kRows * kQueries + kLanes, kRowBytes);
  }
  static ATTN_INLINE void score_depth_64(const TileMemory<float>& m, const std::byte* key, Index stride, Index keys) {
    load_second(m.query);
    for (Index j = 0; j < padded(keys, kStep); j += kRows, key += kRows * stride) {
      AmxTiles::zero<0>();
      AmxTiles::load<2>(key, stride);
      AmxTiles::multiply<0, 2, 4>();
      AmxTiles::load<3>(key + AmxTiles::kBytes, stride);
      AmxTiles::multiply<0, 3, 6>();
      AmxTiles::zero<1>();
      AmxTiles::multiply<1, 2, 5>();
      AmxTiles::multiply<1, 3, 7>();
      AmxTiles::store<0>(m.scores + j * kQueries, kRowBytes);
      AmxTiles::store<1>(m.scores + j * kQueries + kLanes, kRowBytes);
    }
  }
  static ATTN_INLINE void value_keys_64(const TileMemory<float>& m, const std::byte* v, Index columns, Carry carry) {
    load_second(m.weights);
    const Index to_next = columns / kRows * kTileBytes;  // 32 keys
    for (Index c = 0; c < columns; c += kRows, v += kTileBytes) {
      float* const out = m.out + c * kQueries;
      AmxTiles::load<2>(v, AmxTiles::kBytes);
      if (carry == Carry::zero) {
        AmxTiles::zero<0>();
        AmxTiles::zero<1>();
      } else {
        AmxTiles::load<0>(out, kRowBytes);
        AmxTiles::load<1>(out + kLanes, kRowBytes);
      }
      AmxTiles::load<3>(v + to_next, AmxTiles::kBytes);
      AmxTiles::multiply<0, 2, 4>();
      AmxTiles::multiply<1, 2, 5>();
      AmxTiles::multiply<0, 3, 6>();
      AmxTiles::multiply<1, 3, 7>();
      AmxTiles::store<0>(out, kRowBytes);
      AmxTiles::store<1>(out + kLanes, kRowBytes);
    }
  }

  ATTN_TARGET_AVX512 static ATTN_INLINE void rescale_out(const TileMemory<float>& m, Index columns) {
    Array<Vec, 2> factor;
    for (int h : {0, 1}) S::load(factor[h], m.rescale + h * kLanes);
    for (Index c = 0; c < columns; ++c) {
      ATTN_UNROLL for (int h = 0; h < 2; ++h) {
        Vec x;
        S::load(x, m.out + c * kQueries + h * kLanes);
        x *= factor[h];
        S::store(m.out + c * kQueries + h * kLanes, x);
      }
    }
  }

  // Predicates of vcmpps.
  static constexpr int kEqual = 0, kNotLessEqual = 0x16;
  template <int kPredicate>
  ATTN_TARGET_AVX512 static ATTN_INLINE bool any(const Vec& a, const Vec& b) {
    std::uint16_t lanes;
    asm("vcmpps %3, %2, %1, %0" : "=Yk"(lanes) : "v"(a), "v"(b), "i"(kPredicate));
    return lanes != 0;
  }

  /// x = 2^x, exactly 0 for -inf and 1 for 0; NaN stays NaN. Of the polynomials of degree 3 with 2^0 = 1 the one of the
  /// least relative error on [0, 1], 8.6e-5: a 23rd of an eps of bf16.
  ATTN_TARGET_AVX512 static ATTN_INLINE void exp2(Vec& x) {
    constexpr float kC1 = 0.69511679f, kC2 = 0.22764499f, kC3 = 0.07706704f;
    Vec f;
    asm("vreduceps $1, %1, %0" : "=v"(f) : "v"(x));  // x - floor(x), 0 for an infinite x
    Vec p = f * kC3 + kC2;
    p = p * f + kC1;
    p = p * f + 1.0f;
    asm("vscalefps %1, %0, %0" : "+v"(p) : "v"(x));  // p * 2^floor(x)
    x = p;
  }

  /// The maximum and sum of 16 queries as they are with this tile. `max` becomes what its weights are relative to.
  ATTN_TARGET_AVX512 static ATTN_INLINE void raise_max(const TileMemory<float>& m, Index keys, int h, Vec& max,
                                                       Vec& sum) {
    Vec infinity;
    S::splat(infinity, std::numeric_limits<float>::infinity());
    Array<Vec, 4> top = {-infinity, -infinity, -infinity, -infinity};
    for (Index j = 0; j < keys; j += 4) {
      ATTN_UNROLL for (int i = 0; i < 4; ++i) {
        Vec x;
        S::load(x, m.scores + (j + i) * kQueries + h * kLanes);
        top[i] = x > top[i] ? x : top[i];  // passes NaN over
      }
    }
    S::max_with(top[0], top[1]);
    S::max_with(top[2], top[3]);
    S::max_with(top[0], top[2]);
    const Vec old = max, tile_max = top[0] * m.scale;
    const Vec now = tile_max > old ? tile_max : old;
    S::store(m.max + h * kLanes, now);
    // A query that has kept no key yet is measured from 0: e^-inf is the right weight.
    max = now == -infinity ? Vec{} : now;
    // Exact, because a maximum may rise a little with each tile, and the errors of all factors add up.
    Vec factor = old - max;
    S::exp(factor);
    S::store(m.rescale + h * kLanes, factor);
    sum *= factor;
  }

  struct alignas(64) UpperWords {
    std::int16_t words[32];
  };
  static constexpr UpperWords kUpper = [] {
    UpperWords upper{};
    for (int i = 0; i < 32; ++i) upper.words[i] = static_cast<std::int16_t>(i | 1);
    return upper;
  }();

  /// Weights on the way. Single vectors and no arrays of them: those g++ 12 would keep in memory.
  struct Weighing {
    Vec factor, reference0, reference1;
    Vec sum0, sum1, sum2, sum3;
    Words upper;  // of each dword, twice
    const float* scores;
    float* weights;
  };

  /// Two keys of 16 queries. bf16 is the upper half of a float: 0x8000 rounds to the nearest, and the weight of the first
  /// key moves into the lower half of that of the second.
  ATTN_TARGET_AVX512 static ATTN_INLINE void weigh_pair(Weighing& w, const Vec& reference, Vec& sum0, Vec& sum1,
                                                        Index lane) {
    Vec x, y;
    S::load(x, w.scores + lane);
    S::load(y, w.scores + lane + kQueries);
    x = x * w.factor - reference;
    y = y * w.factor - reference;
    exp2(x);
    exp2(y);
    sum0 += x;
    sum1 += y;
    x = (Vec)((IntVec)x + 0x8000);
    y = (Vec)((IntVec)y + 0x8000);
    asm("vpermw %1, %2, %0 %{%3%}" : "+v"(y) : "v"(x), "v"(w.upper), "Yk"(0x55555555u));
    S::store(w.weights + lane, y);
  }

  /// Weights of a tile relative to `max`, and their sums.
  ATTN_TARGET_AVX512 static ATTN_INLINE void weigh(const TileMemory<float>& m, Index keys, const Vec* max, Vec* sum) {
    Weighing w;
    S::splat(w.factor, m.scale * kLog2e);
    w.reference0 = max[0] * kLog2e;
    w.reference1 = max[1] * kLog2e;
    w.sum0 = w.sum1 = w.sum2 = w.sum3 = Vec{};
    __builtin_memcpy(&w.upper, kUpper.words, sizeof(w.upper));
    w.scores = m.scores;
    w.weights = m.weights;
    for (Index j = 0; j < keys; j += 2, w.scores += 2 * kQueries, w.weights += kQueries) {
      weigh_pair(w, w.reference0, w.sum0, w.sum1, 0);
      weigh_pair(w, w.reference1, w.sum2, w.sum3, kLanes);
    }
    sum[0] = w.sum0 + w.sum1;
    sum[1] = w.sum2 + w.sum3;
  }
};

/// Tiles of any height are as wide as any other. What is stored and selected is stored and selected as with AVX-512.
inline constexpr KernelFamily<float> kAmxFamily = [] {
  KernelFamily<float> family = kFamily<float, Avx512Kernels, 64, 32>;
  family.format = {Storage::bf16, AmxTiles::kColumns, AmxTiles::kColumns, AmxTiles::kColumns, true};
  family.widest = 1;
  family.row = {};
  family.by_vectors[0] = {AmxKernels::kQueries, AmxKernels::score, AmxKernels::softmax, AmxKernels::value};
  family.pack_rows = AmxPacking::pack_rows;
  family.find_max = nullptr;
  family.begin = AmxTiles::begin;
  family.end = AmxTiles::end;
  family.scale_scores = AmxKernels::scale_scores;
  family.arrange_values = AmxPacking::transpose_values;
  return family;
}();

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
#endif
