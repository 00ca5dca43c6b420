// Backward pass of multi-head attention.
#pragma once

#include <algorithm>
#include <optional>
#include <vector>

#include "attn/backward.h"
#include "attn/layers/multi_head_results.h"
#include "attn/multi_head_gradients.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rejects a wrong type of grad_out with a one-sentence error, for a layer of T and a query of type Q.
template <class T, class G, class Q>
constexpr bool check_grad_out() {
  static_assert(std::is_same_v<typename Traits<G>::Scalar, T>,
                "attn: grad_out must have the scalar type T of MultiHeadAttention<T>; convert with .cast<float>() or "
                ".cast<double>()");
  static_assert(Traits<G>::kRank == Traits<Q>::kRank,
                "attn: grad_out must have the rank of the query: a matrix (len, features) or a rank-3 tensor (batch, "
                "len, features)");
  return true;
}

/// Checks grad_out, and that the result comes from a call with these inputs and has all that the backward pass needs.
template <class Out, class T>
void check_backward(const MultiHeadConfig& config, const Inputs<T>& inputs, const TensorView<const T, 3>& grad_out,
                    const MultiHeadResult<Out, T>& result) {
  const Index batch = inputs[0].dim(0), q_len = inputs[0].dim(1), kv_len = inputs[1].dim(1);
  const Shape<3> out{batch, q_len, config.embed_dim};
  require(grad_out.shape() == out, "grad_out has shape ", grad_out.shape(), ", expected ", out,
          " as (batch, len, features)");
  const auto check = [](const char* name, const auto& got, const auto& want) {
    require(got == want, "the result's ", name, " has shape ", got, ", expected ", want,
            "; backward() needs the result of a call with the same inputs and MultiHeadOptions::keep");
  };
  check("joined", result.joined.shape(), Shape<3>{batch, q_len, config.heads * config.v_head_dim});
  check("lse", result.lse.shape(), Shape<3>{batch, config.heads, q_len});
  check("query", result.query.shape(), Shape<4>{batch, config.heads, q_len, config.head_dim});
  check("key", result.key.shape(), Shape<4>{batch, config.kv_heads, kv_len, config.head_dim});
  check("value", result.value.shape(), Shape<4>{batch, config.kv_heads, kv_len, config.v_head_dim});
}

/// The gradients that head_gradients() computes.
template <class T>
struct HeadGradients {
  std::array<Tensor<T, 3>, 3> outputs;  ///< of the outputs of each input's projection
  Tensor<T, 3>
      joined;  ///< not a gradient: the input of the output projection, if a gate makes it differ from the result
  std::array<std::vector<typename HeadNorm<T>::Sum>, 2> norms;  ///< of the weights of the norms of queries and keys
  typename ExtraKeys<T>::Gradients extra;
};

/// Keeps the gradients of learned mods until everything else that may fail is done.
template <class T>
class DeferredLearnedMods final : public LearnedMods<T> {
  using Sum = GradientSum<T>;

 public:
  explicit DeferredLearnedMods(const LearnedMods<T>& mods)
      : mods_(mods),
        sums_(static_cast<std::size_t>(mods.slots())),
        sink_sums_(static_cast<std::size_t>(mods.sinks())) {}

  Index slots() const override { return mods_.slots(); }
  Learning learning() const override { return mods_.learning(); }
  Index sinks() const override { return mods_.sinks(); }
  void learn(const T* scores, T* grads, Index stride, const Tile& tile, Sum* sums) const override {
    mods_.learn(scores, grads, stride, tile, sums);
  }
  void learn_sinks(Index head, const T* lse, const T* lse_rest, const T* delta, Index count, Sum* sums) const override {
    mods_.learn_sinks(head, lse, lse_rest, delta, count, sums);
  }
  void add(const Sum* sums, const Sum* sink_sums) const override {
    std::copy_n(sums, sums_.size(), sums_.begin());
    std::copy_n(sink_sums, sink_sums_.size(), sink_sums_.begin());
  }
  /// Adds the kept gradients to the caller's tensors. Does not throw.
  void add_kept() const { mods_.add(sums_.data(), sink_sums_.data()); }

 private:
  const LearnedMods<T>& mods_;
  // mutable, because add() is const: other LearnedMods write only to the caller's tensors.
  mutable std::vector<Sum> sums_, sink_sums_;
};

/// Calls use() with the DeferredLearnedMods of a call with these heads, or with null if the mods learn nothing.
template <class T, class Out, class M, class Use>
auto with_learned_later(const MultiHeadResult<Out, T>& result, const M& mods, const Options& options, const Use& use) {
  using Number = computed_t<T>;
  if constexpr (Bound<M>::kLearns) {
    const CheckedCall call(result.query, result.key, result.value, mods, options);
    const LearnedIfAny<Number, Bound<M>> learned(call.mods, call.problem);
    const DeferredLearnedMods<Number> later(*learned.get());
    return use(&later);
  } else {
    return use(static_cast<const DeferredLearnedMods<Number>*>(nullptr));
  }
}

