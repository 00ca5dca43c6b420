// Kernels for single queries over 8-bit keys and values that multiply integers (AVX512-VNNI, AVX-VNNI): an instruction
// forms 64 or 32 8-bit products and sums them in groups of four, exactly, in 32 bits.
//
// A query and the weights of a tile become 24-bit integers (three 8-bit digits) in units of a power of two. The largest
// of these integers have the precision of a float. So 64 products take three instructions; in float they take four and,
// for every four queries, eight conversions. Two digits would match the accuracy of an 8-bit cache, but would break the
// promise that results have float accuracy for the values in the cache: errors of scores and weights would be 2^-17 of
// the largest.
//
// There are no kernels of this kind for bf16 keys: AVX512-BF16 forms twice as many products per instruction as float
// does, but a float query needs three bf16 values per element, so it would be slower than widening keys once for four
// queries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "attn/cache/vnni_vectors.h"
#include "attn/core/kernels/kernel_table.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

#if ATTN_X86
/// The functions of DotKernels.
template <int Bytes, int kRegisters>
struct VnniKernels : private VnniVectors<Bytes> {
  using Vectors = VnniVectors<Bytes>;
  using typename Vectors::V, typename Vectors::Ints, typename Vectors::Bits, typename Vectors::Scale;
  using Vectors::kLanes, Vectors::kParts, Vectors::load, Vectors::load_four, Vectors::store, Vectors::add_dots,
      Vectors::join_digits, Vectors::sort_digits, Vectors::transpose_parts;
  static constexpr Index kColumns = Bytes;

  /// Precedes the digits of a query. Each 16-byte block holds the digits of four elements: the four lowest, the middle
  /// ones, then the highest.
  struct QueryHeader {
    float unit;
    std::int32_t minus_sums[3];  ///< -128 times the sums of the digits, lowest digits first
  };
  static constexpr Index kHeader = sizeof(QueryHeader) / sizeof(float);

  static ATTN_INLINE bool arrange_query(const float* query, Index head_dim, float* to) {
    Bits top = {};
    for (Index d = 0; d < head_dim; d += kLanes) Vectors::max_bits(top, (Bits)V::load(query + d).raw & 0x7fffffffu);
    // The largest integer with digits from -128 to 127 is 2^23 / 1.0039; hence the factor 1.004.
    const Scale scale = Scale::of(Vectors::largest(top) * 1.004f, 22);
    Array<Ints, 3> sums = {};
    std::byte* const digits = reinterpret_cast<std::byte*>(to + kHeader);
    for (Index d = 0; d < head_dim; d += kLanes) {
      Ints number;
      Vectors::round(number, V::load(query + d) * scale.factor);
      // Makes digits signed: the addition of 128 to each digit carries into higher digits, the subtraction does not.
      number = (number + 0x808080) ^ 0x808080;
      ATTN_UNROLL for (int i = 0; i < 3; ++i) sums[i] += (number << (24 - 8 * i)) >> 24;
      sort_digits(number);
      store(digits + 4 * d, number);
    }
    QueryHeader header{scale.unit, {}};
    ATTN_UNROLL for (int i = 0; i < 3; ++i) header.minus_sums[i] = -128 * Vectors::total(sums[i]);
    std::memcpy(to, &header, sizeof(header));
    return scale.exists;
  }

