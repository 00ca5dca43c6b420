// Layer 5: multi-head attention, the layer with its projections.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/detail/multi_head_inputs.h"

namespace attn {

namespace detail {

/// What may stand in the place of mods.
template <class X>
concept AnyOptions = std::same_as<X, Options> || std::same_as<X, MultiHeadOptions>;

}  // namespace detail

inline namespace ATTN_BUILT_FOR {

/// Multi-head attention (Vaswani et al. 2017, section 3.2.2):
///
///     out = concat(head 0, head 1, …) * W_outᵀ + b_out
///     head h = attention(query * W_q[h]ᵀ + b_q[h], key * W_k[h']ᵀ + b_k[h'], value * W_v[h']ᵀ + b_v[h'], mods)
///
/// where h' = h / (heads / kv_heads), and W[h] are rows h * head_dim … (h + 1) * head_dim - 1 of W.
///
/// Parameters have the names, shapes and row-major layout of PyTorch's nn.MultiheadAttention, so that a trained one can
/// be loaded. With E = embed_dim and kv_E = kv_heads * head_dim (E in PyTorch, which has kv_heads = heads):
///
///     in_proj_weight  (E + 2 kv_E, E)       W_q, W_k, W_v below each other; if key_dim = value_dim = embed_dim, else
///     q_proj_weight   (E, E)    k_proj_weight  (kv_E, key_dim)    v_proj_weight  (kv_E, value_dim)
///     in_proj_bias    (E + 2 kv_E)          b_q, b_k, b_v, one after the other; only with biases
///     out_proj.weight (E, E)    out_proj.bias  (E)
///
/// Their rows have names as well, as checkpoints of other models do:
///
///     q_proj_weight, k_proj_weight, v_proj_weight    the rows of in_proj_weight, where that is one parameter
///     q_proj_bias, k_proj_bias, v_proj_bias          those of in_proj_bias
///     q_proj.weight, q_proj.bias, …                  the same with a dot, as Hugging Face has it
///     o_proj.weight, o_proj.bias                     out_proj.weight, out_proj.bias
///
/// Initially, as in PyTorch: input projections Xavier-uniform (Glorot & Bengio 2010), out_proj.weight uniform in
/// ±1/sqrt(E), biases 0. The numbers depend on the seed and the sizes only, not on platform or thread count.
///
/// T is float, double, long double, or a float of 16 bits: Eigen::half or Eigen::bfloat16, or the compiler's own. With 16
/// bits, sums are formed in float, and the projections and the results of the heads rounded once each. Concurrent calls are
/// safe while no parameter is written.
template <class T>
class MultiHeadAttention {
  static_assert(detail::is_scalar<T>,
                "attn: MultiHeadAttention<T> computes with T = float, double, long double, or floats of 16 bits");

 public:
  /// @throws std::invalid_argument unless embed_dim is a positive multiple of heads, heads a positive multiple of
  /// kv_heads, and key_dim and value_dim are positive.
  explicit MultiHeadAttention(const MultiHeadConfig& config) : parameters_(config) {}

  /// The configuration, with the defaults filled in.
  const MultiHeadConfig& config() const { return parameters_.config(); }
  Index head_dim() const { return parameters_.head_dim(); }

  /// The names of the parameters that this configuration has, PyTorch's.
  std::vector<std::string> parameter_names() const { return parameters_.named().names(); }

  /// A weight (outputs, inputs) or bias (outputs) in place, to be read or written. Valid while the layer lives and is
  /// not assigned to. @throws std::invalid_argument for an unknown name, with the known ones.
  TensorView<T, 2> weight(std::string_view name) { return parameters_.named().weight(name); }
  TensorView<const T, 2> weight(std::string_view name) const { return parameters_.named().weight(name); }
  TensorView<T, 1> bias(std::string_view name) { return parameters_.named().bias(name); }
  TensorView<const T, 1> bias(std::string_view name) const { return parameters_.named().bias(name); }

  /// Copies a parameter from anything attn::view takes, or an Eigen expression, of any floating-point type.
  /// @throws std::invalid_argument for an unknown name, with the known ones, or another shape, with both.
  template <class X>
  void load(std::string_view name, const X& values) {
    parameters_.named().load(name, values);
  }
  /// The same for some of its rows: as many as `values` has, from row `first` on.
  template <class X>
  void load_rows(std::string_view name, Index first, const X& values) {
    parameters_.named().load_rows(name, first, values);
  }

  /// Applies the layer to query (batch, q_len, embed_dim), key (batch, kv_len, key_dim) and value (batch, kv_len,
  /// value_dim): attn::Tensor, attn::TensorView or Eigen tensors of rank 3 with any strides, or to matrices (len,
  /// features) of Eigen or of attn, which are a batch of one. Passing the same object twice or three times saves time.
  ///
  /// @param mods     what differs from plain attention, see attention(); positions count tokens.
  /// @param options  see MultiHeadOptions, or the Options of the heads alone.
  /// @returns out: a Tensor<T, 3>, or like a query of rank 2; and the weights, if asked for.
  ///
  /// A query that keeps no key gives out_proj.bias; so does kv_len == 0. Extra memory is linear in the lengths, as long
  /// as neither the weights nor the naive path are asked for.
  /// @throws std::invalid_argument if sizes disagree; the message has the numbers.
  template <class Q, class K, class V, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto operator()(const Q& query, const K& key, const V& value, const M& mods = {},
                                                   const MultiHeadOptions& options = {}) const {
    detail::check_layer_types<T, Q, K, V>();
    const auto& q_held = detail::evaluated(query);
    const auto& k_held = detail::evaluated(key);
    const auto& v_held = detail::evaluated(value);
    const Inputs inputs{detail::as_rank3(view(q_held)), detail::as_rank3(view(k_held)), detail::as_rank3(view(v_held))};
    detail::check_inputs<T>(config(), inputs);

    Tensor<T, 4> weights;
    if (options.weights)
      weights = Tensor<T, 4>::uninitialized({inputs[0].dim(0), config().heads, inputs[0].dim(1), inputs[1].dim(1)});
    auto out = detail::result_like<Q>(joined(attend(inputs, weights, mods, options), options));
    return MultiHeadResult<decltype(out), T>{std::move(out), std::move(weights)};
  }
  /// With the Options of the heads alone. (A template, so that `{}` is the MultiHeadOptions.)
  template <class Q, class K, class V, class M = Mods<>, std::same_as<Options> O = Options>
  auto operator()(const Q& query, const K& key, const V& value, const M& mods, const O& options) const {
    return (*this)(query, key, value, mods, MultiHeadOptions{Path::flash, false, options});
  }
  /// Both without mods.
  template <class Q, class K, class V>
  auto operator()(const Q& query, const K& key, const V& value, const MultiHeadOptions& options) const {
    return (*this)(query, key, value, Mods<>(), options);
  }
  template <class Q, class K, class V, std::same_as<Options> O = Options>
  auto operator()(const Q& query, const K& key, const V& value, const O& options) const {
    return (*this)(query, key, value, Mods<>(), options);
  }

 private:
  using Inputs = detail::Inputs<T>;
  using Input = detail::Input;

  /// The results of all heads next to each other, (batch, q_len, embed_dim).
  template <class M>
  Tensor<T, 3> attend(const Inputs& inputs, Tensor<T, 4>& weights, const M& mods,
                      const MultiHeadOptions& options) const {
    const Index batch = inputs[0].dim(0), q_len = inputs[0].dim(1);
    const detail::ProjectedHeads<T> heads(parameters_, inputs, Input::query, Input::value, options.attention);
    const TensorView<const T, 4> q = heads.query(), k = heads.key(), v = heads.value();
    auto result = Tensor<T, 3>::uninitialized({batch, q_len, config().embed_dim});
    const TensorView<T, 4> out = bshd(result.data(), batch, q_len, config().heads, head_dim());
    Options inner = options.attention;
    inner.workspace = {};  // its size would be that of a call that the user never sees
    if (options.weights)
      detail::CheckedCall(q, k, v, mods, inner).naive(inner.executor, weights.view(), out);
    else if (options.path == Path::naive)
      naive_attention_into(out, q, k, v, mods, inner);
    else
      attention_into(out, q, k, v, mods, inner);
    return result;
  }

  /// The results of the heads through the last projection.
  Tensor<T, 3> joined(const Tensor<T, 3>& heads, const MultiHeadOptions& options) const {
    auto out = Tensor<T, 3>::uninitialized(heads.shape());
    parameters_.output_projection()(heads.data(), out.data(), heads.dim(0) * heads.dim(1), options.attention);
    return out;
  }

  detail::MultiHeadParameters<T> parameters_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
