// tree(): a mask for trees of drafted tokens, for speculative decoding.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "attn/detail/base/ranges.h"
#include "attn/detail/mods/distances.h"
#include "attn/detail/mods/lengths.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// Entry and exit times of each node in a depth-first walk of the tree. The walk enters a node's descendants in
/// between.
struct TreeWalk {
  std::vector<Index> enter, leave;

  explicit TreeWalk(std::span<const Index> parents) : enter(parents.size()), leave(parents.size()) {
    const std::size_t n = parents.size();
    // First the sizes of subtrees, children before parents; then the times of entry, parents before children.
    std::vector<Index> size(n, 1), next(n + 1, 0);
    for (std::size_t i = n; i-- > 0;)
      if (parents[i] >= 0) size[static_cast<std::size_t>(parents[i])] += size[i];
    for (std::size_t i = 0; i < n; ++i) {
      Index& place = next[parents[i] < 0 ? n : static_cast<std::size_t>(parents[i])];
      enter[i] = place;
      leave[i] = place + size[i];
      place = leave[i];
      next[i] = enter[i] + 1;
    }
  }
};

}  // namespace detail

/// Lets each node of a tree of drafted tokens see a context, its ancestors and itself (Miao et al. 2024, "tree
/// attention"). The queries are the nodes. The last keys of the call are the same nodes, and all keys before them are
/// the context, which every node sees. parents[i] is the parent of node i, or -1 for a node that follows the context
/// directly.
///
///     context of 2, parents {-1, 0, 0, 1}:  1 1  1 0 0 0
///                                           1 1  1 1 0 0
///                                           1 1  1 0 1 0
///                                           1 1  1 1 0 1
///
/// With a kv_offset, the last keys need not be the nodes; the nodes are then the keys at the positions of the queries.
///
/// The position of a node is that of the first node plus the node's depth, so siblings share a position. The rope of a
/// cache or layer rotates queries and keys by their rows. For every tree but a chain this is wrong, and the call is
/// rejected. Use a cache without a rope, and rotate queries and keys with rope.rotate(x, positions) beforehand.
/// @throws std::invalid_argument for a parent that does not come before its node, and from the attention call if there
/// is not one parent per query, there are fewer keys than queries, or a rope rotates a node whose depth is not its row.
inline auto tree(const Indices& given) {
  const std::span<const Index> parents = given.values;
  for (std::size_t i = 0; i < parents.size(); ++i)
    detail::require(parents[i] >= -1 && parents[i] < static_cast<Index>(i), "tree: parents[", i,
                    "] must be an earlier node, or -1, but is ", parents[i]);
  // The first node whose depth differs from its row; in a chain they are equal.
  Index beside = 0, depth = 0;
  while (beside < static_cast<Index>(parents.size()) && parents[static_cast<std::size_t>(beside)] == beside - 1)
    ++beside;
  if (beside < static_cast<Index>(parents.size())) depth = parents[static_cast<std::size_t>(beside)] + 1;
  return bind_mod([walk = detail::TreeWalk(parents), beside, depth](const Problem& problem) {
    const Index nodes = static_cast<Index>(walk.enter.size());
    detail::require(nodes == problem.q_len, "tree has ", nodes, " nodes for ", problem.q_len, " queries");
    detail::require(nodes <= problem.kv_len || problem.has_part_of_keys, "tree: the last keys must be its ", nodes,
                    " nodes, but there are only ", problem.kv_len, " keys");
    detail::require(!problem.has_rope || beside == nodes, "tree: node ", beside, " has depth ", depth,
                    ", but the rope would rotate it as if it had depth ", beside,
                    ", its row; use a cache without a rope, and rotate keys and queries beforehand: rope.rotate(x, "
                    "positions), where a position is that of the first node plus the depth");
    const Index first = problem.q_offset, context = problem.has_part_of_keys ? first : problem.kv_len - nodes;
    const Index *enter = walk.enter.data(), *leave = walk.leave.data();
    return mask_mod(
        [=](const Position& p) {
          const Index node = p.kv - context;
          return node < 0 || (enter[node] <= enter[p.q - first] && enter[p.q - first] < leave[node]);
        },
        [=](const Tile& t) {
          if (detail::is_wide(t.q) || detail::is_wide(t.kv)) return Coverage::some;
          Range entered{0, 0};  // the range of entry times of the tile's queries
          for (Index node = t.q.begin - first; node < t.q.end - first; ++node)
            entered = detail::hull(entered, {enter[node], enter[node] + 1});
          bool any = t.kv.begin < context, all = true;
          for (Index node = std::max<Index>(t.kv.begin - context, 0); node < t.kv.end - context; ++node) {
            any |= enter[node] < entered.end && leave[node] > entered.begin;
            all &= enter[node] <= entered.begin && leave[node] >= entered.end;
          }
          return all ? Coverage::all : any ? Coverage::some : Coverage::none;
        },
        [=](const Tile& t) {
          return Range{t.kv.begin, context + t.q.end - first};
        });
  });
}

}  // namespace attn
