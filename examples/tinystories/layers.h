// What the network has besides attention.
#pragma once

#include "checkpoint.h"

namespace tinystories {

/// Each row divided by its root mean square, then scaled (Zhang and Sennrich 2019): (n, dim).
Matrix rms_norm(const Matrix& x, const RowView& weight);

/// SwiGLU, w2 (silu(w1 x) * w3 x) for each row x (Shazeer 2020): (n, dim).
Matrix feed_forward(const Matrix& x, const MatrixView& w1, const MatrixView& w2, const MatrixView& w3);

}  // namespace tinystories
