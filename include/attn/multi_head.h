// The layer MultiHeadAttention: attention with projections.
#pragma once

#include <concepts>

#include "attn/attention.h"
#include "attn/kv_cache.h"
#include "attn/kv_caches.h"
#include "attn/layer_parameters.h"
#include "attn/layers/multi_head_backward.h"
#include "attn/layers/multi_head_cache.h"
#include "attn/multi_head_gradients.h"
#include "attn/paged_kv_cache.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Multi-head attention (Vaswani et al. 2017, section 3.2.2):
///
///     out = concat(head 0, head 1, …) * W_outᵀ + b_out
///     head h = attention(query * W_q[h]ᵀ + b_q[h], key * W_k[h']ᵀ + b_k[h'], value * W_v[h']ᵀ + b_v[h'], mods)
///
/// where h' = h / (heads / kv_heads), or h mod kv_heads with Options::interleaved_heads, and W[h] are the rows of W of
/// head h. MultiHeadConfig can add norms, a rope, further keys and a gate.
///
/// Parameters have the names, shapes and row-major layout of PyTorch's nn.MultiheadAttention, so that trained
/// parameters can be loaded. With E = embed_dim, q_E = heads * head_dim, kv_E = kv_heads * head_dim and v_E = kv_heads
/// * v_head_dim (all of them E in PyTorch, which has kv_heads = heads):
///
///     in_proj_weight  (q_E + kv_E + v_E, E)   W_q, W_k, W_v stacked, if key_dim = value_dim = embed_dim; otherwise:
///     q_proj_weight   (q_E, E)    k_proj_weight  (kv_E, key_dim)    v_proj_weight  (v_E, value_dim)
///     in_proj_bias    (q_E + kv_E + v_E)      b_q, b_k, b_v concatenated; only with biases
///     bias_k  (kv_E)    bias_v  (v_E)         only with add_bias_kv
///     q_norm.weight, k_norm.weight            only with qk_norm: (head_dim), or (q_E) and (kv_E) for all heads
///     out_proj.weight (E, heads * v_head_dim)    out_proj.bias  (E)
///
/// With output_gate, the projection of the query has heads * (head_dim + v_head_dim) rows.
///
/// They are read and written as LayerParameters says. They, or parts of them, can also be accessed under the names that
/// other checkpoints use:
///
///     q_proj_weight, k_proj_weight, v_proj_weight    the rows of in_proj_weight, if that is one parameter
///     q_proj_bias, k_proj_bias, v_proj_bias          the parts of in_proj_bias
///     q_proj.weight, q_proj.bias, …                  the same with a dot, as in Hugging Face
///     o_proj.weight, o_proj.bias                     out_proj.weight, out_proj.bias
///
/// Initial values are as in PyTorch: input projections Xavier-uniform (Glorot & Bengio 2010), out_proj.weight uniform
/// in ±1/sqrt(its columns), bias_k and bias_v uniform with PyTorch's variance, biases 0, weights of norms 1. They
/// depend on the seed and the sizes only, not on platform or thread count.
///
/// T is float, double, long double, or a 16-bit float: Eigen::half, Eigen::bfloat16, or the compiler's own types. With
/// 16-bit types, sums are float; projections and the results of the heads are rounded once each. Concurrent calls are
/// safe while no parameter is written. backward() writes the gradients of the parameters, so only one call of it may
/// run at a time.
template <class T>
class MultiHeadAttention : public LayerParameters<T, detail::MultiHeadParameters<T>> {
 public:
  /// @throws std::invalid_argument if a size is not positive (0 is allowed where it selects a default), heads is not a
  /// multiple of kv_heads, embed_dim is not a multiple of heads and no head_dim is given, the rope has a different
  /// head_dim, or a rope is combined with add_bias_kv.
  explicit MultiHeadAttention(const MultiHeadConfig& config)
      : LayerParameters<T, detail::MultiHeadParameters<T>>(config) {}
  /// Not to be called: fails to compile, with the message of detail::refuse_rope_in_braces().
  template <int kNever = 0>
  explicit MultiHeadAttention(const detail::MultiHeadWithRopeInBraces&)
      : MultiHeadAttention(detail::refuse_rope_in_braces<MultiHeadConfig, kNever>()) {}

