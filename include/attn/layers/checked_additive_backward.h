// A checked backward call of additive attention.
#pragma once

#include "attn/core/backward/checked_backward.h"
#include "attn/layers/additive_kernels.h"
#include "attn/layers/checked_additive.h"

namespace attn {
template <class Query, class Key, class Value, class T>
struct AdditiveGradients;
}  // namespace attn

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The arguments of one call, without the results of the forward pass.
template <class G, class Q, class K, class V, class M>
class CheckedAdditiveBackward {
  const CheckedAdditive<Q, K, V, M> call_;
  static decltype(auto) grad_out_of(const G& g) {
    if constexpr (WholeResult<G>)
      return evaluated(g.out);
    else
      return evaluated(g);
  }
  const decltype(grad_out_of(std::declval<const G&>())) grad_out_held_;

 public:
  using T = typename CheckedAdditive<Q, K, V, M>::T;

  CheckedAdditiveBackward(const G& g, const Q& query, const K& key, const V& value, const AdditiveScore<T>& score,
                          const M& mods, const Options& options)
      : call_(query, key, value, score, mods, options), grad_out_held_(grad_out_of(g)) {
    const Problem& p = call_.problem;
    grad_out_ = checked_input<T>(grad_out_held_, {p.batch, p.heads, p.q_len, p.v_dim}, "grad_out");
    if constexpr (WholeResult<G>) grad_lse_ = checked_lse<T>(g.lse, p, "grad_lse");
  }
  CheckedAdditiveBackward(const CheckedAdditiveBackward&) = delete;

  /// Allocates the gradients of query, key and value; those of the parameters follow with the results.
  auto gradients() const {
    auto q = gradient_like<Q>(call_.q);
    auto k = gradient_like<K>(call_.k);
    auto v = gradient_like<V>(call_.v);
    return AdditiveGradients<decltype(q), decltype(k), decltype(v), T>{
        std::move(q), std::move(k), std::move(v), {}, {}, {}, {}};
  }

  /// Computes the gradients tile by tile, from the results of the forward pass.
  template <class Grads, class Out, class Lse>
  void run(Grads& grads, const Out& out, const Lse& lse) const {
    move_sums(run(call_grads(grads.query, grads.key, grads.value), out, lse), grads);
  }
  template <class GQ, class GK, class GV, class Out, class Lse>
  void run_into(GQ&& grad_query, GK&& grad_key, GV&& grad_value, const AdditiveScoreGradients<T>& grads, const Out& out,
                const Lse& lse) const {
    check(grads);
    const InputGradients to = call_grads(grad_query, grad_key, grad_value);
    const Held<Out> out_held = evaluated(out);
    const TensorView<const T, 3> checked = checked_lse<T>(lse, call_.problem, "lse");
    const AdditiveScore<T>& score = call_.score();
    check_all_apart({{"grad_query", to.q},
                     {"grad_key", to.k},
                     {"grad_value", to.v},
                     {"the gradient of query_weight", grads.query_weight.tensor()},
                     {"the gradient of key_weight", grads.key_weight.tensor()},
                     {"the gradient of score_weight", grads.score_weight.tensor()},
                     {"the gradient of bias", grads.bias.tensor()}},
                    {{"grad_out", grad_out_},
                     {"grad_lse", grad_lse_},
                     {"query", call_.q},
                     {"key", call_.k},
                     {"value", call_.v},
                     {"out", as_rank4(view(out_held))},
                     {"lse", checked},
                     {"query_weight", score.query_weight.tensor()},
                     {"key_weight", score.key_weight.tensor()},
                     {"score_weight", score.score_weight.tensor()},
                     {"bias", score.bias.tensor()}});
    run(to, out_held, lse).add_to(grads);
  }

  /// Computes the gradients by their definition.
  template <class Grads>
  void naive(Grads& grads) const {
    AdditiveSums<T> sums(call_.parameters);
    const NaiveAdditive<T> score(call_.parameters, &sums);
    NaiveMods<T> mods = naive_mods<T>(call_.mods, call_.problem);
    mods.score = &score;
    const LearnedIfAny<T, Bound<M>> learned(call_.mods, call_.problem);
    const InputGradients to = call_grads(grads.query, grads.key, grads.value);
    naive_backward<T>(to.q, to.k, to.v, grad_out_, grad_lse_, call_.q, call_.k, call_.v, mods,
                      naive_slopes<T>(call_.mods, call_.problem), learned.get(), call_.problem, call_.options.executor);
    move_sums(std::move(sums), grads);
  }

