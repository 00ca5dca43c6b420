// The layer LatentAttention: multi-head latent attention, over tokens or over a cache of latent rows.
#pragma once

#include "attn/layer_parameters.h"
#include "attn/layers/latent_backward.h"

namespace attn::inline ATTN_BUILT_FOR {

/// Multi-head latent attention (MLA; DeepSeek-AI 2024, "DeepSeek-V2", section 2.1 and appendix C; the layer of
/// DeepSeek-V2 and V3 and of Kimi K2). All keys and values of a token are linear maps of one vector c, and a cache
/// stores only this vector and a rotated key r that all heads share. For tokens x:
///
///     [c, r]   = x * W_kvaᵀ       c = rmsnorm(c), r = rope(r)       the latent row, rank + rope_dim features
///     k_h, v_h = [c * W_uk[h]ᵀ, r], c * W_uv[h]ᵀ
///     q_h      = [u, rope(w)]     [u, w] = rmsnorm(x * W_qaᵀ) * W_qb[h]ᵀ, or x * W_q[h]ᵀ without q_rank
///     out      = concat(attention(q_0, k_0, v_0, mods), …) * W_outᵀ
///
/// Parameters have the names and shapes of DeepSeek's checkpoints at Hugging Face; none has a bias. With E = embed_dim
/// and heads of nope_dim + rope_dim features of query and key:
///
///     q_a_proj.weight            (q_rank, E)                             only with q_rank
///     q_a_layernorm.weight       (q_rank)                                only with q_rank
///     q_b_proj.weight            (heads * (nope_dim + rope_dim), q_rank)    or, without q_rank:
///     q_proj.weight              (heads * (nope_dim + rope_dim), E)
///     kv_a_proj_with_mqa.weight  (rank + rope_dim, E)
///     kv_a_layernorm.weight      (rank)
///     kv_b_proj.weight           (heads * (nope_dim + v_head_dim), rank)    of each head W_uk, then W_uv
///     o_proj.weight              (E, heads * v_head_dim)
///
/// Initial values are those of PyTorch's Linear: weights uniform in ±1/sqrt(their columns), weights of norms 1. They
/// depend on the seed and the sizes only.
///
/// T is as for MultiHeadAttention. Concurrent calls are safe while no parameter is written. backward() writes the
/// gradients of the parameters, so only one call of it may run at a time.
template <class T>
class LatentAttention : public LayerParameters<T, detail::LatentParameters<T>> {
  using Base = LayerParameters<T, detail::LatentParameters<T>>;

 public:
  /// @throws std::invalid_argument if a size is not positive (0 is allowed where it selects a default), or the rope has
  /// another head_dim than latent.rope_dim; the message gives the sizes.
  explicit LatentAttention(const LatentAttentionConfig& config) : Base(config) {}
  /// Not to be called: fails to compile, with the message of detail::refuse_rope_in_braces().
  template <int kNever = 0>
  explicit LatentAttention(const detail::LatentWithRopeInBraces&)
      : LatentAttention(detail::refuse_rope_in_braces<LatentAttentionConfig, kNever>()) {}

  /// The configuration, with the defaults filled in.
  const LatentAttentionConfig& config() const { return parameters_.config(); }

  /// Applies the layer to x (batch, len, embed_dim), a tensor or view of rank 3 or, for a batch of one, a matrix (len,
  /// embed_dim) of Eigen or of attn. Keys and values of all heads are computed (the unfolded form).
  ///
  /// @param mods     as for attention(); positions count tokens.
  /// @param options  see MultiHeadOptions, or the Options of the heads alone. Their default scale is that of the
  /// configuration.
  /// @returns out, shaped like x; and the other results that options request (see MultiHeadResult), in which each query
  /// head has a key and value head.
  ///
  /// Cost per token: rank * heads * (nope_dim + v_head_dim) multiply-adds for keys and values, besides the other
  /// projections and attention(). Extra memory: about heads * (3 * nope_dim + 2 * rope_dim + 2 * v_head_dim) elements
  /// per token.
  /// @throws std::invalid_argument if sizes disagree; the message gives the sizes.
  template <class X, class M = Mods<>, class O = MultiHeadOptions>
  requires(!detail::AnyOptions<M> && !detail::KvSource<M> && detail::AnyOptions<O>) auto operator()(
      const X& x, const M& mods = {}, const O& options = {}) const {
    static_assert(detail::check_layer_types<T, X>());
    const MultiHeadOptions all = detail::layer_options(options);
    return detail::with_inputs<T>(x, [&](const detail::Inputs<T>& inputs) {
      return detail::join_heads<X>(output(), detail::latent_attended(parameters_, inputs[0], mods, all), all);
    });
  }
  /// As above, without mods.
  template <class X, detail::AnyOptions O>
  auto operator()(const X& x, const O& options) const {
    return (*this)(x, Mods<>(), options);
  }

