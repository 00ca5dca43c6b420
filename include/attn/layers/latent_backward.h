// Backward pass of multi-head latent attention, in the unfolded form.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "attn/layers/latent_heads.h"
#include "attn/layers/multi_head_backward.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// An RMS norm of a projection of tokens, computed again: its input and output, (batch, len, rank) without gaps, and
/// its gradients.
template <class T>
struct LatentNorm {
  const char* name;
  HeadNorm<T> norm;
  Tensor<T, 3> input, output;
  std::vector<typename HeadNorm<T>::Sum> sums;

  /// The norm of the first features of `projected`.
  LatentNorm(const LatentParameters<T>& layer, const char* of, const Tensor<T, 3>& projected, const Options& options)
      : name(of), norm(layer.norm(of)), sums(static_cast<std::size_t>(layer.named().bias(of).dim(0))) {
    input = Tensor<T, 3>(projected.view().slice(2, 0, static_cast<Index>(sums.size())));
    output = input;
    norm.apply(all(output), options.executor);
  }
  /// Converts the gradient of the output into that of the input in place.
  void gradient(Tensor<T, 3>& grad, const Options& options) {
    norm.gradient(all(grad), all(input), sums, options.executor);
  }
  static TensorView<T, 4> all(Tensor<T, 3>& tokens) { return features_of(tokens, 1, {0, tokens.dim(2)}); }
};

