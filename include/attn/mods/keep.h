// keep() and drop(): masks given as boolean tensors.
#pragma once

#include "attn/detail/mods/tensor_mask.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

template <class X>
auto tensor_mask(X&& tensor, bool keep_where, const char* name, const char* of_keys, const char* name_of_keys) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::keep / attn::drop: the tensor must hold bool, so that its meaning is plain; for additive masks "
                "use attn::bias");
  return bind_mod([held = std::move(held), keep_where, name, of_keys, name_of_keys](const Problem& problem) {
    const TensorPredicate mask{held.over_one_way(problem, name, of_keys, name_of_keys), keep_where};
    return mask_mod(mask, TensorHint{mask});
  });
}

}  // namespace detail

/// Keeps the pairs whose element is true. The tensor is anything attn::view takes, of rank 1 to 4, aligned from the
/// right with (batch, heads, q_len, kv_len); a size of 1 is broadcast. A tensor of rank 1, such as an Eigen vector, is
/// a mask of keys; one of rank 2 is (query row, key). For a mask of (batch, key) there is keep_keys(). Where there are
/// as many batch elements as queries, and more than one, rank 2 could be either and is refused: rank 3 is (1, query
/// row, key), `keep(attn::view(t).unsqueeze(0))`.
///
///     {1, 0, 1, 0}:  1 0 1 0
///                    1 0 1 0
///                    1 0 1 0
///
/// Tiles without a kept pair are skipped, as with key_lengths(), and tiles that are kept whole run as without a mask.
/// Cost: O(pairs of the tile), eight at a time where the keys of a query, or the queries of a key, lie next to each
/// other.
///
/// A temporary is kept alive in the mod; any other tensor is only viewed and must outlive it.
/// @throws std::invalid_argument in the call, if the shape does not fit, or fits in two ways.
template <class X>
auto keep(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), true, "keep",
                             "; if its rows are batch elements, use attn::keep_keys(tensor)", "keep_keys");
}

/// Drops the pairs whose element is true: the opposite of keep(). For PyTorch's key_padding_mask there is padding().
///
///     {1, 0, 1, 0}:  0 1 0 1
///                    0 1 0 1
///                    0 1 0 1
template <class X>
auto drop(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), false, "drop",
                             "; if its rows are batch elements, use attn::padding(tensor)", "padding");
}

}  // namespace attn
