// Reference layers in plain loops.
#include "nn_reference.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <stdexcept>

namespace reference {

namespace {

const Vector& vector_of(const State& state, const std::string& name) { return state.at(name).rows.at(0); }

double dot(const Vector& a, const Vector& b) {
  if (a.size() != b.size()) throw std::logic_error("reference: sizes differ");
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Matrix sum(const Matrix& a, const Matrix& b) {
  Matrix c = a;
  for (std::size_t i = 0; i < c.size(); ++i)
    for (std::size_t f = 0; f < c[i].size(); ++f) c[i][f] += b.at(i).at(f);
  return c;
}

/// Rows of `x` times some rows of a weight, and the same part of a bias.
Matrix linear_part(const Matrix& x, const State& state, const std::string& weight, const std::string& bias,
                   std::size_t first, std::size_t count) {
  const Matrix& w = state.at(weight).rows;
  Matrix y(x.size(), Vector(count));
  for (std::size_t i = 0; i < x.size(); ++i)
    for (std::size_t o = 0; o < count; ++o)
      y[i][o] = dot(x[i], w.at(first + o)) + (state.contains(bias) ? vector_of(state, bias).at(first + o) : 0);
  return y;
}

Matrix feed_forward(const Matrix& x, const Layer& layer, const State& state, const std::string& prefix) {
  return linear(activate(layer.activation, linear(x, state, prefix + "linear1.")), state, prefix + "linear2.");
}

/// x + f(norm(x)), or norm(x + f(x)).
template <class F>
Matrix around(const Matrix& x, const Layer& layer, const State& state, const std::string& norm, const F& f) {
  if (layer.norm_first) return sum(x, f(layer_norm(x, state, norm)));
  return layer_norm(sum(x, f(x)), state, norm);
}

void add_attention(State& state, const Layer& layer, const std::string& prefix, unsigned seed) {
  const auto d = static_cast<std::ptrdiff_t>(layer.features);
  add_tensor(state, prefix + "in_proj_weight", {3 * d, d}, seed);
  add_tensor(state, prefix + "out_proj.weight", {d, d}, seed + 1);
  if (!layer.bias) return;
  add_tensor(state, prefix + "in_proj_bias", {3 * d}, seed + 2);
  add_tensor(state, prefix + "out_proj.bias", {d}, seed + 3);
}

void add_rest(State& state, const Layer& layer, const std::string& prefix, int norms, unsigned seed) {
  const auto d = static_cast<std::ptrdiff_t>(layer.features), h = static_cast<std::ptrdiff_t>(layer.hidden);
  const std::ptrdiff_t outputs = layer.activation == Activation::swiglu ? 2 * h : h;
  add_tensor(state, prefix + "linear1.weight", {outputs, d}, seed);
  add_tensor(state, prefix + "linear2.weight", {d, h}, seed + 1);
  for (int i = 1; i <= norms; ++i)
    add_tensor(state, prefix + "norm" + std::to_string(i) + ".weight", {d}, seed + 2 + static_cast<unsigned>(i));
  if (!layer.bias) return;
  add_tensor(state, prefix + "linear1.bias", {outputs}, seed + 10);
  add_tensor(state, prefix + "linear2.bias", {d}, seed + 11);
  for (int i = 1; i <= norms; ++i)
    add_tensor(state, prefix + "norm" + std::to_string(i) + ".bias", {d}, seed + 12 + static_cast<unsigned>(i));
}

}  // namespace

Matrix linear(const Matrix& x, const State& state, const std::string& prefix) {
  return linear_part(x, state, prefix + "weight", prefix + "bias", 0, state.at(prefix + "weight").rows.size());
}

Matrix layer_norm(const Matrix& x, const State& state, const std::string& prefix, double epsilon) {
  const std::string name = prefix + "weight";
  const Vector& weight = vector_of(state, name);
  Matrix y = x;
  for (Vector& row : y) {
    const double n = static_cast<double>(row.size());
    double mean = 0, variance = 0;
    for (const double a : row) mean += a / n;
    for (const double a : row) variance += (a - mean) * (a - mean) / n;
    for (std::size_t f = 0; f < row.size(); ++f) {
      row[f] = (row[f] - mean) / std::sqrt(variance + epsilon) * weight.at(f);
      if (state.contains(prefix + "bias")) row[f] += vector_of(state, prefix + "bias").at(f);
    }
  }
  return y;
}

Matrix rms_norm(const Matrix& x, const State& state, const std::string& prefix, double epsilon) {
  Matrix y = x;
  for (Vector& row : y) {
    const double root = std::sqrt(dot(row, row) / static_cast<double>(row.size()) + epsilon);
    for (std::size_t f = 0; f < row.size(); ++f) row[f] *= vector_of(state, prefix + "weight").at(f) / root;
  }
  return y;
}

Matrix activate(Activation activation, const Matrix& x) {
  Matrix y = x;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (activation == Activation::swiglu) y[i].resize(x[i].size() / 2);
    for (std::size_t f = 0; f < y[i].size(); ++f) {
      const double a = x[i][f];
      if (activation == Activation::relu)
        y[i][f] = a > 0 ? a : 0;
      else if (activation == Activation::gelu_tanh)
        y[i][f] = 0.5 * a * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (a + 0.044715 * a * a * a)));
      else
        y[i][f] = a / (1 + std::exp(-a)) * x[i][y[i].size() + f];
    }
  }
  return y;
}

