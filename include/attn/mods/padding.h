// padding() and keep_keys(): key masks given as boolean tensors, one row per batch element.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/core/mods/tensor_mask.h"

namespace attn {

namespace detail {

template <class X>
auto key_tensor_mask(X&& tensor, bool keep_where, const char* name) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::padding / attn::keep_keys: the tensor must hold bool; compare its elements first, e.g. "
                "(tokens.array() == pad).eval()");
  return bind_mod([held = std::move(held), keep_where, name](const Problem& problem) {
    return tensor_mask(held.over_keys(problem, name), keep_where);
  });
}

}  // namespace detail

/// Drops the keys whose element is true, for every query, as PyTorch's key_padding_mask does. The tensor may be
/// anything attn::view accepts, of shape (batch, kv_len). A tensor with a batch size of 1, or of rank 1 such as an
/// Eigen vector, applies to all batch elements. With a cache, kv_len is the length of each sequence.
///
///     {{0, 0, 1, 1}}:  1 1 0 0
///                      1 1 0 0
///
/// Tiles without a kept key are skipped, as with key_lengths(). The mod keeps a temporary alive; any other tensor is
/// only viewed and must outlive the mod.
/// @throws std::invalid_argument from the attention call, if the shape does not fit.
template <class X>
auto padding(X&& tensor) {
  return detail::key_tensor_mask(std::forward<X>(tensor), false, "padding");
}

/// Keeps the keys whose element is true, for every query: the opposite of padding(), and the convention of the
/// attention_mask that tokenizers return.
///
///     {{0, 1, 1, 1}}:  0 1 1 1
///                      0 1 1 1
template <class X>
auto keep_keys(X&& tensor) {
  return detail::key_tensor_mask(std::forward<X>(tensor), true, "keep_keys");
}

}  // namespace attn
