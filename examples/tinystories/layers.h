// The layers of the network other than attention. The bits of a row depend on that row alone if the options ask for it.
#pragma once

#include <attn/linear.h>

#include "checkpoint.h"

namespace tinystories {

/// Multiplies each row x by a weight, w x: (n, outputs).
Matrix linear(const Matrix& x, const MatrixView& weight, const attn::Options& options);

/// Divides each row by its root mean square, then scales it (Zhang and Sennrich 2019): (n, dim).
Matrix rms_norm(const Matrix& x, const RowView& weight);

/// Applies SwiGLU, w2 (silu(w1 x) * w3 x), to each row x (Shazeer 2020): (n, dim).
Matrix feed_forward(const Matrix& x, const MatrixView& w1, const MatrixView& w2, const MatrixView& w3,
                    const attn::Options& options);

}  // namespace tinystories
