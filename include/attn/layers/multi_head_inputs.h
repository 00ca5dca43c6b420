// The checked inputs of multi-head attention, and their projections as heads.
#pragma once

#include <array>
#include <utility>

#include "attn/core/base/ranges.h"
#include "attn/layers/multi_head_parameters.h"

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

}  // namespace attn::detail::inline ATTN_BUILT_FOR
