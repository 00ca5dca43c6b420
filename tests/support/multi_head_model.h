// A multi-head layer with random parameters and inputs, and its result by the formula, in long double and plain loops.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/mods.h"
#include "attn/multi_head.h"
#include "random.h"

namespace attn::test {

using Real = long double;

/// A layer's parameters and inputs as plain vectors, drawn by the test.
struct Model {
  MultiHeadConfig config;  // without defaults
  Index batch, q_len, kv_len;
  std::map<std::string, std::vector<double>> parameters;
  std::vector<double> query, key, value;

  Model(const MultiHeadConfig& c, Index batch_size, Index queries, Index keys)
      : config(c), batch(batch_size), q_len(queries), kv_len(keys) {
    Random random(20);
    const Index e = c.embed_dim, kv_e = c.kv_heads * (e / c.heads);
    const auto draw = [&](const char* name, Index size) { parameters[name] = random.values(size, 0.6); };
    // Weights scale with the number of terms in a sum, so that results are about 1 whatever the width.
    const auto draw_weight = [&](const char* name, Index size) {
      parameters[name] = random.values(size, 0.6 * std::sqrt(12. / static_cast<double>(e)));
    };
    if (c.key_dim == e && c.value_dim == e) {
      draw_weight("in_proj_weight", (e + 2 * kv_e) * e);
    } else {
      draw_weight("q_proj_weight", e * e);
      draw_weight("k_proj_weight", kv_e * c.key_dim);
      draw_weight("v_proj_weight", kv_e * c.value_dim);
    }
    draw_weight("out_proj.weight", e * e);
    if (c.bias) {
      draw("in_proj_bias", e + 2 * kv_e);
      draw("out_proj.bias", e);
    }
    query = random.values(batch * q_len * e, 1);
    key = random.values(batch * kv_len * c.key_dim, 1);
    value = random.values(batch * kv_len * c.value_dim, 1);
  }

  template <class T>
  MultiHeadAttention<T> layer() const {
    MultiHeadAttention<T> made(config);
    EXPECT_EQ(made.parameter_names().size(), parameters.size());
    for (const auto& [name, values] : parameters) {
      if (name.find("bias") != std::string::npos) {
        made.load(name, TensorView<const double, 1>(values.data(), {static_cast<Index>(values.size())}));
      } else {
        const Index outputs = name == "in_proj_weight"           ? config.embed_dim + 2 * kv_embed()
                              : name[0] == 'k' || name[0] == 'v' ? kv_embed()
                                                                 : config.embed_dim;
        made.load(name,
                  TensorView<const double, 2>(values.data(), {outputs, static_cast<Index>(values.size()) / outputs}));
      }
    }
    return made;
  }
  Index kv_embed() const { return config.kv_heads * (config.embed_dim / config.heads); }
};

template <class T>
Tensor<T, 3> tensor(const std::vector<double>& values, Index batch, Index len, Index features) {
  auto t = Tensor<T, 3>::uninitialized({batch, len, features});
  for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = static_cast<T>(values[i]);
  return t;
}

struct Expected {
  std::vector<Real> out, weights;
};

/// Evaluates the formula with plain loops and vectors. `keep(batch, query, key)` takes row indices, not positions.
template <class Keep>
Expected expected(const Model& m, const Keep& keep) {
  const Index e = m.config.embed_dim, heads = m.config.heads, dim = e / heads, kv_e = m.kv_embed();
  const auto number = [&](const std::string& name, Index i) -> Real {
    const auto found = m.parameters.find(name);
    return found == m.parameters.end() ? 0 : found->second[static_cast<std::size_t>(i)];
  };
  const Real scale = 1 / std::sqrt(static_cast<Real>(dim));
  const bool packed = m.parameters.count("in_proj_weight") != 0;
  // The features of all tokens under projection `name`; the first `skip` rows of the packed weight and bias belong to
  // other projections.
  const auto projected = [&](const char* name, Index skip, const std::vector<double>& x, Index features,
                             Index outputs) {
    const std::vector<double>& weight = m.parameters.at(packed ? "in_proj_weight" : name);
    const std::size_t width = static_cast<std::size_t>(features);
    std::vector<Real> y;
    for (auto token = x.begin(); token != x.end(); token += features)
      for (Index f = 0; f < outputs; ++f) {
        Real sum = number("in_proj_bias", skip + f);
        const std::size_t row = static_cast<std::size_t>(packed ? skip + f : f) * width;
        for (std::size_t i = 0; i < width; ++i)
          sum += static_cast<Real>(token[static_cast<std::ptrdiff_t>(i)]) * weight[row + i];
        y.push_back(sum);
      }
    return y;
  };
  const std::vector<Real> queries = projected("q_proj_weight", 0, m.query, e, e),
                          keys = projected("k_proj_weight", e, m.key, m.config.key_dim, kv_e),
                          values = projected("v_proj_weight", e + kv_e, m.value, m.config.value_dim, kv_e);
  const auto feature = [](const std::vector<Real>& x, Index token, Index features, Index f) {
    return x[static_cast<std::size_t>(token * features + f)];
  };

  Expected result;
  result.weights.resize(static_cast<std::size_t>(m.batch * heads * m.q_len * m.kv_len));
  for (Index b = 0; b < m.batch; ++b)
    for (Index i = 0; i < m.q_len; ++i) {
      std::vector<Real> joined;
      for (Index h = 0; h < heads; ++h) {
        const Index first = h / (heads / m.config.kv_heads) * dim;
        std::vector<Real> w(static_cast<std::size_t>(m.kv_len));
        Real total = 0;
        for (Index j = 0; j < m.kv_len; ++j) {
          Real score = 0;
          for (Index d = 0; d < dim; ++d)
            score +=
                feature(queries, b * m.q_len + i, e, h * dim + d) * feature(keys, b * m.kv_len + j, kv_e, first + d);
          w[static_cast<std::size_t>(j)] = keep(b, i, j) ? std::exp(scale * score) : 0;
          total += w[static_cast<std::size_t>(j)];
        }
        for (Index d = 0; d < dim; ++d) {
          Real sum = 0;
          for (Index j = 0; j < m.kv_len; ++j)
            if (total > 0)
              sum += w[static_cast<std::size_t>(j)] / total * feature(values, b * m.kv_len + j, kv_e, first + d);
          joined.push_back(sum);
        }
        for (Index j = 0; j < m.kv_len; ++j)
          result.weights[static_cast<std::size_t>(((b * heads + h) * m.q_len + i) * m.kv_len + j)] =
              total > 0 ? w[static_cast<std::size_t>(j)] / total : 0;
      }
      for (Index f = 0; f < e; ++f) {
        Real sum = number("out_proj.bias", f);
        for (Index g = 0; g < e; ++g) sum += joined[static_cast<std::size_t>(g)] * number("out_proj.weight", f * e + g);
        result.out.push_back(sum);
      }
    }
  return result;
}

}  // namespace attn::test
