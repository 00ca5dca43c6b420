// The kernels for single queries, as when one token is decoded. Lanes run along head_dim in the score product, along
// keys in the softmax, along v_dim in the value product. A few queries that see the same keys are taken together, so
// that keys and values are read once, in place, at the speed of memory.
#pragma once

#include "attn/detail/kernels/decode_column_kernels.h"
#include "attn/detail/kernels/packing_kernels.h"
#include "attn/detail/kernels/prefetcher.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How many queries are multiplied at a time: each vector of keys or values that is loaded serves four multiplications.
constexpr int kQueriesAtATime = 4;

/// With 32 vector registers a step of the score product of four rows is 16 FMAs for 8 vectors loaded, and one of the
/// value product 16 for 4 vectors and 4 weights, on ARM `fmla` by element.
///
/// TileMemory holds rows here: query (rows, head_dim), scores (rows, m.row), out (rows, v_dim).
template <class T, int Bytes, int kRegisters>
struct DecodeKernels {
  using S = Simd<T, Bytes>;
  using Vec = typename S::Vec;
  using Packing = PackingKernels<T, Bytes>;
  using Columns = DecodeColumnKernels<T, Bytes, kRegisters>;
  static constexpr int kLanes = S::kLanes;
  static constexpr int kWidth = kRegisters >= 32 ? 4 : 2;  // vectors of columns: 4 x 4 sums, of 32 registers
  static_assert(kKeyTile % kLanes == 0, "whole vectors of scores are stored");
  static_assert(kKeyTile % (kRegisters / 2) == 0, "scores of keys are stored in groups");

