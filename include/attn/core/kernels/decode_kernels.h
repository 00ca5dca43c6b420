// Kernels for single queries (decoding): 1 to 16 queries, as rows, that share the keys of a head.
#pragma once

#include <algorithm>
#include <cstring>

#include "attn/core/kernels/packing_kernels.h"
#include "attn/core/kernels/prefetcher.h"
#include "attn/core/kernels/tile_memory.h"
#include "attn/core/tensor/dtype_view.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Number of keys that fill a vector of any instruction set. Fewer keys are copied row by row.
constexpr Index kFewestKeys = 16;

/// DecodeKernels for column-major rows. Lanes run along keys in both products: scores are accumulated column by column,
/// and outputs are dot products of the weights and a column of values. No rows are copied. TileMemory is laid out as
/// for DecodeKernels. There must be at least kFewestKeys keys.
template <class T, int Bytes, int kRegisters>
struct DecodeColumnKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;
  static_assert(kLanes <= kFewestKeys, "the last vector overlaps earlier keys, so kFewestKeys must fill one");
  static constexpr int kWidth = kRegisters >= 32 ? 4 : 2;  // vectors of keys at a time: 4 x 4 sums in 32 registers

  /// scores = query * keys.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim) {
    const T* const numbers = reinterpret_cast<const T*>(key.data);
    Index r = 0;
    if constexpr (kTogether > 1)
      for (; rows - r > 1; r = std::min<Index>(r + kTogether, rows))
        score_rows<kTogether>(m, r, std::min<Index>(kTogether, rows - r), numbers, key.column, keys, head_dim);
    for (; r < rows; ++r) score_rows<1>(m, r, 1, numbers, key.column, keys, head_dim);
  }

  /// out = rescale * out + weights * values.
  static ATTN_INLINE void value(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys, Index v_dim) {
    const T* const numbers = reinterpret_cast<const T*>(value.data);
    Index r = 0;
    if constexpr (kTogether > 1)
      for (; rows - r > 1; r = std::min<Index>(r + kTogether, rows))
        for (Index c = 0; c < v_dim; c += kLanes / kTogether)
          add_columns<kTogether>(m, r, std::min<Index>(kTogether, rows - r), numbers, value.column, keys, c, v_dim);
    for (; r < rows; ++r)
      for (Index c = 0; c < v_dim; c += kLanes) add_columns<1>(m, r, 1, numbers, value.column, keys, c, v_dim);
  }

 private:
  static constexpr int kTogether = kLanes >= 4 ? 4 : 1;  // rows at a time, if there are several

  /// Computes the scores of `count` rows from `first` on. If the keys do not fill the last vector, it overlaps the one
  /// before.
  template <int kRows>
  static ATTN_INLINE void score_rows(const TileMemory<T>& m, Index first, Index count, const T* key, Index column,
                                     Index keys, Index head_dim) {
    Index j = 0;
    for (; j + kWidth * kLanes <= keys; j += kWidth * kLanes)
      score_keys<kRows, kWidth>(m, first, count, key, column, j, head_dim);
    for (; j < keys; j += kLanes)
      score_keys<kRows, 1>(m, first, count, key, column, std::min(j, keys - kLanes), head_dim);
  }

  /// Computes the scores of kVectors vectors of keys from `j` on.
  template <int kRows, int kVectors>
  static ATTN_INLINE void score_keys(const TileMemory<T>& m, Index first, Index count, const T* key, Index column,
                                     Index j, Index head_dim) {
    Array<Array<V, kVectors>, kRows> sum = {};
    Array<const T*, kRows> query;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) query[r] = m.query + (first + std::min<Index>(r, count - 1)) * head_dim;
    key += j;
    for (Index d = 0; d < head_dim; ++d, key += column) {
      Array<V, kVectors> k;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) k[v] = V::load(key + v * kLanes);
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        const T q = query[r][d];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v] += k[v] * q;
      }
    }
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      T* const scores = m.scores + (first + r) * m.row + j;
      if (r >= count) break;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[r][v].store(scores + v * kLanes);
    }
  }

  /// Computes kLanes / kRows columns of each row from `c` on. Past the end, the last column is repeated.
  template <int kRows>
  static ATTN_INLINE void add_columns(const TileMemory<T>& m, Index first, Index count, const T* value, Index column,
                                      Index keys, Index c, Index v_dim) {
    constexpr int kColumns = kLanes / kRows;
    const int here = static_cast<int>(std::min<Index>(kColumns, v_dim - c));
    Array<const T*, kColumns> of_column;
    of_column[0] = value + c * column;
    ATTN_UNROLL for (int i = 1; i < kColumns; ++i) of_column[i] = of_column[i - 1] + (i < here ? column : 0);
    Array<const T*, kRows> weights;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
      weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    }
    Array<V, kLanes> sum = {};  // row r and column i at r * kColumns + i
    Index j = 0;
    for (; j + kLanes <= keys; j += kLanes) {
      Array<V, kRows> w;
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) w[r] = V::load(weights[r] + j);
      ATTN_UNROLL for (int i = 0; i < kColumns; ++i) {
        const V x = V::load(of_column[i] + j);
        ATTN_UNROLL for (int r = 0; r < kRows; ++r) sum[r * kColumns + i] += w[r] * x;
      }
    }
    if (j < keys) {
      // The last keys do not fill a vector. The memory after them may not be readable, so the vector begins earlier,
      // and values that were already added are replaced by 0.
      Array<T, kLanes> numbers;
      ATTN_UNROLL for (int i = 0; i < kLanes; ++i) numbers[i] = i < kLanes - (keys - j) ? T(0) : T(1);
      Array<V, kRows> w;
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) w[r] = V::load(weights[r] + keys - kLanes);
      const V is_new = V::load(numbers);
      ATTN_UNROLL for (int i = 0; i < kColumns; ++i) {
        const V x = select(is_new == V{}, V{}, V::load(of_column[i] + keys - kLanes));
        ATTN_UNROLL for (int r = 0; r < kRows; ++r) sum[r * kColumns + i] += w[r] * x;
      }
    }
    Array<T, kLanes> total;
    V::sum_lanes(sum).store(total);
    for (int r = 0; r < kRows && r < count; ++r) {
      T* const out = m.out + (first + r) * v_dim + c;
      for (int i = 0; i < here; ++i)
        out[i] = V::multiply_add_one(out[i], m.rescale[first + r], total[r * kColumns + i]);
    }
  }
};

