// The kernels for single queries (decoding): 1 to 16 queries, as rows, that share the keys of a head.
#pragma once

#include <algorithm>
#include <cstring>

#include "attn/detail/kernels/decode_column_kernels.h"
#include "attn/detail/kernels/packing_kernels.h"
#include "attn/detail/kernels/prefetcher.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How many queries are multiplied at a time: each vector of keys or values that is loaded serves four products.
constexpr int kQueriesAtATime = 4;

/// The two products of single queries.
template <class T>
struct DecodeProducts {
  void (*score)(const TileMemory<T>&, Index rows, const RowsToRead& key, Index keys, Index head_dim, Prefetcher&);
  void (*value)(const TileMemory<T>&, Index rows, const RowsToRead& value, Index keys, Index v_dim, Prefetcher&);
};

/// Lanes run along head_dim in the score product, along keys in the softmax, along v_dim in the value product. Keys and
/// values are read once, in place, in the order of memory: that is what the speed of decoding depends on. Both products
/// are one loop for R rows, compiled for a query that shares its keys with no other and for four: 1 row has one
/// multiplication for each vector that is loaded and so needs sums of several keys to hide the latency of an FMA, 4
/// rows have four.
///
/// kStored: the numbers that keys and values hold. TileMemory holds rows here: query (rows, head_dim), scores
/// (rows, m.row), out (rows, v_dim).
///
/// Tried, and not worth the compile time, a third more for a call: loops unrolled over all vectors of a query, and
/// copies of both loops without prefetches, for keys that are near. Together they took 0.9 of the time for single
/// queries over 64 to 1000 near keys of 32 or 64 floats on Zen 3 with AVX2, and about as long for the others.
template <class T, int Bytes, int kRegisters, DType kStored = DType::native>
struct DecodeKernels {
  using V = Vec<T, Bytes>;
  using Packing = PackingKernels<T, Bytes>;
  using Columns = DecodeColumnKernels<T, Bytes, kRegisters>;
  static constexpr int kLanes = V::kLanes;
  static_assert(kKeyTile % kLanes == 0, "whole vectors of scores are stored");

  /// Whether a single query reads far rows as fast as memory gives them without prefetches: wide vectors need few
  /// instructions. On Zen 5 rows of 64, 128, 256, 512 and 1024 floats came at 0.94, 0.95, 0.91, 0.86 and 0.76 of the
  /// speed of reading, with prefetches at 0.83, 0.95, 0.71, 0.57 and 0.51. With vectors of 32 bytes 80 floats took 1.1
  /// times as long without them on Zen 3, with those of 16 bytes all rows 1.4 to 1.8 times.
  static constexpr bool kKeepsUp = Bytes == 64 && kStored == DType::native;

