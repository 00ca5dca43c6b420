// Interface between the units. It passes tensors, because nothing about them depends on a unit's flags. (The alignment
// at which Eigen's matrices allocate memory does.)
#pragma once

#include <vector>

#include <attn/isa.h>
#include <attn/tensor.h>

using Column = attn::Tensor<float, 2>;

Column windowed(const Column& x, attn::Isa isa);
Column capped(const Column& x, attn::Isa isa);

/// The instruction sets that calls of a unit may use, and the one they use by default.
std::vector<attn::Isa> sets_of_first();
std::vector<attn::Isa> sets_of_second();
attn::Isa default_of_first();
attn::Isa default_of_second();

/// Addresses of functions that depend on a unit's flags: kernels, checks and entry points.
std::vector<const void*> code_of_first();
std::vector<const void*> code_of_second();

/// Sums of outputs whose elements are all 1: 40, 20 and 3 rows of 16 columns.
float matrices_of_first();
float matrices_of_second();