/// Queries multiplied at a time: each loaded vector of keys or values is used in four products.
constexpr int kQueriesAtATime = 4;

/// Lanes run along head_dim in the score product, along keys in the softmax, and along v_dim in the value product. Keys
/// and values are read once, in place and in memory order, which the speed of decoding depends on. Each product is one
/// loop for R rows, compiled for R = 1 (a query that does not share its keys) and R = 4. One row has one multiplication
/// per loaded vector, so it needs sums of several keys to hide the latency of an FMA; four rows have four
/// multiplications.
///
/// kStored is the element type of keys and values. Here, TileMemory holds rows: query (rows, head_dim), scores (rows,
/// m.row), out (rows, v_dim).
///
/// Tried, but not worth a third more compile time per call: loops unrolled over all vectors of a query, and copies of
/// both loops without prefetches for cached keys. With both, single queries over 64 to 1000 cached keys of 32 or 64
/// floats took 0.9 times as long on Zen 3 with AVX2; otherwise there was little difference.
template <class T, int Bytes, int kRegisters, DType kStored = DType::native>
struct DecodeKernels {
  using V = Vec<T, Bytes>;
  using Packing = PackingKernels<T, Bytes>;
  using Columns = DecodeColumnKernels<T, Bytes, kRegisters>;
  static constexpr int kLanes = V::kLanes;
  static_assert(kKeyTile % kLanes == 0, "scores are stored in whole vectors");

