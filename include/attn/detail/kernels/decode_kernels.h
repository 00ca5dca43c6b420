// The kernels for single queries, as when one token is decoded. Lanes run along head_dim in the score product, along
// keys in the softmax, along v_dim in the value product. A few queries that see the same keys are taken together, so
// that keys and values are read once, in place, at the speed of memory.
#pragma once

#include <algorithm>
#include <cstring>

#include "attn/detail/kernels/decode_column_kernels.h"
#include "attn/detail/kernels/decode_row_kernels.h"
#include "attn/detail/kernels/decode_score_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The two products of single queries.
template <class T>
struct DecodeProducts {
  void (*score)(const TileMemory<T>&, Index rows, const RowsToRead& key, Index keys, Index head_dim, Prefetcher&);
  void (*value)(const TileMemory<T>&, Index rows, const RowsToRead& value, Index keys, Index v_dim, Prefetcher&);
};

/// With 32 vector registers a step of the value product of four rows is 16 FMAs for 4 vectors and 4 weights loaded, on
/// ARM `fmla` by element.
///
/// kStored: what keys and values hold. TileMemory holds rows here: query (rows, head_dim), scores (rows, m.row), out
/// (rows, v_dim).
template <class T, int Bytes, int kRegisters, DType kStored = DType::native>
struct DecodeKernels : DecodeScoreKernels<T, Bytes, kRegisters, kStored> {
  using V = Vec<T, Bytes>;
  using Packing = PackingKernels<T, Bytes>;
  using Columns = DecodeColumnKernels<T, Bytes, kRegisters>;
  using Row = DecodeRowKernels<T, Bytes, kRegisters>;
  static constexpr int kLanes = V::kLanes;
  static constexpr int kWidth = kRegisters >= 32 ? 4 : 2;  // vectors of columns: 4 x 4 sums, of 32 registers

  /// Vectors of columns for a single query, whose sums must hide the latency of an FMA by themselves: with kWidth, 64
  /// and 128 numbers of 16 bits a value took 1.4 to 1.8 times as long with AVX2.
  static constexpr int kWide = 8;

