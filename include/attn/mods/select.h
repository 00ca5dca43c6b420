// select(): a mask given as a list of keys per query.
#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "attn/core/mods/grouping/given_lists.h"
#include "attn/core/mods/grouping/selected_keys.h"

namespace attn {

namespace detail {

/// Returns the lists in a tensor of rank 2 to 4.
template <class T>
KeyLists key_lists(const BroadcastTensor<T>& given) {
  static_assert(std::is_integral_v<T> && std::is_signed_v<T>,
                "attn::select: the tensor must hold key indices as signed integers");
  require(given.rank >= 2, "select: the tensor has rank ", given.rank,
          ", but must be (q_len, n), (heads, q_len, n) or (batch, heads, q_len, n)");
  KeyLists lists(given.shape[0], given.shape[1], given.shape[2], given.shape[3]);
  const std::vector<T> keys = given.row_major();
  for (std::size_t i = 0; i < keys.size(); ++i)
    require(keys[i] >= -1, "select: each index must be a key, or -1 for none, but one is ", keys[i]);
  const std::size_t columns = static_cast<std::size_t>(lists.columns);
  for (Index i = 0; i < lists.batch * lists.heads * lists.rows; ++i)
    lists.add(std::span(keys).subspan(static_cast<std::size_t>(i) * columns, columns));
  lists.finish();
  return lists;
}

inline KeyLists key_lists(const CompressedLists& given) {
  KeyLists lists(given.batch, given.heads, given.rows, -1);
  lists.indices.reserve(given.indices.size());
  for (Index i = 0; i < given.count(); ++i) lists.add(given.list(i));
  lists.finish();
  return lists;
}

/// Returns the mask of select().
inline auto selected(KeyLists given) {
  struct Tables {
    KeyLists lists;
    ListGathering gathering{lists};

    explicit Tables(KeyLists from) : lists(std::move(from)) {}
    Tables(const Tables&) = delete;
  };
  return bind_mod([tables = std::make_shared<const Tables>(std::move(given))](const Problem& p) {
    const KeyLists& lists = tables->lists;
    check_lists("select", lists, lists.columns, p);
    const ListedKeys listed{&lists, heads_of_list(lists.heads, p), p.q_offset};
    // The listed keys as rows of the call's keys. A call over part of the keys needs its own table.
    const auto rows = p.has_part_of_keys ? std::make_shared<const Tables>(lists.part(p.keys())) : tables;
    const auto mask = mask_mod(
        listed, [listed](const Tile& t) { return listed.coverage(t); },
        [listed, rows](const Tile& t) { return listed.kv_range(t); });
    return gathered_mask(mask, rows->gathering, p);
  });
}

}  // namespace detail

/// Keeps the keys that are listed for each query, for example by lightning_indexer() (DeepSeek-AI 2025, "DeepSeek
/// Sparse Attention": the top 2048 of all keys). `indices` may be any tensor of signed integers that attn::view
/// accepts, of shape (batch, heads, q_len, n). It holds positions of keys in any order, 0 .. kv_len - 1 without a
/// kv_offset; -1 means no key, and duplicates count once. Dimensions are aligned from the right; dimensions of size 1
/// before n are broadcast, and `heads` may be kv_heads, if the query heads of a key head share their lists.
///
///     indices {{0, 3}, {2, 2}, {1, -1}}:  1 0 0 1
///                                         0 0 1 0
///                                         0 1 0 0
///
/// Pass lists of unequal length as a range of ranges, one per query, such as std::vector<std::vector<int>>, nested once
/// more for heads and once more for batch elements; or as offsets and indices (see below).
///
/// Keys are gathered, not masked, if all lists together have at most a quarter of the pairs (half, if all queries share
/// a list or there is only one query); in caches, each sequence decides for its own lists. The cost of a query is then
/// proportional to the length of its own list and independent of kv_len and the other lists. Query heads that share a
/// key head and a list are processed together and read its keys from memory once, so they cost less than heads with
/// separate lists.
///
/// The backward pass gathers too, if each query has its own list and all lists together have at most an eighth of the
/// pairs. It stores two values per listed pair of the heads that are processed together. The first backward pass also
/// builds, inside the mod, a table of the queries that list each key; it takes 16 bytes per entry.
///
/// Nothing is gathered in combined masks such as any_of(), in forward mode, in for_each_weight_tile() and with
/// row_invariant: these visit all tiles of up to 48 queries and 64 keys that contain a listed key. Scattered keys then
/// cost as much as a call without a mask. The indices are copied and sorted when the mod is made, in O(1) per index if
/// the indices are dense and in O(log n) otherwise; the result of a call is bit-identical for any order of the indices.
/// @throws std::invalid_argument for an index below -1 (in ranges, below 0) or if heads differ in their number of
/// lists, and from the attention call if the shape does not fit or a listed key does not exist.
template <class X>
auto select(X&& indices) {
  if constexpr (detail::nesting<std::remove_cvref_t<X>> >= 2)
    return detail::selected(detail::key_lists(detail::nested_lists("select", indices)));
  else
    return detail::selected(detail::key_lists(detail::broadcast_tensor(std::forward<X>(indices))));
}

/// select() of lists in compressed sparse row (CSR) format, as used for graphs and sparse matrices: query i keeps the
/// keys indices[offsets[i]] .. indices[offsets[i + 1] - 1]. Both are tensors or ranges of integers; offsets have shape
/// (q_len + 1), (heads, q_len + 1) or (batch, heads, q_len + 1), and each head continues where the previous one ends.
/// The first offset is 0, and the last one is the number of indices. A list may be empty: its query keeps no key.
///
///     offsets {0, 2, 3, 4}, indices {0, 3, 2, 1}:  1 0 0 1
///                                                  0 0 1 0
///                                                  0 1 0 0
///
/// edge_bias() adds a bias per entry of `indices` to the scores.
/// @throws std::invalid_argument unless the offsets split the indices into lists, for an index below 0, and from the
/// attention call as above.
template <class O, class I>
auto select(const O& offsets, const I& indices) {
  return detail::selected(detail::key_lists(
      detail::lists_of("select", detail::GivenIntegers::of(offsets), detail::GivenIntegers::of(indices))));
}
/// select() of offsets and indices in braces.
inline auto select(std::initializer_list<Index> offsets, std::initializer_list<Index> indices) {
  return select<std::initializer_list<Index>, std::initializer_list<Index>>(offsets, indices);
}

}  // namespace attn
