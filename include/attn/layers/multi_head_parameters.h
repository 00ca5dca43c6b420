// The parameters of multi-head attention under PyTorch's names, and the projections that use them.
#pragma once

#include <cmath>
#include <string>

#include "attn/layers/linear_gradients.h"
#include "attn/layers/parameters.h"
#include "attn/multi_head_options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The three inputs of a layer.
enum class Input { query, key, value };

/// The configuration of a MultiHeadAttention with its defaults filled in, and all its parameters.
template <class T>
class MultiHeadParameters {
 public:
  /// @throws std::invalid_argument for invalid sizes.
  explicit MultiHeadParameters(const MultiHeadConfig& config) : config_(resolved(config)) {
    const Index embed = config_.embed_dim, joined = config_.heads * config_.v_head_dim;
    const Index q = outputs(Input::query), k = outputs(Input::key), v = outputs(Input::value);
    if (packed()) {
      add_xavier("in_proj_weight", q + k + v, embed);
    } else {
      add_xavier("q_proj_weight", q, embed);
      add_xavier("k_proj_weight", k, config_.key_dim);
      add_xavier("v_proj_weight", v, config_.value_dim);
    }
    if (*config_.in_bias) named_.add_vector("in_proj_bias", q + k + v, 0);
    if (config_.add_bias_kv) {
      // PyTorch draws from a normal distribution of the same variance.
      named_.add_random_vector("bias_k", k, std::sqrt(3.0 / static_cast<double>(k)), config_.seed);
      named_.add_random_vector("bias_v", v, std::sqrt(3.0 / static_cast<double>(v)), config_.seed);
    }
    if (config_.qk_norm) {
      named_.add_vector("q_norm.weight", norm_size(Input::query), 1);
      named_.add_vector("k_norm.weight", norm_size(Input::key), 1);
    }
    // PyTorch's Linear: Kaiming-uniform (He et al. 2015) for a leaky ReLU of slope sqrt(5): sqrt(6 / (6 inputs)).
    named_.add_weight("out_proj.weight", embed, joined, 1 / std::sqrt(static_cast<double>(joined)), config_.seed);
    if (*config_.out_bias) named_.add_vector("out_proj.bias", embed, 0);
    add_parts();
  }

  const MultiHeadConfig& config() const { return config_; }
  Parameters<T>& named() { return named_; }
  const Parameters<T>& named() const { return named_; }

  /// Whether all three inputs share one weight, as in PyTorch.
  bool packed() const { return config_.key_dim == config_.embed_dim && config_.value_dim == config_.embed_dim; }

  /// Number of features of an input.
  Index inputs(Input input) const {
    return input == Input::query ? config_.embed_dim : input == Input::key ? config_.key_dim : config_.value_dim;
  }
  /// Number of heads of an input.
  Index heads(Input input) const { return input == Input::query ? config_.heads : config_.kv_heads; }
  /// Number of features of a head of an input.
  Index head_dim(Input input) const { return input == Input::value ? config_.v_head_dim : config_.head_dim; }
  /// Number of consecutive outputs of the projection of an input that belong to one head. In the projection of the
  /// query, the gate follows the query.
  Index outputs_per_head(Input input) const {
    return head_dim(input) + (input == Input::query && config_.output_gate ? config_.v_head_dim : 0);
  }
  /// Number of outputs of the projection of an input.
  Index outputs(Input input) const { return heads(input) * outputs_per_head(input); }
  /// Number of weights of the norm of queries or keys.
  Index norm_size(Input input) const {
    return (config_.qk_norm_scope == NormScope::head ? 1 : heads(input)) * config_.head_dim;
  }
  static const char* norm_name(Input input) { return input == Input::query ? "q_norm.weight" : "k_norm.weight"; }

  /// Returns the projections of `first` … `last` as one product. More than one input needs packed weights.
  Linear<T> input_projection(Input first, Input last) const {
    const Range rows{rows_of(first).begin, rows_of(last).end};
    const auto weight = named_.weight(kWeights[static_cast<std::size_t>(first)]);
    return {weight.data(), *config_.in_bias ? named_.bias("in_proj_bias").data() + rows.begin : nullptr, weight.dim(1),
            rows.size()};
  }
  Linear<T> input_projection(Input input) const { return input_projection(input, input); }
  Linear<T> output_projection() const {
    const auto weight = named_.weight("out_proj.weight");
    return {weight.data(), *config_.out_bias ? named_.bias("out_proj.bias").data() : nullptr, weight.dim(1),
            weight.dim(0)};
  }

