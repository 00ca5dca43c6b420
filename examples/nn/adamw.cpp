#include "adamw.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace nn {

namespace {

template <class T>
auto part(std::span<T> numbers, Index first, Index last) {
  return Eigen::Map<Eigen::Array<std::remove_const_t<T>, Eigen::Dynamic, 1>>(numbers.data() + first, last - first);
}

}  // namespace

template <class T>
void AdamW<T>::fit(const std::vector<Parameter<T>>& parameters) {
  moments_.resize(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    moments_[i].m.resize(parameters[i].values.size());
    moments_[i].v.resize(parameters[i].values.size());
  }
}

template <class T>
void AdamW<T>::step(const std::vector<Parameter<T>>& parameters, double learning_rate) {
  fit(parameters);
  ++steps_;
  const auto t = static_cast<double>(steps_);
  const T beta1 = static_cast<T>(config_.beta1), beta2 = static_cast<T>(config_.beta2);
  const T epsilon = static_cast<T>(config_.epsilon);
  // Bias correction: the moments start at 0, and are too small by these factors.
  const T rate = static_cast<T>(learning_rate / (1 - std::pow(config_.beta1, t)));
  const T scale = static_cast<T>(1 / std::sqrt(1 - std::pow(config_.beta2, t)));
  const std::vector<Block> blocks = blocks_of(parameters);
  for_all(blocks, [&](std::size_t block) {
    const auto& [i, first, last] = blocks[block];
    const Parameter<T>& p = parameters[i];
    const T keep = p.shape.size() >= 2 ? static_cast<T>(1 - learning_rate * config_.weight_decay) : T(1);
    auto x = part(p.values, first, last), g = part(p.gradient, first, last);
    auto m = part(std::span(moments_[i].m), first, last), v = part(std::span(moments_[i].v), first, last);
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g.square();
    x = keep * x - rate * m / (v.sqrt() * scale + epsilon);
  });
}

template <class T>
void AdamW<T>::visit_moments(const std::vector<Parameter<T>>& parameters, const Visitor<T>& visitor) {
  fit(parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    visitor({"m." + parameters[i].name, parameters[i].shape, moments_[i].m, {}});
    visitor({"v." + parameters[i].name, parameters[i].shape, moments_[i].v, {}});
  }
}

template <class T>
double clip_grad_norm(const std::vector<Parameter<T>>& parameters, double max_norm) {
  const std::vector<Block> blocks = blocks_of(parameters);
  const auto gradient = [&](std::size_t block) {
    return part(parameters[blocks[block].parameter].gradient, blocks[block].first, blocks[block].last);
  };
  std::vector<double> sums(blocks.size());
  for_all(blocks, [&](std::size_t block) { sums[block] = static_cast<double>(gradient(block).square().sum()); });
  const double norm = std::sqrt(std::accumulate(sums.begin(), sums.end(), 0.0));
  if (!(norm > max_norm)) return norm;
  for_all(blocks, [&](std::size_t block) { gradient(block) *= static_cast<T>(max_norm / norm); });
  return norm;
}

template class AdamW<NN_SCALAR>;
template double clip_grad_norm(const std::vector<Parameter<NN_SCALAR>>&, double);

}  // namespace nn