  /// Applies the layer to the next tokens x of the sequences of a step of KvCaches with latent rows: appends their
  /// rows, and then computes attention over the cache.
  ///
  ///     attn::KvCaches<float> caches = mla.make_caches({.layers = 2, .pages = 64});
  ///     auto step = caches.step({a, b}, 1);                       // a token for each
  ///     y = mla(x, step.layer(0), attn::causal()).out;            // x, y: (2, 1, embed_dim)
  ///     y = mla(attn::ragged(x, {512, 1}), other_step.layer(0), attn::causal()).out;   // x, y: (1, 513, embed_dim)
  ///
  /// All heads of a token are queries of one head of latent rows if that takes fewer multiply-adds (the absorbed form):
  /// W_uk is multiplied by the queries and W_uv by the results, instead of both by all rows. This is so for single
  /// tokens and, with DeepSeek-V3's sizes, for up to 170 tokens of a sequence that already has many. Otherwise, as for
  /// a prompt, keys and values of all rows in the cache are computed, with the memory that this takes. All sequences of
  /// a call take the same form, so do not mix long prompts and single tokens in one call. Both forms give the same
  /// results up to rounding; with 16-bit T, the absorbed form rounds absorbed queries and results once more. With
  /// row_invariant, all calls take the unfolded form.
  ///
  /// The element type of the cache may differ from T if its Computed type is that of KvCaches<T>. Tokens are rotated by
  /// the positions after those of their sequence; with tree(), by the depths of nodes. `path`, `weights`, `keep` and
  /// `heads` are refused. If the call throws, for any reason, the cache keeps the tokens that it had before, except for
  /// those that have left a window.
  /// @throws std::invalid_argument if sizes disagree, or the cache stores no latent rows.
  template <class X, detail::KvSource Cache, class M = Mods<>, class O = MultiHeadOptions>
  requires(!detail::AnyOptions<M> && detail::AnyOptions<O>) auto operator()(const X& x, Cache&& cache,
                                                                            const M& mods = {},
                                                                            const O& options = {}) const {
    constexpr bool kStores = detail::LatentStore<Cache>;
    static_assert(detail::check_layer_types_over<T, X, std::remove_cvref_t<Cache>>());
    static_assert(kStores,
                  "attn: a LatentAttention appends to latent rows: pass step.layer(l) of KvCaches, which "
                  "make_caches() returns");
    if constexpr (kStores) {
      const MultiHeadOptions all = detail::layer_options(options);
      return detail::with_inputs<T>(x, [&](const detail::Inputs<T>& inputs) {
        return detail::join_heads<typename detail::QueryRows<X>::Tensor>(
            output(), detail::latent_attended_over(parameters_, x, inputs[0], cache, mods, all), all);
      });
    }
  }
  /// As above, without mods.
  template <class X, detail::KvSource Cache, detail::AnyOptions O>
  auto operator()(const X& x, Cache&& cache, const O& options) const {
    return (*this)(x, cache, Mods<>(), options);
  }

  /// Returns the gradient of a loss with respect to x, given its gradient with respect to the `out` of a call without a
  /// cache and with `.keep = true`:
  ///
  ///     auto r = mla(x, mods, {.keep = true});
  ///     auto grad_x = mla.backward(grad_out, x, r, mods);
  ///
  /// @param grad_out  shaped like out, with scalar type T.
  /// @param result    the result of the call with the same x, mods, options and parameters.
  /// @param options   the options of that call; only path, executor and instruction set may differ.
  /// @returns the gradient, shaped like x.
  ///
  /// The gradients of the parameters are added to weight_gradient() and bias_gradient(). Results are bit-identical for
  /// any number of threads. Two projections of x and their norms are computed again. With 16-bit types, gradients are
  /// rounded where the forward call rounds; gradients of parameters are sums in float.
  /// @throws std::invalid_argument if sizes disagree; the message gives both shapes. If the call throws for this
  /// reason, or because a mod or an allocation throws, nothing has been added to the gradients of parameters or mods.
  template <class G, class X, class Out, class M = Mods<>, class O = MultiHeadOptions>
  requires(!detail::AnyOptions<M> && detail::AnyOptions<O>) auto backward(const G& grad_out, const X& x,
                                                                          const MultiHeadResult<Out, T>& result,
                                                                          const M& mods = {}, const O& options = {}) {
    static_assert(detail::check_layer_types<T, X>() && detail::check_grad_out<T, G, X>());
    return detail::with_inputs<T>(x, [&](const detail::Inputs<T>& inputs) {
      return detail::latent_gradients<X>(parameters_, gradients_, inputs[0], grad_out, result, mods,
                                         detail::layer_options(options));
    });
  }
  /// As above, without mods.
  template <class G, class X, class Out, detail::AnyOptions O>
  auto backward(const G& grad_out, const X& x, const MultiHeadResult<Out, T>& result, const O& options) {
    return backward(grad_out, x, result, Mods<>(), options);
  }

  /// Creates KvCaches of scalar type S for a decoder with layers like this one. The latent rows are the layer's;
  /// kv_heads, head_dim and v_dim follow from them, and `sizes` must leave them and the ropes out.
  template <class S = T>
  KvCaches<S> make_caches(const KvCachesConfig& sizes) const {
    KvCachesConfig all = sizes;
    all.latent = config().latent;
    return KvCaches<S>(all);
  }

 private:
  detail::Linear<T> output() const { return parameters_.linear("o_proj.weight"); }

  using Base::gradients_;
  using Base::parameters_;
};

}  // namespace attn::inline ATTN_BUILT_FOR