Matrix multihead_attention(const Matrix& query, const Matrix& memory, std::size_t heads, const Allowed& allowed,
                           const State& state, const std::string& prefix) {
  const std::size_t d = state.at(prefix + "out_proj.weight").rows.size(), of_head = d / heads;
  const auto projected = [&](const Matrix& x, std::size_t part) {
    return linear_part(x, state, prefix + "in_proj_weight", prefix + "in_proj_bias", part * d, d);
  };
  const Matrix q = projected(query, 0), k = projected(memory, 1), v = projected(memory, 2);
  Matrix out(query.size(), Vector(d, 0));
  for (std::size_t i = 0; i < q.size(); ++i)
    for (std::size_t first = 0; first < d; first += of_head) {
      Vector weights(k.size(), 0);
      double total = 0;
      for (std::size_t j = 0; j < k.size(); ++j) {
        if (!allowed(i, j)) continue;
        double score = 0;
        for (std::size_t f = first; f < first + of_head; ++f) score += q[i][f] * k[j][f];
        total += weights[j] = std::exp(score / std::sqrt(static_cast<double>(of_head)));
      }
      for (std::size_t j = 0; j < k.size() && total > 0; ++j)
        for (std::size_t f = first; f < first + of_head; ++f) out[i][f] += weights[j] / total * v[j][f];
    }
  return linear(out, state, prefix + "out_proj.");
}

Matrix encoder_layer(const Matrix& x, const Layer& layer, const Allowed& allowed, const State& state,
                     const std::string& prefix) {
  const Matrix y = around(x, layer, state, prefix + "norm1.", [&](const Matrix& h) {
    return multihead_attention(h, h, layer.heads, allowed, state, prefix + "self_attn.");
  });
  return around(y, layer, state, prefix + "norm2.",
                [&](const Matrix& h) { return feed_forward(h, layer, state, prefix); });
}

Matrix decoder_layer(const Matrix& x, const Matrix& memory, const Layer& layer, const Allowed& allowed,
                     const Allowed& memory_allowed, const State& state, const std::string& prefix) {
  Matrix y = around(x, layer, state, prefix + "norm1.", [&](const Matrix& h) {
    return multihead_attention(h, h, layer.heads, allowed, state, prefix + "self_attn.");
  });
  y = around(y, layer, state, prefix + "norm2.", [&](const Matrix& h) {
    return multihead_attention(h, memory, layer.heads, memory_allowed, state, prefix + "multihead_attn.");
  });
  return around(y, layer, state, prefix + "norm3.",
                [&](const Matrix& h) { return feed_forward(h, layer, state, prefix); });
}

double cross_entropy(const Matrix& logits, const std::vector<int>& targets, double label_smoothing, int ignore_index) {
  double loss = 0, smooth = 0;
  int count = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (targets.at(i) == ignore_index) continue;
    double total = 0, mean = 0;
    for (const double x : logits[i]) total += std::exp(x);
    for (const double x : logits[i]) mean -= (x - std::log(total)) / static_cast<double>(logits[i].size());
    loss -= logits[i].at(static_cast<std::size_t>(targets[i])) - std::log(total);
    smooth += mean;
    ++count;
  }
  return ((1 - label_smoothing) * loss + label_smoothing * smooth) / count;
}

void AdamW::step(Vector& parameter, const Vector& gradient) {
  exp_avg_.resize(parameter.size());
  exp_avg_sq_.resize(parameter.size());
  ++steps_;
  const double correction1 = 1 - std::pow(beta1, steps_), correction2 = 1 - std::pow(beta2, steps_);
  for (std::size_t i = 0; i < parameter.size(); ++i) {
    parameter[i] *= 1 - lr * weight_decay;
    exp_avg_[i] += (gradient[i] - exp_avg_[i]) * (1 - beta1);
    exp_avg_sq_[i] = exp_avg_sq_[i] * beta2 + gradient[i] * gradient[i] * (1 - beta2);
    const double denominator = std::sqrt(exp_avg_sq_[i]) / std::sqrt(correction2) + eps;
    parameter[i] -= lr / correction1 * exp_avg_[i] / denominator;
  }
}

double clip_grad_norm(std::vector<Vector>& gradients, double max_norm) {
  double squares = 0;
  for (const Vector& g : gradients) squares += dot(g, g);
  const double norm = std::sqrt(squares), coefficient = std::min(1.0, max_norm / norm);
  for (Vector& g : gradients)
    for (double& x : g) x *= coefficient;
  return norm;
}

State encoder_layer_state(const Layer& layer, const std::string& prefix, unsigned seed) {
  State state;
  add_attention(state, layer, prefix + "self_attn.", seed);
  add_rest(state, layer, prefix, 2, seed + 100);
  return state;
}

State decoder_layer_state(const Layer& layer, const std::string& prefix, unsigned seed) {
  State state;
  add_attention(state, layer, prefix + "self_attn.", seed);
  add_attention(state, layer, prefix + "multihead_attn.", seed + 50);
  add_rest(state, layer, prefix, 3, seed + 100);
  return state;
}

void add_tensor(State& state, const std::string& name, const std::vector<std::ptrdiff_t>& shape, unsigned seed) {
  std::mt19937_64 engine(seed);
  const auto rows = static_cast<std::size_t>(shape.size() == 2 ? shape[0] : 1);
  Tensor tensor{shape, Matrix(rows, Vector(static_cast<std::size_t>(shape.back())))};
  for (Vector& row : tensor.rows)
    for (double& x : row) x = static_cast<double>(engine() >> 11) * 0x1p-52 - 1;
  state[name] = tensor;
}

}  // namespace reference
