// padding() and keep_keys(): masks given as boolean tensors of the keys of each batch element.
#pragma once

#include <type_traits>
#include <utility>

#include "attn/detail/mods/tensor_mask.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

template <class X>
auto key_tensor_mask(X&& tensor, bool keep_where, const char* name) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::padding / attn::keep_keys: the tensor must hold bool, so that its meaning is plain; compare it "
                "first, e.g. (tokens.array() == pad).eval()");
  return bind_mod([held = std::move(held), keep_where, name](const Problem& problem) {
    const TensorPredicate mask{held.over_keys(problem, name), keep_where};
    return mask_mod(mask, TensorHint{mask});
  });
}

}  // namespace detail

/// Drops the keys whose element is true, for every query, as PyTorch's key_padding_mask does. The tensor is anything
/// attn::view takes, of shape (batch, kv_len); a batch of 1, or a tensor of rank 1 such as an Eigen vector, serves all
/// batch elements. Over a cache, kv_len is the length of each sequence.
///
///     {{0, 0, 1, 1}}:  1 1 0 0
///                      1 1 0 0
///
/// Tiles without a kept key are skipped, as with key_lengths(). A temporary is kept alive in the mod; any other tensor
/// is only viewed and must outlive it.
/// @throws std::invalid_argument in the call, if the shape does not fit.
template <class X>
auto padding(X&& tensor) {
  return detail::key_tensor_mask(std::forward<X>(tensor), false, "padding");
}

/// Keeps the keys whose element is true, for every query: the opposite of padding(), and what tokenizers return as
/// attention_mask.
///
///     {{0, 1, 1, 1}}:  0 1 1 1
///                      0 1 1 1
template <class X>
auto keep_keys(X&& tensor) {
  return detail::key_tensor_mask(std::forward<X>(tensor), true, "keep_keys");
}

}  // namespace attn
