#pragma once

#include <attn/attn.h>

/// Each token as a mixture of itself and those before it.
attn::Tensor<float, 4> mix(const attn::Tensor<float, 4>& tokens);