 private:
  struct InputGradients {
    DTypeView<T> q, k, v;
  };
  template <class GQ, class GK, class GV>
  InputGradients call_grads(GQ&& q, GK&& k, GV&& v) const {
    return {checked_gradient<T>(q, call_.q, "grad_query"), checked_gradient<T>(k, call_.k, "grad_key"),
            checked_gradient<T>(v, call_.v, "grad_value")};
  }

  template <class Grads>
  static void move_sums(AdditiveSums<T> sums, Grads& grads) {
    grads.query_weight = std::move(sums.query_weight.numbers());
    grads.key_weight = std::move(sums.key_weight.numbers());
    grads.score_weight = std::move(sums.score_weight.numbers());
    grads.bias = std::move(sums.bias.numbers());
  }

  void check(const AdditiveScoreGradients<T>& grads) const {
    const AdditiveParameters<T>& p = call_.parameters;
    const auto same = [](const char* name, const auto& grad, const HeadParameter<T>& of) {
      if (!grad.is_given()) return;
      const Shape<3> have{grad.heads(), grad.rows(), grad.columns()};
      require(have == of.numbers().shape(), "the gradient of ", name, " has shape ", have, ", expected ",
              of.numbers().shape(), " as (heads, rows, columns)");
    };
    same("query_weight", grads.query_weight, p.query_weight);
    same("key_weight", grads.key_weight, p.key_weight);
    same("score_weight", grads.score_weight, p.score_weight);
    same("bias", grads.bias, p.bias);
  }

  template <class Out, class Lse>
  AdditiveSums<T> run(const InputGradients& to, const Out& given_out, const Lse& given_lse) const {
    const Problem& p = call_.problem;
    const AdditiveParameters<T>& parameters = call_.parameters;
    const Options& options = call_.options;
    const Held<Out> out_held = evaluated(given_out);
    checked_input<T>(out_held, {p.batch, p.heads, p.q_len, p.v_dim}, "out");
    const DTypeView<const T> out = before_rounding<T>(out_held);
    const TensorView<const T, 3> lse = checked_lse<T>(given_lse, p, "lse");
    const BackwardMods<T, Bound<M>> mods(call_.mods, p);

    ProjectedCall<T> projected(call_);
    projected.wants_gradients(vectors_of(isa_of(options)));
    const Shape<4> of_queries{p.batch, p.heads, p.q_len, p.head_dim},
        of_keys{p.batch, p.kv_heads, p.kv_len, p.head_dim};
    auto grad_u = Tensor<T, 4>::uninitialized(of_queries), grad_w = Tensor<T, 4>::uninitialized(of_queries),
         grad_z = Tensor<T, 4>::uninitialized(of_keys);
    BackwardCall<T> call{projected.tensors({}, call_.v),
                         out,
                         grad_out_,
                         lse,
                         grad_lse_,
                         rests_beside<T>(given_lse),
                         grad_u.view(),
                         grad_z.view(),
                         to.v,
                         mods.tile(),
                         mods.slopes(),
                         mods.learned()};
    call.grad_weights = grad_w.view();
    call.sums_rows = sums_rows(call.tensors, out, Bound<M>::kIsGrouped, options);
    backward<T>(call, options);

    AdditiveSums<T> sums(parameters);
    add_up_rows(grad_w, parameters.scale, sums.score_weight);
    if (parameters.bias.is_given()) add_up_rows(grad_u, T(1), sums.bias);
    project_back(grad_u, call_.q, parameters.query_weight, sums.query_weight, to.q, options);
    project_back(grad_z, call_.k, parameters.key_weight, sums.key_weight, to.k, options);
    return sums;
  }

  DTypeView<const T> grad_out_;
  TensorView<const T, 3> grad_lse_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