/// Computes the gradients of attention over heads without a cache, given that of the concatenated results, and those of
/// the added keys.
template <class Out, class T, class M>
auto attention_gradients(const std::array<TensorView<T, 4>, 3>& to, const Tensor<T, 3>& grad_joined,
                         const ExtraKeys<T>& extra, const MultiHeadResult<Out, T>& result, const M& mods,
                         const MultiHeadOptions& options, const LearnedMods<computed_t<T>>* learned) {
  const Options inner = of_heads(options);
  const auto in_heads = [&]<class X>(X* joined) {
    return bshd(joined, to[0].dim(0), to[0].dim(2), to[0].dim(1), to[2].dim(3));
  };
  const TensorView<const T, 4> grad = in_heads(grad_joined.data());
  typename ExtraKeys<T>::Gradients of_extra;
  if (options.path == Path::naive && extra.count() == 0) {
    CheckedNaiveBackward(grad, result.query, result.key, result.value, mods, inner)
        .run(to[0], to[1], to[2], inner, learned);
    return of_extra;
  }
  const auto run = [&]<class Number>(const Number* joined) {
    const TensorView<const Number, 4> out = in_heads(joined);
    CheckedBackward(grad, result.query, result.key, result.value, out, result.lse, mods, inner, Outputs::given)
        .run_into(to[0], to[1], to[2], inner, learned, extra.count() > 0);
    if (extra.count() > 0) of_extra = extra.gradients(to[0], grad, result.query, out, result.lse, inner);
  };
  if (const computed_t<T>* const exact = unrounded_values<computed_t<T>>(result.joined))
    run(exact);
  else
    run(result.joined.data());
  return of_extra;
}

/// Computes the gradients of the projected heads, backward through the output projection, gate, attention, rotation and
/// norms. Projections that the forward call changed in place are computed again.
template <class Out, class T, class M>
HeadGradients<T> head_gradients(const MultiHeadParameters<T>& layer, const Inputs<T>& inputs, const T* grad_out,
                                const MultiHeadResult<Out, T>& result, const M& mods, const MultiHeadOptions& options,
                                const LearnedMods<computed_t<T>>* learned) {
  const MultiHeadConfig& c = layer.config();
  const Options inner = of_heads(options);
  const Shape<3>& shape = result.joined.shape();
  const Index batch = shape[0], q_len = shape[1];
  HeadGradients<T> grads;
  std::array<TensorView<T, 4>, 3> views;
  for (const Input input : {Input::query, Input::key, Input::value}) {
    const auto i = static_cast<std::size_t>(input);
    const Index len = inputs[i].dim(1), row = layer.outputs(input);
    grads.outputs[i] = Tensor<T, 3>::uninitialized({batch, len, row});
    views[i] = heads_in(grads.outputs[i].data(), batch, len, row, layer.heads(input), layer.outputs_per_head(input),
                        layer.head_dim(input));
  }
  auto grad_joined = Tensor<T, 3>::uninitialized(shape);
  input_gradient(layer.output_projection(), grad_out, grad_joined.data(), batch * q_len, options.attention);

  std::optional<ProjectedHeads<T>> projected;
  if (c.qk_norm || c.output_gate)
    projected.emplace(layer, inputs, Input::query, c.qk_norm ? Input::key : Input::query, options.attention);
  if (c.output_gate) {
    grads.joined = gated(result.joined, projected->gate(), inner.executor);
    T* const first = grads.outputs[0].data();
    gate_gradient(grad_joined,
                  heads_in(first ? first + c.head_dim : first, batch, q_len, layer.outputs(Input::query), c.heads,
                           layer.outputs_per_head(Input::query), c.v_head_dim),
                  result.joined, projected->gate(), inner.executor);
  }

  grads.extra = attention_gradients(views, grad_joined, ExtraKeys<T>(layer), result, mods, options, learned);
  if (const auto& rope = c.rope)
    rotate_heads(views[0], views[1], sizes_of(inputs, inner), inner.executor,
                 [&](const TensorView<T, 4>& tokens, Index first) { rope->rotate_gradient(tokens, first); });
  if (c.qk_norm)
    for (const Input input : {Input::query, Input::key}) {
      const auto i = static_cast<std::size_t>(input);
      grads.norms[i].resize(static_cast<std::size_t>(layer.norm_size(input)));
      HeadNorm<T>(layer, input).gradient(views[i], projected->of(input), grads.norms[i], inner.executor);
    }
  return grads;
}

/// Computes the gradient of one of the inputs.
template <class T>
Tensor<T, 3> input_gradient(const MultiHeadParameters<T>& layer, Input input, const HeadGradients<T>& grads,
                            const Options& options) {
  const Tensor<T, 3>& grad = grads.outputs[static_cast<std::size_t>(input)];
  auto result = Tensor<T, 3>::uninitialized({grad.dim(0), grad.dim(1), layer.inputs(input)});
  input_gradient(layer.input_projection(input), grad.data(), result.data(), grad.dim(0) * grad.dim(1), options);
  return result;
}

