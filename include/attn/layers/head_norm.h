// RMS norms of the queries and keys of a layer.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "attn/core/base/unfused.h"
#include "attn/layers/multi_head_inputs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
      : weight_(layer.named().bias(layer.norm_name(input))),
        dim_(layer.config().head_dim),
        heads_(layer.norm_size(input) / dim_),
        eps_(static_cast<Sum>(layer.config().qk_norm_eps)) {}

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

}  // namespace attn::detail::inline ATTN_BUILT_FOR
