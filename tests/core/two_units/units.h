// What the units offer each other: tensors, which have the same layout whatever the flags of a unit. (Eigen's matrices
// do not: how they take memory depends on the flags.)
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

/// Where functions lie that depend on the flags of a unit: of the kernels, of the checks and of the entry points.
std::vector<const void*> code_of_first();
std::vector<const void*> code_of_second();

/// Sums of outputs that are all 1: of 40, 20 and 3 rows with 16 columns.
float matrices_of_first();
float matrices_of_second();
