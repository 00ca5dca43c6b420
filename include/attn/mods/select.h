// select(): keys that are listed for each query.
#pragma once

#include <limits>
#include <memory>
#include <type_traits>
#include <utility>

#include "attn/detail/mods/broadcast.h"
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
  lists.batch = shape[0], lists.heads = shape[1], lists.rows = shape[2], lists.room = shape[3];
  const std::vector<T> all = given.row_major();
  const std::vector<Index> keys(all.begin(), all.end());
  for (std::size_t i = 0; i < keys.size(); ++i)
    require(keys[i] >= -1, "select: an index is ", keys[i], ", it must be a key, or -1 for none");
  lists.keys.reserve(keys.size());
  const std::size_t room = static_cast<std::size_t>(lists.room);
  for (Index i = 0; i < shape[0] * shape[1] * shape[2]; ++i)
    lists.add(std::span(keys).subspan(static_cast<std::size_t>(i) * room, room));
  return lists;
}

/// @throws std::invalid_argument unless there is a list for each query of the call, of keys that the call has.
inline void check_lists(const KeyLists& lists, const Problem& p) {
  const Index shape[] = {lists.batch, lists.heads, lists.rows, lists.room};
  const bool heads_fit = lists.heads == p.heads || lists.heads == p.kv_heads || lists.heads == 1;
  require((lists.batch == p.batch || lists.batch == 1) && heads_fit && (lists.rows == p.q_len || lists.rows == 1),
          "select: the indices have shape ", std::span<const Index>(shape), ", the call has (", p.batch, ", ", p.heads,
          " or ", p.kv_heads, ", ", p.q_len, ", n) as (batch, heads or kv_heads, q_len, n)");
  for (std::size_t i = 0; i < lists.counts.size(); ++i) {
    const auto list = lists.list(static_cast<Index>(i));
    const Index batch = static_cast<Index>(i) / (lists.heads * lists.rows);
    if (list.empty() || (lists.batch > 1 && p.sequence && batch != *p.sequence)) continue;
    require(list.back() < p.kv_len || p.has_part_of_keys, "select: an index is ", list.back(), ", there are ", p.kv_len,
            " keys");
  }
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
/// Keys are gathered, not masked: a call costs what its lists are long, whatever kv_len is, if they are shorter than a
/// quarter of it (a half, where all queries share a list or there is one query). Each query reads its keys from memory,
/// so heads that share a list are cheaper than others. In any_of() and its like, in gradients, for_each_weight_tile()
/// and over caches nothing is gathered: tiles of up to 48 queries and 64 keys are visited in which a key is listed.
/// Keys far from each other then cost what a call without a mask does, and gradients as much as those of such a call;
/// over a KvCache, pass its keys(i) and values(i) instead, which are gathered. The indices are copied and put in order
/// when the mod is made, O(1) each where they lie close and O(log n) where they do not; the order in which they are
/// given changes no bit of the result.
/// @throws std::invalid_argument for an index below -1; in the call, if the shape does not fit, or for an index of a
/// key that does not exist.
template <class X>
auto select(X&& indices) {
  struct Tables {
    detail::KeyLists lists;
    detail::ListGathering gathering{lists};

    explicit Tables(detail::KeyLists given) : lists(std::move(given)) {}
    Tables(const Tables&) = delete;
  };
  return bind_mod([tables = std::make_shared<const Tables>(
                       detail::key_lists(detail::broadcast_tensor(std::forward<X>(indices))))](const Problem& p) {
    const detail::KeyLists& lists = tables->lists;
    detail::check_lists(lists, p);
    const Index of_list = lists.heads == 1 ? p.heads : lists.heads == p.heads ? 1 : p.heads / p.kv_heads;
    const detail::ListedKeys listed{&lists, of_list, p.q_offset};
    // Only the listed keys that the call has, as its rows. Where the call has a part of the keys, this is a table of
    // its own.
    const auto rows = p.has_part_of_keys ? std::make_shared<const Tables>(lists.part(p.keys())) : tables;
    const auto mask = mask_mod([listed](const Position& at) { return listed.keep(at); },
                               [listed](const Tile& t) { return listed.coverage(t); },
                               [listed, rows](const Tile& t) { return listed.kv_range(t); });
    return detail::gathered_mask(mask, rows->gathering, p);
  });
}

}  // namespace attn
