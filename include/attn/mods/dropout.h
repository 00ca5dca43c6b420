// dropout(): weights that are 0 at random, while a model is trained.
#pragma once

#include <cstdint>

#include "attn/detail/base/check.h"
#include "attn/mod.h"

namespace attn {

/// Sets each weight to 0 with probability p, and multiplies it by 1 / (1 - p) otherwise, after the softmax: neither lse
/// nor the other weights of the row change (Srivastava et al. 2014, "Dropout", on the weights of attention as in
/// Vaswani et al. 2017; PyTorch's dropout_p). For training; leave it out afterwards.
///
/// Which pairs are dropped is a function of the seed and the position (batch, head, q, kv) alone. So attention(),
/// naive_attention(), the backward pass and the forward mode drop the same pairs, with any scalar, threads, tiles,
/// instruction set or cache, and so does the same call tomorrow. Take another seed for each layer and each step: a
/// counter will do, because neighbouring seeds have nothing in common. Only the lower 32 bits of the batch element and
/// of the head count. Several dropouts with different seeds drop independently.
///
/// A dropped pair has weight 0 but takes part in the softmax, and next to a value that is not finite it gives NaN, as 0
/// * NaN does; only masks keep such values away. The weights of for_each_weight_tile() and its kin, and .weights of
/// naive_attention(), are what values are multiplied by: 0, or the weight times 1 / (1 - p). Cost: 4 to 11 % of a call
/// at head_dim 128 and 64, with AVX-512.
/// @throws std::invalid_argument unless 0 <= p <= 1. With p = 1 all weights are 0; below 2^-24 nothing happens.
inline auto dropout(double p, std::uint64_t seed) {
  detail::require(p >= 0 && p <= 1, "dropout: p is ", p, ", a probability lies between 0 and 1");
  return DropoutMod{p, seed};
}

}  // namespace attn
