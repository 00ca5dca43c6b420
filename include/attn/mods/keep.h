// keep() and drop(): masks given as boolean tensors.
#pragma once

#include "attn/detail/mods/key_tensor.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// The hint of a tensor mask. If the tensor has no dimension of queries, a key is kept by all queries or by none.
struct TensorMaskHint {
  static constexpr bool kIsOpaque = true;  // if the tensor has rows, only the predicate knows what is kept
  KeyTensorHint of_keys;

  Coverage operator()(const Tile& t) const { return of_keys.tensor.q != 0 ? Coverage::some : of_keys(t); }
};

template <class X>
auto tensor_mask(X&& tensor, bool keep_where, const char* name, const char* of_keys) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::keep / attn::drop: the tensor must hold bool, so that its meaning is plain; for additive masks "
                "use attn::bias");
  return bind_mod([held = std::move(held), keep_where, name, of_keys](const Problem& problem) {
    const PairTensor<bool> pairs = held.over(problem, name, kPairs, of_keys);
    return mask_mod([pairs, keep_where](const Position& p) { return pairs(p) == keep_where; },
                    TensorMaskHint{{pairs, keep_where}});
  });
}

}  // namespace detail

/// Keeps the pairs whose element is true. The tensor is anything attn::view takes, of rank 1 to 4, aligned from the
/// right with (batch, heads, q_len, kv_len); a size of 1 is broadcast. Rank 1, which an Eigen vector has, is a mask of
/// keys; rank 2 is (query row, key). For a mask of (batch, key) there is keep_keys().
///
///     {1, 0, 1, 0}:  1 0 1 0
///                    1 0 1 0
///                    1 0 1 0
///
/// A mask of keys skips tiles as key_lengths() does. A mask with rows is asked about each pair of a tile, before the
/// tile is computed.
///
/// A temporary is kept alive in the mod; any other tensor is only viewed and must outlive it.
/// @throws std::invalid_argument in the call, if the shape does not fit.
template <class X>
auto keep(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), true, "keep",
                             "; if its rows are batch elements, use attn::keep_keys(tensor)");
}

/// Drops the pairs whose element is true: the opposite of keep(). For PyTorch's key_padding_mask there is padding().
///
///     {1, 0, 1, 0}:  0 1 0 1
///                    0 1 0 1
///                    0 1 0 1
template <class X>
auto drop(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), false, "drop",
                             "; if its rows are batch elements, use attn::padding(tensor)");
}

}  // namespace attn
