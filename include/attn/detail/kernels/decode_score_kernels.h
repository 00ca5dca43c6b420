// The score product of single queries: lanes run along head_dim.
#pragma once

#include <algorithm>

#include "attn/detail/kernels/decode_row_kernels.h"
#include "attn/detail/kernels/packing_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// How many queries are multiplied at a time: each vector of keys or values that is loaded serves four multiplications.
constexpr int kQueriesAtATime = 4;

/// The bytes of a number. Its type is a constant in the kernels for single queries: asked for each vector that is
/// loaded, values of 64 floats took 1.5 times as long with AVX2.
template <class T, DType kDType>
constexpr Index kSizeOf = kDType == DType::native ? static_cast<Index>(sizeof(T))
                          : kDType == DType::i8   ? 1
                                                  : 2;

/// How many of kRows queries are multiplied by what a step reads, kBytes, until the next kLines lines are asked for.
///
/// Four queries wait for memory, and lines that are asked for one by one come faster: 128 floats a key from 256 MiB at
/// 1.05 of the speed of two lines together, in pages of 64 tokens at 1.06, with four together at 0.9. More queries are
/// bound by instructions, of which two lines together take fewer: 32 queries a key ran at 1.2 of the speed.
template <int kRows, Index kBytes, int kLines>
constexpr int kRowsApart = static_cast<int>(std::clamp<Index>(kLines* kCacheLine* kRows / kBytes, 1, kRows));

/// The lines that are asked for together, 0 where none are, by a step over kBytes of numbers of kDType for kRows of
/// `rows` queries. Calls use.template operator()<lines>(). Loops that ask for nothing are a tenth faster than ones that
/// might; for numbers of 16 bits, which take longer to multiply, the gain is too small to compile them twice.
template <DType kDType, int kRows, Index kBytes, class Use>
ATTN_INLINE void with_lines_together(Index rows, const Prefetcher& fetching, const Use& use) {
  if constexpr (kDType == DType::native) {
    if (fetching.is_empty()) return use.template operator()<0>();
    if constexpr (kRowsApart<kRows, kBytes, 1> != kRowsApart<kRows, kBytes, 2>)
      if (rows <= kQueriesAtATime) return use.template operator()<1>();
  }
  use.template operator()<2>();
}

/// How many keys, or values, of so many bytes are multiplied by all queries before the next ones: what the first four
/// queries have read is still in L1 for the others, beside what is fetched, and so are the first columns of values for
/// the pass over the next ones. With eight queries for each key, M = 8192, D = 128, float from memory, products of four
/// queries after the other with all keys of a tile took 1.3 times as long, in L2 as long.
inline Index keys_in_l1(Index width) {
  constexpr Index kBytes = 16 * 1024, kStep = 8;
  return std::max(kBytes / std::max<Index>(width, 1) / kStep * kStep, kStep);
}

/// With 32 vector registers a step of four rows is 16 FMAs for 8 vectors loaded. kStored: what keys hold.
template <class T, int Bytes, int kRegisters, DType kStored = DType::native>
struct DecodeScoreKernels {
  using V = Vec<T, Bytes>;
  using Packing = PackingKernels<T, Bytes>;
  using Row = DecodeRowKernels<T, Bytes, kRegisters>;
  static constexpr int kLanes = V::kLanes;
  static_assert(kKeyTile % kLanes == 0, "whole vectors of scores are stored");
  static_assert(kKeyTile % (kRegisters / 2) == 0, "scores of keys are stored in groups");

  /// scores = query * keys. Fetches keys meanwhile.
  static ATTN_INLINE void score(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys, Index head_dim,
                                Prefetcher& fetching) {
    if (!fetching.is_empty()) {
      const Index groups = kLanes >= kQueriesAtATime ? ceil_div(rows, kQueriesAtATime) : rows;
      fetching.spread(fetching.score_lines(), groups * keys * (head_dim / kLanes * kLanes) * kSizeOf<T, kStored>);
    }
    score_all(m, rows, key, keys, head_dim, fetching);
  }

 private:
  /// Keys at a time: with the rows they make whole vectors of sums, enough of them to hide the latency of an FMA.
  template <int kRows>
  static constexpr int kv_rows_of() {
    return kRows == 1 ? kLanes : std::max(kLanes, kRegisters / 2) / kRows;
  }

  /// Four keys at a time: with sixteen, a single query took 5 % longer where keys come from the L2 cache.
  template <int kRows>
  static constexpr int kGroupOf = std::min(kv_rows_of<kRows>(), 4);
  template <int kRows>
  static constexpr Index kBytesOfStep = kGroupOf<kRows>* kLanes* kSizeOf<T, kStored>;

  static ATTN_INLINE void score_all(const TileMemory<T>& m, Index rows, const RowsToRead& key, Index keys,
                                    Index head_dim, Prefetcher& fetching) {
    Index r = 0;
    if constexpr (kLanes >= kQueriesAtATime) {
      const Index width = head_dim * kSizeOf<T, kStored>, part = rows > kQueriesAtATime ? keys_in_l1(width) : keys;
      for (Index j = 0; rows > 1 && j < keys; j += part) {
        TileMemory<T> to = m;
        to.scores += j;
        RowsToRead from = key;
        from.data += j * key.stride * kSizeOf<T, kStored>;
        for (r = 0; rows - r > 1; r = std::min(r + kQueriesAtATime, rows))
          score_rows<kQueriesAtATime>(to, rows, r, from, std::min(part, keys - j), head_dim, fetching);
      }
    }
    for (; r < rows; ++r) {
      TileMemory<T> row = m;
      row.query += r * head_dim;
      row.scores += r * m.row;
      if constexpr (kStored == DType::native && kLanes > 1)
        if (Row::score(row, key, keys, head_dim, fetching)) continue;
      score_rows<1>(row, 1, 0, key, keys, head_dim, fetching);
    }
  }

