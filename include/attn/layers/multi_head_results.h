// The attention of a layer's heads and the layer's result, with and without a cache.
#pragma once

#include <algorithm>
#include <utility>

#include "attn/cache/append_undo.h"
#include "attn/core/backward/checked_backward.h"
#include "attn/layers/multi_head_cache.h"
#include "attn/layers/multi_head_inputs.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The added keys and values of a layer. They have no position and no mods, so a second call, which continues from the
/// result of the first (Options::accumulate), computes their part of the attention.
template <class T>
class ExtraKeys {
 public:
  ExtraKeys() = default;  ///< adds none
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

  Index count_ = 0;
  Tensor<T, 3> keys_, values_;  // (kv_heads, count, dim)
};

/// Results of the heads: whatever is requested, and the input of the output projection, which is `gated` if there is a
/// gate, and `joined` otherwise.
template <class T>
struct HeadResults : MultiHeadResult<Tensor<T, 3>, T> {
  Tensor<T, 3> gated;
};

inline bool gives_lse(const MultiHeadOptions& options) { return options.lse || options.keep; }
/// Whether a call computes the lse: if it is requested, or if attention continues over added keys.
template <class T>
bool needs_lse(const ExtraKeys<T>& extra, const MultiHeadOptions& options) {
  return gives_lse(options) || (extra.count() > 0 && !options.attention.normaliser.sigmoid_bias());
}
inline bool gives_heads(const MultiHeadOptions& options) { return options.heads || options.keep; }

/// Allocates the results of queries q.
template <class T>
HeadResults<T> allocate_results(const ExtraKeys<T>& extra, const TensorView<T, 4>& q, Index v_dim,
                                const MultiHeadOptions& options) {
  HeadResults<T> r;
  r.joined = Tensor<T, 3>::uninitialized({q.dim(0), q.dim(2), q.dim(1) * v_dim});
  if (needs_lse(extra, options)) r.lse = Tensor<computed_t<T>, 3>::uninitialized({q.dim(0), q.dim(1), q.dim(2)});
  return r;
}

/// Returns a copy of heads without gaps.
template <class T>
Tensor<T, 4> copied(const TensorView<T, 4>& heads, const Executor& executor) {
  auto copy = Tensor<T, 4>::uninitialized(heads.shape());
  const Index count = heads.dim(1), len = heads.dim(2), dim = heads.dim(3);
  Workers({kFlopsToMove * static_cast<double>(heads.size())}, executor).run(heads.dim(0) * count, [&](Index head, int) {
    for (Index i = 0; i < len; ++i)
      std::copy_n(&heads(head / count, head % count, i, 0), dim, copy.data() + (head * len + i) * dim);
  });
  return copy;
}

/// Calls run(out), or run(out, lse) if the lse is needed, with `out` split into heads, and continues the results over
/// the added keys. With options.keep, `joined` also keeps its elements before rounding, for backward().
template <class T, class Run>
void with_results(HeadResults<T>& r, const ExtraKeys<T>& extra, const TensorView<T, 4>& q,
                  const MultiHeadOptions& options, const Run& run) {
  const Index dim = r.joined.dim(2) / q.dim(1);
  const auto in_heads = [&](auto* numbers) {
    const auto out = bshd(numbers, q.dim(0), q.dim(2), q.dim(1), dim);
    const auto compute = [&](auto&... result) {
      run(result...);
      if (extra.count() > 0) extra.attend(q, of_heads(options), result...);
    };
    needs_lse(extra, options) ? compute(out, r.lse) : compute(out);
  };
  if constexpr (is_rounded<Tensor<T, 3>>)  // attention over added keys continues from unrounded results
    if (options.keep || extra.count() > 0)
      return with_unrounded_output<computed_t<T>>(r.joined, options.attention, in_heads);
  in_heads(r.joined.data());
}

/// Applies the gate to the results of the heads, if there is one.
template <class T>
void apply_gate(HeadResults<T>& r, const ProjectedHeads<T>& heads, const MultiHeadOptions& options) {
  if (heads.gate().dim(1) == 0) return;
  r.gated = gated(r.joined, heads.gate(), options.attention.executor);
  if (!options.keep) r.joined = {};
}

