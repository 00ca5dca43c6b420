// Multi-head attention, the layer with its projections.
#pragma once

#include <concepts>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/detail/layers/multi_head_cache.h"
#include "attn/detail/layers/multi_head_results.h"
#include "attn/kv_cache.h"
#include "attn/paged_kv_cache.h"

namespace attn {

namespace detail {

/// What may stand in the place of mods.
template <class X>
concept AnyOptions = std::same_as<X, Options> || std::same_as<X, MultiHeadOptions>;

/// What is not a cache.
template <class X>
concept LayerInput = !KvSource<X>;

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
/// T is float, double, long double, or a float of 16 bits: Eigen::half or Eigen::bfloat16, or the compiler's own. With
/// 16 bits, sums are formed in float, and the projections and the results of the heads rounded once each. Concurrent
/// calls are safe while no parameter is written.
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
  /// @returns out: a Tensor<T, 3>, or like a query of rank 2; and what else is asked for, see MultiHeadResult.
  ///
  /// A query that keeps no key gives out_proj.bias; so does kv_len == 0. Extra memory is linear in the lengths, as long
  /// as neither the weights nor the naive path are asked for.
  /// @throws std::invalid_argument if sizes disagree; the message has the numbers.
  template <class Q, detail::LayerInput K, class V, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto operator()(const Q& query, const K& key, const V& value, const M& mods = {},
                                                   const MultiHeadOptions& options = {}) const {
    static_assert(detail::check_layer_types<T, Q, K, V>());
    const auto& q_held = detail::evaluated(query);
    const auto& k_held = detail::evaluated(key);
    const auto& v_held = detail::evaluated(value);
    const Inputs inputs{detail::as_rank3(view(q_held)), detail::as_rank3(view(k_held)), detail::as_rank3(view(v_held))};
    detail::check_inputs<T>(config(), inputs);
    return detail::join_heads<Q>(parameters_, detail::attended(parameters_, inputs, mods, options), options);
  }
  /// With the Options of the heads alone. (A template, so that `{}` is the MultiHeadOptions.)
  template <class Q, detail::LayerInput K, class V, class M = Mods<>, std::same_as<Options> O = Options>
  auto operator()(const Q& query, const K& key, const V& value, const M& mods, const O& options) const {
    return (*this)(query, key, value, mods, MultiHeadOptions{.attention = options});
  }
  /// Both without mods.
  template <class Q, detail::LayerInput K, class V>
  auto operator()(const Q& query, const K& key, const V& value, const MultiHeadOptions& options) const {
    return (*this)(query, key, value, Mods<>(), options);
  }
  template <class Q, detail::LayerInput K, class V, std::same_as<Options> O = Options>
  auto operator()(const Q& query, const K& key, const V& value, const O& options) const {
    return (*this)(query, key, value, Mods<>(), options);
  }

  /// Applies the layer to the next tokens of the sequences of a cache, which all three inputs are: appends their keys
  /// and values to the cache, and attends over all that it has then.
  ///
  ///     attn::KvCache<float> cache = mha.make_cache({.batch = 2});
  ///     y = mha(prompt, cache, attn::causal()).out;               // (2, len, embed_dim)
  ///     y = mha(token, cache, attn::causal()).out;                // (2, 1, embed_dim)
  ///     y = mha(attn::ragged(x, {512, 1}), pages.select({a, b}), attn::causal()).out;  // x, y: (1, 513, embed_dim)
  ///
  /// The cache is a KvCache or sequences of a PagedKvCache, of any scalar that is computed as T is, and has the rope of
  /// the layer: it turns keys as they come and queries as they are read. Whatever is fed at a time, results are those
  /// of all tokens at once with a mask that looks back only. Path and weights are those of calls without a cache.
  ///
  /// If it throws, for want of pages or for whatever reason, the cache has the tokens that it had.
  /// @throws std::invalid_argument if sizes or ropes disagree; what the append() of the cache throws.
  template <class X, detail::KvSource Cache, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto operator()(const X& x, Cache&& cache, const M& mods = {},
                                                   const MultiHeadOptions& options = {}) const {
    if constexpr (check_appendable<X, Cache>())
      return detail::with_inputs<T>(x, [&](const Inputs& inputs) {
        detail::check_inputs<T>(config(), inputs);
        detail::check_cache(parameters_, x, inputs[0], cache.batch());
        const detail::ProjectedHeads<T> heads(parameters_, inputs, Input::query, Input::value, options.attention);
        detail::AppendUndo undo(cache);
        detail::append_heads(cache, x, heads);
        auto result = over_cache(x, heads, cache.batch(), mods, options);
        undo.keep();
        return result;
      });
  }
  template <class X, detail::KvSource Cache, class M = Mods<>, std::same_as<Options> O = Options>
  auto operator()(const X& x, Cache&& cache, const M& mods, const O& options) const {
    return (*this)(x, cache, mods, MultiHeadOptions{.attention = options});
  }
  template <class X, detail::KvSource Cache>
  auto operator()(const X& x, Cache&& cache, const MultiHeadOptions& options) const {
    return (*this)(x, cache, Mods<>(), options);
  }
  template <class X, detail::KvSource Cache, std::same_as<Options> O = Options>
  auto operator()(const X& x, Cache&& cache, const O& options) const {
    return (*this)(x, cache, Mods<>(), options);
  }