  /// Scores of kRows of the rows from `first` on, or of as many as there are. Where keys fill no group, the last group
  /// reaches back.
  template <int kRows>
  static ATTN_INLINE void score_rows(const TileMemory<T>& m, Index rows, Index first, const RowsToRead& key, Index keys,
                                     Index head_dim, Prefetcher& fetching) {
    constexpr int kKeys = kv_rows_of<kRows>(), kSums = kRows * kKeys;
    constexpr int kGroup = kGroupOf<kRows>;
    static_assert(kRows == 1 || kKeys == kGroup, "the sums of a group are those of all rows");
    constexpr Index size = kSizeOf<T, kStored>;
    const Index count = std::min<Index>(kRows, rows - first);
    // Of fewer keys than a group has, each is a group of its own, which reads it again and again.
    const bool few = keys < kGroup;
    const Index stride = key.stride * size, step = few ? 0 : stride, at_a_time = few ? 1 : kKeys;
    const Index last = keys - (few ? 1 : kGroup);
    const Index whole = head_dim / kLanes * kLanes;
    Array<const T*, kRows> query;
    ATTN_UNROLL for (int r = 0; r < kRows; ++r) query[r] = m.query + (first + std::min<Index>(r, count - 1)) * head_dim;
    T* const scores = m.scores + first * m.row;
    const Index row = m.row;
    for (Index j = 0; j < keys; j += at_a_time) {
      Array<V, kSums> sum = {};  // of row r and key a at r * kKeys + a
      Array<T, kSums> total;
      ATTN_NO_UNROLL for (int g = 0; g < kKeys; g += kGroup) {
        if (j + g >= keys) break;
        const std::byte* at = key.data + std::min(j + g, last) * stride;
        Array<V, kRows* kGroup> sum_of_group = {};
        with_lines_together<kStored, kRows, kBytesOfStep<kRows>>(
            rows, fetching, [&]<int kLines>() __attribute__((always_inline)) {
              add_products<kRows, kLines>(sum_of_group, query, at, step, whole, fetching);
            });
        ATTN_UNROLL for (int s = 0; s < kRows * kGroup; ++s) sum[g + s] = sum_of_group[s];
      }
      ATTN_UNROLL for (int s = 0; s < kSums; s += kLanes) V::sum_lanes(sum + s).store(total + s);
      if (whole < head_dim) {
        for (int g = 0; g < kKeys && j + g < keys; g += kGroup)
          for (int a = 0; a < kGroup; ++a)
            for (Index d = whole; d < head_dim; ++d) {
              const T k = load_number<T>(kStored, key.data + std::min(j + g, last) * stride + a * step + d * size);
              for (int r = 0; r < kRows; ++r) total[r * kKeys + g + a] += query[r][d] * k;
            }
      }
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        if (r < count)
          for (int g = 0; g < kKeys && j + g < keys; g += kGroup)
            std::copy_n(total + r * kKeys + g, kGroup, scores + r * row + std::min(j + g, last));
      }
    }
  }

  /// The products of kRows queries and a group of keys, which lie `step` bytes apart, in whole vectors. What several
  /// products take is kept in a register: with -march=native on Zen 5, g++ 12 read keys and queries again for each of
  /// them, and four queries took 2.2 times as long. kLines: see with_lines_together().
  template <int kRows, int kLines>
  static ATTN_INLINE void add_products(V* sum, const T* const* query, const std::byte* at, Index step, Index whole,
                                       Prefetcher& fetching) {
    constexpr int kGroup = kGroupOf<kRows>;
    constexpr Index size = kSizeOf<T, kStored>, kBytes = kBytesOfStep<kRows>;
    constexpr int kApart = kRowsApart<kRows, kBytes, kLines>;
    const auto add = [&](Index d) __attribute__((always_inline)) {
      Array<V, kGroup> k;
      ATTN_UNROLL for (int a = 0; a < kGroup; ++a) {
        // g++ 12 stores what is kept if it is an element of an array.
        V x = Packing::template load<kStored>(at + a * step);
        if constexpr (kRows > 1) x.keep_in_register();
        k[a] = x;
      }
      at += kLanes * size;
      ATTN_UNROLL for (int r = 0; r < kRows; ++r) {
        if constexpr (kLines > 0)
          if (r % kApart == 0) fetching.template step<kBytes * kApart / kRows>();
        V q = V::load(query[r] + d);
        q.keep_in_register();
        ATTN_UNROLL for (int a = 0; a < kGroup; ++a) sum[r * kGroup + a] += q * k[a];
      }
    };
    // Two at a time: a loop over each took 1.2 times as long with g++ 12 on Zen 5, with keys in L1. From memory, and
    // for numbers of 16 bits, it made no difference.
    if constexpr (kRows > 1 && kLines == 0) {
      ATTN_UNROLL_TWICE for (Index d = 0; d < whole; d += kLanes) add(d);
    } else {
      ATTN_NO_UNROLL for (Index d = 0; d < whole; d += kLanes) add(d);
    }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
