#include "hybrid_options.h"

#include <stdexcept>

namespace train_hybrid {

void check(const nn::HybridConfig& c, const std::function<std::string(const std::string&)>& name) {
  if (c.heads % c.kv_heads != 0)
    throw std::invalid_argument(name("heads") + " is " + std::to_string(c.heads) + ", but must be a multiple of " +
                                name("kv_heads") + ", which is " + std::to_string(c.kv_heads));
  if (c.head_dim % 2 != 0)
    throw std::invalid_argument(name("head_dim") + " is " + std::to_string(c.head_dim) + ", but must be even");
}

double matrix_elements(const nn::HybridConfig& c) {
  const auto size = [](Index n) { return static_cast<double>(n); };
  const double features = size(c.features), inner = size(c.heads * c.head_dim);
  const double delta_net = inner * (5 * features + 3 * size(c.conv_width));
  const double attention = features * (3 * inner + 2 * size(c.kv_heads * c.head_dim));
  const double feed_forward = 3 * features * size(c.layer().hidden);
  return features * size(c.tokens) + size(c.blocks) * (3 * delta_net + attention + 4 * feed_forward);
}

}  // namespace train_hybrid
