// keep() and drop(): masks given as boolean tensors.
#pragma once

#include "attn/core/mods/tensor_mask.h"

namespace attn {

namespace detail {

template <class X>
auto tensor_mask(X&& tensor, bool keep_where, const char* name, const char* of_keys, const char* name_of_keys) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::keep / attn::drop: the tensor must hold bool; for additive masks use attn::bias");
  return bind_mod([held = std::move(held), keep_where, name, of_keys, name_of_keys](const Problem& problem) {
    return tensor_mask(held.over_unambiguous(problem, name, of_keys, name_of_keys), keep_where);
  });
}

}  // namespace detail

/// Keeps the pairs whose element is true. The tensor may be anything attn::view accepts, of rank 1 to 4. Its dimensions
/// are aligned from the right with (batch, heads, q_len, kv_len), and dimensions of size 1 are broadcast. A tensor of
/// rank 1, such as an Eigen vector, masks keys; one of rank 2 is (query row, key). For a (batch, key) mask use
/// keep_keys(). If there are as many batch elements as queries, and more than one, rank 2 is ambiguous and rejected;
/// pass rank 3, (1, query row, key), as `keep(attn::view(t).unsqueeze(0))`.
///
///     {1, 0, 1, 0}:  1 0 1 0
///                    1 0 1 0
///                    1 0 1 0
///
/// Tiles without a kept pair are skipped, as with key_lengths(), and fully kept tiles run as if unmasked. Cost:
/// O(pairs) per tile, eight pairs at a time if the keys of a query, or the queries of a key, are contiguous.
///
/// The mod keeps a temporary alive; any other tensor is only viewed and must outlive the mod.
/// @throws std::invalid_argument from the attention call, if the shape does not fit or is ambiguous.
template <class X>
auto keep(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), true, "keep",
                             "; if its rows are batch elements, use attn::keep_keys(tensor)", "keep_keys");
}

/// Drops the pairs whose element is true: the opposite of keep(). For PyTorch's key_padding_mask use padding().
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
