// A checked backward call of additive attention.
#pragma once

#include <vector>

#include "attn/core/backward/checked_backward.h"
#include "attn/core/mods/learned_mods.h"
#include "attn/layers/checked_additive.h"
#include "attn/layers/linear.h"

namespace attn {
template <class Query, class Key, class Value, class T>
struct AdditiveGradients;
}  // namespace attn

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Adds the rows of a tensor (batch, heads, len, hidden), times a factor, to a parameter (hidden), which is separate
/// for each head or shared by all.
template <class T>
void add_up_rows(const Tensor<T, 4>& rows, T factor, HeadParameter<T>& to) {
  const Index hidden = rows.dim(3), heads = rows.dim(1);
  std::vector<GradientSum<T>> sums(static_cast<std::size_t>(hidden * to.heads()), 0);
  for (Index b = 0; b < rows.dim(0); ++b)
    for (Index h = 0; h < heads; ++h) {
      GradientSum<T>* const of_head = sums.data() + (to.heads() == 1 ? 0 : h * hidden);
      for (Index i = 0; i < rows.dim(2); ++i)
        for (Index f = 0; f < hidden; ++f) of_head[f] += static_cast<GradientSum<T>>(rows(b, h, i, f));
    }
  for (std::size_t i = 0; i < sums.size(); ++i) to.of(0)[i] += factor * static_cast<T>(sums[i]);
}

/// Backward pass of project(). Computes the gradient of x from `grad` (batch, heads, len, hidden), and adds to the
/// gradient of the weight. A token whose gradient is 0 adds nothing, even if its x is not finite.
template <class T>
void project_back(const Tensor<T, 4>& grad, const DTypeView<const T>& x, const HeadParameter<T>& weight,
                  HeadParameter<T>& weight_sum, const DTypeView<T>& grad_x, const Options& options) {
  const Index batch = grad.dim(0), heads = grad.dim(1), len = grad.dim(2), hidden = grad.dim(3), dim = x.dim(3);
  if (grad.size() == 0) return;
  const KernelFamily<T>& family = kernel_family<T>(vectors_of(isa_of(options)));
  Tensor<T, 2> rows = Tensor<T, 2>::uninitialized({len, dim});
  for (Index b = 0; b < batch; ++b)
    for (Index h = 0; h < heads; ++h) {
      const T* const of_head = &grad(b, h, 0, 0);
      if (!weight.is_given()) {
        family.unpack_rows(of_head, len, hidden, grad_x.rows(b, h));
        continue;
      }
      family.pack_rows(x.rows(b, h), len, dim, rows.data());
      LinearGradients<T>{weight_sum.of(h), nullptr, dim, hidden}.add(rows.data(), of_head, len, options);
      input_gradient(Linear<T>{weight.of(h), nullptr, dim, hidden}, of_head, rows.data(), len, options);
      family.unpack_rows(rows.data(), len, dim, grad_x.rows(b, h));
    }
}

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
    each_parameter([](const char*, const HeadParameter<T>& sum, const auto& grad) { sum.add_to(grad); },
                   run(to, out_held, lse), grads);
  }

  /// Computes the gradients by their definition.
  template <class Grads>
  void naive(Grads& grads) const {
    AdditiveNumbers<T> sums = call_.parameters.zeros();
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
  static void move_sums(AdditiveNumbers<T> sums, Grads& grads) {
    each_parameter([](const char*, HeadParameter<T>& sum, Tensor<T, 3>& grad) { grad = std::move(sum.numbers()); },
                   sums, grads);
  }

  void check(const AdditiveScoreGradients<T>& grads) const {
    const auto same = [](const char* name, const auto& grad, const HeadParameter<T>& of) {
      if (!grad.is_given()) return;
      const Shape<3> have{grad.heads(), grad.rows(), grad.columns()};
      require(have == of.numbers().shape(), "the gradient of ", name, " has shape ", have, ", expected ",
              of.numbers().shape(), " as (heads, rows, columns)");
    };
    each_parameter(same, grads, call_.parameters);
  }

  template <class Out, class Lse>
  AdditiveNumbers<T> run(const InputGradients& to, const Out& given_out, const Lse& given_lse) const {
    const Problem& p = call_.problem;
    const AdditiveParameters<T>& parameters = call_.parameters;
    const Options& options = call_.options;
    const Held<Out> out_held = evaluated(given_out);
    checked_input<T>(out_held, {p.batch, p.heads, p.q_len, p.v_dim}, "out");
    const DTypeView<const T> out = before_rounding<T>(out_held);
    const TensorView<const T, 3> lse = checked_lse<T>(given_lse, p, "lse");
    const BackwardMods<T, Bound<M>> mods(call_.mods, p);

    ProjectedCall projected(call_);
    projected.project();
    projected.wants_gradients();
    auto grad_u = Tensor<T, 4>::uninitialized(projected.of_queries()),
         grad_w = Tensor<T, 4>::uninitialized(projected.of_queries()),
         grad_z = Tensor<T, 4>::uninitialized(projected.of_keys());
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

    AdditiveNumbers<T> sums = parameters.zeros();
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
