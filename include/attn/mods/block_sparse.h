// block_sparse(): a mask given as a map of blocks.
#pragma once

#include <algorithm>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/broadcast.h"
#include "attn/core/mods/hints.h"

namespace attn {

namespace detail {

/// A mask of blocks of pairs: block(batch, head, row, column) is the coverage of one. `first` is the block of row 0 and
/// column 0, and all have its size.
template <class Keep, class Block>
auto mask_of_blocks(Keep keep, Block block, const Tile& first) {
  const auto for_each = [block, q = first.q, kv = first.kv](const Tile& t, const auto& visit) {
    const Index rows = q.size(), columns = kv.size();
    for (Index r = (t.q.begin - q.begin) / rows; q.begin + r * rows < t.q.end; ++r)
      for (Index c = (t.kv.begin - kv.begin) / columns; kv.begin + c * columns < t.kv.end; ++c)
        visit(block(t.batch, t.head, r, c), Range{kv.begin + c * columns, kv.end + c * columns});
  };
  return mask_mod(
      std::move(keep),
      [for_each](const Tile& t) {
        if (is_wide(t.q) || is_wide(t.kv)) return Coverage::some;
        bool any = false, all = true;
        for_each(t, [&](Coverage kept, const Range&) {
          any |= kept != Coverage::none;
          all &= kept == Coverage::all;
        });
        return all ? Coverage::all : any ? Coverage::some : Coverage::none;
      },
      [for_each](const Tile& t) {
        if (is_wide(t.q)) return t.kv;
        Range visited{};
        for_each(t, [&](Coverage kept, const Range& keys) {
          if (kept != Coverage::none) visited = hull(visited, keys);
        });
        return visited;
      });
}

}  // namespace detail

/// Keeps the pairs whose block, (query row / block_q, key / block_kv), is true in `map`. The map may be any tensor of
/// bool that attn::view accepts, of rank 2 to 4. Its dimensions are aligned from the right with (batch, heads, blocks
/// of queries, blocks of keys), and dimensions of size 1 are broadcast. The last blocks may extend past the end. Query
/// rows are counted from the first query of the call.
///
///     map {1 0; 1 1}, blocks of 2:  1 1 0 0
///                                   1 1 0 0
///                                   1 1 1 1
///
/// If block_q is a multiple of 48 and block_kv of 64, the work is proportional to the kept pairs. The mod keeps a
/// temporary alive; any other tensor is only viewed and must outlive the mod.
/// @throws std::invalid_argument for a block size below 1, and from the attention call if the map does not fit.
template <class X>
auto block_sparse(X&& map, Index block_q, Index block_kv) {
  detail::require(block_q > 0 && block_kv > 0, "block_sparse: block_q is ", block_q, " and block_kv is ", block_kv,
                  "; both must be positive");
  block_q = std::min(block_q, detail::kUnbounded);
  block_kv = std::min(block_kv, detail::kUnbounded);
  auto held = detail::broadcast_tensor(std::forward<X>(map));
  static_assert(std::is_same_v<decltype(held), detail::BroadcastTensor<bool>>,
                "attn::block_sparse: the map must hold bool (true = keep)");
  return bind_mod([held = std::move(held), block_q, block_kv](const Problem& problem) {
    Problem blocks = problem;
    blocks.q_len = detail::ceil_div(problem.q_len, block_q);
    blocks.kv_offset = detail::floor_div(problem.kv_offset, block_kv);
    blocks.kv_len = detail::ceil_div(problem.keys().end, block_kv) - blocks.kv_offset;
    blocks.q_offset = 0;
    const auto table = held.over(blocks, "block_sparse", "(batch, heads, query blocks, key blocks)");
    const auto block = [table](Index b, Index h, Index row, Index column) {
      return table(Position{b, h, row, column}) ? Coverage::all : Coverage::none;
    };
    const auto keep = [table, block_q, block_kv, first = problem.q_offset](const Position& p) {
      return bool(table(Position{p.batch, p.head, (p.q - first) / block_q, p.kv / block_kv}));
    };
    const Range queries{problem.q_offset, problem.q_offset + block_q}, keys{0, block_kv};
    return detail::mask_of_blocks(keep, block, {0, 0, queries, keys});
  });
}

}  // namespace attn