  static ATTN_INLINE void score(const TileMemory<float>& m, Index rows, const RowsToRead& key, Index keys,
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

  static ATTN_INLINE bool value(const TileMemory<float>& m, Index rows, const RowsToRead& value, Index keys,
                                Index v_dim, Prefetcher& fetching) {
    alignas(64) Array<std::byte, kMost * kWeightBytes> digits;
    Array<float, kMost> units;
    for (Index r = 0; r < rows; ++r)
      if (!arrange_weights(m.scores + r * m.row, keys, digits + r * kWeightBytes, units[r])) return false;
    if (!fetching.is_empty()) {
      const Index groups = ceil_div(rows, kValueRows);
      fetching.spread(fetching.lines_left(), groups * keys * v_dim);
    }
    Index r = 0;
    for (; rows - r > 1; r = std::min<Index>(r + kValueRows, rows))
      value_rows<kValueRows>(m, r, std::min<Index>(kValueRows, rows - r), digits, units, value, keys, v_dim, fetching);
    if (r < rows) value_rows<1>(m, r, 1, digits, units, value, keys, v_dim, fetching);
    return true;
  }

  static ATTN_INLINE void multiply(float* numbers, const float* scales, Index count) {
    Index j = 0;
    for (; j + kLanes <= count; j += kLanes) (V::load(numbers + j) * V::load(scales + j)).store(numbers + j);
    for (; j < count; ++j) numbers[j] *= scales[j];
  }

 private:
  static constexpr Index kMost = 16;  ///< queries at a time, as in DecodeState
  static constexpr Index kWeightBytes = 4 * kKeyTile;
  static constexpr bool kMany = kRegisters >= 32;

  /// Vectors of keys whose scores are accumulated together. Several queries use as many as registers allow, so that a
  /// digit is loaded once for all of them. A single query takes 16 keys: with more, keys were read from memory at 0.95
  /// times the speed.
  template <int kRows>
  static constexpr int kKeyVectors = kRows == 1 ? 16 / kLanes
                                     : kMany    ? 2
                                                : 1;
  static constexpr Index kMostColumns = 128;        ///< columns of keys reordered at a time: up to 4 KiB
  static constexpr int kValueRows = kMany ? 4 : 2;  ///< each needs six sums

  /// Computes the scores of `count` rows from `first` on.
  template <int kRows>
  static ATTN_INLINE void score_rows(const TileMemory<float>& m, Index first, Index count, const RowsToRead& key,
                                     Index keys, Index head_dim, Prefetcher& fetching) {
    Array<const std::byte*, kRows> digits;
    Array<QueryHeader, kRows> header;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      const float* const query = m.arranged + (first + std::min<Index>(r, count - 1)) * (head_dim + kHeader);
      std::memcpy(&header[r], query, sizeof(QueryHeader));
      digits[r] = reinterpret_cast<const std::byte*>(query + kHeader);
    }
    constexpr int kVectors = kKeyVectors<kRows>;
    constexpr Index kKeys = kVectors * kLanes;
    alignas(64) Array<std::byte, kKeys * kMostColumns> ordered;
    for (Index j = 0; j < keys; j += kKeys) {
      Array<Array<Ints, 3 * kRows>, kVectors> sum;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
          ATTN_UNROLL for (int p = 0; p < 3; ++p) load_four(sum[v][3 * r + p], &header[r].minus_sums[p]);
        }
      }
      for (Index d = 0; d < head_dim; d += kMostColumns) {
        const Index columns = std::min(kMostColumns, head_dim - d);
        // Reordering the next keys between these products gained nothing: on Zen 5 a store costs as much as two
        // products.
        Vectors::template order_keys<kVectors>(ordered, key, j, keys, d, columns);
        for (Index c = 0; c < columns; c += 4) {
          fetching.template step<kVectors * Bytes>();
          Array<Ints, kVectors> x;
          ATTN_UNROLL for (int v = 0; v < kVectors; ++v) load(x[v], ordered + c * kKeys + v * Bytes);
          ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
            ATTN_UNROLL for (int p = 0; p < 3; ++p) {
              Ints q;
              load_four(q, digits[r] + 4 * (d + c + p));
              ATTN_UNROLL for (int v = 0; v < kVectors; ++v) add_dots(sum[v][3 * r + p], x[v], q);
            }
          }
        }
      }
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          if (r < count && j + v * kLanes < keys)
            (join_digits(&sum[v][3 * r]) * header[r].unit).store(m.scores + (first + r) * m.row + j + v * kLanes);
        }
      }
    }
  }

  /// Converts the weights of a tile to digits, padded with zeros: the digits of four keys in 16 bytes, as in a query.
  static ATTN_INLINE bool arrange_weights(const float* weights, Index keys, std::byte* digits, float& unit) {
    Array<V, kKeyTile / kLanes> x;
    const Index vectors = ceil_div(keys, kLanes);
    Bits top = {};
    for (Index i = 0; i < vectors; ++i) {
      if ((i + 1) * kLanes <= keys) {
        x[i] = V::load(weights + i * kLanes);
      } else {
        Array<float, kLanes> rest = {};
        std::copy_n(weights + i * kLanes, keys - i * kLanes, rest);
        x[i] = V::load(rest);
      }
      Vectors::max_bits(top, (Bits)x[i].raw);
    }
    const Scale scale = Scale::of(Vectors::largest(top), 23);
    for (Index i = 0; i < vectors; ++i) {
      Ints number;
      Vectors::round(number, x[i] * scale.factor);
      sort_digits(number);
      store(digits + i * 4 * kLanes, number);
    }
    unit = scale.unit;
    return scale.exists;
  }

  template <int kRows>
  static ATTN_INLINE void value_rows(const TileMemory<float>& m, Index first, Index count, const std::byte* digits,
                                     const float* units, const RowsToRead& value, Index keys, Index v_dim,
                                     Prefetcher& fetching) {
    Array<const std::byte*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) weights[r] =
        digits + (first + std::min<Index>(r, count - 1)) * kWeightBytes;
    for (Index c = 0; c < v_dim; c += kColumns) {
      Array<Array<V, 4>, kRows> out;  // part i of vector v has columns 16 i + 4 v to 16 i + 4 v + 3
      add_columns<0, kRows>(out, weights, value, keys, c, fetching);
      add_columns<1, kRows>(out, weights, value, keys, c, fetching);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) if (r < count)
          add_out(out[r], units[first + r], m.rescale[first + r], m.out + (first + r) * v_dim + c);
    }
  }

  /// Computes half of kColumns: the lower or the upper eight of every 16.
  template <int kHalf, int kRows>
  static ATTN_INLINE void add_columns(Array<V, 4>* out, const Array<const std::byte*, kRows>& weights,
                                      const RowsToRead& value, Index keys, Index c, Prefetcher& fetching) {
    Array<Ints, 6 * kRows> sum;
    ATTN_UNROLL for (int i = 0; i < 6 * kRows; ++i) sum[i] = Ints{};
    const std::byte* const column = value.data + c;
    // If there are enough registers, the next values are reordered before the current ones are multiplied.
    Ints low, high, next_low, next_high;
    if constexpr (kMany) Vectors::template zip_values<kHalf>(low, high, column, value.stride, 0, keys);
    for (Index j = 0; j < keys; j += 4) {
      fetching.template step<2 * Bytes>();
      if constexpr (kMany)
        Vectors::template zip_values<kHalf>(next_low, next_high, column, value.stride, j + 4, keys);
      else
        Vectors::template zip_values<kHalf>(low, high, column, value.stride, j, keys);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        ATTN_UNROLL for (int p = 0; p < 3; ++p) {
          Ints w;
          load_four(w, weights[r] + 4 * j + 4 * p);
          add_dots(sum[6 * r + p], w, low);
          add_dots(sum[6 * r + 3 + p], w, high);
        }
      }
      if constexpr (kMany) low = next_low, high = next_high;
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      out[r][2 * kHalf] = join_digits(&sum[6 * r]);
      out[r][2 * kHalf + 1] = join_digits(&sum[6 * r + 3]);
    }
  }

  /// Part i of x[v] has columns 16 i + 4 v to 16 i + 4 v + 3.
  static ATTN_INLINE void add_out(const Array<V, 4>& x, float unit, float rescale, float* out) {
    constexpr int kTransposed = 4 / kParts;  // number of transposes of kParts vectors
    ATTN_UNROLL for (int t = 0; t < kTransposed; ++t) {
      Array<typename V::Raw, kParts> sum;
      ATTN_UNROLL for (int i = 0; i < kParts; ++i) sum[i] = x[t * kParts + i].raw;
      transpose_parts(sum);
      ATTN_UNROLL for (int i = 0; i < kParts; ++i) {
        float* const to = out + 16 * i + t * kLanes;
        (V::load(to) * rescale + V{sum[i]} * unit).store(to);
      }
    }
  }
};
#endif

/// The 8-bit kernels for a set of vectors, or null if it has none.
inline const DotKernels<float>* dot_kernels([[maybe_unused]] VectorSet vectors) {
#if ATTN_X86
  return with_vectors<float>(vectors, []<VectorSet kSet>() -> const DotKernels<float>* {
    if constexpr (kSet == VectorSet::generic) {
      return nullptr;
    } else {
      using Kernels = VnniKernels<kVectorBytes<kSet>, kVectorRegisters<kSet>>;
      static constexpr DotKernels<float> kKernels{Kernels::kColumns,
                                                  Kernels::kHeader,
                                                  compiled<kSet, Kernels::arrange_query>,
                                                  compiled<kSet, Kernels::score>,
                                                  compiled<kSet, Kernels::value>,
                                                  compiled<kSet, Kernels::multiply>};
      return &kKernels;
    }
  });
#else
  return nullptr;
#endif
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
