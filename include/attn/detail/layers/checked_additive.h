// A call of additive attention, checked: what CheckedCall is to attention().
#pragma once

#include <utility>

#include "attn/detail/flash/checked_call.h"
#include "attn/detail/flash/flash.h"
#include "attn/detail/kernels/additive_gradients.h"
#include "attn/detail/layers/additive_projection.h"
#include "attn/detail/naive/naive_additive.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The arguments of one call. The loops see a call on queries and keys of `hidden` features, which project() makes.
template <class Q, class K, class V, class M>
class CheckedAdditive {
  static constexpr bool kIsCall = check_types<Q, K, V>();
  static_assert(kIsCall);

  const Held<Q> q_held_;
  const Held<K> k_held_;
  const Held<V> v_held_;

 public:
  using T = computed_t<typename Traits<Q>::Scalar>;

  CheckedAdditive(const Q& query, const K& key, const V& value, const AdditiveScore<T>& score, const M& given_mods,
                  const Options& given_options)
      : q_held_(evaluated(query)),
        k_held_(evaluated(key)),
        v_held_(evaluated(value)),
        q(as_rank4(view(q_held_))),
        k(as_rank4(view(k_held_))),
        v(as_rank4(view(v_held_))),
        options(of_loops(given_options)),
        parameters(score, q.shape(), k.shape(), given_options.scale.value_or(1)),
        problem(make_problem<T>(with_features(q), with_features(k), v, options)),
        mods(bind_call(given_mods, problem)) {
    require(std::isfinite(parameters.scale), "scale must be finite in the scalar type of the tensors, it is ",
            given_options.scale.value_or(1));
  }
  CheckedAdditive(const CheckedAdditive&) = delete;

  const DTypeView<const T> q, k, v;
  const Options options;  ///< of the loops
  const AdditiveParameters<T> parameters;
  const Problem problem;
  const Bound<M> mods;

  PassSequenceOf<T, Bound<M>> passes() const { return PassSequenceOf<T, Bound<M>>(mods); }

  /// Computes the call by its definition. Null weights: they are not wanted.
  template <class... To>
  void naive(const DTypeView<T>& weights, To&&... result) const {
    const ResultViews<T> to = result_views<T>(problem, result...);
    const NaiveAdditive<T> score(parameters);
    NaiveMods<T> own = naive_mods<T>(mods, problem);
    own.score = &score;
    detail::naive<T>(to.out, to.lse, weights, q, k, v, own, problem, options.executor);
  }

 private:
  /// What the loops are not told: the scale, which belongs to the score's weights; the caller's workspace, which has no
  /// room for projected rows; and `compute`, since no product is left that the matrix unit could round.
  static Options of_loops(Options options) {
    options.scale = 1;
    options.workspace = {};
    options.compute = Compute::native;
    return options;
  }
  /// The sizes as the loops see them, with `hidden` features.
  DTypeView<const T> with_features(const DTypeView<const T>& t) const {
    return t.part(0, {t.dim(0), t.dim(1), t.dim(2), parameters.hidden}, t.strides());
  }
};

/// Queries and keys of a call multiplied by their weights, and the score of these.
template <class T>
class ProjectedCall {
 public:
  /// `options`: those of the loops.
  template <class Call>
  explicit ProjectedCall(const Call& call)
      : problem_(call.problem),
        query_(Tensor<T, 4>::uninitialized({problem_.batch, problem_.heads, problem_.q_len, problem_.head_dim})),
        key_(call.k),
        weight_(call.parameters.score_weight),
        score_{family(vectors_of(isa_of(call.options)), problem_), weight_.of(0), weight_.stride(), nullptr} {
    for (Index h = 0; h < weight_.heads(); ++h)
      for (Index f = 0; f < weight_.size_of_head(); ++f) weight_.of(h)[f] *= call.parameters.scale;
    const Options& options = call.options;
    project(call.q, call.parameters.query_weight, call.parameters.bias, query_, options);
    if (!call.parameters.key_weight.is_given()) return;
    key_rows_ = Tensor<T, 4>::uninitialized({problem_.batch, problem_.kv_heads, problem_.kv_len, problem_.head_dim});
    project(call.k, call.parameters.key_weight, {}, key_rows_, options);
    key_ = DTypeView<const T>(std::as_const(key_rows_).view());
  }
  ProjectedCall(const ProjectedCall&) = delete;

  /// With kernels for the backward pass as well.
  void wants_gradients(VectorSet vectors) { score_.add_gradients = additive_gradients<T>(vectors); }

  /// The tensors as the loops see them.
  CallTensors<T> tensors(const ResultViews<T>& to, const DTypeView<const T>& value) const {
    CallTensors<T> t{to.out, to.lse, DTypeView<const T>(query_.view()), key_, value, problem_};
    t.score = &score_;
    return t;
  }

 private:
  static KernelFamily<T> family(VectorSet vectors, const Problem& problem) {
    const KernelFamily<T> additive = additive_family<T>(vectors);
    return problem.sigmoid_bias ? with_sigmoid(additive, vectors) : additive;
  }

  const Problem& problem_;
  Tensor<T, 4> query_, key_rows_;
  DTypeView<const T> key_;
  HeadParameter<T> weight_;  ///< of the scores, times the scale
  OtherScore<T> score_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
