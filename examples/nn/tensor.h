// Inputs and outputs of layers.
#pragma once

#include <cstdint>
#include <utility>

#include <attn/attn.h>

namespace nn {

using attn::Index;

/// A vector of features for each token of each sequence: (batch, len, features).
template <class T>
using States = attn::Tensor<T, 3>;

/// The id of each token of each sequence: (batch, len).
using Tokens = attn::Tensor<std::int32_t, 2>;

template <class T>
using RowMatrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using Row = Eigen::Matrix<T, 1, Eigen::Dynamic>;

/// All tokens of a batch as the rows of one matrix, (batch * len, features). Nothing is copied.
template <class T>
Eigen::Map<RowMatrix<T>> rows_of(States<T>& x) {
  return {x.data(), x.dim(0) * x.dim(1), x.dim(2)};
}
template <class T>
Eigen::Map<const RowMatrix<T>> rows_of(const States<T>& x) {
  return {x.data(), x.dim(0) * x.dim(1), x.dim(2)};
}

/// Returns uninitialised states for the tokens of x, with `features` features.
template <class T>
States<T> with_features(const States<T>& x, Index features) {
  return States<T>::uninitialized({x.dim(0), x.dim(1), features});
}

/// x += y.
template <class T>
void add_to(States<T>& x, const States<T>& y);

}  // namespace nn
