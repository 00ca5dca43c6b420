// The directional derivative of attention once more, in long double and plain loops; shares nothing with the library.
#pragma once

#include "gradient_oracle.h"

namespace attn::test {

struct TangentTruth {
  std::vector<Real> tangent;
  Real size = 0;  ///< largest sum of magnitudes: what rounding errors are relative to
};

/// For each query, pairs of weight w, z * w after dropout, whose scores grow by s: the tangent is the sum of z * w * (s
/// - mean of s) * value and of z * w * direction of value.
inline TangentTruth jvp_oracle(const Inputs& in, const Inputs& direction, const Meaning& mod = {},
                               const Numbers& numbers = {}) {
  const Sizes& s = in.sizes;
  const Truth forward = oracle(in, mod, numbers);
  const Real scale = numbers.scale ? *numbers.scale : 1 / std::sqrt(static_cast<Real>(s.head_dim));
  const Index first = numbers.first_position(s);
  const auto at = [](const auto& x, Index i) { return static_cast<Real>(x[static_cast<std::size_t>(i)]); };
  TangentTruth t;
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h)
      for (Index i = 0; i < s.q_len; ++i) {
        const Index row = (b * s.heads + h) * s.q_len + i, kv_head = b * s.kv_heads + h * s.kv_heads / s.heads;
        std::vector<Real> growth(static_cast<std::size_t>(s.kv_len), 0), growth_size = growth;
        Real mean = 0, mean_size = 0;
        for (Index j = 0; j < s.kv_len; ++j) {
          const Real w = at(forward.softmax, row * s.kv_len + j);
          if (w == 0) continue;
          Real dot = 0, grown = 0, size = 0;
          for (Index d = 0; d < s.head_dim; ++d) {
            const Index query = row * s.head_dim + d, key = (kv_head * s.kv_len + j) * s.head_dim + d;
            dot += at(in.q, query) * at(in.k, key);
            grown += at(direction.q, query) * at(in.k, key) + at(in.q, query) * at(direction.k, key);
            size += std::abs(at(direction.q, query) * at(in.k, key)) + std::abs(at(in.q, query) * at(direction.k, key));
          }
          const Real slope = scale * slope_of(mod, scale * dot, {b, h, i, first + i, j});
          growth[static_cast<std::size_t>(j)] = slope * grown;
          growth_size[static_cast<std::size_t>(j)] = std::abs(slope) * size;
          mean += w * slope * grown;
          mean_size += w * std::abs(slope) * size;
        }
        for (Index c = 0; c < s.v_dim; ++c) {
          Real sum = 0, size = 0;
          for (Index j = 0; j < s.kv_len; ++j) {
            const Real w = at(forward.weights, row * s.kv_len + j);
            if (w == 0) continue;
            const Index value = (kv_head * s.kv_len + j) * s.v_dim + c;
            sum += w * ((at(growth, j) - mean) * at(in.v, value) + at(direction.v, value));
            size +=
                w * ((at(growth_size, j) + mean_size) * std::abs(at(in.v, value)) + std::abs(at(direction.v, value)));
          }
          t.tangent.push_back(sum);
          t.size = std::max(t.size, size);
        }
      }
  return t;
}

}  // namespace attn::test