/// Computes the gradients of a layer's parameters. The constructor allocates all memory, so that the gradients are
/// added completely or not at all.
template <class T>
class ParameterGradients {
  using Number = computed_t<T>;
  static constexpr Input kInputs[] = {Input::query, Input::key, Input::value};

 public:
  ParameterGradients(const MultiHeadParameters<T>& layer, const Inputs<T>& inputs, const HeadGradients<T>& grads,
                     const Tensor<T, 3>& joined, const T* grad_out, const Options& options)
      : layer_(layer),
        grads_(grads),
        joined_(layer.config().output_gate ? grads.joined : joined),
        grad_out_(grad_out),
        options_(options),
        x_{WithoutGaps<T>(inputs[0]), WithoutGaps<T>(inputs[1]), WithoutGaps<T>(inputs[2])} {
    const MultiHeadConfig& c = layer.config();
    Number none{};  // placeholder for a bias: only whether it is null matters
    const auto bytes = [&](bool has_bias, Index in, Index out, Index tokens) {
      return LinearGradients<T>{nullptr, has_bias ? &none : nullptr, in, out}.bytes(tokens, options);
    };
    Index most = bytes(*c.out_bias, joined.dim(2), c.embed_dim, tokens_of(joined));
    for (const Input i : kInputs)
      most = std::max(most, bytes(*c.in_bias, layer.inputs(i), layer.outputs(i), tokens_of(grads_of(i))));
    memory_ = Tensor<std::byte, 1>::uninitialized({most});
  }

  /// Adds the gradients to `sums`. Throws only if the executor does.
  void add_to(Parameters<Number>& sums) {
    layer_.output_gradients(sums).add(joined_.data(), grad_out_, tokens_of(joined_), options_, memory());
    for (const Input i : kInputs)
      layer_.input_gradients(sums, i).add(x_[static_cast<std::size_t>(i)].data(), grads_of(i).data(),
                                          tokens_of(grads_of(i)), options_, memory());
    const MultiHeadConfig& c = layer_.config();
    if (c.qk_norm)
      for (const Input i : {Input::query, Input::key})
        add(grads_.norms[static_cast<std::size_t>(i)].data(), sums.bias(layer_.norm_name(i)));
    if (c.add_bias_kv) {
      add(grads_.extra.bias_k.data(), sums.bias("bias_k"));
      add(grads_.extra.bias_v.data(), sums.bias("bias_v"));
    }
  }

 private:
  template <class Sum>
  static void add(const Sum* grads, const TensorView<Number, 1>& sums) {
    for (Index i = 0; i < sums.dim(0); ++i) sums(i) += static_cast<Number>(grads[i]);
  }
  const Tensor<T, 3>& grads_of(Input input) const { return grads_.outputs[static_cast<std::size_t>(input)]; }
  static Index tokens_of(const Tensor<T, 3>& t) { return t.dim(0) * t.dim(1); }
  std::span<std::byte> memory() { return {memory_.data(), static_cast<std::size_t>(memory_.size())}; }

  const MultiHeadParameters<T>& layer_;
  const HeadGradients<T>& grads_;
  const Tensor<T, 3>& joined_;
  const T* grad_out_;
  const Options& options_;
  const std::array<WithoutGaps<T>, 3> x_;
  Tensor<std::byte, 1> memory_;
};

/// MultiHeadAttention::backward() for checked types: adds the gradients of the parameters to `sums`, which may be empty
/// at first, and returns the gradients of the inputs, shaped like Q, K and V.
template <class Q, class K, class V, class T, class G, class Out, class M>
auto layer_gradients(const MultiHeadParameters<T>& layer, Parameters<computed_t<T>>& sums, const Inputs<T>& inputs,
                     const G& grad_out, const MultiHeadResult<Out, T>& result, const M& mods,
                     const MultiHeadOptions& options) {
  const auto& held = evaluated(grad_out);
  const TensorView<const T, 3> given = as_rank3(view(held));
  check_backward(layer.config(), inputs, given, result);
  check_added_keys<M>(layer.config(), options.attention);
  const WithoutGaps<T> grad(given);
  return with_learned_later(result, mods, of_heads(options), [&](const DeferredLearnedMods<computed_t<T>>* learned) {
    const HeadGradients<T> grads = head_gradients(layer, inputs, grad.data(), result, mods, options, learned);
    const auto of_input = [&](Input input) { return input_gradient(layer, input, grads, options.attention); };
    auto q = result_like<Q>(of_input(Input::query));
    auto k = result_like<K>(of_input(Input::key));
    auto v = result_like<V>(of_input(Input::value));
    ParameterGradients<T> parameters(layer, inputs, grads, result.joined, grad.data(), options.attention);
    if (sums.empty()) sums = layer.named().template zeros<computed_t<T>>();
    parameters.add_to(sums);
    if (learned) learned->add_kept();
    return MultiHeadGradients<decltype(q), decltype(k), decltype(v)>{std::move(q), std::move(k), std::move(v)};
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
