#pragma once

#include <attn/attn.h>

/// Returns each token as a mixture of itself and the earlier ones.
attn::Tensor<float, 4> mix(const attn::Tensor<float, 4>& tokens);
