// Random tensors as inputs of benchmarks.
#pragma once

#include <random>

#include <attn/tensor.h>

namespace bench {

/// Returns a tensor of normally distributed values, the same for the same seed.
inline attn::Tensor<float, 4> random_tensor(const attn::Shape<4>& shape, unsigned seed) {
  attn::Tensor<float, 4> t(shape);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (attn::Index i = 0; i < t.size(); ++i) t.data()[i] = normal(random);
  return t;
}

}  // namespace bench
