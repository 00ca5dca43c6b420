// The checked inputs of multi-head attention and their projections as heads: RMS norms of queries and keys, and the
// gate of the results.
#pragma once

#include <array>
#include <cmath>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/base/unfused.h"
#include "attn/layers/multi_head_parameters.h"
#include "attn/mod.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Query, key and value (batch, len, features).
template <class T>
using Inputs = std::array<TensorView<const T, 3>, 3>;

/// Rejects wrong types of a layer's inputs with a one-sentence error; T is the layer's scalar.
template <class T, class... X>
constexpr bool check_layer_types() {
  static_assert((std::is_same_v<typename Traits<X>::Scalar, T> && ...),
                "attn: query, key and value must have the scalar type T of MultiHeadAttention<T>; convert with "
                ".cast<float>() or .cast<double>()");
  static_assert(((Traits<X>::kRank == 2 || Traits<X>::kRank == 3) && ...),
                "attn: query, key and value of MultiHeadAttention must be matrices (len, features) or rank-3 tensors "
                "(batch, len, features)");
  constexpr int ranks[] = {Traits<X>::kRank...};
  static_assert(((Traits<X>::kRank == ranks[0]) && ...),
                "attn: query, key and value must have the same rank, all matrices or all rank-3 tensors");
  return true;
}

/// Returns a view of rank 3; a matrix becomes a batch of one.
template <class X, int Rank>
TensorView<X, 3> as_rank3(const TensorView<X, Rank>& t) {
  if constexpr (Rank == 2)
    return {t.data(), {1, t.dim(0), t.dim(1)}, {0, t.stride(0), t.stride(1)}};
  else
    return t;
}

template <class T>
void check_features(const char* name, const TensorView<const T, 3>& x, Index want, const char* name_of_want) {
  require(x.dim(2) == want, "number of features differs: ", name, " has ", x.dim(2), ", ", name_of_want, " has ", want,
          "; shape ", x.shape(), " as (batch, len, features)");
}

template <class T>
void check_inputs(const MultiHeadConfig& config, const Inputs<T>& inputs) {
  const TensorView<const T, 3>&q = inputs[0], &k = inputs[1], &v = inputs[2];
  const auto same = [&](const char* what, Index a, const char* name_a, Index b, const char* name_b) {
    require(a == b, what, " differs: ", name_a, " has ", a, ", ", name_b, " has ", b, "; shapes: query ", q.shape(),
            ", key ", k.shape(), ", value ", v.shape(), " as (batch, len, features)");
  };
  same("number of features", q.dim(2), "query", config.embed_dim, "embed_dim");
  same("number of features", k.dim(2), "key", config.key_dim, "key_dim");
  same("number of features", v.dim(2), "value", config.value_dim, "value_dim");
  same("batch", q.dim(0), "query", k.dim(0), "key");
  same("batch", k.dim(0), "key", v.dim(0), "value");
  same("length", k.dim(1), "key", v.dim(1), "value");
}

/// Refuses weight mods beside keys that the layer adds, since results over both are merged. `M`: the call's mods.
template <class M>
void check_added_keys(const MultiHeadConfig& config, const Options& options) {
  require(!(has_weight_mods<M> && (config.add_bias_kv || config.add_zero_attn)) || options.normaliser.sigmoid_bias(),
          "weight_mod() needs the sum over all keys, so a layer with add_bias_kv or add_zero_attn does not take it");
}

/// Checks query, key and value, and calls use() with them.
template <class T, class Q, class K, class V, class Use>
auto with_inputs(const MultiHeadConfig& config, const Q& query, const K& key, const V& value, const Use& use) {
  const auto& q = evaluated(query);
  const auto& k = evaluated(key);
  const auto& v = evaluated(value);
  const Inputs<T> inputs{as_rank3(view(q)), as_rank3(view(k)), as_rank3(view(v))};
  check_inputs<T>(config, inputs);
  return use(inputs);
}

/// Returns the sizes and offsets that positions depend on, for a call without a cache.
template <class T>
Problem sizes_of(const Inputs<T>& inputs, const Options& options) {
  Problem sizes;
  sizes.batch = inputs[0].dim(0);
  sizes.q_len = inputs[0].dim(1);
  sizes.kv_len = inputs[1].dim(1);
  set_offsets(sizes, options);
  return sizes;
}

/// Flops that a core performs in the time it takes to load, change and store an element.
constexpr double kFlopsToChange = 8;

/// Tokens of a task that rotates or normalises: computing their sines takes longer than starting a thread.
constexpr Index kTokensPerBlock = 64;

