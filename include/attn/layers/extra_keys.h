// Keys and values that a layer adds to every sequence: bias_k and bias_v, and zeros.
#pragma once

#include <algorithm>

#include "attn/core/backward/checked_backward.h"
#include "attn/layers/multi_head_inputs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The added keys and values of a layer. They have no position and no mods, so a second call, which continues from the
/// result of the first (Options::accumulate), computes their part of the attention.
template <class T>
class ExtraKeys {
 public:
  explicit ExtraKeys(const MultiHeadParameters<T>& layer)
      : count_((layer.config().add_bias_kv ? 1 : 0) + (layer.config().add_zero_attn ? 1 : 0)) {
    if (count_ == 0) return;
    const MultiHeadConfig& c = layer.config();
    keys_ = Tensor<T, 3>({c.kv_heads, count_, c.head_dim});
    values_ = Tensor<T, 3>({c.kv_heads, count_, c.v_head_dim});
    if (!c.add_bias_kv) return;
    copy_heads(layer.named().bias("bias_k"), keys_);
    copy_heads(layer.named().bias("bias_v"), values_);
  }

  Index count() const { return count_; }

  /// Updates the results of queries q (batch, heads, len, head_dim) over the other keys to include the added keys.
  template <class... To>
  void attend(const TensorView<T, 4>& q, const Options& options, To&... result) const {
    const Options own = own_options(options);
    const CheckedCall call(q, for_all(keys_, q.dim(0)), for_all(values_, q.dim(0)), Mods<>(), own, Outputs::given);
    flash(call.tensors(result...), call.mods, own);
  }

  /// The weights of the added keys, (batch, heads, len, count()), given the lse of all keys.
  template <class Number>
  void weights(const TensorView<T, 4>& q, const Options& options, const Tensor<Number, 3>& lse,
               const TensorView<T, 4>& to) const {
    const Options own = own_options(options);
    const CheckedCall call(q, for_all(keys_, q.dim(0)), for_all(values_, q.dim(0)), Mods<>(), own, Outputs::given);
    auto out = Tensor<T, 4>::uninitialized({q.dim(0), q.dim(1), q.dim(2), values_.dim(2)});
    if (own.normaliser.sigmoid_bias()) return call.naive(own.executor, to, out);
    auto own_lse = Tensor<Number, 3>::uninitialized(lse.shape());
    call.naive(own.executor, to, out, own_lse);
    rescale_weights(to, own_lse, lse);
  }

  /// Gradients of bias_k and bias_v, (kv_heads * head_dim) and (kv_heads * v_head_dim).
  struct Gradients {
    Tensor<computed_t<T>, 1> bias_k, bias_v;
  };

  /// Adds to `grad_q` the part of the gradient that comes from the added keys, and returns the gradients of the added
  /// keys and values, given the results `out` and `lse` over all keys.
  template <class Out, class Lse>
  Gradients gradients(const TensorView<T, 4>& grad_q, const TensorView<const T, 4>& grad_out, const Tensor<T, 4>& q,
                      const Out& out, const Lse& lse, const Options& options) const {
    using Number = computed_t<T>;
    const Options own = own_options(options);
    const Index batch = q.dim(0);
    Tensor<Number, 4> grad_k({batch, keys_.dim(0), count_, keys_.dim(2)}),
        grad_v({batch, values_.dim(0), count_, values_.dim(2)});
    TensorView<T, 4> to = grad_q;
    CheckedBackward(grad_out, q, for_all(keys_, batch), for_all(values_, batch), out, lse, Mods<>(), own,
                    Outputs::given)
        .run_into(to, grad_k, grad_v, own);
    return {sum_of_first(grad_k), sum_of_first(grad_v)};
  }

  /// Converts weights of a softmax over some keys into weights over all keys.
  template <class Number>
  static void rescale_weights(const TensorView<T, 4>& weights, const Tensor<Number, 3>& own_lse,
                              const Tensor<Number, 3>& lse) {
    using std::exp;
    for (Index b = 0; b < weights.dim(0); ++b)
      for (Index h = 0; h < weights.dim(1); ++h)
        for (Index i = 0; i < weights.dim(2); ++i) {
          const Number factor =
              exp(own_lse(b, h, i) - lse(b, h, i));  // lse is finite, since added keys are always seen
          for (Index j = 0; j < weights.dim(3); ++j)
            weights(b, h, i, j) = static_cast<T>(static_cast<Number>(weights(b, h, i, j)) * factor);
        }
  }

 private:
  static Options own_options(Options options) {
    options.accumulate = true;
    options.q_offset = 0;
    options.q_offsets = {};
    options.kv_offset = std::nullopt;
    return options;
  }
  /// A view that repeats x, the added keys or values, for each of `batch` sequences.
  static TensorView<const T, 4> for_all(const Tensor<T, 3>& x, Index batch) {
    return {x.data(), {batch, x.dim(0), x.dim(1), x.dim(2)}, {0, x.dim(1) * x.dim(2), x.dim(2), 1}};
  }
  static void copy_heads(const TensorView<const T, 1>& from, Tensor<T, 3>& to) {
    for (Index h = 0; h < to.dim(0); ++h) std::copy_n(from.data() + h * to.dim(2), to.dim(2), &to(h, 0, 0));
  }

  /// The gradients of the first added key of each head, summed over the batch.
  template <class Number>
  static Tensor<Number, 1> sum_of_first(const Tensor<Number, 4>& grads) {
    const Index heads = grads.dim(1), dim = grads.dim(3);
    Tensor<Number, 1> sums({heads * dim});
    for (Index b = 0; b < grads.dim(0); ++b)
      for (Index h = 0; h < heads; ++h)
        for (Index c = 0; c < dim; ++c) sums(h * dim + c) += grads(b, h, 0, c);
    return sums;
  }

  Index count_;
  Tensor<T, 3> keys_, values_;  // (kv_heads, count, dim)
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