  /// scores = query * keys. Fetches keys meanwhile.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim,
                                Prefetcher& fetching) {
    if constexpr (kReadsColumns)
      if (lie_side_by_side(key, head_dim)) return Columns::score(m, rows, key, keys, head_dim);
    DecodeScoreKernels<T, Bytes, kRegisters, kStored>::score(m, rows, key, keys, head_dim, fetching);
  }

  /// One step of the online softmax of a row: scores become weights, max, sum and rescale are brought up to date.
  template <class Fetching>
  static ATTN_INLINE void softmax(const TileMemory<T>& m, Index row, Index keys, Fetching& fetching) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    T* const scores = m.scores + row * m.row;
    // The last vector may reach past the keys; what lies there must weigh nothing.
    for (Index j = keys; j % kLanes != 0; ++j) scores[j] = -kInfinity;
    V top = V::broadcast(-kInfinity);
    for (Index j = 0; j < keys; j += kLanes) top = max(top, V::load(scores + j));
    const T old = m.max[row], of_keys = top.largest(), highest = old > of_keys ? old : of_keys;
    const T from = highest == -kInfinity ? T(0) : highest;  // as in TileKernels::softmax
    // 0 before the first kept key.
    const T rescale = old == -kInfinity ? T(0) : exp(V::broadcast(old - from)).first();
    m.rescale[row] = rescale;
    m.max[row] = highest;
    m.sum[row] *= rescale;
    m.sum_rest[row] *= rescale;
    V sum{}, rest{};
    for (Index j = 0; j < keys;) {
      V of_tile{};
      for (const Index end = std::min(j + kKeyTile, keys); j < end; j += kLanes) {
        const V x = exp(V::load(scores + j) - from);
        fetching.template lines<4>();
        of_tile += x;
        x.store(scores + j);
      }
      add_exactly(sum, rest, of_tile);
    }
    add_rest(sum, rest);
    add_exactly(m.sum[row], m.sum_rest[row], sum.total());
  }

  /// out = rescale * out + weights * values.
  static ATTN_INLINE void value(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys, Index v_dim,
                                Prefetcher& fetching) {
    if constexpr (kReadsColumns)
      if (lie_side_by_side(value, v_dim)) return Columns::value(m, rows, value, keys, v_dim);
    if constexpr (kStored == DType::native) {
      if (rows == 1) {
        fetching.spread(fetching.lines_left(), keys * (v_dim / kLanes) * Bytes);
        return Row::value(m, reinterpret_cast<const T*>(value.data), value.stride, keys, v_dim, fetching);
      }
    }
    if (!fetching.is_empty()) {
      const Index groups = kLanes >= kQueriesAtATime ? ceil_div(rows, kQueriesAtATime) : rows;
      constexpr Index kColumns = kWidth * kLanes;
      fetching.spread(fetching.lines_left(), groups * keys * (v_dim / kColumns * kColumns) * kSizeOf<T, kStored>);
    }
    value_all(m, rows, value, keys, v_dim, fetching);
  }

 private:
  static constexpr bool kIsNarrow = kStored != DType::native;
  static constexpr bool kReadsColumns = V::kIsVector && !kIsNarrow;

  /// Whether the rows are those of a column-major matrix. DecodeTiles hands on no others with gaps between numbers.
  static ATTN_INLINE bool lie_side_by_side(const RowsToRead& rows, Index dim) { return rows.column != 1 && dim > 1; }

  /// Some of the keys that a call is given. Sums over the keys of a tile before them are in `sums`, (rows, v_dim), and
  /// those over all join the output: they have the same bits in however many parts they are formed.
  struct Part {
    Index begin, end;
    ValueRun run;
    T* sums;
  };

  /// In parts, where all of a tile's values do not fit into L1 beside what is fetched. Numbers of 16 and 8 bits are
  /// compiled once more for whole tiles: single queries over 64 of them a value took 1.05 times as long in one part of
  /// unknown length. In parts and kWide vectors of columns at a time, single queries over 512 and 1024 of them took 0.7
  /// to 0.8 of their time with AVX-512 and half of it with AVX2.
  static ATTN_INLINE void value_all(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys,
                                    Index v_dim, Prefetcher& fetching) {
    constexpr Index kMostSums = 4096;
    const Index width = v_dim * kSizeOf<T, kStored>;
    const bool is_whole = m.run.is_whole(),
               in_parts = !fetching.is_empty() && is_whole && rows * v_dim <= kMostSums &&
                          (kIsNarrow ? keys_in_l1(width) < keys : kLanes >= kQueriesAtATime && rows > 1);
    if (kIsNarrow && is_whole && !in_parts) [[likely]]
      return value_part(m, rows, value, {0, keys, {}, nullptr}, v_dim, fetching);
    Array<T, kMostSums> sums;
    const Index count = in_parts ? keys_in_l1(width) : keys;
    for (Index j = 0; j < keys; j += count) {
      const ValueRun run = {m.run.is_first && j == 0, m.run.is_last && j + count >= keys};
      value_part(m, rows, value, {j, std::min(j + count, keys), run, is_whole ? sums : m.value_sums}, v_dim, fetching);
    }
  }

  static ATTN_INLINE void value_part(const TileMemory<T>& m, Index rows, const RowsToRead& value, const Part& part,
                                     Index v_dim, Prefetcher& fetching) {
    Index r = 0;
    if constexpr (kLanes >= kQueriesAtATime)
      for (; rows - r > 1; r = std::min(r + kQueriesAtATime, rows))
        value_rows<kQueriesAtATime>(m, rows, r, value, part, v_dim, fetching);
    for (; r < rows; ++r) value_rows<1>(m, rows, r, value, part, v_dim, fetching);
  }

  template <int kRows>
  static ATTN_INLINE void value_rows(const TileMemory<T>& m, Index rows, Index first, const RowsToRead& value,
                                     const Part& part, Index v_dim, Prefetcher& fetching) {
    Index c = 0;
    if constexpr (kRows == 1 && kIsNarrow)
      for (; c + kWide * kLanes <= v_dim; c += kWide * kLanes)
        add_columns<kRows, kWide>(m, rows, first, value, part, c, v_dim, fetching);
    for (; c + kWidth * kLanes <= v_dim; c += kWidth * kLanes)
      add_columns<kRows, kWidth>(m, rows, first, value, part, c, v_dim, fetching);
    for (; c + kLanes <= v_dim; c += kLanes) add_columns<kRows, 1>(m, rows, first, value, part, c, v_dim, fetching);
    if constexpr (kLanes > 1)
      if (c < v_dim) add_last_columns<kRows>(m, rows, first, value, part, c, v_dim);
  }

  /// As add_columns(), for the columns from `c` on, which fill no vector. Vectors end where rows do and begin with
  /// columns that have been added already; rows that are shorter than a vector are copied. Of a loop over single
  /// columns g++ 12 fused some products with their sums and rounded others, by where a run of keys began.
  template <int kRows>
  static ATTN_INLINE void add_last_columns(const TileMemory<T>& m, Index rows, Index first, const RowsToRead& value,
                                           const Part& part, Index c, Index v_dim) {
    constexpr Index size = kSizeOf<T, kStored>;
    const Index count = std::min<Index>(kRows, rows - first), begin = std::max<Index>(v_dim - kLanes, 0),
                width = std::min<Index>(v_dim, kLanes);
    // Sums enter and leave the loop over keys through memory, so that what is done for each row is compiled once: with
    // four copies of that, a call of attention took 1.1 to 1.15 times as long to compile.
    Array<T, kRows* kLanes> numbers = {};
    if (!part.run.is_first)
      ATTN_NO_UNROLL for (Index r = 0; r < count; ++r)
          std::copy_n(part.sums + (first + r) * v_dim + begin, width, numbers + r * kLanes);
    Array<V, kRows> sum;
    Array<const T*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      sum[r] = V::load(numbers + r * kLanes);
      weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    }
    Array<std::byte, kLanes* size> copied = {};
    const std::byte* row = value.data + (part.begin * value.stride + begin) * size;
    for (Index j = part.begin; j < part.end; ++j, row += value.stride * size) {
      if (v_dim < kLanes) std::memcpy(copied, row, static_cast<std::size_t>(width * size));
      const V x = Packing::template load<kStored>(v_dim < kLanes ? copied : row);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) add_weighted<kRows>(sum[r], x, weights[r][j]);
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) sum[r].store(numbers + r * kLanes);
    ATTN_NO_UNROLL for (Index r = 0; r < count; ++r) {
      T* const out = (part.run.is_last ? m.out : part.sums) + (first + r) * v_dim;
      T* const of_row = numbers + r * kLanes;
      if (part.run.is_last) {
        Array<T, kLanes> before = {};
        std::copy_n(out + begin, width, before);
        V all = V::load(of_row);
        all.add_fused(V::load(before), m.rescale[first + r]);
        all.store(of_row);
      }
      std::copy(of_row + (c - begin), of_row + width, out + c);
    }
  }

  /// kColumns vectors of columns, from `c` on, for kRows of the rows from `first` on, or as many as there are. Fetches
  /// where kColumns is kWidth or kWide.
  template <int kRows, int kColumns>
  static ATTN_INLINE void add_columns(const TileMemory<T>& m, Index rows, Index first, const RowsToRead& value,
                                      const Part& part, Index c, Index v_dim, Prefetcher& fetching) {
    constexpr Index size = kSizeOf<T, kStored>;
    const Index count = std::min<Index>(kRows, rows - first);
    Array<Array<V, kColumns>, kRows> sum = {};
    Array<const T*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    }
    if (!part.run.is_first) {
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        if (r < count) {
          ATTN_UNROLL for (int v = 0; v < kColumns; ++v) sum[r][v] =
              V::load(part.sums + (first + r) * v_dim + c + v * kLanes);
        }
      }
    }
    const std::byte* const data = value.data + c * size;
    if constexpr (kColumns >= kWidth)
      with_lines_together<kStored, kRows, kColumns * kLanes * size>(
          rows, fetching, [&]<int kLines>() __attribute__((always_inline)) {
            add_products<kRows, kColumns, kLines>(sum, weights, data, value.stride * size, part, fetching);
          });
    else
      add_products<kRows, kColumns, 0>(sum, weights, data, value.stride * size, part, fetching);
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      if (r < count) {
        T* const out = (part.run.is_last ? m.out : part.sums) + (first + r) * v_dim + c;
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) {
          if (part.run.is_last) sum[r][v].add_fused(V::load(out + v * kLanes), m.rescale[first + r]);
          sum[r][v].store(out + v * kLanes);
        }
      }
    }
  }

  /// sum += x * weight, in a loop with kSums of them: see Vec::add_fused().
  template <int kSums>
  static ATTN_INLINE void add_weighted(V& sum, const V& x, const T& weight) {
    if constexpr (kSums == 1)
      sum.add_fused(x, weight);
    else
      sum += x * weight;
  }

  /// The products of the weights of kRows and some columns of the values, whose rows lie `stride` bytes apart. kLines:
  /// see with_lines_together().
  template <int kRows, int kColumns, int kLines>
  static ATTN_INLINE void add_products(Array<V, kColumns>* sum, const T* const* weights, const std::byte* value,
                                       Index stride, const Part& part, Prefetcher& fetching) {
    constexpr Index size = kSizeOf<T, kStored>, kBytes = kColumns * kLanes * size;
    constexpr int kApart = kRowsApart<kRows, kBytes, kLines>;
    const std::byte* row = value + part.begin * stride;
    for (Index j = part.begin, end = part.end; j < end; ++j, row += stride) {
      Array<V, kColumns> x;
      ATTN_UNROLL for (int v = 0; v < kColumns; ++v) {
        V one = Packing::template load<kStored>(row + v * kLanes * size);  // as in DecodeScoreKernels::add_products()
        if constexpr (kRows > 1) one.keep_in_register();
        x[v] = one;
      }
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        if constexpr (kLines > 0)
          if (r % kApart == 0) fetching.template step<kBytes * kApart / kRows>();
        const T& w = weights[r][j];
        ATTN_UNROLL for (int v = 0; v < kColumns; ++v) add_weighted<kRows * kColumns>(sum[r][v], x[v], w);
      }
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