/// Calls use(tokens, batch element, first of the tokens) for blocks of consecutive tokens of heads (batch, heads, len,
/// head_dim), as tasks.
template <class T, class Use>
void for_each_token_block(const TensorView<T, 4>& heads, const Executor& asked, const Use& use) {
  const Index blocks = ceil_div(heads.dim(2), kTokensPerBlock);
  Workers({kFlopsToChange * static_cast<double>(heads.size())}, asked).run(heads.dim(0) * blocks, [&](Index task, int) {
    const Index b = task / blocks, begin = task % blocks * kTokensPerBlock,
                tokens = std::min(kTokensPerBlock, heads.dim(2) - begin);
    use(heads.part(b * heads.stride(0) + begin * heads.stride(2), {1, heads.dim(1), tokens, heads.dim(3)},
                   heads.strides()),
        b, begin);
  });
}

/// Rotates the queries and keys of a call of these sizes: calls rotate_tokens(tokens, position of the first) for blocks
/// of consecutive tokens, as tasks.
template <class T, class RotateTokens>
void rotate_heads(const TensorView<T, 4>& query, const TensorView<T, 4>& key, const Problem& sizes,
                  const Executor& asked, const RotateTokens& rotate_tokens) {
  for_each_token_block(query, asked, [&](const TensorView<T, 4>& tokens, Index b, Index begin) {
    rotate_tokens(tokens, sizes.first_query(b) + begin);
  });
  for_each_token_block(key, asked, [&](const TensorView<T, 4>& tokens, Index, Index begin) {
    rotate_tokens(tokens, sizes.kv_offset + begin);
  });
}

/// The elements of x without gaps: x itself, or a copy if x has gaps.
template <class T>
class WithoutGaps {
 public:
  explicit WithoutGaps(const TensorView<const T, 3>& x)
      : copy_(x.is_contiguous() ? Tensor<T, 3>() : Tensor<T, 3>(x)),
        data_(x.is_contiguous() ? x.data() : copy_.data()) {}
  WithoutGaps(const WithoutGaps&) = delete;
  const T* data() const { return data_; }

 private:
  Tensor<T, 3> copy_;
  const T* data_;
};

/// Returns the heads of one input, (batch, heads, len, dim), in the outputs (batch, len, row) of a projection. `first`
/// is the first element of the first head, and `step` the distance between heads.
template <class T>
TensorView<T, 4> heads_in(T* first, Index batch, Index len, Index row, Index heads, Index step, Index dim) {
  return {first, {batch, heads, len, dim}, {len * row, step, row, 1}};
}

/// Projected inputs as heads, (batch, heads, len, dim), and their memory.
template <class T>
class ProjectedHeads {
 public:
  /// Projects the inputs `first` … `last`. Consecutive inputs that are the same object and whose weights are packed are
  /// projected in one product.
  ProjectedHeads(const MultiHeadParameters<T>& parameters, const Inputs<T>& inputs, Input first, Input last,
                 const Options& options) {
    for (auto i = static_cast<std::size_t>(first); i <= static_cast<std::size_t>(last);)
      i = project(parameters, inputs, i, static_cast<std::size_t>(last), options);
  }

  const TensorView<T, 4>& query() const { return heads_[0]; }
  const TensorView<T, 4>& key() const { return heads_[1]; }
  const TensorView<T, 4>& value() const { return heads_[2]; }
  const TensorView<T, 4>& of(Input input) const { return heads_[static_cast<std::size_t>(input)]; }
  /// The gates of the results of the heads, before the sigmoid; null if there are none.
  const TensorView<T, 4>& gate() const { return gate_; }

 private:
  /// Projects input `first`, and the inputs after it that share its product. Returns the first input that is not
  /// projected yet.
  std::size_t project(const MultiHeadParameters<T>& parameters, const Inputs<T>& inputs, std::size_t first,
                      std::size_t last, const Options& options) {
    const TensorView<const T, 3>& x = inputs[first];
    const auto is_x = [&](const TensorView<const T, 3>& y) {
      return y.data() == x.data() && y.shape() == x.shape() && y.strides() == x.strides();
    };
    std::size_t end = first + 1;
    while (end <= last && parameters.packed() && is_x(inputs[end])) ++end;
    const Linear<T> linear = parameters.input_projection(static_cast<Input>(first), static_cast<Input>(end - 1));

    const Index batch = x.dim(0), len = x.dim(1), row = linear.outputs;
    Tensor<T, 3>& projected = memory_[first] = Tensor<T, 3>::uninitialized({batch, len, row});
    linear(WithoutGaps<T>(x).data(), projected.data(), batch * len, options);

    T* column = projected.data();
    for (std::size_t i = first; i < end; ++i) {
      const auto input = static_cast<Input>(i);
      const Index heads = parameters.heads(input), step = parameters.outputs_per_head(input),
                  dim = parameters.head_dim(input);
      heads_[i] = heads_in(column, batch, len, row, heads, step, dim);
      if (step > dim) gate_ = heads_in(column ? column + dim : column, batch, len, row, heads, step, step - dim);
      if (column) column += heads * step;
    }
    return end;
  }