  /// Returns the gradients of a projection, as views of `all`, the gradients of all parameters.
  LinearGradients<T> input_gradients(Parameters<computed_t<T>>& all, Input input) const {
    const auto weight = all.weight(kWeights[static_cast<std::size_t>(input)]);
    return {weight.data(), *config_.in_bias ? all.bias("in_proj_bias").data() + rows_of(input).begin : nullptr,
            weight.dim(1), weight.dim(0)};
  }
  LinearGradients<T> output_gradients(Parameters<computed_t<T>>& all) const {
    const auto weight = all.weight("out_proj.weight");
    return {weight.data(), *config_.out_bias ? all.bias("out_proj.bias").data() : nullptr, weight.dim(1),
            weight.dim(0)};
  }

 private:
  static constexpr const char* kWeights[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};

  static MultiHeadConfig resolved(MultiHeadConfig c) {
    require(c.embed_dim > 0, "embed_dim must be positive, but is ", c.embed_dim);
    require(c.heads > 0, "heads must be positive, but is ", c.heads);
    require(c.head_dim != 0 || c.embed_dim % c.heads == 0, "embed_dim (", c.embed_dim,
            ") must be a multiple of heads (", c.heads, "), unless head_dim is given");
    const auto default_to = [](Index& size, const char* name, Index otherwise) {
      require(size >= 0, name, " must not be negative, but is ", size);
      if (size == 0) size = otherwise;
    };
    default_to(c.kv_heads, "kv_heads", c.heads);
    default_to(c.head_dim, "head_dim", c.embed_dim / c.heads);
    default_to(c.v_head_dim, "v_head_dim", c.head_dim);
    default_to(c.key_dim, "key_dim", c.embed_dim);
    default_to(c.value_dim, "value_dim", c.embed_dim);
    require(c.embed_dim <= kLargestIndex && c.key_dim <= kLargestIndex && c.value_dim <= kLargestIndex, "embed_dim ",
            c.embed_dim, ", key_dim ", c.key_dim, " and value_dim ", c.value_dim, " must be at most ", kLargestIndex);
    require(c.heads % c.kv_heads == 0, "heads (", c.heads, ") must be a multiple of kv_heads (", c.kv_heads, ")");
    const Index most = kLargestIndex / c.heads;
    require(c.head_dim <= most && c.v_head_dim <= most, "head_dim ", c.head_dim, " and v_head_dim ", c.v_head_dim,
            " must be at most ", most, " with ", c.heads, " heads");
    c.in_bias = c.in_bias.value_or(c.bias);
    c.out_bias = c.out_bias.value_or(c.bias);
    require(!c.rope || c.rope->config().head_dim == c.head_dim, "the head_dim of the rope is ",
            c.rope ? c.rope->config().head_dim : 0, ", but that of the layer is ", c.head_dim);
    require(!c.rope || !c.add_bias_kv,
            "add_bias_kv cannot be combined with a rope: bias_k has no position, from which its angle would follow");
    require(c.qk_norm_eps >= 0 && std::isfinite(c.qk_norm_eps), "qk_norm_eps must be finite and not negative, but is ",
            c.qk_norm_eps);
    return c;
  }

  void add_xavier(const char* name, Index outputs, Index inputs) {
    const double bound = std::sqrt(6.0 / static_cast<double>(inputs + outputs));
    named_.add_weight(name, outputs, inputs, bound, config_.seed);
  }

  /// Returns the rows of an input in the packed weight.
  Range rows_of(Input input) const {
    const Index q = outputs(Input::query), k = outputs(Input::key);
    const Index begin = input == Input::query ? 0 : input == Input::key ? q : q + k;
    return {begin, begin + outputs(input)};
  }

  /// Names the rows of the packed weight and bias, and adds the dotted names of PyTorch's Linear.
  void add_parts() {
    for (const Input input : {Input::query, Input::key, Input::value}) {
      const std::string weight = kWeights[static_cast<std::size_t>(input)], layer = weight.substr(0, 6);
      if (packed()) named_.add_part(weight, "in_proj_weight", rows_of(input));
      if (*config_.in_bias) named_.add_part(layer + "_bias", "in_proj_bias", rows_of(input));
      named_.add_alias(layer + ".weight", weight);
      if (*config_.in_bias) named_.add_alias(layer + ".bias", layer + "_bias");
    }
    named_.add_alias("o_proj.weight", "out_proj.weight");
    if (*config_.out_bias) named_.add_alias("o_proj.bias", "out_proj.bias");
  }

  MultiHeadConfig config_;
  Parameters<T> named_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
