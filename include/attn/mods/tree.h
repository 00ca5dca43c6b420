// tree(): a mask for trees of drafted tokens, for speculative decoding.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/hints.h"
#include "attn/core/mods/lengths.h"

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

/// The depth of each node; 0 for one without a parent.
inline std::vector<Index> depths_of(std::span<const Index> parents) {
  std::vector<Index> depths;
  for (std::size_t i = 0; i < parents.size(); ++i) {
    require(parents[i] >= -1 && parents[i] < static_cast<Index>(i), "tree: parents[", i,
            "] must be an earlier node, or -1, but is ", parents[i]);
    depths.push_back(parents[i] < 0 ? 0 : depths[static_cast<std::size_t>(parents[i])] + 1);
  }
  return depths;
}

/// Makes the mask of tree() for a call.
class MakeTree {
 public:
  explicit MakeTree(std::span<const Index> parents) : depths_(depths_of(parents)), walk_(parents) {}

  /// The depth of each node. A layer appends the nodes to its cache at positions that follow from the depths.
  std::span<const Index> depths() const { return depths_; }

  auto operator()(const Problem& problem) const {
    const Index nodes = static_cast<Index>(depths_.size());
    require(nodes == problem.q_len, "tree has ", nodes, " nodes for ", problem.q_len, " queries");
    require(nodes <= problem.kv_len || problem.has_part_of_keys, "tree: the last keys must be its ", nodes,
            " nodes, but there are only ", problem.kv_len, " keys");
    const Index first = problem.q_offset, context = problem.has_part_of_keys ? first : problem.kv_len - nodes;
    if (problem.rope_positions)
      check_positions(*problem.rope_positions, context - problem.kv_offset, first - problem.kv_offset);
    const Index *enter = walk_.enter.data(), *leave = walk_.leave.data();
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
  }

 private:
  /// Checks that the rope rotates each node, on all axes, by the position after the context plus its depth. `key` and
  /// `query` are the rows of the first node.
  void check_positions(const RowPositions& positions, Index key, Index query) const {
    const Index first = key > 0 ? positions.largest(key - 1) + 1 : positions(key);
    for (Index n = 0; n < static_cast<Index>(depths_.size()) * positions.axes; ++n) {
      const Index i = n / positions.axes, axis = n % positions.axes, depth = depths_[static_cast<std::size_t>(i)],
                  of_key = positions(key + i, axis), of_query = positions(query + i, axis),
                  other = of_key != first + depth ? of_key : of_query;
      require(other == first + depth, "tree: node ", i, " has depth ", depth, ", so it must be at position ",
              first + depth, ", but the rope rotates its ", other == of_key ? "key" : "query", " by position ", other,
              "; append the nodes to a cache with {.positions = attn::tree_positions(parents, ", first, ")}");
    }
  }

  std::vector<Index> depths_;
  TreeWalk walk_;
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
/// The position of a node is the position that follows the context, plus the node's depth, so siblings share a
/// position. A rope must rotate nodes by these positions, not by their rows: append them to a cache with `{.positions =
/// attn::tree_positions(parents, first)}`. A MultiHeadAttention does this automatically if tree() is one of the mods of
/// a call over a cache. Masks and scores that are combined with tree() see rows: causal() drops nothing that tree()
/// keeps, but the distances of alibi(), relative_bias() or sliding_window() count siblings. KvCache::accept() keeps the
/// path that was verified.
/// @throws std::invalid_argument for a parent that does not come before its node, and from the attention call if there
/// is not one parent per query, there are fewer keys than queries, or a rope rotates a node by another position.
inline auto tree(const Indices& parents) { return bind_mod(detail::MakeTree(parents.values)); }

/// Returns the positions of the nodes of a tree: `first`, the position that follows the context, plus the depth of the
/// node. See tree().
///
///     cache.append(sequence, k, v, {.positions = attn::tree_positions(parents, cache.position(sequence, context))});
///
/// @throws std::invalid_argument for a parent that does not come before its node.
inline std::vector<Index> tree_positions(const Indices& parents, Index first) {
  std::vector<Index> positions = detail::depths_of(parents.values);
  for (Index& position : positions) position += first;
  return positions;
}

}  // namespace attn