  std::array<Tensor<T, 3>, 3> memory_;
  std::array<TensorView<T, 4>, 3> heads_;
  TensorView<T, 4> gate_;
};

/// Returns the options of the heads' attention. They have no workspace, because its size depends on a call that the
/// user never sees.
inline Options of_heads(const MultiHeadOptions& options) {
  Options inner = options.attention;
  inner.workspace = {};
  return inner;
}

/// Converts a tensor (batch, len, features) to the result of a call with the query Q: rank 3, or like a rank-2 query.
template <class Q, class T>
auto result_like(Tensor<T, 3>&& out) {
  if constexpr (EigenDense<Q>)
    return decltype(Answer<Q>::out(Problem{}))(std::as_const(out).matrix(0));
  else if constexpr (Traits<Q>::kRank == 2)
    return Tensor<T, 2>(TensorView<const T, 2>(out.data(), {out.dim(1), out.dim(2)}));
  else
    return std::move(out);
}

/// The RMS norm (Zhang & Sennrich 2019, eq. 4) of heads x (batch, heads, len, head_dim):
///
///     y = weight * n,   n = x / sqrt(mean of x² + eps)
///
/// The mean is over the features of one head or of all heads of a token, and there is a weight for each of them.
template <class T>
class HeadNorm {
  using Number = computed_t<T>;

 public:
  /// Sums over features and tokens. Products of two floats are exact in double.
  using Sum = std::common_type_t<Number, double>;

  HeadNorm(const MultiHeadParameters<T>& layer, Input input)
      : HeadNorm(layer.named().bias(layer.norm_name(input)), layer.config().head_dim, layer.config().qk_norm_eps) {}
  HeadNorm(const TensorView<const T, 1>& weight, Index head_dim, double eps)
      : weight_(weight), dim_(head_dim), heads_(weight.dim(0) / dim_), eps_(static_cast<Sum>(eps)) {}

  /// Normalises x in place.
  void apply(const TensorView<T, 4>& x, const Executor& executor) const {
    for_each_token_block(x, executor, [&](const TensorView<T, 4>& tokens, Index, Index) {
      for_each_group(tokens, [&](Index first, Index token) {
        const auto factor = static_cast<Number>(inverse_rms(tokens, first, token));
        for (Index h = 0; h < heads_; ++h) {
          T* const y = &tokens(0, first + h, token, 0);
          const T* const w = weight_.data() + h * dim_;
          for (Index c = 0; c < dim_; ++c)
            y[c] = static_cast<T>(static_cast<Number>(y[c]) * factor * static_cast<Number>(w[c]));
        }
      });
    });
  }

  /// Converts the gradient of y into that of x in place, and adds the gradient of the weight to `sums`. The results do
  /// not depend on the number of threads.
  ///
  ///     grad_x = (weight * grad_y - n * mean of weight * grad_y * n) / sqrt(mean of x² + eps)
  ///     grad_weight = sum over tokens of grad_y * n
  void gradient(const TensorView<T, 4>& grad, const TensorView<T, 4>& x, std::vector<Sum>& sums,
                const Executor& executor) const {
    const Index size = heads_ * dim_, blocks = ceil_div(x.dim(2), kTokensPerBlock);
    std::vector<Sum> parts(static_cast<std::size_t>(x.dim(0) * blocks * size), Sum(0));
    for_each_token_block(grad, executor, [&](const TensorView<T, 4>& grads, Index b, Index begin) {
      const TensorView<T, 4> tokens =
          x.part(b * x.stride(0) + begin * x.stride(2), {1, x.dim(1), grads.dim(2), dim_}, x.strides());
      Sum* const part = parts.data() + (b * blocks + begin / kTokensPerBlock) * size;
      for_each_group(grads, [&](Index first, Index token) {
        const Sum factor = inverse_rms(tokens, first, token);
        Sum sum = 0;
        for (Index h = 0; h < heads_; ++h) {
          const T *const g = &grads(0, first + h, token, 0), *const n = &tokens(0, first + h, token, 0);
          for (Index c = 0; c < dim_; ++c) {
            const Sum product = number(g[c]) * number(n[c]) * factor;
            part[h * dim_ + c] += product;
            sum += product * number(weight_(h * dim_ + c));
          }
        }
        const Sum mean = sum / static_cast<Sum>(size);
        for (Index h = 0; h < heads_; ++h) {
          T* const g = &grads(0, first + h, token, 0);
          const T* const n = &tokens(0, first + h, token, 0);
          for (Index c = 0; c < dim_; ++c) {
            const Sum of_n = number(g[c]) * number(weight_(h * dim_ + c)) - number(n[c]) * factor * mean;
            g[c] = static_cast<T>(static_cast<Number>(of_n * factor));
          }
        }
      });
    });
    for (std::size_t i = 0; i < parts.size(); ++i) sums[i % static_cast<std::size_t>(size)] += parts[i];
  }