/// Computes attention of a layer's heads q, k and v without a cache.
template <class T, class M>
HeadResults<T> attended_heads(const TensorView<T, 4>& q, const TensorView<T, 4>& k, const TensorView<T, 4>& v,
                              const ExtraKeys<T>& extra, bool has_rope, const M& mods,
                              const MultiHeadOptions& options) {
  HeadResults<T> r = allocate_results(extra, q, v.dim(3), options);
  TensorView<T, 4> own_weights, extra_weights;
  if (options.weights) {
    r.weights = Tensor<T, 4>::uninitialized({q.dim(0), q.dim(1), q.dim(2), k.dim(2) + extra.count()});
    const auto columns = [&](Index first, Index count) {
      return r.weights.view().part(first, {q.dim(0), q.dim(1), q.dim(2), count}, r.weights.view().strides());
    };
    own_weights = columns(0, k.dim(2));
    extra_weights = columns(k.dim(2), extra.count());
  }
  const Options inner = of_heads(options);
  const CheckedCall call(q, k, v, mods, inner, Outputs::own, has_rope);
  Tensor<computed_t<T>, 3> own_lse;  // over the keys of the call alone
  with_results(r, extra, q, options, [&](auto&... result) {
    if (options.weights || options.path == Path::naive)
      call.naive(inner.executor, own_weights, result...);
    else
      flash(call.tensors(result...), call.mods, inner);
    if (options.weights && extra.count() > 0) own_lse = r.lse;
  });
  if (options.weights && extra.count() > 0) {
    if (own_lse.size() > 0) ExtraKeys<T>::rescale_weights(own_weights, own_lse, r.lse);
    extra.weights(q, inner, r.lse, extra_weights);
  }
  if (gives_heads(options)) {
    r.query = copied(q, inner.executor);
    r.key = copied(k, inner.executor);
    r.value = copied(v, inner.executor);
  }
  return r;
}

/// Computes the heads of a call without a cache.
template <class T, class M>
HeadResults<T> attended(const MultiHeadParameters<T>& layer, const Inputs<T>& inputs, const M& mods,
                        const MultiHeadOptions& options) {
  check_added_keys<M>(layer.config(), options.attention);
  const ProjectedHeads<T> heads = normalised_heads(layer, inputs, Input::query, Input::value, options.attention);
  const auto& rope = layer.config().rope;
  if (rope)
    rotate_heads(heads.query(), heads.key(), sizes_of(inputs, options.attention), options.attention.executor,
                 [&](const TensorView<T, 4>& tokens, Index first) { rope->rotate(tokens, first); });
  HeadResults<T> r =
      attended_heads(heads.query(), heads.key(), heads.value(), ExtraKeys<T>(layer), rope.has_value(), mods, options);
  apply_gate(r, heads, options);
  return r;
}

/// Computes attention of the queries q of tokens x over a cache.
template <class T, class X, class M>
HeadResults<T> attended_sequences(const X& x, const TensorView<T, 4>& q, const ExtraKeys<T>& extra,
                                  const KvView<computed_t<T>>& batch, const M& mods, const MultiHeadOptions& options) {
  require(options.path == Path::flash && !options.weights,
          "a call over a cache supports neither the naive path nor weights; request lse and heads, from which "
          "for_each_weight_tile() computes the weights");
  require(!options.keep,
          "a call over a cache has no backward(), so MultiHeadOptions::keep must be off; for gradients, call the layer "
          "with query, key and value");
  HeadResults<T> r = allocate_results(extra, q, batch.v_dim(), options);
  const Options inner = of_heads(options);
  const auto queries = as_given(x, q);
  CheckedSequences call(queries, batch, mods, inner);
  with_results(r, extra, q, options,
               [&](auto&... result) { run_passes(call.passes(result...), inner, inner.workspace); });
  return r;
}

