// Which rows of a call's tensors to fetch from memory ahead of their use.
#pragma once

#include <algorithm>

#include "attn/detail/flash/pass.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// What to fetch while `queries` meet `keys`: what is needed next and not in the cache yet. `visited` are all keys that
/// these queries meet, `following` the queries that come next, and `tiles` is the number of tiles of queries in a head.
template <class T>
PrefetchPlan plan_prefetch(const PassContext<T>& pass, Index tiles, const QueryTile& queries,
                           const QueryTile& following, const Range& keys, const Range& visited) {
  using Block = PrefetchPlan::Block;
  const CallTensors<T>& t = pass.tensors;
  const Problem& problem = t.problem;
  constexpr Index kHalf = kKeyTile / 2;
  const auto block = [](const RowsToRead& rows, Index columns) {
    const Index size = size_of_number<T>(rows.dtype);
    return Block{rows.data, rows.stride * size, columns * size};
  };
  const auto query = [&](Index row) { return block(t.query(following, row), problem.head_dim); };
  // Keys that lie in two pages, or behind the last page, are not fetched. A block of rows to fetch must not be empty,
  // so it is a query instead.
  const auto key = [&](const QueryTile& of, Index j) {
    return t.k.in_one_piece({j, j + kHalf}) ? block(t.key(of, j), problem.head_dim) : query(0);
  };
  const auto value = [&](const QueryTile& of, Index j) {
    return t.v.in_one_piece({j, j + kHalf}) ? block(t.value(of, j), problem.v_dim) : query(0);
  };
  const auto output = [&](Index row) { return block(t.output(queries, row), problem.v_dim); };
  const auto whole_tile = [&](const QueryTile& of, Index j) {
    return PrefetchPlan{{key(of, j), value(of, j), key(of, j + kHalf), value(of, j + kHalf)}};
  };
  if (!t.stay_in_cache(visited.size()) && keys.end < visited.end) return whole_tile(queries, keys.end);
  if (t.stay_in_cache(problem.kv_len)) {
    // This head's keys came into the cache with its first tile of queries. The keys of the next head are shared out
    // among all tiles of queries of this one: where sequences are short, memory needs longer for all of them than one
    // tile takes.
    QueryTile neighbour = queries;
    if (++neighbour.head == problem.heads) neighbour = {std::min(queries.batch + 1, problem.batch - 1), 0, 0, {}};
    if (tiles == 1) return whole_tile(neighbour, keys.begin);
    const Index turn = (keys.begin / kKeyTile * 2 + queries.tile) % tiles;
    const Index j = keys.begin + turn * kHalf;
    if (turn < 2) return {{key(neighbour, j), value(neighbour, j), query(0), output(0)}};
  } else if (keys.begin == visited.begin && keys.end < visited.end) {
    // The window moves on, backwards, by a tile of queries: the first keys that it reaches next are new.
    const Range next = pass.visited(following);
    if (next.begin < visited.begin) return whole_tile(following, next.begin);
  }
  return {{query(0), output(0), query(kHalf), output(kHalf)}};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
