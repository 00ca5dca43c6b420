// The kernels for single queries over keys and values of 8 bits that multiply integers (AVX512-VNNI): an instruction
// forms 64 products of 8 bits and sums them up by fours in 32 bits, exactly.
//
// A query and the weights of a tile become integers of 24 bits in units of a power of two, three digits of 8 bits: that
// is what a float keeps of the largest of them. So 64 products take three instructions, of floats they take four and,
// for every four queries, eight that convert. Two digits would do for what a cache of 8 bits is good for, but not for
// the promise that results are those of the numbers in the cache to float accuracy: errors of scores and of weights
// would be 2^-17 of the largest.
//
// Single queries over keys of bf16 have no such kernels: AVX512-BF16 forms twice as many products an instruction, but a
// query of float is three numbers of bf16, which makes it slower than to widen keys once for four queries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attn/detail/kernels/kernel_table.h"
#include "attn/detail/kernels/vnni_vectors.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

#if ATTN_X86
/// The functions of DotKernels.
struct VnniKernels : private VnniVectors {
  static constexpr Index kColumns = 64;

  /// A header, then the digits of four numbers in 16 bytes: the four lowest ones, the middle ones, the highest ones.
  struct QueryHeader {
    float unit;
    std::int32_t minus_sums[3];  ///< -128 times the sum of the digits, of the lowest first
  };
  static constexpr Index kHeader = sizeof(QueryHeader) / sizeof(float);

  ATTN_TARGET_AVX512 static bool arrange_query(const float* query, Index head_dim, float* to) {
    Vec top = {}, x;
    for (Index d = 0; d < head_dim; d += kLanes) {
      S::load(x, query + d);
      max_magnitude(top, x);
    }
    // The largest integer whose digits are at least -128 and at most 127 is 2^23 / 1.0039.
    const Scale scale = Scale::of(S::largest(top) * 1.004f, 22);
    Vec bad = {};
    Array<Ints, 3> sums = {};
    std::byte* const digits = reinterpret_cast<std::byte*>(to + kHeader);
    for (Index d = 0; d < head_dim; d += kLanes) {
      S::load(x, query + d);
      x *= scale.factor;
      mark_unless(bad, (x <= 0x1p23f) & (x >= -0x1p23f));
      Ints number;
      round(number, x);
      // A digit from 0 to 255 becomes that less 128, which is what has been added in its place.
      number = (number + 0x808080) ^ 0x808080;
      ATTN_UNROLL for (int i = 0; i < 3; ++i) sums[i] += (number << (24 - 8 * i)) >> 24;
      sort_digits(number);
      store(digits + 4 * d, number);
    }
    QueryHeader header{scale.unit, {}};
    ATTN_UNROLL for (int i = 0; i < 3; ++i) header.minus_sums[i] = -128 * total(sums[i]);
    std::memcpy(to, &header, sizeof(header));
    return scale.exists && S::largest(bad) == 0;
  }

  ATTN_TARGET_AVX512 static void score(const TileMemory<float>& m, Index rows, const RowsToRead& key, Index keys,
                                       Index head_dim, Prefetcher& fetching) {
    if (!fetching.is_empty()) {
      const Index groups = ceil_div(rows, kQueriesAtATime);
      fetching.spread(fetching.score_lines(), groups * keys * head_dim);
    }
    Index r = 0;
    for (; rows - r > 1; r = std::min<Index>(r + kQueriesAtATime, rows))
      score_rows<kQueriesAtATime>(m, r, std::min<Index>(kQueriesAtATime, rows - r), key, keys, head_dim, fetching);
    if (r < rows) score_rows<1>(m, r, 1, key, keys, head_dim, fetching);
  }

  ATTN_TARGET_AVX512 static bool value(const TileMemory<float>& m, Index rows, const RowsToRead& value, Index keys,
                                       Index v_dim, Prefetcher& fetching) {
    alignas(64) Array<std::byte, kMost * kWeightBytes> digits;
    Array<float, kMost> units;
    Vec bad = {};
    for (Index r = 0; r < rows; ++r)
      if (!arrange_weights(m.scores + r * m.row, keys, digits + r * kWeightBytes, units[r], bad)) return false;
    if (S::largest(bad) > 0) return false;
    if (!fetching.is_empty()) {
      const Index groups = ceil_div(rows, kQueriesAtATime);
      fetching.spread(fetching.lines_left(), groups * keys * v_dim);
    }
    Index r = 0;
    for (; rows - r > 1; r = std::min<Index>(r + kQueriesAtATime, rows))
      value_rows<kQueriesAtATime>(m, r, std::min<Index>(kQueriesAtATime, rows - r), digits, units, value, keys, v_dim,
                                  fetching);
    if (r < rows) value_rows<1>(m, r, 1, digits, units, value, keys, v_dim, fetching);
    return true;
  }

