// Layer 5: multi-head attention, the layer with its projections.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "attn/attention.h"
#include "attn/detail/linear.h"
#include "attn/detail/parameters.h"

namespace attn {

/// The sizes of a MultiHeadAttention, all numbers of features or heads. 0 stands for the default given here.
struct MultiHeadConfig {
  Index embed_dim = 0;     ///< of the query and of the result; there is no default
  Index heads = 0;         ///< of the query, each of embed_dim / heads features; there is no default
  Index kv_heads = 0;      ///< of key and value, a divisor of heads (Ainslie et al. 2023). Default heads
  Index key_dim = 0;       ///< of the key input. Default embed_dim
  Index value_dim = 0;     ///< of the value input. Default embed_dim
  bool bias = true;        ///< has every projection a bias?
  std::uint64_t seed = 0;  ///< of the random initial weights
};

/// Which implementation computes the attention of the heads.
enum class Path { flash, naive };

/// How one call of a MultiHeadAttention is computed.
struct MultiHeadOptions {
  Path path = Path::flash;
  /// Give out the weights of every head. They need memory for all q_len * kv_len pairs, so the call takes the naive
  /// path.
  bool weights = false;
  /// Scale (default 1/sqrt(head_dim)) and q_offset of the heads; executor, instruction set and `compute` of heads and
  /// projections. A workspace in it is not used.
  Options attention = {};
};

/// What a MultiHeadAttention returns. Converts to its `out`, so that `Tensor<float, 3> y = layer(x, x, x);` works.
template <class Out, class T>
struct MultiHeadResult {
  Out out;               ///< (batch, q_len, embed_dim), or (q_len, embed_dim) of matrices
  Tensor<T, 4> weights;  ///< (batch, heads, q_len, kv_len); empty unless asked for

  operator Out() const& { return out; }
  operator Out() && { return std::move(out); }
};

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
  explicit MultiHeadAttention(const MultiHeadConfig& config) : config_(resolved(config)) {
    const Index embed = config_.embed_dim, kv_embed = config_.kv_heads * head_dim();
    if (packed()) {
      add_xavier("in_proj_weight", embed + 2 * kv_embed, embed);
    } else {
      add_xavier("q_proj_weight", embed, embed);
      add_xavier("k_proj_weight", kv_embed, config_.key_dim);
      add_xavier("v_proj_weight", kv_embed, config_.value_dim);
    }
    if (config_.bias) parameters_.add_bias("in_proj_bias", embed + 2 * kv_embed);
    // PyTorch's Linear: Kaiming-uniform (He et al. 2015) for a leaky ReLU of slope sqrt(5): sqrt(6 / (6 inputs)).
    parameters_.add_weight("out_proj.weight", embed, embed, 1 / std::sqrt(static_cast<double>(embed)), config_.seed);
    if (config_.bias) parameters_.add_bias("out_proj.bias", embed);
  }

  /// The sizes, with the defaults filled in.
  const MultiHeadConfig& config() const { return config_; }
  Index head_dim() const { return config_.embed_dim / config_.heads; }

  /// The names of the parameters that this configuration has.
  std::vector<std::string> parameter_names() const { return parameters_.names(); }

  /// A weight (outputs, inputs) or bias (outputs) in place, to be read or written. Valid while the layer lives and is
  /// not assigned to. @throws std::invalid_argument for an unknown name, with the known ones.
  TensorView<T, 2> weight(std::string_view name) { return parameters_.weight(name); }
  TensorView<const T, 2> weight(std::string_view name) const { return parameters_.weight(name); }
  TensorView<T, 1> bias(std::string_view name) { return parameters_.bias(name); }
  TensorView<const T, 1> bias(std::string_view name) const { return parameters_.bias(name); }

