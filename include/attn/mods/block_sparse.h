// block_sparse(): a mask given as a map of blocks.
#pragma once

#include <algorithm>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/broadcast.h"
#include "attn/core/mods/hints.h"
#include "attn/mod.h"

namespace attn {

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
    const auto kept = [t = held.over(blocks, "block_sparse", "(batch, heads, query blocks, key blocks)"), block_q,
                       block_kv, first = problem.q_offset](Index batch, Index head, Index q, Index kv) {
      return t(Position{batch, head, (q - first) / block_q, kv / block_kv});
    };
    return mask_mod([kept](const Position& p) { return bool(kept(p.batch, p.head, p.q, p.kv)); },
                    [kept, block_q, block_kv, first = problem.q_offset](const Tile& t) {
                      if (detail::is_wide(t.q) || detail::is_wide(t.kv)) return Coverage::some;
                      bool any = false, all = true;
                      for (Index q = t.q.begin; q < t.q.end; q += block_q - (q - first) % block_q)
                        for (Index kv = t.kv.begin; kv < t.kv.end; kv += block_kv - kv % block_kv) {
                          const bool k = kept(t.batch, t.head, q, kv);
                          any |= k;
                          all &= k;
                        }
                      return all ? Coverage::all : any ? Coverage::some : Coverage::none;
                    },
                    [kept, block_q, block_kv, first = problem.q_offset](const Tile& t) {
                      if (detail::is_wide(t.q)) return t.kv;
                      Range visited{};
                      for (Index q = t.q.begin; q < t.q.end; q += block_q - (q - first) % block_q)
                        for (Index kv = t.kv.begin; kv < t.kv.end; kv += block_kv - kv % block_kv)
                          if (kept(t.batch, t.head, q, kv))
                            visited = detail::hull(visited, {kv, kv + block_kv - kv % block_kv});
                      return visited;
                    });
  });
}

}  // namespace attn
