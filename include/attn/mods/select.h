// select(): keys that are listed for each query.
#pragma once

#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/detail/mods/grouping/given_lists.h"
#include "attn/detail/mods/grouping/selected_keys.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// The lists in a tensor of rank 2 to 4.
template <class T>
KeyLists key_lists(const BroadcastTensor<T>& given) {
  static_assert(std::is_integral_v<T> && std::is_signed_v<T>,
                "attn::select: the tensor must hold signed integers, the numbers of keys");
  require(given.rank() >= 2, "select: the tensor has rank ", given.rank(),
          ", it must be (q_len, n), (heads, q_len, n) or (batch, heads, q_len, n)");
  const std::span<const Index> shape = given.shape();
  KeyLists lists;
  lists.batch = shape[0], lists.heads = shape[1], lists.rows = shape[2], lists.columns = shape[3];
  const std::vector<T> keys = given.row_major();
  for (std::size_t i = 0; i < keys.size(); ++i)
    require(keys[i] >= -1, "select: an index is ", keys[i], ", it must be a key, or -1 for none");
  const std::size_t columns = static_cast<std::size_t>(lists.columns);
  for (Index i = 0; i < shape[0] * shape[1] * shape[2]; ++i)
    lists.add(std::span(keys).subspan(static_cast<std::size_t>(i) * columns, columns));
  lists.finish();
  return lists;
}

inline KeyLists key_lists(const GivenLists& given) {
  KeyLists lists;
  lists.batch = given.batch, lists.heads = given.heads, lists.rows = given.rows, lists.columns = -1;
  lists.keys.reserve(given.indices.size());
  for (Index i = 0; i < given.count(); ++i) lists.add(given.list(i));
  lists.finish();
  return lists;
}

/// The mask of select().
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
    // Only the listed keys that the call has, as its rows. Where the call has a part of the keys, this is a table of
    // its own.
    const auto rows = p.has_part_of_keys ? std::make_shared<const Tables>(lists.part(p.keys())) : tables;
    const auto mask = mask_mod(
        listed, [listed](const Tile& t) { return listed.coverage(t); },
        [listed, rows](const Tile& t) { return listed.kv_range(t); });
    return gathered_mask(mask, rows->gathering, p);
  });
}

}  // namespace detail

/// Each query keeps the keys that are listed for it, as where an index chooses the keys that are worth a look
/// (DeepSeek-AI 2025, "DeepSeek Sparse Attention": the top 2048 of all). `indices` is anything attn::view takes, of
/// signed integers and of shape (batch, heads, q_len, n) with the numbers of keys, 0 .. kv_len - 1, in any order; -1 is
/// no key, and a key that is listed twice counts once. The tensor is aligned from the right; sizes of 1 in front of n
/// are broadcast, and heads may be kv_heads, for query heads that share a key head.
///
///     indices {{0, 3}, {2, 2}, {1, -1}}:  1 0 0 1
///                                         0 0 1 0
///                                         0 1 0 0
///
/// Lists of unequal length are a range of ranges, one for each query, such as std::vector<std::vector<int>>; nested
/// once more for heads, and once more for batch elements; or offsets and indices, see below.
///
/// Keys are gathered, not masked: a query costs what its own list is long, whatever kv_len is and however long other
/// lists are, if all lists together have at most a quarter of the pairs (a half, where all queries share a list or
/// there is one query). Each query reads its keys from memory, so heads that share a list are cheaper than others.
///
/// The backward pass gathers too, where each query has a list of its own and all lists together have at most an eighth
/// of the pairs. It keeps two numbers for each listed pair of the heads that are worked on together. The first one also
/// makes a table in the mod: for each key the queries that list it, 16 bytes for each entry.
///
/// In any_of() and its like, in the forward mode, for_each_weight_tile() and over caches nothing is gathered: tiles of
/// up to 48 queries and 64 keys are visited in which a key is listed. Keys far from each other then cost what a call
/// without a mask does; over a KvCache, pass its keys(i) and values(i) instead, which are gathered. The indices are
/// copied and put in order when the mod is made, O(1) each where they lie close and O(log n) where they do not; the
/// order in which they are given changes no bit.
/// @throws std::invalid_argument for an index below -1 (in ranges, below 0), or unless all heads have as many lists; in
/// the call, if the shape does not fit, or for an index of a key that does not exist.
template <class X>
auto select(X&& indices) {
  if constexpr (detail::nesting<std::remove_cvref_t<X>> >= 2)
    return detail::selected(detail::key_lists(detail::nested_lists("select", indices)));
  else
    return detail::selected(detail::key_lists(detail::broadcast_tensor(std::forward<X>(indices))));
}

/// select() of lists in compressed rows (CSR), as graphs and sparse matrices are stored: query i keeps the keys
/// indices[offsets[i]] .. indices[offsets[i + 1] - 1]. Both are tensors or ranges of integers; offsets are (q_len + 1),
/// (heads, q_len + 1) or (batch, heads, q_len + 1), where each head goes on where the one before it ends. The first
/// offset is 0 and the last one the number of indices. A list may be empty: its query keeps no key.
///
///     offsets {0, 2, 3, 4}, indices {0, 3, 2, 1}:  1 0 0 1
///                                                  0 0 1 0
///                                                  0 1 0 0
///
/// edge_bias() adds a number for each entry of `indices` to the scores.
/// @throws std::invalid_argument for offsets that do not cut the indices into lists, and for an index below 0; in the
/// call, as above.
template <class O, class I>
auto select(const O& offsets, const I& indices) {
  return detail::selected(detail::key_lists(
      detail::lists_of("select", detail::GivenNumbers::of(offsets), detail::GivenNumbers::of(indices))));
}
/// As above, for lists in braces.
inline auto select(std::initializer_list<Index> offsets, std::initializer_list<Index> indices) {
  return select<std::initializer_list<Index>, std::initializer_list<Index>>(offsets, indices);
}

}  // namespace attn
