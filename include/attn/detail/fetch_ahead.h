// Layer 3: the tensors of a call, where the rows of a tile lie in them, and which of them to fetch from memory ahead.
#pragma once

#include <algorithm>

#include "attn/detail/query_tiles.h"
#include "attn/detail/tile_mods.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// A tile of queries: the rows `rows` of a head, of which it is tile number `tile`.
struct Queries {
  Index batch;
  Index head;
  Index tile;
  Range rows;
};

template <class T>
struct CallTensors {
  TensorView<T, 4> out;
  TensorView<T, 3> lse;  ///< null: not wanted
  TensorView<const T, 4> q, k, v;
  const Problem& problem;

  /// All pairs of these queries.
  Tile tile_of(const Queries& queries) const {
    return {queries.batch,
            queries.head,
            {problem.q_offset + queries.rows.begin, problem.q_offset + queries.rows.end},
            {0, problem.kv_len}};
  }

  /// The rows of these queries in `q` and `out`, from number `row` on.
  Rows<T> query(const Queries& queries, Index row = 0) const {
    return {first_row(q, queries.batch, queries.head, queries.rows.begin + row), q.stride(2)};
  }
  Rows<T> output(const Queries& queries, Index row = 0) const {
    return {output_data(queries) + row * out.stride(2), out.stride(2)};
  }
  T* output_data(const Queries& queries) const {
    return first_row(out, queries.batch, queries.head, queries.rows.begin);
  }

  /// The rows of keys and values that these queries see, from key `j` on.
  Rows<T> key(const Queries& queries, Index j) const {
    return {first_row(k, queries.batch, problem.kv_head(queries.head), j), k.stride(2)};
  }
  Rows<T> value(const Queries& queries, Index j) const {
    return {first_row(v, queries.batch, problem.kv_head(queries.head), j), v.stride(2)};
  }

 private:
  template <class U>
  static U* first_row(const TensorView<U, 4>& t, Index batch, Index head, Index row) {
    return t.data() + batch * t.stride(0) + head * t.stride(1) + row * t.stride(2);
  }
};

/// What to fetch while the keys `keys`, of those visited, are worked on: what is needed next and not in the cache yet.
/// `following` are the queries that come after these; `tiles` of queries there are in a head. Null mods: none.
template <class T>
FetchAhead<T> fetch_ahead(const CallTensors<T>& t, const TileMods<T>* mods, Index tiles, const Queries& queries,
                          const Queries& following, const Range& keys, const Range& visited) {
  using Block = typename FetchAhead<T>::Block;
  const Problem& problem = t.problem;
  // Do these keys and values of a head stay in the L2 cache from one tile of queries to the next? They may have a
  // quarter of the 2 MiB that today's server cores have, half of what others do.
  const auto stay_in_cache = [&](Index n) {
    constexpr Index kBytes = 512 * 1024;
    return n * (problem.head_dim + problem.v_dim) * static_cast<Index>(sizeof(T)) <= kBytes;
  };
  const auto key = [&](const Queries& of, Index j) { return Block{t.key(of, j), problem.head_dim}; };
  const auto value = [&](const Queries& of, Index j) { return Block{t.value(of, j), problem.v_dim}; };
  const auto query = [&](Index row) { return Block{t.query(following, row), problem.head_dim}; };
  const auto output = [&](Index row) { return Block{t.output(queries, row), problem.v_dim}; };
  constexpr Index kHalf = kKeyTile / 2;
  const auto whole_tile = [&](const Queries& of, Index j) {
    return FetchAhead<T>{{key(of, j), value(of, j), key(of, j + kHalf), value(of, j + kHalf)}};
  };
  if (!stay_in_cache(visited.size()) && keys.end < visited.end) return whole_tile(queries, keys.end);
  if (stay_in_cache(problem.kv_len)) {
    // The head has been read with its first tile of queries. Those of the next head are shared out among this head's
    // tiles of queries, because memory has no time for them all at once where sequences are short.
    Queries neighbour = queries;
    if (++neighbour.head == problem.heads) neighbour = {std::min(queries.batch + 1, problem.batch - 1), 0, 0, {}};
    if (tiles == 1) return whole_tile(neighbour, keys.begin);
    const Index turn = (keys.begin / kKeyTile * 2 + queries.tile) % tiles;
    const Index j = keys.begin + turn * kHalf;
    if (turn < 2) return {{key(neighbour, j), value(neighbour, j), query(0), output(0)}};
  } else if (keys.begin == visited.begin && keys.end < visited.end) {
    // A window that moves on by a tile of queries: of the keys that it reaches next, the first are new.
    const Range next = mods->kv_range(t.tile_of(following));
    if (next.begin < visited.begin) return whole_tile(following, next.begin);
  }
  return {{query(0), output(0), query(kHalf), output(kHalf)}};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