 private:
  static Sum number(T x) { return static_cast<Sum>(static_cast<Number>(x)); }

  /// Calls use(first head, token) for each group of heads that are normalised together, in each token of a block.
  template <class Use>
  void for_each_group(const TensorView<T, 4>& tokens, const Use& use) const {
    for (Index token = 0; token < tokens.dim(2); ++token)
      for (Index head = 0; head < tokens.dim(1); head += heads_) use(head, token);
  }
  Sum inverse_rms(const TensorView<T, 4>& tokens, Index first, Index token) const {
    constexpr Index kSums = 4;  // independent sums, since each addition waits for the one before it
    Sum sums[kSums] = {};
    for (Index h = 0; h < heads_; ++h) {
      const T* const x = &tokens(0, first + h, token, 0);
      for (Index c = 0; c < dim_; ++c) sums[c % kSums] += unfused(number(x[c]) * number(x[c]));
    }
    const Sum squares = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    return 1 / std::sqrt(squares / static_cast<Sum>(heads_ * dim_) + eps_);
  }

  TensorView<const T, 1> weight_;
  Index dim_, heads_;  // features of a head; heads that are normalised together
  Sum eps_;
};

/// Projects inputs, and normalises queries and keys if the layer does.
template <class T>
ProjectedHeads<T> normalised_heads(const MultiHeadParameters<T>& layer, const Inputs<T>& inputs, Input first,
                                   Input last, const Options& options) {
  ProjectedHeads<T> heads(layer, inputs, first, last, options);
  if (layer.config().qk_norm)
    for (const Input input : {Input::query, Input::key})
      if (first <= input && input <= last) HeadNorm<T>(layer, input).apply(heads.of(input), options.executor);
  return heads;
}

/// Calls use(gates, corresponding elements of `x`, batch element, head, token) for each head of each token. x is
/// (batch, len, heads * v_head_dim), gate (batch, heads, len, v_head_dim).
template <class T, class X, class Use>
void for_each_gated_head(const TensorView<T, 4>& gate, X& x, const Executor& executor, const Use& use) {
  const Index dim = gate.dim(3);
  for_each_token_block(gate, executor, [&](const TensorView<T, 4>& gates, Index b, Index begin) {
    for (Index i = 0; i < gates.dim(2); ++i)
      for (Index h = 0; h < gates.dim(1); ++h) use(&gates(0, h, i, 0), &x(b, begin + i, h * dim), b, h, begin + i);
  });
}

template <class T>
computed_t<T> sigmoid_of_gate(T gate) {
  using std::exp;
  return 1 / (1 + exp(-static_cast<computed_t<T>>(gate)));
}

/// Computes joined * sigmoid(gate) for results of heads (batch, len, heads * v_head_dim), with a gate for each feature.
template <class T>
Tensor<T, 3> gated(const Tensor<T, 3>& joined, const TensorView<T, 4>& gate, const Executor& executor) {
  using Number = computed_t<T>;
  auto result = Tensor<T, 3>::uninitialized(joined.shape());
  const Index dim = gate.dim(3);
  for_each_gated_head(gate, joined, executor, [&](const T* g, const T* x, Index b, Index h, Index i) {
    T* const y = &result(b, i, h * dim);
    for (Index c = 0; c < dim; ++c) y[c] = static_cast<T>(static_cast<Number>(x[c]) * sigmoid_of_gate(g[c]));
  });
  return result;
}

/// Converts the gradient of gated() into that of `joined` in place, and writes the gradient of the gate to `grad_gate`.
template <class T>
void gate_gradient(Tensor<T, 3>& grad, const TensorView<T, 4>& grad_gate, const Tensor<T, 3>& joined,
                   const TensorView<T, 4>& gate, const Executor& executor) {
  using Number = computed_t<T>;
  const Index dim = gate.dim(3);
  for_each_gated_head(gate, grad, executor, [&](const T* g, T* of_gated, Index b, Index h, Index i) {
    const T* const x = &joined(b, i, h * dim);
    T* const of_gate = &grad_gate(b, h, i, 0);
    for (Index c = 0; c < dim; ++c) {
      const Number factor = sigmoid_of_gate(g[c]), of_x = static_cast<Number>(of_gated[c]) * factor;
      of_gate[c] = static_cast<T>(of_x * static_cast<Number>(x[c]) * (1 - factor));
      of_gated[c] = static_cast<T>(of_x);
    }
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