  /// The configuration, with the defaults filled in.
  const MultiHeadConfig& config() const { return parameters_.config(); }
  /// Replaces the rope of the layer, as KvCache::change_rope() does for the keys in its cache.
  /// @throws std::invalid_argument if the layer has no rope, or if the new one has another head_dim.
  void change_rope(const Rope& rope) { parameters_.change_rope(rope); }
  /// The number of features of a head of query and key.
  Index head_dim() const { return config().head_dim; }

  /// Applies the layer to query (batch, q_len, embed_dim), key (batch, kv_len, key_dim) and value (batch, kv_len,
  /// value_dim). They are attn::Tensor, attn::TensorView or Eigen tensors of rank 3 with any strides, or, for a batch
  /// of one, matrices (len, features) of Eigen or of attn. Passing the same object two or three times saves time.
  ///
  /// @param mods     as for attention(); positions count tokens.
  /// @param options  see MultiHeadOptions, or the Options of the heads alone.
  /// @returns out: a Tensor<T, 3>, or a matrix if the query is one; and the other results that options request (see
  /// MultiHeadResult).
  ///
  /// Unless the layer adds keys, a query that keeps no key gives out_proj.bias; if kv_len == 0, every query does. Extra
  /// memory is linear in the lengths, unless options request the weights or the naive path.
  /// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
  template <class Q, detail::LayerInput K, class V, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto operator()(const Q& query, const K& key, const V& value, const M& mods = {},
                                                   const MultiHeadOptions& options = {}) const {
    static_assert(detail::check_layer_types<T, Q, K, V>());
    return detail::with_inputs<T>(config(), query, key, value, [&](const Inputs& inputs) {
      return detail::join_heads<Q>(parameters_.output_projection(),
                                   detail::attended(parameters_, inputs, mods, options), options);
    });
  }
  /// Not to be called: fails to compile, with a message that says what to pass.
  template <class Q, detail::LayerInput... K>
  requires(sizeof...(K) <= 1) auto operator()(const Q&, const K&...) const {
    static_assert(sizeof(Q) == 0, "attn: a layer takes query, key and value; for self-attention, pass mha(x, x, x)");
  }
  /// As above, with the Options of the heads. (This overload is a template so that `{}` means MultiHeadOptions.)
  template <class Q, detail::LayerInput K, class V, class M = Mods<>, std::same_as<Options> O = Options>
  auto operator()(const Q& query, const K& key, const V& value, const M& mods, const O& options) const {
    return (*this)(query, key, value, mods, MultiHeadOptions{.attention = options});
  }
  /// As above, without mods.
  template <class Q, detail::LayerInput K, class V>
  auto operator()(const Q& query, const K& key, const V& value, const MultiHeadOptions& options) const {
    return (*this)(query, key, value, Mods<>(), options);
  }
  /// As above, with the Options of the heads and without mods.
  template <class Q, detail::LayerInput K, class V, std::same_as<Options> O = Options>
  auto operator()(const Q& query, const K& key, const V& value, const O& options) const {
    return (*this)(query, key, value, Mods<>(), options);
  }

