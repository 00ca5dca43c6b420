// The parameters of multi-head attention under PyTorch's names, and the projections that use them.
#pragma once

#include <cmath>
#include <string>

#include "attn/detail/layers/linear_gradients.h"
#include "attn/detail/layers/parameters.h"
#include "attn/multi_head_options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The three inputs of a layer.
enum class Input { query, key, value };

/// The configuration of a MultiHeadAttention with its defaults filled in, and all its parameters.
template <class T>
class MultiHeadParameters {
 public:
  /// @throws std::invalid_argument for invalid sizes.
  explicit MultiHeadParameters(const MultiHeadConfig& config) : config_(resolved(config)) {
    const Index embed = config_.embed_dim, kv_embed = outputs(Input::key);
    if (packed()) {
      add_xavier("in_proj_weight", embed + 2 * kv_embed, embed);
    } else {
      add_xavier("q_proj_weight", embed, embed);
      add_xavier("k_proj_weight", kv_embed, config_.key_dim);
      add_xavier("v_proj_weight", kv_embed, config_.value_dim);
    }
    if (*config_.in_bias) named_.add_bias("in_proj_bias", embed + 2 * kv_embed);
    // PyTorch's Linear: Kaiming-uniform (He et al. 2015) for a leaky ReLU of slope sqrt(5): sqrt(6 / (6 inputs)).
    named_.add_weight("out_proj.weight", embed, embed, 1 / std::sqrt(static_cast<double>(embed)), config_.seed);
    if (*config_.out_bias) named_.add_bias("out_proj.bias", embed);
    add_parts();
  }

  const MultiHeadConfig& config() const { return config_; }
  Index head_dim() const { return config_.embed_dim / config_.heads; }
  Parameters<T>& named() { return named_; }
  const Parameters<T>& named() const { return named_; }

  /// Whether all three inputs share one weight, as in PyTorch.
  bool packed() const { return config_.key_dim == config_.embed_dim && config_.value_dim == config_.embed_dim; }

  /// Number of features of an input, and of its projection.
  Index inputs(Input input) const {
    return input == Input::query ? config_.embed_dim : input == Input::key ? config_.key_dim : config_.value_dim;
  }
  Index outputs(Input input) const { return input == Input::query ? config_.embed_dim : config_.kv_heads * head_dim(); }

  /// Returns the projections of `first` … `last` as one product. More than one needs packed weights.
  Linear<T> input_projection(Input first, Input last) const {
    const Range rows{rows_of(first).begin, rows_of(last).end};
    const auto weight = named_.weight(kWeights[static_cast<std::size_t>(first)]);
    return {weight.data(), *config_.in_bias ? named_.bias("in_proj_bias").data() + rows.begin : nullptr, weight.dim(1),
            rows.size()};
  }
  Linear<T> input_projection(Input input) const { return input_projection(input, input); }
  Linear<T> output_projection() const {
    return {named_.weight("out_proj.weight").data(), *config_.out_bias ? named_.bias("out_proj.bias").data() : nullptr,
            config_.embed_dim, config_.embed_dim};
  }

  /// Returns the gradients of these projections, which accumulate into those of all parameters.
  LinearGradients<T> input_gradients(Parameters<computed_t<T>>& all, Input input) const {
    const auto weight = all.weight(kWeights[static_cast<std::size_t>(input)]);
    return {weight.data(), *config_.in_bias ? all.bias("in_proj_bias").data() + rows_of(input).begin : nullptr,
            weight.dim(1), weight.dim(0)};
  }
  LinearGradients<T> output_gradients(Parameters<computed_t<T>>& all) const {
    return {all.weight("out_proj.weight").data(), *config_.out_bias ? all.bias("out_proj.bias").data() : nullptr,
            config_.embed_dim, config_.embed_dim};
  }

 private:
  static constexpr const char* kWeights[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};

  static MultiHeadConfig resolved(MultiHeadConfig c) {
    require(c.embed_dim > 0, "embed_dim must be positive, but is ", c.embed_dim);
    require(c.heads > 0, "heads must be positive, but is ", c.heads);
    require(c.embed_dim % c.heads == 0, "embed_dim (", c.embed_dim, ") must be a multiple of heads (", c.heads, ")");
    const auto default_to = [](Index& size, const char* name, Index otherwise) {
      require(size >= 0, name, " must not be negative, but is ", size);
      if (size == 0) size = otherwise;
    };
    default_to(c.kv_heads, "kv_heads", c.heads);
    default_to(c.key_dim, "key_dim", c.embed_dim);
    default_to(c.value_dim, "value_dim", c.embed_dim);
    require(c.embed_dim <= kLargestIndex && c.key_dim <= kLargestIndex && c.value_dim <= kLargestIndex, "embed_dim ",
            c.embed_dim, ", key_dim ", c.key_dim, " and value_dim ", c.value_dim, " must be at most ", kLargestIndex);
    require(c.heads % c.kv_heads == 0, "heads (", c.heads, ") must be a multiple of kv_heads (", c.kv_heads, ")");
    c.in_bias = c.in_bias.value_or(c.bias);
    c.out_bias = c.out_bias.value_or(c.bias);
    const Index head_dim = c.embed_dim / c.heads;
    require(!c.rope || c.rope->config().head_dim == head_dim, "the head_dim of the rope is ",
            c.rope ? c.rope->config().head_dim : 0, ", but embed_dim / heads is ", head_dim);
    return c;
  }

  void add_xavier(const char* name, Index outputs, Index inputs) {
    const double bound = std::sqrt(6.0 / static_cast<double>(inputs + outputs));
    named_.add_weight(name, outputs, inputs, bound, config_.seed);
  }

  /// Returns the rows of an input in the packed weight.
  Range rows_of(Input input) const {
    const Index embed = config_.embed_dim, kv_embed = outputs(Input::key);
    const Index begin = input == Input::query ? 0 : input == Input::key ? embed : embed + kv_embed;
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

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
