// strided_sparse() and fixed_sparse(): the two factorised patterns of Child et al. 2019.
#pragma once

#include <algorithm>

#include "attn/core/base/check.h"
#include "attn/core/mods/grouping/grouped_mask.h"
#include "attn/core/mods/hints.h"
#include "attn/mods/sliding_window.h"

namespace attn {

/// Keeps the query's own key, the `stride` keys before it, and every earlier key whose distance is a multiple of
/// `stride` (Child et al. 2019, section 4.3, "strided", both heads combined). It is causal and keeps about q_len *
/// (stride + kv_len / stride) pairs.
///
///     stride 2:  1 0 0 0 0
///                1 1 0 0 0
///                1 1 1 0 0
///                0 1 1 1 0
///                1 0 1 1 1
///
/// The work is proportional to the kept pairs: queries, and the keys more than `stride` before them, are grouped by
/// their position modulo `stride`, because within such a group every earlier key is kept. Grouping takes O(batch *
/// heads * q_len) extra memory. Tokens are grouped only if the groups are long enough for that to pay off, and never
/// inside any_of(), all_of(), not_() and block_mask(). Without groups, tiles of neighbouring tokens are visited, and
/// nearly every tile has a kept pair.
/// @throws std::invalid_argument for a stride below 1.
inline auto strided_sparse(Index stride) {
  detail::require(stride > 0, "strided_sparse(", stride, "): stride must be positive");
  stride = std::min(stride, detail::kUnbounded);
  const auto mask = mask_mod(
      [stride](const Position& p) {
        const Index distance = p.q - p.kv;
        return bool((distance >= 0) & ((distance <= stride) | (distance % stride == 0)));
      },
      [stride](const Tile& t) {
        const Range all = detail::distances(t), past = intersect(all, {0, detail::kUnbounded});
        if (past.empty()) return Coverage::none;
        if (past.begin > stride && !detail::has_multiple(past, stride)) return Coverage::none;
        const bool near = past.end <= stride + 1, single = past.size() == 1;
        return past == all && (near || single || stride == 1) ? Coverage::all : Coverage::some;
      },
      [](const Tile& t) {
        return Range{t.kv.begin, t.q.end};
      });
  return detail::grouped_mask(mask, sliding_window(stride), detail::at_distances(2, detail::kUnbounded), {stride, {}});
}

/// Keeps the keys at or before the query in its own block of `block` positions, and the last `summary` keys of every
/// earlier block (Child et al. 2019, section 4.3, "fixed", both heads combined). It is causal.
///
///     block 3, summary 1:  1 0 0 0 0
///                          1 1 0 0 0
///                          1 1 1 0 0
///                          0 0 1 1 0
///                          0 0 1 1 1
///
/// The work is proportional to the kept pairs, with the same limits and extra memory as strided_sparse(): keys with the
/// same index in their blocks form a group, and each query sees `summary` groups. Tokens are not grouped if `summary`
/// is more than 32, because the output is rounded once more for each group.
/// @throws std::invalid_argument unless 0 <= summary <= block and block >= 1.
inline auto fixed_sparse(Index block, Index summary) {
  detail::require(block > 0 && summary >= 0 && summary <= block, "fixed_sparse(", block, ", ", summary,
                  "): block must be positive, and summary must be in 0..block");
  const Index first = block - summary;  // from this index on, the keys of a block are seen by all later blocks
  const auto block_of = [block](Index position) { return detail::floor_div(position, block); };
  const auto mask = mask_mod(
      [=](const Position& p) {
        const int is_summary = detail::floor_mod(p.kv, block) >= first, same_block = block_of(p.kv) == block_of(p.q);
        return bool(int(p.kv <= p.q) & (is_summary | same_block));  // without a branch
      },
      [=](const Tile& t) {
        const Index last = t.kv.end - 1;
        if (t.kv.begin >= t.q.end) return Coverage::none;
        const bool one_block = block_of(t.kv.begin) == block_of(last);
        const bool summaries = one_block && detail::floor_mod(t.kv.begin, block) >= first;
        const bool own = one_block && block_of(t.q.begin) == block_of(last) && block_of(t.q.end - 1) == block_of(last);
        if (last <= t.q.begin && (summaries || own || first == 0)) return Coverage::all;
        // No key is in a summary, and no query is in the keys' block.
        const bool no_summary = one_block && detail::floor_mod(last, block) < first;
        return no_summary && block_of(t.q.begin) > block_of(last) ? Coverage::none : Coverage::some;
      },
      [](const Tile& t) {
        return Range{t.kv.begin, t.q.end};
      });
  const auto own_block = detail::keep_ranges([=](const Position& p) { return Range{block_of(p.q) * block, p.q + 1}; });
  // Within a group, keys are numbered by their blocks.
  const auto earlier_blocks = detail::keep_ranges([=](const Position& p) {
    return Range{detail::kFirstKey, block_of(p.q)};
  });
  return detail::grouped_mask(mask, own_block, earlier_blocks, {block, Range{first, block}});
}

}  // namespace attn