  /// Copies a parameter from anything attn::view takes, or an Eigen expression, of any floating-point type.
  /// @throws std::invalid_argument for an unknown name, with the known ones, or another shape, with both.
  template <class X>
  void load(std::string_view name, const X& values) {
    parameters_.load(name, values);
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
  auto operator()(const Q& query, const K& key, const V& value, const M& mods = {}) const {
    return (*this)(query, key, value, mods, MultiHeadOptions{});
  }
  template <class Q, class K, class V, class M = Mods<>>
  auto operator()(const Q& query, const K& key, const V& value, const M& mods, const Options& options) const {
    return (*this)(query, key, value, mods, MultiHeadOptions{Path::flash, false, options});
  }
  template <class Q, class K, class V, class M = Mods<>>
  auto operator()(const Q& query, const K& key, const V& value, const M& mods, const MultiHeadOptions& options) const {
    check_types<Q, K, V>();
    const auto& q_held = detail::evaluated(query);
    const auto& k_held = detail::evaluated(key);
    const auto& v_held = detail::evaluated(value);
    const Inputs inputs{as_rank3(view(q_held)), as_rank3(view(k_held)), as_rank3(view(v_held))};
    check_sizes(inputs);

    const Index batch = inputs[0].dim(0), q_len = inputs[0].dim(1), kv_len = inputs[1].dim(1);
    Tensor<T, 4> weights;
    if (options.weights) weights = Tensor<T, 4>::uninitialized({batch, config_.heads, q_len, kv_len});
    const Tensor<T, 3> heads = attend(inputs, weights, mods, options);
    auto out = Tensor<T, 3>::uninitialized(heads.shape());
    output_projection()(heads.data(), out.data(), batch * q_len, options.attention);

    if constexpr (detail::EigenDense<Q>) {
      using Out = decltype(detail::Answer<Q>::out(Problem{}));
      return MultiHeadResult<Out, T>{Out(std::as_const(out).matrix(0)), std::move(weights)};
    } else if constexpr (detail::Traits<Q>::kRank == 2) {
      const TensorView<const T, 2> rows(out.data(), {q_len, config_.embed_dim});
      return MultiHeadResult<Tensor<T, 2>, T>{Tensor<T, 2>(rows), std::move(weights)};
    } else {
      return MultiHeadResult<Tensor<T, 3>, T>{std::move(out), std::move(weights)};
    }
  }

 private:
  using Inputs = std::array<TensorView<const T, 3>, 3>;  // query, key, value (batch, len, features)
  static MultiHeadConfig resolved(MultiHeadConfig c) {
    detail::require(c.embed_dim > 0, "embed_dim must be positive, it is ", c.embed_dim);
    detail::require(c.heads > 0, "heads must be positive, it is ", c.heads);
    detail::require(c.embed_dim % c.heads == 0, "embed_dim (", c.embed_dim, ") must be a multiple of heads (", c.heads,
                    ")");
    const auto default_to = [](Index& size, const char* name, Index otherwise) {
      detail::require(size >= 0, name, " must not be negative, it is ", size);
      if (size == 0) size = otherwise;
    };
    default_to(c.kv_heads, "kv_heads", c.heads);
    default_to(c.key_dim, "key_dim", c.embed_dim);
    default_to(c.value_dim, "value_dim", c.embed_dim);
    detail::require(c.heads % c.kv_heads == 0, "heads (", c.heads, ") must be a multiple of kv_heads (", c.kv_heads,
                    ")");
    return c;
  }

  /// One weight for all three inputs, as in PyTorch?
  bool packed() const { return config_.key_dim == config_.embed_dim && config_.value_dim == config_.embed_dim; }

  void add_xavier(const char* name, Index outputs, Index inputs) {
    const double bound = std::sqrt(6.0 / static_cast<double>(inputs + outputs));
    parameters_.add_weight(name, outputs, inputs, bound, config_.seed);
  }

  template <class Q, class K, class V>
  static constexpr void check_types() {
    using Qs = detail::Traits<Q>;
    using Ks = detail::Traits<K>;
    using Vs = detail::Traits<V>;
    static_assert(std::is_same_v<typename Qs::Scalar, T> && std::is_same_v<typename Ks::Scalar, T> &&
                      std::is_same_v<typename Vs::Scalar, T>,
                  "attn: query, key and value must hold the scalar type T of MultiHeadAttention<T>; convert with "
                  ".cast<float>() or .cast<double>()");
    static_assert(Qs::kRank == 2 || Qs::kRank == 3,
                  "attn: query, key and value of MultiHeadAttention must be matrices (len, features) or rank-3 tensors "
                  "(batch, len, features)");
    static_assert(Qs::kRank == Ks::kRank && Qs::kRank == Vs::kRank,
                  "attn: query, key and value must have the same rank, all matrices or all rank-3 tensors");
  }

  template <class X, int Rank>
  static TensorView<const T, 3> as_rank3(const TensorView<X, Rank>& t) {
    if constexpr (Rank == 2)
      return {t.data(), {1, t.dim(0), t.dim(1)}, {0, t.stride(0), t.stride(1)}};
    else
      return t;
  }

  void check_sizes(const Inputs& inputs) const {
    const TensorView<const T, 3>&q = inputs[0], &k = inputs[1], &v = inputs[2];
    const auto same = [&](const char* what, Index a, const char* name_a, Index b, const char* name_b) {
      detail::require(a == b, what, " differs: ", name_a, " has ", a, ", ", name_b, " has ", b, "; shapes: query ",
                      q.shape(), ", key ", k.shape(), ", value ", v.shape(), " as (batch, len, features)");
    };
    same("number of features", q.dim(2), "query", config_.embed_dim, "embed_dim");
    same("number of features", k.dim(2), "key", config_.key_dim, "key_dim");
    same("number of features", v.dim(2), "value", config_.value_dim, "value_dim");
    same("batch", q.dim(0), "query", k.dim(0), "key");
    same("batch", k.dim(0), "key", v.dim(0), "value");
    same("length", k.dim(1), "key", v.dim(1), "value");
  }

  /// The projection of input 0 (query), 1 (key) or 2 (value).
  detail::Linear<T> input_projection(std::size_t input) const {
    constexpr const char* kNames[] = {"q_proj_weight", "k_proj_weight", "v_proj_weight"};
    const Index kv_embed = config_.kv_heads * head_dim();
    const Index outputs = input == 0 ? config_.embed_dim : kv_embed;
    const Index row = input == 0 ? 0 : config_.embed_dim + (input == 1 ? 0 : kv_embed);
    const auto weight = packed() ? parameters_.weight("in_proj_weight") : parameters_.weight(kNames[input]);
    return {weight.data() + (packed() ? row * weight.dim(1) : 0),
            config_.bias ? parameters_.bias("in_proj_bias").data() + row : nullptr, weight.dim(1), outputs};
  }
  detail::Linear<T> output_projection() const {
    return {parameters_.weight("out_proj.weight").data(),
            config_.bias ? parameters_.bias("out_proj.bias").data() : nullptr, config_.embed_dim, config_.embed_dim};
  }

  /// The results of all heads next to each other, (batch, q_len, embed_dim).
  template <class M>
  Tensor<T, 3> attend(const Inputs& inputs, Tensor<T, 4>& weights, const M& mods,
                      const MultiHeadOptions& options) const {
    const Index batch = inputs[0].dim(0), q_len = inputs[0].dim(1);
    std::array<Tensor<T, 3>, 3> projected;
    std::array<TensorView<const T, 4>, 3> heads;  // (batch, heads, len, head_dim), inside `projected`
    for (std::size_t first = 0; first < 3;) first = project(inputs, first, projected[first], heads, options);
    const auto& [q, k, v] = heads;
    auto result = Tensor<T, 3>::uninitialized({batch, q_len, config_.embed_dim});
    const TensorView<T, 4> out = bshd(result.data(), batch, q_len, config_.heads, head_dim());
    Options inner = options.attention;
    inner.workspace = {};  // its size would be that of a call that the user never sees
    if (options.weights)
      detail::with_views(q, k, v, mods, inner,
                         [&](auto& q4, auto& k4, auto& v4, const Problem& problem, const auto& bound) {
                           using Number = detail::computed_t<T>;
                           detail::naive<Number>(out, detail::no_lse<Number>(), weights.view(), q4, k4, v4,
                                                 detail::naive_mods<Number>(bound, problem), problem, inner.executor);
                         });
    else if (options.path == Path::naive)
      naive_attention_into(out, q, k, v, mods, inner);
    else
      attention_into(out, q, k, v, mods, inner);
    return result;
  }

  /// Projects input `first`, and in the same product those that follow it if they are the same object and their weights
  /// lie together. Returns the first input that is left.
  std::size_t project(const Inputs& inputs, std::size_t first, Tensor<T, 3>& projected,
                      std::array<TensorView<const T, 4>, 3>& heads, const MultiHeadOptions& options) const {
    const TensorView<const T, 3>& x = inputs[first];
    const auto is_x = [&](const TensorView<const T, 3>& y) {
      return y.data() == x.data() && y.shape() == x.shape() && y.strides() == x.strides();
    };
    detail::Linear<T> linear = input_projection(first);
    std::size_t last = first + 1;
    for (; packed() && last < 3 && is_x(inputs[last]); ++last) linear.outputs += input_projection(last).outputs;

    const Index batch = x.dim(0), len = x.dim(1), dim = head_dim(), row = linear.outputs;
    projected = Tensor<T, 3>::uninitialized({batch, len, row});
    const Tensor<T, 3> copy = x.is_contiguous() ? Tensor<T, 3>() : Tensor<T, 3>(x);
    linear(x.is_contiguous() ? x.data() : copy.data(), projected.data(), batch * len, options.attention);

    const T* column = projected.data();
    for (std::size_t i = first; i < last; ++i) {
      const Index n = input_projection(i).outputs;
      heads[i] = {column, {batch, n / dim, len, dim}, {len * row, dim, row, 1}};
      if (column) column += n;
    }
    return last;
  }

  MultiHeadConfig config_;
  detail::Parameters<T> parameters_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
