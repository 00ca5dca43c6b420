// The softmax between two bf16 products; see core/kernels/bf16/amx_tile_kernels.h for the layouts.
#pragma once

#include <limits>
#include <numbers>

#include "attn/core/base/ranges.h"
#include "attn/core/kernels/bf16/instructions.h"
#include "attn/core/kernels/tile_memory.h"

#if ATTN_BF16
namespace attn::detail::inline ATTN_BUILT_FOR {

struct Bf16Softmax {
  static constexpr Index kQueries = 32;  ///< in a tile: two vectors

  /// One step of the online softmax, as in TileKernels, but with a stale maximum: as long as no weight gets large
  /// relative to the old maximum, one pass over the scores is enough and `out` is not rescaled. A stale maximum loses
  /// nothing, because bf16 has the exponent range of float. `DotProducts`: Bf16Instructions, or an emulation of them.
  template <class DotProducts>
  ATTN_TARGET_AVX512 static bool softmax(const TileMemory<float>& m, Index keys, Rows<float>, Index) {
    const Index whole = padded(keys, kStep);
    const V infinity = V::broadcast(std::numeric_limits<float>::infinity()), most = V::broadcast(kMostSum);
    for (Index i = keys * kQueries; i < whole * kQueries; i += kLanes) (-infinity).store(m.scores + i);

    Array<V, 2> highest, tile_sum, excess;
    for (int h : {0, 1}) highest[h] = V::load(m.max + h * kLanes);
    if (!Instructions::any<kEqual>(highest[0], -infinity) && !Instructions::any<kEqual>(highest[1], -infinity)) {
      weigh<DotProducts>(m, whole, highest, tile_sum, excess);
      // The comparison is also true for NaN.
      if (!Instructions::any<kNotLessEqual>(tile_sum[0], most) &&
          !Instructions::any<kNotLessEqual>(tile_sum[1], most)) {
        add_to_sum(m, tile_sum, excess);
        return false;
      }
    }
    for (int h : {0, 1}) raise_max(m, whole, h, highest[h]);
    weigh<DotProducts>(m, whole, highest, tile_sum, excess);
    add_to_sum(m, tile_sum, excess);
    return true;
  }

  /// See KernelFamily::scale_scores.
  ATTN_TARGET_AVX512 static void scale_scores(TileMemory<float>& m, Index keys) {
    if (m.scale == 1) return;
    for (Index i = 0; i < keys * kQueries; i += kLanes) (V::load(m.scores + i) * m.scale).store(m.scores + i);
    m.scale = 1;
  }

  /// out *= rescale.
  ATTN_TARGET_AVX512 static ATTN_INLINE void rescale_out(const TileMemory<float>& m, Index columns) {
    Array<V, 2> factor;
    for (int h : {0, 1}) factor[h] = V::load(m.rescale + h * kLanes);
    for (Index c = 0; c < columns; ++c) {
      ATTN_UNROLL for (int h = 0; h < 2; ++h) {
        (V::load(m.out + c * kQueries + h * kLanes) * factor[h]).store(m.out + c * kQueries + h * kLanes);
      }
    }
  }

 private:
  using Instructions = Bf16Instructions;
  using V = Vec<float, 64>;
  using Raw = V::Raw;
  using IntRaw = V::IntRaw;
  using Words = Instructions::Words;
  static constexpr int kLanes = V::kLanes;
  static constexpr Index kStep = Bf16Instructions::kColumns;
  static constexpr float kLog2e = std::numbers::log2e_v<float>;

  /// The largest sum of a tile's weights for which the maximum is not updated.
  static constexpr float kMostSum = 4096;

  static constexpr int kEqual = Instructions::kEqual, kNotLessEqual = Instructions::kNotLessEqual;

  /// e^difference, exactly 0 for -inf and 1 for 0; NaN stays NaN. The polynomial is of degree 3, is exact at 0 and 1,
  /// and has the smallest relative error on [0, 1] of all such polynomials: 1.03e-4, a 38th of the largest error of
  /// rounding to bf16 (2^-8). Without exactness at 1, the error would be 8.6e-5, but would also occur at 1, where the
  /// largest weights are: for scores near the maximum, x may be just below 0 and its fraction just below 1.
  ATTN_TARGET_AVX512 static ATTN_INLINE V coarse_exp(const V& difference) {
    const V x = difference * kLog2e;
    constexpr float kC1 = 0.69542427f, kC2 = 0.22630804f, kC3 = 0.07826769f;
    V f;
    Instructions::take_fraction(f, x);
    V p = V::multiply_add(f.raw, kC3, kC2 - Raw{});
    p = V::multiply_add(p.raw, f.raw, kC1 - Raw{});
    p = V::multiply_add(p.raw, f.raw, 1.0f - Raw{});
    Instructions::scale_by_power(p, x);
    return p;
  }

