// dropout(): random zeroing of attention weights, for training.
#pragma once

#include <cstdint>

#include "attn/core/base/check.h"
#include "attn/mod.h"

namespace attn {

/// Sets each weight to 0 with probability p, after the softmax, and multiplies it by 1 / (1 - p) otherwise (Srivastava
/// et al. 2014, "Dropout", applied to attention weights as in Vaswani et al. 2017; PyTorch's dropout_p). Neither lse
/// nor the normalisation of the row changes. Use it for training only.
///
/// Whether a pair is dropped depends only on the seed and the position (batch, head, q, kv). attention(),
/// naive_attention(), the backward pass and the forward mode therefore drop the same pairs in every run, with any
/// scalar type, number of threads, tiling, instruction set or cache. Use a different seed for each layer and each step;
/// a counter will do, because neighbouring seeds are unrelated. Only the lower 32 bits of the batch and head indices
/// are used. Dropouts with different seeds are independent. The first batch element of a call has batch index
/// `first_batch`: with the index of its first element in the whole batch, a micro-batch drops the pairs that a call on
/// the whole batch drops.
///
/// A dropped pair still takes part in the softmax, and its weight of 0 times a value that is not finite is NaN; only
/// masks exclude such values. The weights of for_each_weight_tile() and similar functions, and .weights of
/// naive_attention(), include dropout: they are 0, or the weight times 1 / (1 - p). Cost: 4 to 11 % of a call at
/// head_dim 128 and 64, with AVX-512.
/// @throws std::invalid_argument unless 0 <= p <= 1. With p = 1 all weights are 0; with p below 2^-24 none is dropped.
inline auto dropout(double p, std::uint64_t seed, Index first_batch = 0) {
  detail::require(p >= 0 && p <= 1, "dropout: p must be in 0..1, but is ", p);
  return DropoutMod{{}, p, seed, first_batch};
}
/// Not to be called: fails to compile, with a message that says to pass a seed.
template <class P>
auto dropout(P) {
  static_assert(sizeof(P) == 0, "attn: dropout needs a seed, one for each layer and step: attn::dropout(p, seed)");
  return DropoutMod();
}

}  // namespace attn