  /// Whether a single query reads rows at the speed of memory without prefetches, because wide vectors need few
  /// instructions. On Zen 5, rows of 64, 128, 256, 512 and 1024 floats were read at 0.94, 0.95, 0.91, 0.86 and 0.76 of
  /// the read bandwidth without prefetches, and at 0.83, 0.95, 0.71, 0.57 and 0.51 with them. On Zen 3 without
  /// prefetches, rows of 80 floats took 1.1 times as long with 32-byte vectors, and all rows took 1.4 to 1.8 times as
  /// long with 16-byte vectors.
  static constexpr bool kNeedsNoPrefetch = Bytes == 64 && kStored == DType::native;

  /// scores = query * keys. Also prefetches keys.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim,
                                Prefetcher& fetching) {
    if constexpr (kReadsColumns)
      if (is_column_major(key, head_dim)) return Columns::score(m, rows, key, keys, head_dim);
    if (!fetching.is_empty())
      fetching.spread(fetching.score_lines(), groups(rows) * keys * bytes(head_dim / kLanes * kLanes));
    // If there are fewer keys than a single query takes at a time, the loop for four rows, whose groups are smaller,
    // runs with four copies of the query.
    if (rows == 1 && keys >= kGroupOf<1>) return score_rows<1>(m, 1, 0, {0, keys}, key, head_dim, fetching);
    const Index piece = rows > kQueriesAtATime ? keys_in_l1(head_dim) : keys;
    for (Index j = 0; j < keys; j += piece)
      for (Index r = 0; r < rows; r += kQueriesAtATime)
        score_rows<kQueriesAtATime>(m, rows, r, {j, std::min(j + piece, keys)}, key, head_dim, fetching);
  }

  /// One step of the online softmax of a row: turns scores into weights and updates max, sum and rescale.
  static ATTN_INLINE void softmax(const TileMemory<T>& m, Index row, Index keys, Prefetcher& fetching) {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    T* const scores = m.scores + row * m.row;
    // The last vector may reach past the keys, where weights must be 0.
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

  /// out = rescale * out + weights * values. Also prefetches the remaining lines.
  static ATTN_INLINE void value(const TileMemory<T>& m, Index rows, const RowsToRead& value, Index keys, Index v_dim,
                                Prefetcher& fetching) {
    if constexpr (kReadsColumns)
      if (is_column_major(value, v_dim)) return Columns::value(m, rows, value, keys, v_dim);
    if (!fetching.is_empty())
      fetching.spread(fetching.lines_left(), groups(rows) * keys * bytes(v_dim / kLanes * kLanes));
    // `sums` (rows, v_dim) holds the sums over the keys so far; the final sums are added to the output. So the result
    // for several rows is the same, bit for bit, wherever a piece ends.
    constexpr Index kMostSums = std::min<Index>(4096, kMostOnStack / static_cast<Index>(sizeof(T)));
    Array<T, kMostSums> sums;
    const bool is_whole = m.run.is_whole();
    Index size = keys_in_l1(v_dim);
    if (rows == 1) size *= 2;
    if (!is_whole || rows * v_dim > kMostSums) size = keys;
    for (Index j = 0; j < keys; j += size) {
      const Piece piece = {j,
                           std::min(j + size, keys),
                           {m.run.is_first && j == 0, m.run.is_last && j + size >= keys},
                           is_whole ? sums : m.value_sums};
      if (rows == 1) {
        value_rows<1>(m, 1, 0, piece, value, v_dim, fetching);
      } else {
        for (Index r = 0; r < rows; r += kQueriesAtATime)
          value_rows<kQueriesAtATime>(m, rows, r, piece, value, v_dim, fetching);
      }
    }
  }

 private:
  static constexpr bool kReadsColumns = V::kIsVector && kStored == DType::native;
  /// Vectors of columns at a time for four rows: 4 rows of 4 sums with 32 registers.
  static constexpr int kRowVectors = kRegisters >= 32 ? 4 : 2;
  /// Elements of a block; see DType.
  static constexpr Index kBlock = elements_of_block(kStored);
  /// Vectors of a block that are converted together: two if that shares work (SmallVec) and registers suffice.
  static constexpr int kPart = kBlock == 2 * kLanes ? 2 : 1;

  /// Bytes of `count` elements, by a constant: values of 64 floats took 1.5 times as long with AVX2 when the size of an
  /// element was looked up for each loaded vector. Of part of a block, only its share of the traffic is meant.
  static ATTN_INLINE constexpr Index bytes(Index count) { return count * size_of_block<T>(kStored) / kBlock; }

  /// Whether the rows belong to a column-major matrix. DecodeTiles copies all other rows with gaps between elements.
  static ATTN_INLINE bool is_column_major(const RowsToRead& rows, Index dim) { return rows.column != 1 && dim > 1; }

  static ATTN_INLINE Index groups(Index rows) { return ceil_div(rows, kQueriesAtATime); }

  /// Number of keys, or values, that are multiplied by all queries before the next ones. The rows that the first four
  /// queries read are then still in L1 for the others, beside the prefetched lines. Rows of values are also still there
  /// for the pass over the next columns. With eight queries per key, kv_len 8192, head_dim 128 and floats read from
  /// memory, multiplying all keys of a tile by four queries at a time took 1.3 times as long; in L2 it made no
  /// difference.
  static ATTN_INLINE Index keys_in_l1(Index dim) {
    constexpr Index kBytes = 16 * 1024, kStep = 8;
    return std::max(kBytes / std::max<Index>(bytes(dim), 1) / kStep * kStep, kStep);
  }

  /// Number of elements at the end of a row that do not fill a vector.
  static ATTN_INLINE Index rest_of(Index dim) { return dim % kLanes; }

  /// Loads the end of a row of `dim` elements into the last lanes of a vector. A row shorter than a vector is copied,
  /// because the memory before it may not be readable.
  static ATTN_INLINE V load_end(const std::byte* row, Index dim) {
    if constexpr (kBlock > 1) {
      Array<T, kLanes> numbers;
      for (Index i = 0, at = dim - kLanes; i < kLanes; ++i, ++at)
        numbers[i] =
            at < 0 ? T(0) : load_other_number<T>(kStored, row + offset_of_element<T>(kStored, at), at % kBlock);
      return V::load(numbers);
    }
    if (kLanes == 1 || dim >= kLanes) return load(row, dim - kLanes);
    constexpr Index kSize = size_of_block<T>(kStored);
    Array<std::byte, kLanes* kSize> numbers = {};
    copy_elements<kSize>(numbers + (kLanes - dim) * kSize, row, dim);
    return load(numbers, 0);
  }
  static ATTN_INLINE V load_end(const T* row, Index dim) {
    if (kLanes == 1 || dim >= kLanes) return V::load(row + dim - kLanes);
    Array<T, kLanes> numbers = {};
    copy_elements<sizeof(T)>(numbers + kLanes - dim, row, dim);
    return V::load(numbers);
  }

  /// Copies elements without calling a function, because around each call all sums in registers are saved.
  template <std::size_t kElement>
  static ATTN_INLINE void copy_elements(void* to, const void* from, Index count) {
    ATTN_NO_UNROLL for (Index i = 0; i < count; ++i) {
      const std::size_t at = static_cast<std::size_t>(i) * kElement;
      std::memcpy(static_cast<std::byte*>(to) + at, static_cast<const std::byte*>(from) + at, kElement);
      __asm__("" : "+r"(i));  // otherwise, compilers call memcpy()
    }
  }

  /// Called once for each of R rows, which together read kBytes. If `fetches`, prefetches the lines that are due, at
  /// most two at once: with four, keys of 128 floats were read from 256 MiB at 0.9 times the speed.
  template <int R, Index kBytes>
  static ATTN_INLINE void fetch(bool fetches, int row, Prefetcher& fetching) {
    constexpr int kTimes = kBytes > 2 * kCacheLine ? 2 : 1;
    if (row % (R / kTimes) == 0 && fetches) fetching.template step<kBytes / kTimes>();
  }

  /// Keys at a time for R rows: enough for the sums to fill vectors and to hide the latency of an FMA.
  template <int R>
  static constexpr int kGroupOf = std::max(kLanes, kRegisters >= 32 ? 16 : 8) / R;

  /// Computes the scores of R rows from `first` on, or of the remaining rows if fewer. If the keys do not fill the last
  /// group, it overlaps the one before. If there are fewer keys than a group has, each key is read repeatedly to fill
  /// its own group.
  template <int R>
  static ATTN_INLINE void score_rows(const TileMemory<T>& m, Index rows, Index first, const Range& keys,
                                     const RowsToRead& key, Index head_dim, Prefetcher& fetching) {
    constexpr int kKeys = kGroupOf<R>, kSums = R * kKeys;
    // A single query keeps this many of its vectors in registers while it iterates over keys. Blocks are read whole.
    constexpr int kChunk = kBlock > 1 ? static_cast<int>(kBlock) / kLanes : R == 1 ? 4 : 1;
    const Index count = std::min<Index>(R, rows - first), rest = rest_of(head_dim);
    const bool few = R > 1 && keys.size() < kKeys, fetches = !fetching.is_empty();
    const Index stride = bytes(key.stride), step = few ? 0 : stride;
    Array<const T*, R> query;
    ATTN_UNROLL for (int r = 0; r < R; ++r) query[r] = m.query + (first + std::min<Index>(r, count - 1)) * head_dim;
    for (Index next = keys.begin; next < keys.end; next += few ? 1 : kKeys) {
      const Index j = few ? next : std::min(next, keys.end - kKeys);
      const std::byte* const at = key.data + j * stride;
      Array<V, kSums> sum = {};  // row r and key k at r * kKeys + k
      const auto add = [&]<int kVectors>(Index d) __attribute__((always_inline)) {
        const Index in_block = kVectors < kChunk ? d % kBlock : 0;
        const std::byte* row = at + bytes(d - in_block);
        if constexpr (R == 1) {
          Array<V, kVectors> q;
          ATTN_UNROLL for (int c = 0; c < kVectors; ++c) q[c] = V::load(query[0] + d + c * kLanes);
          ATTN_UNROLL for (int k = 0; k < kKeys; ++k, row += step) {
            constexpr int kTogether = std::min(kKeys, 4);
            if (k % kTogether == 0 && fetches) [[unlikely]]
              fetching.template step<bytes(kTogether * kVectors * kLanes)>();
            V all = sum[k];
            constexpr int kLoaded = std::min(kVectors, kPart);
            ATTN_UNROLL for (int c = 0; c < kVectors; c += kLoaded) {
              Array<V, kLoaded> x;
              load_all<kLoaded>(x, row, in_block + c * kLanes);
              ATTN_UNROLL for (int i = 0; i < kLoaded; ++i) all += q[c + i] * x[i];
            }
            all.keep_order();
            sum[k] = all;
          }
        } else {
          constexpr int kLoaded = std::min(kVectors, kPart);
          ATTN_UNROLL for (int part = 0; part < kVectors; part += kLoaded) {
            Array<Array<V, kLoaded>, kKeys> x;
            ATTN_UNROLL for (int k = 0; k < kKeys; ++k)
                load_once<kLoaded>(x[k], row + k * step, in_block + part * kLanes);
            ATTN_UNROLL for (int c = 0; c < kLoaded; ++c) {
              ATTN_UNROLL for (int r = 0; r < R; ++r) {
                fetch<R, bytes(kKeys * kLanes)>(fetches, r, fetching);
                V q = V::load(query[r] + d + (part + c) * kLanes);
                q.keep_in_register();
                ATTN_UNROLL for (int k = 0; k < kKeys; ++k) sum[r * kKeys + k] += q * x[k][c];
              }
            }
          }
        }
      };
      Index d = 0;
      if constexpr (kChunk > 1)
        ATTN_NO_UNROLL for (; d + kChunk * kLanes <= head_dim; d += kChunk * kLanes) add.template operator()<kChunk>(d);
      // Two vectors at a time: one at a time took 1.2 times as long with g++ 12 on Zen 5, for four rows with keys in
      // L1.
      ATTN_UNROLL_TWICE for (; d + kLanes <= head_dim; d += kLanes) add.template operator()<1>(d);
      if (rest > 0) add_ends<R, kKeys>(sum, query, at, step, head_dim);
      T* const scores = m.scores + first * m.row + j;
      if constexpr (R == 1) {
        ATTN_UNROLL for (int s = 0; s < kSums; s += kLanes) V::sum_lanes(sum + s).store(scores + s);
      } else {
        Array<T, kSums> total;
        ATTN_UNROLL for (int s = 0; s < kSums; s += kLanes) V::sum_lanes(sum + s).store(total + s);
        ATTN_UNROLL for (int r = 0; r < R; ++r) {
          if (r >= count) break;
          if (few)
            scores[r * m.row] = total[r * kKeys];
          else
            std::copy_n(total + r * kKeys, kKeys, scores + r * m.row);
        }
      }
    }
  }

  static ATTN_INLINE V load(const std::byte* row, Index first) { return Packing::template load<kStored>(row, first); }
  /// Loads n vectors, a part of a block at a time.
  template <int n>
  static ATTN_INLINE void load_all(V* x, const std::byte* row, Index first) {
    constexpr int kLoaded = std::min(n, kPart);
    ATTN_UNROLL for (int i = 0; i < n; i += kLoaded)
        Packing::template load_some<kStored, kLoaded>(x + i, row, first + i * kLanes);
  }
  /// Loads vectors into registers for several products. Otherwise, g++ 12 with -march=native on Zen 5 loaded keys and
  /// queries again for each product, and four queries took 2.2 times as long.
  template <int n>
  static ATTN_INLINE void load_once(V* x, const std::byte* row, Index first) {
    load_all<n>(x, row, first);
    ATTN_UNROLL for (int i = 0; i < n; ++i) {
      V in_register = x[i];  // g++ 12 writes an array element to memory
      in_register.keep_in_register();
      x[i] = in_register;
    }
  }

  /// Adds the products of the elements at the end of rows that do not fill a vector. Elements that were multiplied
  /// before are set to 0 in both factors, because either may not be finite.
  template <int R, int kKeys>
  static ATTN_INLINE void add_ends(V* sum, const T* const* query, const std::byte* at, Index step, Index head_dim) {
    Array<typename V::Int, kLanes> is_new;
    const Index rest = rest_of(head_dim);
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i) is_new[i] = i < kLanes - rest ? 0 : -1;
    Array<V, R> q;
    ATTN_UNROLL for (int r = 0; r < R; ++r) q[r] = load_end(query[r], head_dim).zeroed_unless(is_new);
    ATTN_UNROLL for (int k = 0; k < kKeys; ++k, at += step) {
      const V x = load_end(at, head_dim).zeroed_unless(is_new);
      ATTN_UNROLL for (int r = 0; r < R; ++r) sum[r * kKeys + k] += q[r] * x;
    }
  }

  /// Some of the keys of a call, and the sums over the keys before them.
  struct Piece {
    Index begin, end;
    ValueRun run;
    T* sums;
  };

  /// Multiplies the weights of R rows from `first` on, or of the remaining rows if fewer, by all columns of values.
  template <int R>
  static ATTN_INLINE void value_rows(const TileMemory<T>& m, Index rows, Index first, const Piece& piece,
                                     const RowsToRead& value, Index v_dim, Prefetcher& fetching) {
    Index c = 0;
    const auto add = [&]<int kVectors>() __attribute__((always_inline)) {
      for (; c + kVectors * kLanes <= v_dim; c += kVectors * kLanes)
        value_columns<R, kVectors>(m, rows, first, piece, value, c, v_dim, fetching);
    };
    if constexpr (R == 1) {
      add.template operator()<8>();
      add.template operator()<4>();
      add.template operator()<2>();
    } else {
      add.template operator()<kRowVectors>();
    }
    for (; c < v_dim; c += kLanes) value_columns<R, 1>(m, rows, first, piece, value, c, v_dim, fetching);
  }

  /// Like value_rows(), for kVectors vectors of columns from `c` on. If kVectors is 1, the vector may be the last of a
  /// row and need not be full.
  ///
  /// For a single query, several keys have separate sums. Eight vectors of columns hide the latency of an FMA with the
  /// sums of one key; fewer vectors need three keys. Two keys were slower if each head's values followed its keys, so
  /// that the values of two heads were not contiguous: 8 heads of 128 values of 64 floats took 1.25 times as long from
  /// L2 with AVX-512, and 256 values of 32 floats 1.2 times as long with AVX2. The cause is not known, but each load's
  /// addresses then advance by a power of two. Four keys were no better, and one key took 1.1 times as long with values
  /// in L1.
  template <int R, int kVectors>
  static ATTN_INLINE void value_columns(const TileMemory<T>& m, Index rows, Index first, const Piece& piece,
                                        const RowsToRead& value, Index c, Index v_dim, Prefetcher& fetching) {
    constexpr int kKeys = R * kVectors >= 8 || R > 1 ? 1 : 3;
    const Index count = std::min<Index>(R, rows - first), stride = bytes(value.stride);
    const Index rest = kVectors == 1 && c + kLanes > v_dim ? v_dim - c : 0;
    const bool fetches = !fetching.is_empty();
    Array<const T*, R> weights;
    ATTN_UNROLL for (int r = 0; r < R; ++r) weights[r] = m.scores + (first + std::min<Index>(r, count - 1)) * m.row;
    Array<Array<Array<V, kVectors>, R>, kKeys> sum = {};
    if (!piece.run.is_first) {
      ATTN_UNROLL for (int r = 0; r < R; ++r) {
        const T* const from = piece.sums + (first + r) * v_dim + c;
        if (r < count) {
          ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[0][r][v] = load_columns(from + v * kLanes, rest);
        }
      }
    }
    // `row` points to a block, and `column` is the first vector's column relative to it.
    const Index column = kVectors * kLanes % kBlock == 0 ? 0 : c;
    const std::byte* row = value.data + piece.begin * stride + (rest > 0 ? 0 : bytes(c - column));
    const auto add = [&](Array<V, kVectors> * to, Index j) __attribute__((always_inline)) {
      Array<V, kVectors> x;
      if (rest > 0)
        x[0] = load_end(row, v_dim);
      else if constexpr (R > 1)
        load_once<kVectors>(x, row, column);
      else
        load_all<kVectors>(x, row, column);
      ATTN_UNROLL for (int r = 0; r < R; ++r) {
        if constexpr (R > 1) fetch<R, bytes(kVectors * kLanes)>(fetches, r, fetching);
        const T w = weights[r][j];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) to[r][v] += x[v] * w;
      }
      row += stride;
    };
    Index j = piece.begin;
    ATTN_NO_UNROLL for (; j + kKeys <= piece.end; j += kKeys) {
      if (R == 1 && fetches) [[unlikely]]
        fetching.template step<bytes(kKeys * kVectors * kLanes)>();
      ATTN_UNROLL for (int k = 0; k < kKeys; ++k) add(sum[k], j + k);
    }
    if constexpr (kKeys > 1) {
      ATTN_NO_UNROLL for (; j < piece.end; ++j) add(sum[0], j);
    }
    ATTN_UNROLL for (int r = 0; r < R; ++r) {
      if (r < count) {
        T* const to = (piece.run.is_last ? m.out : piece.sums) + (first + r) * v_dim + c;
        const T rescale = m.rescale[first + r];  // read once: the compiler cannot know that `to` is elsewhere
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          V all = sum[0][r][v];
          ATTN_UNROLL for (int k = 1; k < kKeys; ++k) all += sum[k][r][v];
          if (piece.run.is_last) all += load_columns(to + v * kLanes, rest) * rescale;
          store_columns(to + v * kLanes, rest, all);
        }
      }
    }
  }

  /// Loads a vector of columns or, if `rest` is not 0, the last `rest` columns into its last lanes, like load_end().
  static ATTN_INLINE V load_columns(const T* from, Index rest) {
    return rest > 0 ? load_end(from, rest) : V::load(from);
  }
  static ATTN_INLINE void store_columns(T* to, Index rest, const V& x) {
    if (rest == 0) return x.store(to);
    Array<T, kLanes> numbers;
    x.store(numbers);
    copy_elements<sizeof(T)>(to, numbers + kLanes - rest, rest);
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
