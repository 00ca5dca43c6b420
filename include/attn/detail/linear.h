// Layer 2: the linear map of a layer.
#pragma once

#include "attn/tensor.h"

namespace attn::detail {

/// y = x * weightᵀ + bias: `outputs` rows of a weight matrix with row-major rows of `inputs` numbers. Null bias: none.
template <class T>
struct Linear {
  const T* weight;
  const T* bias;
  Index inputs;
  Index outputs;

  /// All tokens in one product. x (tokens, inputs) and y (tokens, outputs) are row-major without gaps.
  void operator()(const T* x, T* y, Index tokens) const {
    using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
    const Eigen::Map<const Matrix> in(x, tokens, inputs), w(weight, outputs, inputs);
    Eigen::Map<Matrix> out(y, tokens, outputs);
    // Eigen clears the destination of a large product and then adds to it. Beginning with the bias costs no extra pass.
    if (bias)
      out.rowwise() = Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>(bias, outputs);
    else
      out.setZero();
    out.noalias() += in * w.transpose();
  }
};

}  // namespace attn::detail