/// LatentAttention::backward() for checked types: adds the gradients of the parameters to `sums`, which may be empty at
/// first, and returns that of the tokens, shaped like X.
template <class X, class T, class G, class Out, class M>
auto latent_gradients(const LatentParameters<T>& layer, Parameters<computed_t<T>>& sums,
                      const TensorView<const T, 3>& x, const G& grad_out, const MultiHeadResult<Out, T>& result,
                      const M& mods, const MultiHeadOptions& given) {
  using Number = computed_t<T>;
  const LatentAttentionConfig& c = layer.config();
  const MultiHeadOptions options = layer.scaled(given);
  const Options& of_maps = options.attention;
  const Inputs<T> inputs{x, x, x};
  const auto& held = evaluated(grad_out);
  const TensorView<const T, 3> grad_of_out = as_rank3(view(held));
  check_features("x", x, c.embed_dim, "embed_dim");
  check_backward(layer.unfolded(), inputs, grad_of_out, result);
  const WithoutGaps<T> grad(grad_of_out), tokens(x);
  const Index batch = x.dim(0), len = x.dim(1), rank = c.latent.rank, rope_dim = c.latent.rope_dim;

  struct Term {  // a projection, its input and the gradient of its output
    const char* name;
    const T *x, *grad_y;
  };
  std::vector<Term> terms;
  /// Returns the gradient of the input of a projection, and lists its weight.
  const auto through = [&](const char* name, const T* input, const T* grad_y) {
    const Linear<T> map = layer.linear(name);
    terms.push_back({name, input, grad_y});
    auto grad_x = Tensor<T, 3>::uninitialized({batch, len, map.inputs});
    input_gradient(map, grad_y, grad_x.data(), batch * len, of_maps);
    return grad_x;
  };
  const auto projected = [&](const char* name) {
    return mapped(layer.linear(name), tokens.data(), batch, len, of_maps);
  };

  return with_learned_later(result, mods, of_heads(options), [&](const DeferredLearnedMods<Number>* learned) {
    const auto features = [&](Index count) { return Tensor<T, 3>::uninitialized({batch, len, count}); };
    Tensor<T, 3> grad_query = features(c.heads * layer.qk_dim()), grad_key = features(c.heads * layer.qk_dim()),
                 grad_kv = features(c.heads * layer.kv_dim()), grad_rows = features(layer.row());
    const Tensor<T, 3> grad_joined = through("o_proj.weight", result.joined.data(), grad.data());
    const std::array<TensorView<T, 4>, 3> grads{features_of(grad_query, c.heads, {0, layer.qk_dim()}),
                                                features_of(grad_key, c.heads, {0, layer.qk_dim()}),
                                                features_of(grad_kv, c.heads, {c.nope_dim, layer.kv_dim()})};
    attention_gradients(grads, grad_joined, ExtraKeys<T>(), result, mods, options, learned);

    // All heads share the rotated features of a key, so their gradients are added up.
    for_each_token_block(grads[1], of_maps.executor, [&](const TensorView<T, 4>& keys, Index b, Index begin) {
      for (Index i = 0; i < keys.dim(2); ++i) {
        for (Index h = 0; h < c.heads; ++h)
          std::copy_n(&keys(0, h, i, 0), c.nope_dim, &grad_kv(b, begin + i, h * layer.kv_dim()));
        for (Index r = 0; r < rope_dim; ++r) {
          Number sum = 0;
          for (Index h = 0; h < c.heads; ++h) sum += static_cast<Number>(keys(0, h, i, c.nope_dim + r));
          grad_rows(b, begin + i, rank + r) = static_cast<T>(sum);
        }
      }
    });
    if (c.rope)
      rotate_heads(features_of(grad_query, c.heads, {c.nope_dim, layer.qk_dim()}),
                   features_of(grad_rows, 1, {rank, layer.row()}), sizes_of(inputs, of_maps), of_maps.executor,
                   [&](const TensorView<T, 4>& some, Index first) { c.rope->rotate_gradient(some, first); });

    std::vector<LatentNorm<T>> norms;
    norms.reserve(2);  // terms refer to their tensors
    norms.emplace_back(layer, "kv_a_layernorm.weight", projected("kv_a_proj_with_mqa.weight"), of_maps);
    Tensor<T, 3> grad_latent = through("kv_b_proj.weight", norms[0].output.data(), grad_kv.data()), grad_low;
    norms[0].gradient(grad_latent, of_maps);
    for (Index i = 0; i < batch * len; ++i)
      std::copy_n(grad_latent.data() + i * rank, rank, grad_rows.data() + i * layer.row());
    Tensor<T, 3> grad_x = through("kv_a_proj_with_mqa.weight", tokens.data(), grad_rows.data()), of_query;
    if (c.q_rank > 0) {
      norms.emplace_back(layer, "q_a_layernorm.weight", projected("q_a_proj.weight"), of_maps);
      grad_low = through(layer.q_name(), norms[1].output.data(), grad_query.data());
      norms[1].gradient(grad_low, of_maps);
      of_query = through("q_a_proj.weight", tokens.data(), grad_low.data());
    } else {
      of_query = through(layer.q_name(), tokens.data(), grad_query.data());
    }
    for (Index i = 0; i < grad_x.size(); ++i)
      grad_x.data()[i] =
          static_cast<T>(static_cast<Number>(grad_x.data()[i]) + static_cast<Number>(of_query.data()[i]));
    auto grad_like_x = result_like<X>(std::move(grad_x));

    // All memory is allocated first, so that the gradients are added completely or not at all.
    const auto gradients_of = [&](Parameters<Number>* all, const Term& term) {
      const Linear<T> map = layer.linear(term.name);
      return LinearGradients<T>{all ? all->weight(term.name).data() : nullptr, nullptr, map.inputs, map.outputs};
    };
    Index most = 0;
    for (const Term& term : terms) most = std::max(most, gradients_of(nullptr, term).bytes(batch * len, of_maps));
    auto memory = Tensor<std::byte, 1>::uninitialized({most});
    if (sums.empty()) sums = layer.named().template zeros<Number>();
    for (const Term& term : terms)
      gradients_of(&sums, term)
          .add(term.x, term.grad_y, batch * len, of_maps, {memory.data(), static_cast<std::size_t>(memory.size())});
    for (const LatentNorm<T>& n : norms)
      for (std::size_t i = 0; i < n.sums.size(); ++i)
        sums.bias(n.name)(static_cast<Index>(i)) += static_cast<Number>(n.sums[i]);
    if (learned) learned->add_kept();
    return grad_like_x;
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