  /// scores = query * keys. Fetches keys meanwhile.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim,
                                Prefetcher& fetching) {
    if constexpr (S::kVector)
      if (lie_side_by_side(key, head_dim)) return Columns::score(m, rows, key, keys, head_dim);
    const bool in_groups = kLanes >= kQueriesAtATime && rows > 1;
    const Index groups = in_groups ? ceil_div(rows, kQueriesAtATime) : rows;
    const Index keys_at_a_time = in_groups ? kv_rows_of<kQueriesAtATime>() : kv_rows_of<1>();
    fetching.spread(fetching.key_lines(), groups * ceil_div(keys, keys_at_a_time) * (head_dim / kLanes));
    Index r = 0;
    if constexpr (kLanes >= kQueriesAtATime)
      for (; rows - r > 1; r = std::min(r + kQueriesAtATime, rows))
        score_rows<kQueriesAtATime>(m, r, std::min<Index>(kQueriesAtATime, rows - r), key, keys, head_dim, fetching);
    for (; r < rows; ++r) score_row(m, r, key, keys, head_dim, fetching);
  }

  /// One step of the online softmax of a row: scores become weights, max, sum and rescale are brought up to date.
  static ATTN_INLINE void softmax(const TileMemory<T>& m, Index row, Index keys, Prefetcher& fetching) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    T* const scores = m.scores + row * m.row;
    // The last vector may reach past the keys; what lies there must weigh nothing.
    for (Index j = keys; j % kLanes != 0; ++j) scores[j] = -kInfinity;
    Vec top, x;
    S::splat(top, -kInfinity);
    for (Index j = 0; j < keys; j += kLanes) {
      S::load(x, scores + j);
      S::max_with(top, x);
    }
    const T old = m.max[row], highest = S::largest(top), max = old > highest ? old : highest;
    const T from = max == -kInfinity ? T(0) : max;  // as in TileKernels::softmax
    Vec sum = {};
    S::splat(x, old - from);
    S::exp(x);
    const T rescale = first_lane(x);
    m.rescale[row] = rescale;
    m.max[row] = max;
    m.sum[row] *= rescale;
    m.sum_rest[row] *= rescale;
    Vec rest = {};
    for (Index j = 0; j < keys;) {
      Vec of_tile = {};
      for (const Index end = std::min(j + kKeyTile, keys); j < end; j += kLanes) {
        S::load(x, scores + j);
        x -= from;
        S::exp(x);
        fetching.template lines<4>();
        of_tile += x;
        S::store(scores + j, x);
      }
      add_exactly(sum, rest, of_tile);
    }
    add_rest(sum, rest);
    add_exactly(m.sum[row], m.sum_rest[row], S::total(sum));
  }

  /// out = rescale * out + weights * values.
  static ATTN_INLINE void value(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys, Index v_dim,
                                Prefetcher& fetching) {
    if constexpr (S::kVector)
      if (lie_side_by_side(value, v_dim)) return Columns::value(m, rows, value, keys, v_dim);
    const Index groups = kLanes >= kQueriesAtATime && rows > 1 ? ceil_div(rows, kQueriesAtATime) : rows;
    fetching.spread(fetching.lines_left(), groups * keys * (v_dim / (kWidth * kLanes)));
    Index r = 0;
    if constexpr (kLanes >= kQueriesAtATime)
      for (; rows - r > 1; r = std::min(r + kQueriesAtATime, rows))
        value_rows<kQueriesAtATime>(m, r, std::min<Index>(kQueriesAtATime, rows - r), value, keys, v_dim, fetching);
    for (; r < rows; ++r) value_rows<1>(m, r, 1, value, keys, v_dim, fetching);
  }

 private:
  /// Vectors of a query that are held while keys go by.
  static constexpr int kChunk = 4;

  /// Are the rows those of a column-major matrix? DecodeTiles hands on no other rows with gaps between their numbers.
  static ATTN_INLINE bool lie_side_by_side(const RowsToRead& rows, Index dim) { return rows.column != 1 && dim > 1; }

  static ATTN_INLINE T first_lane(const Vec& x) {
    if constexpr (S::kVector)
      return x[0];
    else
      return x;
  }

  /// Keys at a time: with the rows they make whole vectors of sums, enough of them to hide the latency of an FMA.
  template <int kRows>
  static constexpr int kv_rows_of() {
    return kRows == 1 ? kLanes : std::max(kLanes, kRegisters / 2) / kRows;
  }

  /// Scores of one row. Keys that lie in memory as they are computed with are read in the order of memory, with four
  /// vectors of the query in registers. In the order of score_rows, and with a look at the type of each vector that is
  /// loaded, 8 heads of 512 keys took 1.1 times as long. (Values gain nothing from either.)
  static ATTN_INLINE void score_row(const TileMemory<T>& m, Index r, const RowsToRead& key, Index keys, Index head_dim,
                                    Prefetcher& fetching) {
    Index j = 0;
    if constexpr (kLanes > 1)
      if (key.dtype == DType::native && head_dim % (kChunk * kLanes) == 0) {
        const T* row = reinterpret_cast<const T*>(key.data);
        for (; j + kLanes <= keys; j += kLanes) {
          Array<Vec, kLanes> sum = {};
          for (Index d = 0; d < head_dim; d += kChunk * kLanes) {
            Array<Vec, kChunk> q;
            ATTN_UNROLL for (int c = 0; c < kChunk; ++c) S::load(q[c], m.query + r * head_dim + d + c * kLanes);
            const T* at = row + d;
            ATTN_UNROLL for (int a = 0; a < kLanes; ++a, at += key.stride) {
              for (int i = a * kChunk / kLanes; i < (a + 1) * kChunk / kLanes; ++i) fetching.step();
              ATTN_UNROLL for (int c = 0; c < kChunk; ++c) {
                Vec k;
                S::load(k, at + c * kLanes);
                sum[a] += q[c] * k;
              }
            }
          }
          row += kLanes * key.stride;
          S::sum_lanes(sum);
          S::store(m.scores + r * m.row + j, sum[0]);
        }
        if (j == keys) return;
      }
    const RowsToRead rest{key.data + j * key.stride * size_of_number<T>(key.dtype), key.dtype, key.stride, key.column};
    TileMemory<T> behind = m;
    behind.scores += j;
    score_rows<1>(behind, r, 1, rest, keys - j, head_dim, fetching);
  }

  /// Scores of `count` rows from `first` on.
  template <int kRows>
  static ATTN_INLINE void score_rows(const TileMemory<T>& m, Index first, Index count, const RowsToRead& key,
                                     Index keys, Index head_dim, Prefetcher& fetching) {
    constexpr int kKeys = kv_rows_of<kRows>(), kSums = kRows * kKeys;
    // Four rows at a time: with sixteen, a single query took 5 % longer where keys come from the L2 cache.
    constexpr int kGroup = std::min(kKeys, 4);
    const Index size = size_of_number<T>(key.dtype), stride = key.stride * size;
    Array<const T*, kRows> query;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) query[r] = m.query + (first + std::min<Index>(r, count - 1)) * head_dim;
    for (Index j = 0; j < keys; j += kKeys) {
      Array<const std::byte*, kKeys> row;
      ATTN_UNROLL for (int a = 0; a < kKeys; ++a) row[a] = key.data + std::min<Index>(j + a, keys - 1) * stride;
      Array<Vec, kSums> sum = {};  // of row r and key a at r * kKeys + a
      Array<T, kSums> rest = {};
      const Index whole = head_dim / kLanes * kLanes;
      // At the end there are fewer keys, in a small call one alone.
      const int here = static_cast<int>(std::min<Index>(kKeys, keys - j));
      ATTN_UNROLL for (int g = 0; g < kKeys; g += kGroup) {
        if (g >= here) break;
        ATTN_NO_UNROLL
        for (Index d = 0; d < whole; d += kLanes) {
          if (g == 0) fetching.step();
          Array<Vec, kGroup> k;
          ATTN_UNROLL for (int a = 0; a < kGroup; ++a) Packing::load(k[a], key.dtype, row[g + a] + d * size);
          ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
            Vec q;
            S::load(q, query[r] + d);
            ATTN_UNROLL for (int a = 0; a < kGroup; ++a) sum[r * kKeys + g + a] += q * k[a];
          }
        }
      }
      for (Index d = whole; d < head_dim; ++d)
        for (int a = 0; a < here; ++a) {
          const T k = load_number<T>(key.dtype, row[a] + d * size);
          for (int r = 0; r < kRows; ++r) rest[r * kKeys + a] += query[r][d] * k;
        }
      ATTN_UNROLL for (int s = 0; s < kSums; s += kLanes) {
        Vec total;
        S::load(total, rest + s);
        S::sum_lanes(sum + s);
        total += sum[s];
        S::store(rest + s, total);
      }
      for (int r = 0; r < kRows && r < count; ++r)
        std::copy_n(rest + r * kKeys, kKeys, m.scores + (first + r) * m.row + j);
    }
  }

  template <int kRows>
  static ATTN_INLINE void value_rows(const TileMemory<T>& m, Index first, Index count, const RowsToRead& value,
                                     Index keys, Index v_dim, Prefetcher& fetching) {
    const Index size = size_of_number<T>(value.dtype);
    Index c = 0;
    for (; c + kWidth * kLanes <= v_dim; c += kWidth * kLanes)
      add_columns<kRows, kWidth>(m, first, count, value, keys, c, v_dim, fetching);
    for (; c + kLanes <= v_dim; c += kLanes) add_columns<kRows, 1>(m, first, count, value, keys, c, v_dim, fetching);
    for (; c < v_dim; ++c)
      for (Index r = first; r < first + count; ++r) {
        T sum = 0;
        for (Index j = 0; j < keys; ++j)
          sum += m.scores[r * m.row + j] * load_number<T>(value.dtype, value.data + (j * value.stride + c) * size);
        m.out[r * v_dim + c] = m.out[r * v_dim + c] * m.rescale[r] + sum;
      }
  }

  /// kColumns vectors of columns, from `c` on.
  template <int kRows, int kColumns>
  static ATTN_INLINE void add_columns(const TileMemory<T>& m, Index first, Index count, const RowsToRead& value,
                                      Index keys, Index c, Index v_dim, Prefetcher& fetching) {
    const Index size = size_of_number<T>(value.dtype), stride = value.stride * size;
    Array<Array<Vec, kColumns>, kRows> sum = {};
    Array<const T*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    }
    const std::byte* row = value.data + c * size;
    for (Index j = 0; j < keys; ++j, row += stride) {
      if constexpr (kColumns == kWidth) fetching.step();
      Array<Vec, kColumns> x;
      ATTN_UNROLL for (int v = 0; v < kColumns; ++v) Packing::load(x[v], value.dtype, row + v * kLanes * size);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        const T w = weights[r][j];
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) S::add_product(sum[r][v], x[v], w);
      }
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      if (r < count) {
        T* const out = m.out + (first + r) * v_dim + c;
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) {
          Vec before;
          S::load(before, out + v * kLanes);
          S::add_product(sum[r][v], before, m.rescale[first + r]);
          S::store(out + v * kLanes, sum[r][v]);
        }
      }
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