  /// Updates the maxima of 16 queries with this tile, and rescales their sums. `reference` becomes the scores that
  /// weights are relative to.
  ATTN_TARGET_AVX512 static ATTN_INLINE void raise_max(const TileMemory<float>& m, Index keys, int h, V& reference) {
    const V infinity = V::broadcast(std::numeric_limits<float>::infinity());
    Array<V, 4> top = {-infinity, -infinity, -infinity, -infinity};
    for (Index j = 0; j < keys; j += 4) {
      // Ignores NaN.
      ATTN_UNROLL for (int i = 0; i < 4; ++i) top[i] = max(V::load(m.scores + (j + i) * kQueries + h * kLanes), top[i]);
    }
    const V tile_max = max(max(top[0], top[1]), max(top[2], top[3])) * m.scale;
    const V old = reference, now = max(tile_max, old);
    now.store(m.max + h * kLanes);
    // Scores of a query that has kept no key yet are relative to 0, where e^-inf is the right weight.
    reference = select(now == -infinity, V{}, now);
    // The factor is computed in full precision, not by coarse_exp(), because a maximum may rise a little with each
    // tile, and the errors of all factors accumulate.
    const V factor = exp(old - reference);
    factor.store(m.rescale + h * kLanes);
    for (float* numbers : {m.sum, m.sum_rest, m.excess})
      (V::load(numbers + h * kLanes) * factor).store(numbers + h * kLanes);
  }

  ATTN_TARGET_AVX512 static ATTN_INLINE void add_to_sum(const TileMemory<float>& m, const V* tile_sum,
                                                        const V* excess) {
    for (int h : {0, 1}) {
      V sum = V::load(m.sum + h * kLanes), rest = V::load(m.sum_rest + h * kLanes);
      add_exactly(sum, rest, tile_sum[h]);
      sum.store(m.sum + h * kLanes);
      rest.store(m.sum_rest + h * kLanes);
      (V::load(m.excess + h * kLanes) + excess[h]).store(m.excess + h * kLanes);
    }
  }

  struct alignas(64) UpperWords {
    std::int16_t words[32];
  };
  static constexpr UpperWords kUpper = [] {
    UpperWords upper{};
    for (int i = 0; i < 32; ++i) upper.words[i] = static_cast<std::int16_t>(i | 1);
    return upper;
  }();

  /// The state of weigh(). It has single vectors, because g++ 12 would keep arrays of them in memory.
  struct Weighing {
    V scale, reference0, reference1;
    V sum0, sum1, sum2, sum3, rounded0, rounded1;
    V ones;       // pairs of 1 in bf16
    Words upper;  // index of the upper word of each dword, twice
    const float* scores;
    float* weights;
  };

  /// Computes the weights of two keys for 16 queries. bf16 is the upper half of a float: adding 0x8000 rounds to the
  /// nearest, and the weight of the first key moves into the lower half of the second key's weight. (Truncating, with
  /// the rounding in the polynomial, saved two additions but made the largest error at scores of 1e3 eight times as
  /// large.)
  template <class DotProducts>
  ATTN_TARGET_AVX512 static ATTN_INLINE void weigh_pair(Weighing& w, const V& reference, V& sum0, V& sum1, V& rounded,
                                                        Index lane) {
    V x = coarse_exp(V::load(w.scores + lane) * w.scale - reference),
      y = coarse_exp(V::load(w.scores + lane + kQueries) * w.scale - reference);
    sum0 += x;
    sum1 += y;
    x.raw = (Raw)((IntRaw)x.raw + 0x8000);
    y.raw = (Raw)((IntRaw)y.raw + 0x8000);
    Instructions::replace_lower_words(y, x, w.upper);
    DotProducts::add_products(rounded, y, w.ones);
    y.store(w.weights + lane);
  }

  /// Computes the weights of a tile relative to `highest`, their sums, and the excess of the sums after rounding (about
  /// 1 % of a call over 2048 keys on Zen 4). The maximum is subtracted before the multiplication by log2(e), although
  /// that takes one operation more: the product of a maximum of 1e6 is rounded by up to 0.06, and all weights and their
  /// sum, and so the lse, would be wrong by this factor's power of 2.
  template <class DotProducts>
  ATTN_TARGET_AVX512 static ATTN_INLINE void weigh(const TileMemory<float>& m, Index keys, const V* highest, V* sum,
                                                   V* excess) {
    Weighing w;
    w.scale = V::broadcast(m.scale);
    w.reference0 = highest[0];
    w.reference1 = highest[1];
    w.sum0 = w.sum1 = w.sum2 = w.sum3 = w.rounded0 = w.rounded1 = V{};
    w.ones.raw = (Raw)(IntRaw{} + 0x3f803f80);
    __builtin_memcpy(&w.upper, kUpper.words, sizeof(w.upper));
    w.scores = m.scores;
    w.weights = m.weights;
    for (Index j = 0; j < keys; j += 2, w.scores += 2 * kQueries, w.weights += kQueries) {
      weigh_pair<DotProducts>(w, w.reference0, w.sum0, w.sum1, w.rounded0, 0);
      weigh_pair<DotProducts>(w, w.reference1, w.sum2, w.sum3, w.rounded1, kLanes);
    }
    sum[0] = w.sum0 + w.sum1;
    sum[1] = w.sum2 + w.sum3;
    excess[0] = w.rounded0 - sum[0];
    excess[1] = w.rounded1 - sum[1];
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
#endif
