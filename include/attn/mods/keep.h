// Layer 2: keep() and drop(), masks given as boolean tensors.
#pragma once

#include "attn/detail/broadcast.h"
#include "attn/detail/distance.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// Where a tensor has no rows of its own, all queries keep a key or none does: padding then costs what key_lengths() does.
struct TensorMaskHint {
  static constexpr bool kIsOpaque = true;  // tensors with rows have no answer but that of the predicate
  PairTensor<bool> tensor;
  bool keep_where;

  Coverage operator()(const Tile& t) const {
    if (tensor.q != 0 || is_wide(t.kv)) return Coverage::some;
    bool any = false, all = true;
    for (Index kv = t.kv.begin; kv < t.kv.end; ++kv) {
      const bool kept = tensor(Position{t.batch, t.head, t.q.begin, kv}) == keep_where;
      any |= kept;
      all &= kept;
    }
    return all ? Coverage::all : any ? Coverage::some : Coverage::none;
  }
};

template <class X>
auto tensor_mask(X&& tensor, bool keep_where, const char* name) {
  auto held = broadcast_tensor(std::forward<X>(tensor));
  static_assert(std::is_same_v<decltype(held), BroadcastTensor<bool>>,
                "attn::keep / attn::drop: the tensor must hold bool, so that its meaning is plain; for additive masks "
                "use attn::bias");
  return bind_mod([held = std::move(held), keep_where, name](const Problem& problem) {
    const PairTensor<bool> pairs = held.over(problem, name);
    return mask_mod([pairs, keep_where](const Position& p) { return pairs(p) == keep_where; },
                    TensorMaskHint{pairs, keep_where});
  });
}

}  // namespace detail

/// Keeps the pairs whose element is true. The tensor is anything attn::view takes, of rank 1 to 4, aligned from the
/// right with (batch, heads, q_len, kv_len); a size of 1 is broadcast. Rank 1, which an Eigen vector has, is a mask of
/// keys; rank 2 of (query row, key).
///
///     {1, 0, 1, 0}:  1 0 1 0
///                    1 0 1 0
///                    1 0 1 0
///
/// A mask of keys skips tiles as key_lengths() does; one with rows is asked for each pair of a tile first.
///
/// A temporary is kept alive in the mod; any other tensor is only viewed and must outlive it.
/// @throws std::invalid_argument in the call, if the shape does not fit.
template <class X>
auto keep(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), true, "keep");
}

/// Drops the pairs whose element is true (PyTorch's key_padding_mask has this sense): the opposite of keep().
///
///     {1, 0, 1, 0}:  0 1 0 1
///                    0 1 0 1
///                    0 1 0 1
template <class X>
auto drop(X&& tensor) {
  return detail::tensor_mask(std::forward<X>(tensor), false, "drop");
}

}  // namespace attn