  /// scores = query * keys. Fetches keys meanwhile.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim,
                                Prefetcher& fetching) {
    if constexpr (kReadsColumns)
      if (lie_side_by_side(key, head_dim)) return Columns::score(m, rows, key, keys, head_dim);
    if (!fetching.is_empty())
      fetching.spread(fetching.score_lines(), groups(rows) * keys * (head_dim / kLanes * kLanes) * kSize);
    // Fewer keys than a single query takes at a time go to the loop for four, whose groups are smaller. All four are
    // then this one.
    if (rows == 1 && keys >= kGroupOf<1>) return score_rows<1>(m, 1, 0, {0, keys}, key, head_dim, fetching);
    const Index piece = rows > kQueriesAtATime ? keys_in_l1(head_dim) : keys;
    for (Index j = 0; j < keys; j += piece)
      for (Index r = 0; r < rows; r += kQueriesAtATime)
        score_rows<kQueriesAtATime>(m, rows, r, {j, std::min(j + piece, keys)}, key, head_dim, fetching);
  }

  /// One step of the online softmax of a row: scores become weights, max, sum and rescale are brought up to date.
  static ATTN_INLINE void softmax(const TileMemory<T>& m, Index row, Index keys, Prefetcher& fetching) {
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

  /// out = rescale * out + weights * values. Fetches what is left to be fetched meanwhile.
  static ATTN_INLINE void value(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys, Index v_dim,
                                Prefetcher& fetching) {
    if constexpr (kReadsColumns)
      if (lie_side_by_side(value, v_dim)) return Columns::value(m, rows, value, keys, v_dim);
    if (!fetching.is_empty()) {
      const Index step = rows == 1 ? kLanes : kRowVectors * kLanes;  // the columns of the loops that fetch
      fetching.spread(fetching.lines_left(), groups(rows) * keys * (v_dim / step * step) * kSize);
    }
    // Sums over the keys so far are in `sums`, (rows, v_dim), and those over all join the output. So the bits of
    // several rows do not depend on where a piece ends.
    constexpr Index kMostSums = 4096;
    Array<T, kMostSums> sums;
    const bool is_whole = m.run.is_whole();
    Index piece = keys_in_l1(v_dim);
    if (rows == 1) piece *= 2;
    if (!is_whole || rows * v_dim > kMostSums) piece = keys;
    for (Index j = 0; j < keys; j += piece) {
      const Part part = {j,
                         std::min(j + piece, keys),
                         {m.run.is_first && j == 0, m.run.is_last && j + piece >= keys},
                         is_whole ? sums : m.value_sums};
      if (rows == 1) {
        value_rows<1>(m, 1, 0, part, value, v_dim, fetching);
      } else {
        for (Index r = 0; r < rows; r += kQueriesAtATime)
          value_rows<kQueriesAtATime>(m, rows, r, part, value, v_dim, fetching);
      }
    }
  }

 private:
  static constexpr bool kReadsColumns = V::kIsVector && kStored == DType::native;
  /// Vectors of columns of four rows: with 32 registers 4 rows of 4 sums.
  static constexpr int kRowVectors = kRegisters / 8;
  /// The bytes of a number. A constant: asked for each vector that is loaded, values of 64 floats took 1.5 times as
  /// long with AVX2.
  static constexpr Index kSize = kStored == DType::native ? static_cast<Index>(sizeof(T))
                                 : kStored == DType::i8   ? 1
                                                          : 2;

  /// Whether the rows are those of a column-major matrix. DecodeTiles hands on no others with gaps between numbers.
  static ATTN_INLINE bool lie_side_by_side(const RowsToRead& rows, Index dim) { return rows.column != 1 && dim > 1; }

  static ATTN_INLINE Index groups(Index rows) { return ceil_div(rows, kQueriesAtATime); }

  /// How many keys, or values, are multiplied by all queries before the next ones: what the first four queries have
  /// read is still in L1 for the others, beside what is fetched, and so are the first columns of values for the pass
  /// over the next ones. With eight queries for each key, M = 8192, D = 128, float from memory, products of four
  /// queries after the other with all keys of a tile took 1.3 times as long, in L2 as long.
  static ATTN_INLINE Index keys_in_l1(Index dim) {
    constexpr Index kBytes = 16 * 1024, kStep = 8;
    return std::max(kBytes / std::max<Index>(dim * kSize, 1) / kStep * kStep, kStep);
  }

  /// How many numbers of a row fill no whole vector.
  static ATTN_INLINE Index rest_of(Index dim) { return dim % kLanes; }

  /// The last numbers of a row of `dim`, as the last lanes of a vector. A shorter row is copied, because what is before
  /// it may not be the caller's to read.
  static ATTN_INLINE V load_end(const std::byte* row, Index dim) {
    if (kLanes == 1 || dim >= kLanes) return Packing::template load<kStored>(row + (dim - kLanes) * kSize);
    Array<std::byte, kLanes* kSize> numbers = {};
    std::memcpy(numbers + (kLanes - dim) * kSize, row, static_cast<std::size_t>(dim * kSize));
    return Packing::template load<kStored>(numbers);
  }
  static ATTN_INLINE V load_end(const T* row, Index dim) {
    if (kLanes == 1 || dim >= kLanes) return V::load(row + dim - kLanes);
    Array<T, kLanes> numbers = {};
    std::copy_n(row, dim, numbers + kLanes - dim);
    return V::load(numbers);
  }

  /// Called once for each of R rows, which together read kBytes. With `fetches`, asks for the lines that are due by
  /// then. No more than two lines are asked for together: with four, 128 floats a key came from 256 MiB at 0.9 of the
  /// speed.
  template <int R, Index kBytes>
  static ATTN_INLINE void fetch(bool fetches, int row, Prefetcher& fetching) {
    constexpr int kTimes = kBytes > 2 * kCacheLine ? 2 : 1;
    if (row % (R / kTimes) == 0 && fetches) fetching.template step<kBytes / kTimes>();
  }

  /// Keys at a time of R rows: so many that the sums fill vectors and hide the latency of an FMA.
  template <int R>
  static constexpr int kGroupOf = std::max(kLanes, kRegisters / 2) / R;

  /// Scores of R of the rows from `first` on, or of as many as there are. Where keys fill no group, the last group
  /// reaches back; of fewer keys than a group has, each is a group of its own, which reads it again and again.
  template <int R>
  static ATTN_INLINE void score_rows(const TileMemory<T>& m, Index rows, Index first, const Range& keys,
                                     const RowsToRead& key, Index head_dim, Prefetcher& fetching) {
    constexpr int kKeys = kGroupOf<R>, kSums = R * kKeys;
    // A single query keeps this many of its vectors in registers while keys go by.
    constexpr int kChunk = R == 1 ? 4 : 1;
    const Index count = std::min<Index>(R, rows - first), rest = rest_of(head_dim);
    const bool few = R > 1 && keys.size() < kKeys, fetches = !fetching.is_empty();
    const Index stride = key.stride * kSize, step = few ? 0 : stride;
    Array<const T*, R> query;
    ATTN_UNROLL for (int r = 0; r < R; ++r) query[r] = m.query + (first + std::min<Index>(r, count - 1)) * head_dim;
    for (Index next = keys.begin; next < keys.end; next += few ? 1 : kKeys) {
      const Index j = few ? next : std::min(next, keys.end - kKeys);
      const std::byte* const at = key.data + j * stride;
      Array<V, kSums> sum = {};  // of row r and key k at r * kKeys + k
      const auto add = [&]<int kVectors>(Index d) __attribute__((always_inline)) {
        const std::byte* row = at + d * kSize;
        if constexpr (R == 1) {
          Array<V, kVectors> q;
          ATTN_UNROLL for (int c = 0; c < kVectors; ++c) q[c] = V::load(query[0] + d + c * kLanes);
          ATTN_UNROLL for (int k = 0; k < kKeys; ++k, row += step) {
            constexpr int kTogether = std::min(kKeys, 4);
            if (k % kTogether == 0 && fetches) [[unlikely]]
              fetching.template step<kTogether * kVectors * kLanes * kSize>();
            V all = sum[k];
            ATTN_UNROLL for (int c = 0; c < kVectors; ++c) all += q[c] * load(row + c * kLanes * kSize);
            all.keep_order();
            sum[k] = all;
          }
        } else {
          Array<V, kKeys> x;
          ATTN_UNROLL for (int k = 0; k < kKeys; ++k, row += step) x[k] = load_once(row);
          ATTN_UNROLL for (int r = 0; r < R; ++r) {
            fetch<R, kKeys * kLanes * kSize>(fetches, r, fetching);
            V q = V::load(query[r] + d);
            q.keep_in_register();
            ATTN_UNROLL for (int k = 0; k < kKeys; ++k) sum[r * kKeys + k] += q * x[k];
          }
        }
      };
      Index d = 0;
      if constexpr (kChunk > 1)
        ATTN_NO_UNROLL for (; d + kChunk * kLanes <= head_dim; d += kChunk * kLanes) add.template operator()<kChunk>(d);
      // Two at a time: a loop over each took 1.2 times as long with g++ 12 on Zen 5, for four rows with keys in L1.
      ATTN_UNROLL_TWICE for (; d + kLanes <= head_dim; d += kLanes) add.template operator()<1>(d);
      if (rest > 0) add_ends<R, kKeys>(sum, query, at, step, head_dim);
      T* const scores = m.scores + first * m.row + j;
      if constexpr (R == 1) {
        ATTN_UNROLL for (int s = 0; s < kSums; s += kLanes) V::sum_lanes(sum + s).store(scores + s);
      } else {
        Array<T, kSums> total;
        ATTN_UNROLL for (int s = 0; s < kSums; s += kLanes) V::sum_lanes(sum + s).store(total + s);
        ATTN_UNROLL for (int r = 0; r < R; ++r) {
          if (r < count) std::copy_n(total + r * kKeys, few ? 1 : kKeys, scores + r * m.row);
        }
      }
    }
  }

  static ATTN_INLINE V load(const std::byte* from) { return Packing::template load<kStored>(from); }
  /// For several products. With -march=native on Zen 5 g++ 12 read keys and queries again for each of them, and four
  /// queries took 2.2 times as long.
  static ATTN_INLINE V load_once(const std::byte* from) {
    V x = load(from);
    x.keep_in_register();
    return x;
  }

  /// The products of the last numbers of rows that are no whole vectors. Those that were multiplied before are 0 in
  /// both factors, as one of them may not be finite.
  template <int R, int kKeys>
  static ATTN_INLINE void add_ends(V* sum, const T* const* query, const std::byte* at, Index step, Index head_dim) {
    Array<T, kLanes> numbers;
    const Index rest = rest_of(head_dim);
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i) numbers[i] = i < kLanes - rest ? T(0) : T(1);
    const typename V::Mask is_old = V::load(numbers) == V{};
    Array<V, R> q;
    ATTN_UNROLL for (int r = 0; r < R; ++r) q[r] = select(is_old, V{}, load_end(query[r], head_dim));
    ATTN_UNROLL for (int k = 0; k < kKeys; ++k, at += step) {
      const V x = select(is_old, V{}, load_end(at, head_dim));
      ATTN_UNROLL for (int r = 0; r < R; ++r) sum[r * kKeys + k] += q[r] * x;
    }
  }

  /// Some of the keys that a call is given, and the sums over those before them.
  struct Part {
    Index begin, end;
    ValueRun run;
    T* sums;
  };

  /// R of the rows from `first` on, or as many as there are, with all columns.
  template <int R>
  static ATTN_INLINE void value_rows(const TileMemory<T>& m, Index rows, Index first, const Part& part,
                                     const RowsToRead& value, Index v_dim, Prefetcher& fetching) {
    Index c = 0;
    const auto add = [&]<int kVectors>() __attribute__((always_inline)) {
      for (; c + kVectors * kLanes <= v_dim; c += kVectors * kLanes)
        value_columns<R, kVectors>(m, rows, first, part, value, c, v_dim, fetching);
    };
    if constexpr (R == 1) {
      add.template operator()<8>();
      add.template operator()<4>();
      add.template operator()<2>();
    } else {
      add.template operator()<kRowVectors>();
    }
    for (; c < v_dim; c += kLanes) value_columns<R, 1>(m, rows, first, part, value, c, v_dim, fetching);
  }

  /// kVectors vectors of columns, from `c` on. A single vector may be the last of a row, which need not be full.
  ///
  /// Of a single query some keys have sums of their own: eight vectors of columns hide the latency of an FMA by
  /// themselves, fewer need three keys. With two, 8 heads of 128 values of 64 floats took 1.25 times as long from L2
  /// with AVX-512, and of 256 values of 32 floats 1.2 times with AVX2, if the values of a head followed its keys and so
  /// those of two heads lay apart; why is not known, but the addresses of each load then go on by a power of two. Four
  /// keys were no better, and one took 1.1 times as long where values are in L1.
  template <int R, int kVectors>
  static ATTN_INLINE void value_columns(const TileMemory<T>& m, Index rows, Index first, const Part& part,
                                        const RowsToRead& value, Index c, Index v_dim, Prefetcher& fetching) {
    constexpr int kKeys = R * kVectors >= 8 || R > 1 ? 1 : 3;
    const Index count = std::min<Index>(R, rows - first), stride = value.stride * kSize;
    const Index rest = kVectors == 1 && c + kLanes > v_dim ? v_dim - c : 0;
    const bool fetches = !fetching.is_empty();
    Array<const T*, R> weights;
    ATTN_UNROLL for (int r = 0; r < R; ++r) weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    Array<Array<Array<V, kVectors>, R>, kKeys> sum = {};
    if (!part.run.is_first) {
      ATTN_UNROLL for (int r = 0; r < R; ++r) {
        const T* const from = part.sums + (first + r) * v_dim + c;
        if (r < count) {
          ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[0][r][v] = load_columns(from + v * kLanes, rest);
        }
      }
    }
    const std::byte* row = value.data + part.begin * stride + (rest > 0 ? 0 : c) * kSize;
    const auto add = [&](Array<V, kVectors> * to, Index j) __attribute__((always_inline)) {
      Array<V, kVectors> x;
      if constexpr (R > 1) {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) x[v] =
            rest > 0 ? load_end(row, v_dim) : load_once(row + v * kLanes * kSize);
      } else {
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) x[v] =
            rest > 0 ? load_end(row, v_dim) : load(row + v * kLanes * kSize);
      }
      ATTN_UNROLL for (int r = 0; r < R; ++r) {
        if constexpr (R > 1 && kVectors > 1) fetch<R, kVectors * kLanes * kSize>(fetches, r, fetching);
        const T w = weights[r][j];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) to[r][v] += x[v] * w;
      }
      row += stride;
    };
    Index j = part.begin;
    ATTN_NO_UNROLL for (; j + kKeys <= part.end; j += kKeys) {
      if (R == 1 && fetches) [[unlikely]]
        fetching.template step<kKeys * kVectors * kLanes * kSize>();
      ATTN_UNROLL for (int k = 0; k < kKeys; ++k) add(sum[k], j + k);
    }
    if constexpr (kKeys > 1) {
      ATTN_NO_UNROLL for (; j < part.end; ++j) add(sum[0], j);
    }
    ATTN_UNROLL for (int r = 0; r < R; ++r) {
      if (r < count) {
        T* const to = (part.run.is_last ? m.out : part.sums) + (first + r) * v_dim + c;
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          V all = sum[0][r][v];
          ATTN_UNROLL for (int k = 1; k < kKeys; ++k) all += sum[k][r][v];
          if (part.run.is_last) all += load_columns(to + v * kLanes, rest) * m.rescale[first + r];
          store_columns(to + v * kLanes, rest, all);
        }
      }
    }
  }

  /// A vector of columns, or the `rest` that there are as its last lanes, as load_end() has them.
  static ATTN_INLINE V load_columns(const T* from, Index rest) {
    return rest > 0 ? load_end(from, rest) : V::load(from);
  }
  static ATTN_INLINE void store_columns(T* to, Index rest, const V& x) {
    if (rest == 0) return x.store(to);
    Array<T, kLanes> numbers;
    x.store(numbers);
    std::copy_n(numbers + kLanes - rest, rest, to);
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