  /// Returns the gradients of a loss, given its gradient with respect to the `out` of a call with `.keep = true`:
  ///
  ///     auto r = mha(x, m, m, mods, {.keep = true});
  ///     auto g = mha.backward(grad_out, x, m, m, r, mods);   // g.query, g.key, g.value
  ///
  /// @param grad_out  shaped like out, with scalar type T.
  /// @param result    the result of the call with the same inputs, mods, options and parameters.
  /// @param options   the options of that call; only path, executor and instruction set may differ.
  /// @returns gradients shaped like query, key and value. If the same object was passed for several of these, its
  /// gradient is the sum of their gradients: g.all() is the gradient of x in mha(x, x, x), and g.key_and_value() is the
  /// gradient of m above. PyTorch adds these sums to x.grad and m.grad.
  ///
  /// The gradients of the parameters are added to weight_gradient() and bias_gradient(), as in PyTorch. Tokens that
  /// masks drop for all queries add nothing to these gradients, even if the tokens are NaN. Results are bit-identical
  /// for any number of threads. Extra memory is linear in the lengths, except on the naive path. With 16-bit types,
  /// gradients are rounded where the forward call rounds; gradients of parameters are sums in float.
  /// @throws std::invalid_argument if sizes disagree; the message gives both shapes. If the call throws for this
  /// reason, or because a mod or an allocation throws, nothing has been added to the gradients of parameters or mods.
  template <class G, class Q, class K, class V, class Out, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto backward(const G& grad_out, const Q& query, const K& key, const V& value,
                                                 const MultiHeadResult<Out, T>& result, const M& mods = {},
                                                 const MultiHeadOptions& options = {}) {
    static_assert(detail::check_layer_types<T, Q, K, V>() && detail::check_grad_out<T, G, Q>());
    return detail::with_inputs<T>(config(), query, key, value, [&](const Inputs& inputs) {
      return detail::layer_gradients<Q, K, V>(parameters_, gradients_, inputs, grad_out, result, mods, options);
    });
  }
  /// As above, with the Options of the heads.
  template <class G, class Q, class K, class V, class Out, class M = Mods<>, std::same_as<Options> O = Options>
  auto backward(const G& grad_out, const Q& query, const K& key, const V& value, const MultiHeadResult<Out, T>& result,
                const M& mods, const O& options) {
    return backward(grad_out, query, key, value, result, mods, MultiHeadOptions{.attention = options});
  }
  /// As above, without mods.
  template <class G, class Q, class K, class V, class Out>
  auto backward(const G& grad_out, const Q& query, const K& key, const V& value, const MultiHeadResult<Out, T>& result,
                const MultiHeadOptions& options) {
    return backward(grad_out, query, key, value, result, Mods<>(), options);
  }
  /// As above, with the Options of the heads and without mods.
  template <class G, class Q, class K, class V, class Out, std::same_as<Options> O = Options>
  auto backward(const G& grad_out, const Q& query, const K& key, const V& value, const MultiHeadResult<Out, T>& result,
                const O& options) {
    return backward(grad_out, query, key, value, result, Mods<>(), options);
  }

  /// Applies the layer to the next tokens of the sequences of a cache. The tokens serve as query, key and value: the
  /// call appends their keys and values to the cache, and then computes attention over the cache.
  ///
  ///     attn::KvCache<float> cache = mha.make_cache({.batch = 2});
  ///     y = mha(prompt, cache, attn::causal()).out;               // (2, len, embed_dim)
  ///     y = mha(token, cache, attn::causal()).out;                // (2, 1, embed_dim)
  ///     y = mha(attn::ragged(x, {512, 1}), pages.select({a, b}), attn::causal()).out;  // x, y: (1, 513, embed_dim)
  ///
  /// The cache is a KvCache, sequences of a PagedKvCache, or a layer of a step of KvCaches. Its element type may differ
  /// from T if its Computed type is that of KvCache<T>, e.g. std::int8_t with T = float. The cache must have the
  /// layer's rope, which rotates keys as they are appended and queries as they are read. With a mask that drops later
  /// tokens, results do not depend on how many tokens are passed at a time. `path` and `weights` work as without a
  /// cache.
  ///
  /// If one of the mods is tree(), the tokens are its nodes, and a rope rotates them by the next position of the cache
  /// plus their depths. KvCache::accept() then keeps one path.
  ///
  /// If the call throws, for any reason, the cache keeps the tokens that it had before, except for those that have left
  /// a window.
  /// @throws std::invalid_argument if sizes or ropes disagree; and whatever the cache's append() throws.
  template <class X, detail::KvSource Cache, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto operator()(const X& x, Cache&& cache, const M& mods = {},
                                                   const MultiHeadOptions& options = {}) const {
    if constexpr (detail::check_appendable<T, X, Cache>())
      return detail::with_inputs<T>(x, [&](const Inputs& inputs) {
        return detail::append_and_attend(parameters_, x, inputs, cache, mods, options);
      });
  }
  /// As above, with the Options of the heads.
  template <class X, detail::KvSource Cache, class M = Mods<>, std::same_as<Options> O = Options>
  auto operator()(const X& x, Cache&& cache, const M& mods, const O& options) const {
    return (*this)(x, cache, mods, MultiHeadOptions{.attention = options});
  }
  /// As above, without mods.
  template <class X, detail::KvSource Cache>
  auto operator()(const X& x, Cache&& cache, const MultiHeadOptions& options) const {
    return (*this)(x, cache, Mods<>(), options);
  }
  /// As above, with the Options of the heads and without mods.
  template <class X, detail::KvSource Cache, std::same_as<Options> O = Options>
  auto operator()(const X& x, Cache&& cache, const O& options) const {
    return (*this)(x, cache, Mods<>(), options);
  }