/// Computes the heads of a call with tokens x over a cache. Keys and values of `heads`, if any, have been appended
/// already.
template <class T, class X, class M>
HeadResults<T> attended_over(const MultiHeadParameters<T>& layer, const X& x, const ProjectedHeads<T>& heads,
                             const KvView<computed_t<T>>& batch, const M& mods, const MultiHeadOptions& options) {
  HeadResults<T> r = attended_sequences(x, heads.query(), ExtraKeys<T>(layer), batch, mods, options);
  apply_gate(r, heads, options);
  if (options.heads) {
    r.query = rotated_copy(x, heads.query(), batch, options.attention);
    if (heads.key().dim(3) > 0) {
      r.key = rotated_copy(x, heads.key(), batch, {});
      r.value = Tensor<T, 4>(heads.value());
    }
  }
  return r;
}

/// Computes the layer's result: the output projection of the heads' results, shaped like a query of type Q.
template <class Q, class T>
auto join_heads(const Linear<T>& projection, HeadResults<T>&& r, const MultiHeadOptions& options) {
  const Tensor<T, 3>& joined = r.gated.dim(2) > 0 ? r.gated : r.joined;  // an empty tensor has no data
  auto all = Tensor<T, 3>::uninitialized({joined.dim(0), joined.dim(1), projection.outputs});
  projection(joined.data(), all.data(), all.dim(0) * all.dim(1), options.attention);
  auto out = result_like<Q>(std::move(all));
  if (!options.keep) r.joined = {};
  if (!gives_lse(options)) r.lse = {};
  return MultiHeadResult<decltype(out), T>{std::move(out),     std::move(r.weights), std::move(r.lse),
                                           std::move(r.query), std::move(r.key),     std::move(r.value),
                                           std::move(r.joined)};
}

/// Computes the layer's result for tokens x over a cache; see attended_over().
template <class T, class X, class M>
auto result_over(const MultiHeadParameters<T>& layer, const X& x, const ProjectedHeads<T>& heads,
                 const KvView<computed_t<T>>& batch, const M& mods, const MultiHeadOptions& options) {
  using Q = typename QueryRows<X>::Tensor;
  return join_heads<Q>(layer.output_projection(), attended_over(layer, x, heads, batch, mods, options), options);
}

/// Appends tokens x to a cache and computes the layer's result for them. If it throws, the cache is as it was before,
/// except that tokens may have left a window.
template <class T, class X, class Cache, class M>
auto append_and_attend(const MultiHeadParameters<T>& layer, const X& x, const Inputs<T>& inputs, Cache& cache,
                       const M& mods, const MultiHeadOptions& options) {
  check_inputs<T>(layer.config(), inputs);
  check_cache(layer, x, inputs[0], cache.view());
  check_added_keys<M>(layer.config(), options.attention);
  const ProjectedHeads<T> heads = normalised_heads(layer, inputs, Input::query, Input::value, options.attention);
  AppendUndo undo(cache);  // first, because its constructor slides windows
  AppendOptions appended;
  if (const auto depths = tree_depths(mods); !depths.empty())
    appended.positions = positions_of_nodes(x, heads.key(), depths, cache.view());
  append_heads(cache, x, heads, appended);
  auto result = result_over(layer, x, heads, cache.view(), mods, options);
  undo.keep();
  return result;
}

/// Computes the layer's result for tokens x over the contents of a cache.
template <class T, class X, class M>
auto attend_only(const MultiHeadParameters<T>& layer, const X& x, const Inputs<T>& inputs,
                 const KvView<computed_t<T>>& batch, const M& mods, const MultiHeadOptions& options) {
  check_features("query", inputs[0], layer.config().embed_dim, "embed_dim");
  check_cache(layer, x, inputs[0], batch);
  check_added_keys<M>(layer.config(), options.attention);
  const ProjectedHeads<T> heads = normalised_heads(layer, inputs, Input::query, Input::query, options.attention);
  return result_over(layer, x, heads, batch, mods, options);
}

/// Appends the keys and values of tokens x to a cache.
template <class T, class X, class Cache>
void append_only(const MultiHeadParameters<T>& layer, const X& x, const Inputs<T>& inputs, Cache& cache,
                 const Options& options) {
  const MultiHeadConfig& config = layer.config();
  check_features("key", inputs[1], config.key_dim, "key_dim");
  check_features("value", inputs[2], config.value_dim, "value_dim");
  check_cache(layer, x, inputs[1], cache.view());
  append_heads(cache, x, normalised_heads(layer, inputs, Input::key, Input::value, options));
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
