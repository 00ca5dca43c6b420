#include "norm.h"

#include <cmath>

#include "threads.h"

namespace nn {

namespace {

constexpr Index kNormRows = 32;  // per block

/// The groups of features that are normalised together, as the rows of a matrix.
template <class T>
Eigen::Map<RowMatrix<T>> groups_of(States<T>& x, Index features) {
  return {x.data(), x.size() / features, features};
}
template <class T>
Eigen::Map<const RowMatrix<T>> groups_of(const States<T>& x, Index features) {
  return {x.data(), x.size() / features, features};
}

}  // namespace

template <class T>
Norm<T>::Norm(Index features, NormKind kind, T epsilon) : kind_(kind), epsilon_(epsilon), weight_({features}) {
  // A vector divided by its norm is one divided by the root of its mean square, times a weight that is not learned.
  const auto size = static_cast<T>(features);
  std::fill_n(weight_.values.data(), features, kind == NormKind::unit ? 1 / std::sqrt(size) : T(1));
  if (kind == NormKind::unit) epsilon_ /= size;
  if (kind == NormKind::layer) bias_ = Learned<T, 1>({features});
}

template <class T>
States<T> Norm<T>::apply(const States<T>& x, States<T>* normalized, std::vector<T>* scales) const {
  const Index features = weight_.values.dim(0);
  States<T> y = with_features(x, x.dim(2));
  const auto from = groups_of(x, features);
  auto to = groups_of(y, features);
  const Eigen::Map<const Row<T>> weight(weight_.values.data(), features),
      bias(bias_.values.data(), bias_.values.size());
  for_blocks(from.rows(), kNormRows, static_cast<double>(features), [&](Index first, Index last) {
    for (Index i = first; i < last; ++i) {
      const T mean = subtracts_mean() ? from.row(i).mean() : T(0);
      auto row = to.row(i);
      row = from.row(i).array() - mean;
      const T scale = 1 / std::sqrt(row.squaredNorm() / static_cast<T>(features) + epsilon_);
      row *= scale;
      if (normalized) groups_of(*normalized, features).row(i) = row;
      if (scales) (*scales)[static_cast<std::size_t>(i)] = scale;
      row.array() *= weight.array();
      if (bias.size() > 0) row += bias;
    }
  });
  return y;
}

template <class T>
States<T> Norm<T>::operator()(const States<T>& x) const {
  return apply(x, nullptr, nullptr);
}

template <class T>
States<T> Norm<T>::forward(const States<T>& x) {
  normalized_ = with_features(x, x.dim(2));
  scales_.resize(static_cast<std::size_t>(x.size() / weight_.values.dim(0)));
  return apply(x, &normalized_, &scales_);
}

template <class T>
States<T> Norm<T>::backward(const States<T>& grad) {
  const Index features = weight_.values.dim(0);
  States<T> grad_x = with_features(grad, grad.dim(2));
  const auto from = groups_of(grad, features);
  const auto normalized = groups_of(std::as_const(normalized_), features);
  auto to = groups_of(grad_x, features);
  const Eigen::Map<const Row<T>> weight(weight_.values.data(), features);
  // Each block has its own sums, which are added in order: results are bitwise independent of the number of threads.
  const Index blocks = (from.rows() + kNormRows - 1) / kNormRows;
  RowMatrix<T> weight_sums = RowMatrix<T>::Zero(blocks, features), bias_sums = weight_sums;
  for_blocks(from.rows(), kNormRows, static_cast<double>(features), [&](Index first, Index last) {
    auto weight_sum = weight_sums.row(first / kNormRows);
    auto bias_sum = bias_sums.row(first / kNormRows);
    for (Index i = first; i < last; ++i) {
      weight_sum.array() += from.row(i).array() * normalized.row(i).array();
      bias_sum += from.row(i);
      // With g = grad * weight and n the normalised row: (g - mean(g) - n * mean(g * n)) / standard deviation; RMSNorm
      // subtracts no mean.
      auto row = to.row(i);
      row = from.row(i).array() * weight.array();
      const T along = row.dot(normalized.row(i)) / static_cast<T>(features);
      const T mean = subtracts_mean() ? row.mean() : T(0);
      row = (row.array() - mean - normalized.row(i).array() * along) * scales_[static_cast<std::size_t>(i)];
    }
  });
  for (Index b = 0; b < blocks; ++b) {
    Eigen::Map<Row<T>>(weight_.gradient.data(), features) += weight_sums.row(b);
    if (kind_ == NormKind::layer) Eigen::Map<Row<T>>(bias_.gradient.data(), features) += bias_sums.row(b);
  }
  return grad_x;
}

template <class T>
void Norm<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  if (kind_ != NormKind::unit) weight_.visit(prefix + "weight", visitor);
  bias_.visit(prefix + "bias", visitor);
}

template class Norm<NN_SCALAR>;

}  // namespace nn