  /// Applies the layer to tokens over a cache without appending them: they attend to the tokens in the cache, as in the
  /// cross-attention of a decoder. By default the queries have the positions of the cache's last tokens (see
  /// Options::q_offset); only mods and ropes use positions.
  ///
  ///     mha.append(encoder_states, cache);                        // once: (batch, kv_len, key_dim)
  ///     y = mha.attend(x, cache).out;                             // x (batch, q_len, embed_dim), at every step
  template <class X, detail::KvSource Cache, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto attend(const X& x, const Cache& cache, const M& mods = {},
                                               const MultiHeadOptions& options = {}) const {
    static_assert(detail::check_layer_types_over<T, X, Cache>());
    return detail::with_inputs<T>(x, [&](const Inputs& inputs) {
      return detail::attend_only(parameters_, x, inputs, cache.view(), mods, options);
    });
  }
  /// As above, with the Options of the heads.
  template <class X, detail::KvSource Cache, class M = Mods<>, std::same_as<Options> O = Options>
  auto attend(const X& x, const Cache& cache, const M& mods, const O& options) const {
    return attend(x, cache, mods, MultiHeadOptions{.attention = options});
  }
  /// As above, without mods.
  template <class X, detail::KvSource Cache>
  auto attend(const X& x, const Cache& cache, const MultiHeadOptions& options) const {
    return attend(x, cache, Mods<>(), options);
  }
  /// As above, with the Options of the heads and without mods.
  template <class X, detail::KvSource Cache, std::same_as<Options> O = Options>
  auto attend(const X& x, const Cache& cache, const O& options) const {
    return attend(x, cache, Mods<>(), options);
  }

  /// Projects tokens, which serve as both key and value input, and appends the resulting keys and values to the cache.
  /// If the call throws, the cache is unchanged, except for tokens that have left a window.
  template <class X, detail::KvSource Cache>
  void append(const X& tokens, Cache&& cache, const Options& options = {}) const {
    static_assert(detail::check_appendable<T, X, Cache>());
    detail::with_inputs<T>(
        tokens, [&](const Inputs& inputs) { detail::append_only(parameters_, tokens, inputs, cache, options); });
  }

  /// Creates a KvCache of scalar type S for this layer. Its kv_heads, head_dim, v_dim and rope are the layer's; these
  /// members of `sizes` are ignored.
  template <class S = T>
  KvCache<S> make_cache(const KvCacheConfig& sizes = {}) const {
    return KvCache<S>(fitted(sizes));
  }
  /// Creates a PagedKvCache of scalar type S for this layer, with the pool that `sizes` describes; see make_cache().
  template <class S = T>
  PagedKvCache<S> make_paged_cache(const PagedKvCacheConfig& sizes) const {
    return PagedKvCache<S>(fitted(sizes));
  }
  /// Creates KvCaches of scalar type S for a decoder with layers like this one; see make_cache(). `ropes`, if given,
  /// replace the rope of this layer.
  template <class S = T>
  KvCaches<S> make_caches(const KvCachesConfig& sizes) const {
    KvCachesConfig all = fitted(sizes);
    if (!all.ropes.empty()) all.rope.reset();
    return KvCaches<S>(all);
  }

 private:
  using Inputs = detail::Inputs<T>;

  template <class Config>
  Config fitted(Config sizes) const {
    sizes.kv_heads = config().kv_heads;
    sizes.head_dim = config().head_dim;
    sizes.v_dim = config().v_head_dim;
    sizes.rope = config().rope;
    return sizes;
  }

  using LayerParameters<T, detail::MultiHeadParameters<T>>::parameters_;
  using LayerParameters<T, detail::MultiHeadParameters<T>>::gradients_;
};

}  // namespace attn::inline ATTN_BUILT_FOR