  ATTN_TARGET_AVX512 static void multiply(float* numbers, const float* scales, Index count) {
    Index j = 0;
    for (Vec x, scale; j + kLanes <= count; j += kLanes) {
      S::load(x, numbers + j);
      S::load(scale, scales + j);
      S::store(numbers + j, x * scale);
    }
    for (; j < count; ++j) numbers[j] *= scales[j];
  }

 private:
  static constexpr Index kMost = 16;  ///< queries at a time, as DecodeState has them
  static constexpr Index kWeightBytes = 4 * kKeyTile;

  /// Scores of `count` rows from `first` on.
  template <int kRows>
  ATTN_TARGET_AVX512 static ATTN_INLINE void score_rows(const TileMemory<float>& m, Index first, Index count,
                                                        const RowsToRead& key, Index keys, Index head_dim,
                                                        Prefetcher& fetching) {
    Array<const std::byte*, kRows> digits;
    Array<QueryHeader, kRows> header;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      const float* const query = m.arranged + (first + std::min<Index>(r, count - 1)) * (head_dim + kHeader);
      std::memcpy(&header[r], query, sizeof(QueryHeader));
      digits[r] = reinterpret_cast<const std::byte*>(query + kHeader);
    }
    for (Index j = 0; j < keys; j += kLanes) {
      Array<Ints, 3 * kRows> sum;
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        ATTN_UNROLL for (int i = 0; i < 3; ++i) sum[3 * r + i] = Ints{} + header[r].minus_sums[i];
      }
      const Index last = keys - 1 - j;
      for (Index d = 0; d < head_dim; d += kColumns) {
        const std::byte* const row = key.data + j * key.stride + d;
        // Four numbers of each of four keys to a quarter of a vector.
        Array<Ints, kLanes> k;
        ATTN_UNROLL for (int a = 0; a < kLanes; a += 4) {
          Array<Ints, 4> x, y;
          ATTN_UNROLL for (int i = 0; i < 4; ++i) {
            load(x[i], row + std::min<Index>(a + i, last) * key.stride);
            x[i] ^= static_cast<std::int32_t>(0x80808080);  // 128 more than the number
          }
          zip<std::int32_t, 0>(y[0], x[0], x[1]);
          zip<std::int32_t, 1>(y[1], x[0], x[1]);
          zip<std::int32_t, 0>(y[2], x[2], x[3]);
          zip<std::int32_t, 1>(y[3], x[2], x[3]);
          zip<std::int64_t, 0>(k[a], y[0], y[2]);
          zip<std::int64_t, 1>(k[a + 1], y[0], y[2]);
          zip<std::int64_t, 0>(k[a + 2], y[1], y[3]);
          zip<std::int64_t, 1>(k[a + 3], y[1], y[3]);
        }
        ATTN_UNROLL for (int i = 0; i < 4; ++i) {
          Array<Ints, 4> four;  // numbers 16 c + 4 i and the three behind, of all keys
          transpose_quarters(four, k[i], k[4 + i], k[8 + i], k[12 + i]);
          ATTN_UNROLL for (int c = 0; c < 4; ++c) {
            fetching.step<kCacheLine>();
            ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
              const std::byte* const q = digits[r] + 4 * d + 64 * c + 16 * i;
              ATTN_UNROLL for (int p = 0; p < 3; ++p) add_dots(sum[3 * r + p], four[c], q + 4 * p);
            }
          }
        }
      }
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        if (r < count) {
          Vec x;
          join_digits(x, &sum[3 * r]);
          S::store(m.scores + (first + r) * m.row + j, x * header[r].unit);
        }
      }
    }
  }

  /// The weights of a tile, with zeros behind them: the digits of four keys in 16 bytes, as those of a query.
  ATTN_TARGET_AVX512 static ATTN_INLINE bool arrange_weights(const float* weights, Index keys, std::byte* digits,
                                                             float& unit, Vec& bad) {
    Array<Vec, kKeyTile / kLanes> x;
    const Index vectors = ceil_div(keys, kLanes);
    Vec top = {};
    for (Index i = 0; i < vectors; ++i) {
      if ((i + 1) * kLanes <= keys) {
        S::load(x[i], weights + i * kLanes);
      } else {
        Array<float, kLanes> rest = {};
        std::copy_n(weights + i * kLanes, keys - i * kLanes, rest);
        S::load(x[i], rest);
      }
      max_magnitude(top, x[i]);
    }
    const Scale scale = Scale::of(S::largest(top), 23);
    for (Index i = 0; i < vectors; ++i) {
      const Vec scaled = x[i] * scale.factor;
      mark_unless(bad, (scaled >= 0.0f) & (scaled < 0x1p24f));
      Ints number;
      round(number, scaled);
      sort_digits(number);
      store(digits + i * 4 * kLanes, number);
    }
    unit = scale.unit;
    return scale.exists;
  }

  template <int kRows>
  ATTN_TARGET_AVX512 static ATTN_INLINE void value_rows(const TileMemory<float>& m, Index first, Index count,
                                                        const std::byte* digits, const float* units,
                                                        const RowsToRead& value, Index keys, Index v_dim,
                                                        Prefetcher& fetching) {
    Array<const std::byte*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) weights[r] =
        digits + (first + std::min<Index>(r, count - 1)) * kWeightBytes;
    for (Index c = 0; c < v_dim; c += kColumns) {
      Array<Array<Vec, 4>, kRows> out;  // quarter i of vector v has columns 16 i + 4 v and the three behind
      add_columns<0, kRows>(out, weights, value, keys, c, fetching);
      add_columns<1, kRows>(out, weights, value, keys, c, fetching);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) if (r < count)
          add_out(out[r], units[first + r], m.rescale[first + r], m.out + (first + r) * v_dim + c);
    }
  }

  /// Half of 64 columns: of each 16 the lower eight, or the upper.
  template <int kHalf, int kRows>
  ATTN_TARGET_AVX512 static ATTN_INLINE void add_columns(Array<Vec, 4>* out,
                                                         const Array<const std::byte*, kRows>& weights,
                                                         const RowsToRead& value, Index keys, Index c,
                                                         Prefetcher& fetching) {
    Array<Ints, 6 * kRows> sum;
    ATTN_UNROLL for (int i = 0; i < 6 * kRows; ++i) sum[i] = Ints{};
    const std::byte* row = value.data + c;
    for (Index j = 0; j < keys; j += 4, row += 4 * value.stride) {
      fetching.step<2 * kCacheLine>();
      Array<Ints, 4> x;
      ATTN_UNROLL for (int i = 0; i < 4; ++i) load(x[i], row + std::min<Index>(i, keys - 1 - j) * value.stride);
      Ints low, high, ab, cd;  // of four keys, the numbers of a column next to each other
      zip<std::int8_t, kHalf>(ab, x[0], x[1]);
      zip<std::int8_t, kHalf>(cd, x[2], x[3]);
      zip<std::int16_t, 0>(low, ab, cd);
      zip<std::int16_t, 1>(high, ab, cd);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        ATTN_UNROLL for (int p = 0; p < 3; ++p) {
          std::int32_t four;
          std::memcpy(&four, weights[r] + 4 * j + 4 * p, sizeof(four));
          const Ints w = Ints{} + four;
          add_dots(sum[6 * r + p], w, low);
          add_dots(sum[6 * r + 3 + p], w, high);
        }
      }
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      join_digits(out[r][2 * kHalf], &sum[6 * r]);
      join_digits(out[r][2 * kHalf + 1], &sum[6 * r + 3]);
    }
  }

  ATTN_TARGET_AVX512 static ATTN_INLINE void add_out(const Array<Vec, 4>& x, float unit, float rescale, float* out) {
    Array<Vec, 4> sum;
    transpose_quarters(sum, x[0], x[1], x[2], x[3]);
    ATTN_UNROLL for (int i = 0; i < 4; ++i) {
      Vec before;
      S::load(before, out + i * kLanes);
      S::store(out + i * kLanes, before * rescale + sum[i] * unit);
    }
  }
};
#endif

/// Those for numbers of 8 bits, or null where there are none.
inline const DotKernels<float>* dot_kernels() {
#if ATTN_X86
  static constexpr DotKernels<float> kKernels{VnniKernels::kColumns, VnniKernels::kHeader, VnniKernels::arrange_query,
                                              VnniKernels::score,    VnniKernels::value,   VnniKernels::multiply};
  return &kKernels;
#else
  return nullptr;
#endif
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
