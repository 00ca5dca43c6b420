#include "delta_net.h"

#include <cmath>

#include "threads.h"

namespace nn {

namespace {

/// Calls operator() of a const layer, for inference, and forward() of any other, for training.
template <class Layer, class X>
auto run(const Layer& layer, X&& x) {
  return layer(std::forward<X>(x));
}
template <class Layer, class X>
auto run(Layer& layer, X&& x) {
  return layer.forward(std::forward<X>(x));
}

attn::ConvOptions conv_options() { return {.silu = true, .executor = options().executor}; }

/// The heads first … last - 1 of each token, as (batch, heads, len, head_dim).
template <class X>
auto heads_of(X& x, Index head_dim, Index first, Index last) {
  return x.reshape(x.dim(0), x.dim(1), -1, head_dim).slice(2, first, last).permute(0, 2, 1, 3);
}

/// One number per head and token, as (batch, heads, len).
template <class X>
auto numbers_of(X& x) {
  return x.permute(0, 2, 1);
}

template <class T>
Eigen::Map<const Row<T>> row_of(const attn::Tensor<T, 1>& x) {
  return {x.data(), x.size()};
}
template <class T>
Eigen::Map<Row<T>> row_of(attn::Tensor<T, 1>& x) {
  return {x.data(), x.size()};
}

template <class X>
auto sigmoid(const X& x) {
  return 1 / (1 + (-x).exp());
}

/// Without overflow for large x.
template <class X>
auto softplus(const X& x) {
  return x.max(0) + (-x.abs()).exp().log1p();
}

/// Calls f(elements of x, of y, of z, of grad …) as arrays, for parts of these tensors, on all threads.
template <class F, class X, class... More>
void for_elements(const F& f, X& x, More&... more) {
  constexpr Index kElements = 4096;
  for_blocks(x.size(), kElements, 2, [&](Index first, Index last) {
    const auto part = [&](auto& t) {
      using Number = std::remove_pointer_t<decltype(t.data())>;
      using Array = Eigen::Array<std::remove_const_t<Number>, Eigen::Dynamic, 1>;
      return Eigen::Map<std::conditional_t<std::is_const_v<Number>, const Array, Array>>(t.data() + first,
                                                                                         last - first);
    };
    f(part(x), part(more)...);
  });
}

}  // namespace

template <class T>
DeltaNetState<T>::DeltaNetState(const DeltaNetConfig& c, Index batch)
    : inputs({batch, c.conv_width - 1, 3 * c.heads * c.head_dim}),
      memory({.batch = batch, .kv_heads = c.heads, .features = c.head_dim}) {}

template <class T>
DeltaNet<T>::DeltaNet(const DeltaNetConfig& c, Random& random)
    : config_(c),
      in_proj_qkv_(c.features, 3 * c.heads * c.head_dim, false, random),
      in_proj_z_(c.features, c.heads * c.head_dim, false, random),
      in_proj_b_(c.features, c.heads, false, random),
      in_proj_a_(c.features, c.heads, false, random),
      out_proj_(c.heads * c.head_dim, c.features, false, random),
      conv1d_({3 * c.heads * c.head_dim, c.conv_width}),
      a_log_({c.heads}),
      dt_bias_({c.heads}),
      unit_(c.head_dim, NormKind::unit, static_cast<T>(c.norm_epsilon)),
      norm_(c.head_dim, NormKind::rms, static_cast<T>(c.norm_epsilon)) {
  const double bound = 1 / std::sqrt(static_cast<double>(c.conv_width));
  for (Index i = 0; i < conv1d_.values.size(); ++i)
    conv1d_.values.data()[i] = static_cast<T>(bound * (2 * random.uniform() - 1));
  for (Index h = 0; h < c.heads; ++h) {
    a_log_.values(h) = static_cast<T>(std::log(1 + 15 * random.uniform()));
    const double dt = 1e-3 * std::pow(100, random.uniform());
    dt_bias_.values(h) = static_cast<T>(std::log(std::expm1(dt)));  // the inverse of softplus
  }
}

template <class T>
template <class Self>
States<T> DeltaNet<T>::apply(Self& self, const States<T>& x, State* state) {
  const Index heads = self.config_.heads, dim = self.config_.head_dim;
  const auto& conv = self.conv1d_.values;
  Kept k;
  k.projected = run(self.in_proj_qkv_, x);
  k.mixed = state ? attn::causal_conv1d(state->inputs, k.projected, conv, attn::no_bias, conv_options())
                  : attn::causal_conv1d(k.projected, conv, attn::no_bias, conv_options());
  k.query_key = run(self.unit_, States<T>(k.mixed.slice(2, 0, 2 * heads * dim)));

  k.beta = run(self.in_proj_b_, x);
  rows_of(k.beta) = sigmoid(rows_of(k.beta).array());
  k.decay_input = run(self.in_proj_a_, x);
  rows_of(k.decay_input).rowwise() += row_of(self.dt_bias_.values);
  k.log_gate = with_features(x, heads);
  rows_of(k.log_gate) = softplus(rows_of(k.decay_input).array()).rowwise() * -row_of(self.a_log_.values).array().exp();

  States<T> y = with_features(x, heads * dim);
  const auto query = heads_of(k.query_key, dim, 0, heads), key = heads_of(k.query_key, dim, heads, 2 * heads);
  const auto value = heads_of(k.mixed, dim, 2 * heads, 3 * heads);
  if (state)
    attn::gated_delta_rule_into(heads_of(y, dim, 0, heads), state->memory, query, key, value, numbers_of(k.log_gate),
                                numbers_of(k.beta), options());
  else
    attn::gated_delta_rule_into(heads_of(y, dim, 0, heads), query, key, value, numbers_of(k.log_gate),
                                numbers_of(k.beta), options());

  k.normalized = run(self.norm_, y);
  k.gate = run(self.in_proj_z_, x);
  for_elements([](auto out, auto in, auto z) { out = in * z * sigmoid(z); }, y, k.normalized, k.gate);
  if constexpr (!std::is_const_v<Self>) self.kept_ = std::move(k);
  return run(self.out_proj_, std::move(y));
}

template <class T>
States<T> DeltaNet<T>::operator()(const States<T>& x, State* state) const {
  return apply(*this, x, state);
}

template <class T>
States<T> DeltaNet<T>::forward(const States<T>& x) {
  return apply(*this, x, nullptr);
}

template <class T>
States<T> DeltaNet<T>::backward(const States<T>& grad) {
  const Index heads = config_.heads, dim = config_.head_dim;
  Kept& k = kept_;
  const States<T> grad_gated = out_proj_.backward(grad);
  States<T> grad_normalized = with_features(grad, heads * dim), grad_gate = grad_normalized;
  for_elements(
      [](auto g, auto z, auto normalized, auto grad_n, auto grad_z) {
        grad_n = sigmoid(z);  // temporarily, because Eigen would compute it three times
        grad_z = g * normalized * grad_n * (1 + z * (1 - grad_n));
        grad_n *= g * z;
      },
      grad_gated, k.gate, k.normalized, grad_normalized, grad_gate);
  const States<T> grad_y = norm_.backward(grad_normalized);

  States<T> grad_query_key = with_features(grad, 2 * heads * dim), grad_mixed = with_features(grad, 3 * heads * dim);
  States<T> grad_log_gate = with_features(grad, heads), grad_beta = grad_log_gate;
  attn::gated_delta_rule_backward_into(
      heads_of(grad_query_key, dim, 0, heads), heads_of(grad_query_key, dim, heads, 2 * heads),
      heads_of(grad_mixed, dim, 2 * heads, 3 * heads), numbers_of(grad_log_gate), numbers_of(grad_beta),
      heads_of(grad_y, dim, 0, heads), heads_of(k.query_key, dim, 0, heads),
      heads_of(k.query_key, dim, heads, 2 * heads), heads_of(k.mixed, dim, 2 * heads, 3 * heads),
      numbers_of(k.log_gate), numbers_of(k.beta), options());
  rows_of(grad_mixed).leftCols(2 * heads * dim) =
      rows_of(std::as_const(grad_query_key = unit_.backward(grad_query_key)));
  const auto conv =
      attn::causal_conv1d_backward(grad_mixed, k.projected, conv1d_.values, attn::no_bias, conv_options());
  conv1d_.gradient.matrix() += conv.weight.matrix();

  const auto decays = rows_of(grad_log_gate).array();
  row_of(a_log_.gradient) += (decays * rows_of(k.log_gate).array()).colwise().sum().matrix();
  States<T> grad_decay_input = with_features(grad, heads);
  rows_of(grad_decay_input) =
      (decays * sigmoid(rows_of(k.decay_input).array())).rowwise() * -row_of(a_log_.values).array().exp();
  row_of(dt_bias_.gradient) += rows_of(grad_decay_input).colwise().sum();
  rows_of(grad_beta).array() *= rows_of(k.beta).array() * (1 - rows_of(k.beta).array());

  States<T> grad_x = in_proj_qkv_.backward(conv.x);
  add_to(grad_x, in_proj_z_.backward(grad_gate));
  add_to(grad_x, in_proj_b_.backward(grad_beta));
  add_to(grad_x, in_proj_a_.backward(grad_decay_input));
  return grad_x;
}

template <class T>
void DeltaNet<T>::visit(const std::string& prefix, const Visitor<T>& visitor) {
  in_proj_qkv_.visit(prefix + "in_proj_qkv.", visitor);
  in_proj_z_.visit(prefix + "in_proj_z.", visitor);
  in_proj_b_.visit(prefix + "in_proj_b.", visitor);
  in_proj_a_.visit(prefix + "in_proj_a.", visitor);
  conv1d_.visit(prefix + "conv1d.weight", visitor);
  a_log_.visit(prefix + "A_log", visitor);
  dt_bias_.visit(prefix + "dt_bias", visitor);
  norm_.visit(prefix + "norm.", visitor);
  out_proj_.visit(prefix + "out_proj.", visitor);
}

template struct DeltaNetState<NN_SCALAR>;
template class DeltaNet<NN_SCALAR>;

}  // namespace nn
