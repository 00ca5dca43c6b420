// Layer 2: keep() and drop(), masks given as boolean tensors.
#pragma once

#include "attn/detail/broadcast.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

template <class X>
auto tensor_mask(X&& tensor, bool keep_where, const char* name) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::keep / attn::drop: the tensor must hold bool, so that its meaning is plain; for additive masks "
                "use attn::bias");
  return bind_mod([held = std::move(held), keep_where, name](const Problem& problem) {
    return mask_mod([t = held.over(problem, name), keep_where](const Position& p) { return t(p) == keep_where; });
  });
}

}  // namespace detail

/// Keeps the pairs whose element is true. The tensor is anything attn::view takes, of rank 1 to 4, aligned from the
/// right with (batch, heads, q_len, kv_len); a size of 1 is broadcast. Rank 1, which an
/// Eigen vector has, is a mask of keys; rank 2 of (query row, key).
///
/// A temporary is kept alive in the mod; any other tensor is only viewed and must outlive it.
/// @throws std::invalid_argument in the call, if the shape does not fit.
template <class X>
auto keep(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), true, "keep");
}

/// Drops the pairs whose element is true (PyTorch's key_padding_mask has this sense): the opposite of keep().
template <class X>
auto drop(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), false, "drop");
}

}  // namespace attn
