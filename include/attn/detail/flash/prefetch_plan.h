// Which rows of a call's tensors to fetch from memory ahead of their use.
#pragma once

#include <algorithm>

#include "attn/detail/flash/pass_context.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// What to fetch while the keys `keys`, of those visited, are worked on: what is needed next and not in the cache yet.
/// `following` are the queries that come after these; `tiles` of queries there are in a head.
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
  // Of keys that lie apart, or end before, nothing is fetched; a block is never empty, so that a query stands in for
  // them.
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
    // The head has been read with its first tile of queries. Those of the next head are shared out among this head's
    // tiles of queries, because memory has no time for them all at once where sequences are short.
    QueryTile neighbour = queries;
    if (++neighbour.head == problem.heads) neighbour = {std::min(queries.batch + 1, problem.batch - 1), 0, 0, {}};
    if (tiles == 1) return whole_tile(neighbour, keys.begin);
    const Index turn = (keys.begin / kKeyTile * 2 + queries.tile) % tiles;
    const Index j = keys.begin + turn * kHalf;
    if (turn < 2) return {{key(neighbour, j), value(neighbour, j), query(0), output(0)}};
  } else if (keys.begin == visited.begin && keys.end < visited.end) {
    // A window that moves on by a tile of queries: of the keys that it reaches next, the first are new.
    const Range next = pass.visited(following);
    if (next.begin < visited.begin) return whole_tile(following, next.begin);
  }
  return {{query(0), output(0), query(kHalf), output(kHalf)}};
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
