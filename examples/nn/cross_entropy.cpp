#include "cross_entropy.h"

#include <cmath>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "threads.h"

namespace nn {

namespace {

Index count_targets(const Tokens& targets, std::int32_t ignored, Index tokens) {
  Index count = 0;
  for (Index i = 0; i < targets.size(); ++i) {
    const std::int32_t target = targets.data()[i];
    if (target == ignored) continue;
    if (target < 0 || target >= tokens)
      throw std::out_of_range("target " + std::to_string(target) + " is not one of " + std::to_string(tokens) +
                              " tokens");
    ++count;
  }
  return count;
}

}  // namespace

template <class T>
double CrossEntropy<T>::loss(const States<T>& logits, const Tokens& targets, States<T>* gradient) const {
  if (targets.dim(0) != logits.dim(0) || targets.dim(1) != logits.dim(1))
    throw std::invalid_argument("logits for " + std::to_string(logits.dim(0)) + " x " + std::to_string(logits.dim(1)) +
                                " tokens, but targets for " + std::to_string(targets.dim(0)) + " x " +
                                std::to_string(targets.dim(1)));
  const Index tokens = logits.dim(2), counted = count_targets(targets, kIgnored, tokens);
  const auto from = rows_of(logits);
  std::vector<double> losses(static_cast<std::size_t>(from.rows()), 0.0);
  const T share = counted > 0 ? T(1) / static_cast<T>(counted) : T(0);
  const T smoothed = static_cast<T>(label_smoothing_) / static_cast<T>(tokens);
  for_blocks(from.rows(), 32, 5 * static_cast<double>(tokens), [&](Index first, Index last) {
    Eigen::Array<T, 1, Eigen::Dynamic> weights(tokens);
    for (Index i = first; i < last; ++i) {
      const std::int32_t target = targets.data()[i];
      if (target == kIgnored) {
        if (gradient) rows_of(*gradient).row(i).setZero();
        continue;
      }
      const auto row = from.row(i).array();
      const T largest = row.maxCoeff();
      weights = (row - largest).exp();
      const T sum = weights.sum(), log_sum = largest + std::log(sum);
      const auto smoothing = static_cast<T>(label_smoothing_);
      losses[static_cast<std::size_t>(i)] =
          static_cast<double>(log_sum - (1 - smoothing) * row[target] - smoothing * row.mean());
      if (!gradient) continue;
      auto to = rows_of(*gradient).row(i).array();
      to = (weights / sum - smoothed) * share;
      to[target] -= (1 - smoothing) * share;
    }
  });
  return counted > 0 ? std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(counted) : 0;
}

template <class T>
double CrossEntropy<T>::operator()(const States<T>& logits, const Tokens& targets) const {
  return loss(logits, targets, nullptr);
}

template <class T>
double CrossEntropy<T>::forward(States<T> logits, const Tokens& targets) {
  gradient_ = with_features(logits, logits.dim(2));
  return loss(logits, targets, &gradient_);
}

template <class T>
States<T> CrossEntropy<T>::backward() {
  return std::move(gradient_);
}

template class CrossEntropy<NN_SCALAR>;

}  // namespace nn