  /// The same without appending: attends to what the cache has, as from a decoder to an encoder. Queries are the last
  /// of the tokens in it, unless Options::q_offset says otherwise, which only masks and ropes ask for.
  ///
  ///     mha.append(encoder_states, cache);                        // once: (batch, kv_len, key_dim)
  ///     y = mha.attend(x, cache).out;                             // x (batch, q_len, embed_dim), at every step
  template <class X, detail::KvSource Cache, class M = Mods<>>
  requires(!detail::AnyOptions<M>) auto attend(const X& x, const Cache& cache, const M& mods = {},
                                               const MultiHeadOptions& options = {}) const {
    static_assert(detail::check_layer_types_over<T, X, Cache>());
    return detail::with_inputs<T>(x, [&](const Inputs& inputs) {
      detail::check_features("query", inputs[0], config().embed_dim, "embed_dim");
      const auto batch = cache.batch();
      detail::check_cache(parameters_, x, inputs[0], batch);
      const detail::ProjectedHeads<T> heads(parameters_, inputs, Input::query, Input::query, options.attention);
      return over_cache(x, heads, batch, mods, options);
    });
  }
  template <class X, detail::KvSource Cache, class M = Mods<>, std::same_as<Options> O = Options>
  auto attend(const X& x, const Cache& cache, const M& mods, const O& options) const {
    return attend(x, cache, mods, MultiHeadOptions{.attention = options});
  }
  template <class X, detail::KvSource Cache>
  auto attend(const X& x, const Cache& cache, const MultiHeadOptions& options) const {
    return attend(x, cache, Mods<>(), options);
  }
  template <class X, detail::KvSource Cache, std::same_as<Options> O = Options>
  auto attend(const X& x, const Cache& cache, const O& options) const {
    return attend(x, cache, Mods<>(), options);
  }

  /// Projects tokens, which key and value inputs are, and appends their keys and values to the cache. What throws
  /// leaves the cache as it was.
  template <class X, detail::KvSource Cache>
  void append(const X& tokens, Cache&& cache, const Options& options = {}) const {
    static_assert(check_appendable<X, Cache>());
    detail::with_inputs<T>(tokens, [&](const Inputs& inputs) {
      detail::check_features("key", inputs[1], config().key_dim, "key_dim");
      detail::check_features("value", inputs[2], config().value_dim, "value_dim");
      detail::check_cache(parameters_, tokens, inputs[1], cache.batch());
      detail::append_heads(cache, tokens,
                           detail::ProjectedHeads<T>(parameters_, inputs, Input::key, Input::value, options));
    });
  }

  /// A cache of numbers S for this layer: kv_heads, head_dim, v_dim and rope are the layer's whatever `sizes` has
  /// there.
  template <class S = T>
  KvCache<S> make_cache(const KvCacheConfig& sizes = {}) const {
    return KvCache<S>(fitted(sizes));
  }
  template <class S = T>
  PagedKvCache<S> make_paged_cache(const PagedKvCacheConfig& sizes) const {
    return PagedKvCache<S>(fitted(sizes));
  }

 private:
  using Inputs = detail::Inputs<T>;
  using Input = detail::Input;

  template <class X, class Cache>
  static constexpr bool check_appendable() {
    static_assert(detail::check_layer_types_over<T, X, std::remove_cvref_t<Cache>>());
    static_assert(detail::KvStore<Cache>,
                  "attn: a layer appends to a KvCache that is not const, or to sequences of a PagedKvCache, "
                  "cache.select({a, b}); attend(x, cache) takes others, and only reads");
    return detail::KvStore<Cache> && std::is_same_v<detail::scalar_of<Cache>, detail::computed_t<T>>;
  }

  template <class X, class M>
  auto over_cache(const X& x, const detail::ProjectedHeads<T>& heads, const KvBatch<detail::computed_t<T>>& batch,
                  const M& mods, const MultiHeadOptions& options) const {
    using Q = typename detail::QueryRows<X>::Tensor;
    return detail::join_heads<Q>(parameters_, detail::attended_over(x, heads, batch, mods, options), options);
  }

  template <class Config>
  Config fitted(Config sizes) const {
    sizes.kv_heads = config().kv_heads;
    sizes.head_dim = sizes.v_dim = head_dim();
    sizes.rope = config().rope;
    return sizes;
  }

  detail::MultiHeadParameters<T> parameters_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
