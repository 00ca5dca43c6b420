// block_mask(): a mask with hints for blocks of pairs, computed in advance from its predicate.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/tile_mods.h"
#include "attn/core/tensor/problem.h"
#include "attn/mods/block_sparse.h"
#include "attn/options.h"

namespace attn {

namespace detail {

/// Records, for each block of 16 queries x 16 keys (the unit of the mod loops), whether a mask keeps all, some or none
/// of its pairs.
struct BlockMap {
  static constexpr Index kBlock = 16;

  Index batch, heads;  ///< 1 if all batch elements, or heads, share their blocks
  Index q_len;
  Range keys;                        ///< the positions of the keys
  std::vector<Index> first_queries;  ///< positions of query row 0: one for all batch elements, or one per batch element
  std::vector<Coverage> blocks;

  /// Stores what `examine(tile)` returns for every block.
  template <class Examine>
  BlockMap(const Problem& p, const Examine& examine)
      : batch(p.batch),
        heads(p.heads),
        q_len(p.q_len),
        keys(p.keys()),
        first_queries(p.q_offsets.begin(), p.q_offsets.end()) {
    if (first_queries.empty()) first_queries = {p.q_offset};
    const Index count = batch * heads * ceil_div(q_len, kBlock) * ceil_div(keys.size(), kBlock);
    if (count == 0) return;
    blocks.reserve(static_cast<std::size_t>(count));
    for (Index b = 0; b < batch; ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index row = 0; row < q_len; row += kBlock)
          for (Index key = keys.begin; key < keys.end; key += kBlock) {
            const Range queries{first_query(b) + row, first_query(b) + std::min(row + kBlock, q_len)};
            blocks.push_back(examine(Tile{b, h, queries, {key, std::min(key + kBlock, keys.end)}}));
          }
  }

  /// Returns the position of query row 0 in the calls that the map was made for.
  Index first_query(Index batch_element) const {
    return first_queries[first_queries.size() == 1 ? 0 : static_cast<std::size_t>(batch_element)];
  }
  Coverage coverage(Index b, Index h, Index row, Index column) const {
    const Index head = (batch == 1 ? 0 : b) * heads + (heads == 1 ? 0 : h);
    const Index number = (head * ceil_div(q_len, kBlock) + row) * ceil_div(keys.size(), kBlock) + column;
    return blocks[static_cast<std::size_t>(number)];
  }
};

}  // namespace detail

/// Keeps the pairs that `mask` keeps, but evaluates its predicate for every pair in advance and records which blocks of
/// pairs it keeps. As with causal(), calls then skip dropped blocks, and evaluate the predicate only in partly kept
/// ones. It is meant for lambdas without hints that are used in many calls; copies share the results.
///
///     auto mask = attn::block_mask(attn::mask_mod([](auto p) { return p.kv <= p.q; }), n, n);
///
/// The result is valid for calls with these lengths and this options.q_offset (default kv_offset + kv_len - q_len) or
/// q_offsets, and for calls over part of the keys, with a kv_offset. If `mask` depends on p.batch or p.head, pass the
/// number of batch elements and heads as `batch` and `heads`; by default `mask` is evaluated for batch element 0 and
/// head 0, and the results apply to all. options.isa and kv_offset are used as in a call; other options are ignored.
/// Cost: one evaluation of the predicate per pair, and a byte of memory per 16 x 16 pairs.
/// @throws std::invalid_argument for negative sizes, and from the attention call if its sizes differ.
template <class M>
auto block_mask(M mask, Index q_len, Index kv_len, const Options& options = {}, Index batch = 1, Index heads = 1) {
  static_assert(detail::AnyMod<M>, "attn::block_mask: wrap the lambda in attn::mask_mod(...)");
  detail::require(q_len >= 0 && kv_len >= 0 && batch >= 0 && heads > 0, "block_mask: q_len ", q_len, ", kv_len ",
                  kv_len, ", batch ", batch, ", heads ", heads,
                  "; lengths and batch must not be negative, and heads must be positive");
  // This limit also keeps the number of blocks, which is at most that of pairs, from overflowing.
  constexpr double kMostPairs = sizeof(Index) > 4 ? 1e18 : 1e9;
  const auto at_least_one = [](Index n) { return static_cast<double>(std::max<Index>(n, 1)); };
  detail::require(at_least_one(q_len) * at_least_one(kv_len) * at_least_one(batch) * at_least_one(heads) <= kMostPairs,
                  "block_mask: q_len ", q_len, ", kv_len ", kv_len, ", batch ", batch, ", heads ", heads,
                  " have too many pairs to map");
  Problem problem;
  problem.batch = batch;
  problem.heads = problem.kv_heads = heads;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  detail::set_offsets(problem, options);
  const auto bound = detail::bind_call(mask, problem);
  using Bound = std::remove_const_t<decltype(bound)>;
  static_assert(detail::has_only_masks<Bound>, "attn::block_mask: the argument must be a mask");
  const detail::TileModsOf<float, Bound> tiles(bound);
  const detail::VectorSet vectors = detail::vectors_of(detail::isa_of(options));
  auto map = std::make_shared<const detail::BlockMap>(problem, [&](const Tile& tile) {
    const Coverage hint = bound.of(tile.batch).coverage(tile);
    return hint == Coverage::some ? tiles.examine(vectors, tile) : hint;
  });
  return bind_mod([mask = std::move(mask), map = std::move(map)](const Problem& call) {
    detail::require((map->batch == 1 || map->batch == call.batch) && (map->heads == 1 || map->heads == call.heads),
                    "block_mask was built for batch ", map->batch, ", heads ", map->heads, ", but the call has batch ",
                    call.batch, ", heads ", call.heads);
    const Range asked = call.sequence ? Range{*call.sequence, *call.sequence + 1} : Range{0, map->batch};
    const bool keys_fit =
        call.has_part_of_keys ? intersect(call.keys(), map->keys) == call.keys() : call.keys() == map->keys;
    for (Index b = asked.begin; b < asked.end; ++b)
      detail::require(call.q_len == map->q_len && keys_fit && call.q_offset == map->first_query(b),
                      "block_mask was built for q_len ", map->q_len, ", kv_len ", map->keys.size(), ", q_offset ",
                      map->first_query(b), ", kv_offset ", map->keys.begin, ", but the call has q_len ", call.q_len,
                      ", kv_len ", call.kv_len, ", q_offset ", call.q_offset, ", kv_offset ", call.kv_offset);
    const auto block = [map = map.get()](Index b, Index h, Index row, Index column) {
      return map->coverage(b, h, row, column);
    };
    constexpr Index kBlock = detail::BlockMap::kBlock;
    const Range queries{call.q_offset, call.q_offset + kBlock}, keys{map->keys.begin, map->keys.begin + kBlock};
    const auto keep = [bound = detail::bind(mask, call)](const Position& p) { return bound.keep(p); };
    return detail::mask_of_blocks(keep, block, {0, 0, queries, keys});
  });
}

}  // namespace attn
