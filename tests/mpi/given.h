// Declarations for the C++ blocks in attn/mpi.md, which are compiled but never run.
#pragma once

#include <iostream>

#include <attn/attn.h>
#include <attn/mpi.h>

namespace given::ranks {
extern attn::mpi::Ring ring;
extern const attn::Tensor<float, 4> all_q, all_k, all_v, q, k, v, token_q, token_k, token_v, grad_out;
extern const attn::Index prompt;
}  // namespace given::ranks
