// A checked call of additive attention, the counterpart of CheckedCall.
#pragma once

#include <utility>

#include "attn/core/flash/checked_call.h"
#include "attn/core/flash/flash.h"
#include "attn/layers/additive_kernels.h"
#include "attn/layers/additive_parameters.h"
#include "attn/layers/linear.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Calls visit(batch, head, options) for each head. If there are enough heads for all workers, they run in parallel;
/// otherwise they run one after the other, each with all workers.
template <class Visit>
void for_each_head(Index batch, Index heads, const Work& work, const Options& options, const Visit& visit) {
  const Workers workers(work, options.executor);
  if (batch * heads < workers.count()) {
    for (Index i = 0; i < batch * heads; ++i) visit(i / heads, i % heads, options);
    return;
  }
  Options own = options;
  own.executor = serial();
  workers.run(batch * heads, [&](Index task, int) { visit(task / heads, task % heads, own); });
}

/// Computes `to` (batch, heads, len, hidden) = x * weightᵀ + bias, or x + bias if there is no weight.
template <class T>
void project(const DTypeView<const T>& x, const HeadParameter<T>& weight, const HeadParameter<T>& bias,
             const TensorView<T, 4>& to, const Options& options) {
  const Index len = to.dim(2), hidden = to.dim(3);
  if (to.size() == 0) return;
  const KernelFamily<T>& family = kernel_family<T>(vectors_of(isa_of(options)));
  const Work work{2 * static_cast<double>(to.size()) * static_cast<double>(x.dim(3))};
  for_each_head(to.dim(0), to.dim(1), work, options, [&](Index b, Index h, const Options& own) {
    T* const rows = &to(b, h, 0, 0);
    const T* const added = bias.is_given() ? bias.of(h) : nullptr;
    if (weight.is_given()) return Linear<T>{weight.of(h), added, x.dim(3), hidden}(x.rows(b, h), rows, len, own);
    family.pack_rows(x.rows(b, h), len, hidden, rows);
    for (Index i = 0; added && i < len; ++i)
      for (Index f = 0; f < hidden; ++f) rows[i * hidden + f] += added[f];
  });
}

/// The arguments of one call. The loops see a call on queries and keys of `hidden` features, which project() computes.
template <class Q, class K, class V, class M>
class CheckedAdditive : public CallInputs<Q, K, V> {
  using Inputs = CallInputs<Q, K, V>;
  const AdditiveScore<typename Inputs::T>& score_;

 public:
  using Inputs::q, Inputs::k, Inputs::v;
  using typename Inputs::T;

  CheckedAdditive(const Q& query, const K& key, const V& value, const AdditiveScore<T>& score, const M& given_mods,
                  const Options& given_options)
      : Inputs(query, key, value),
        score_(score),
        options(of_loops(given_options)),
        workspace(given_options.workspace),
        parameters(score, q.shape(), k.shape(), given_options.scale.value_or(1)),
        problem(make_problem<T>(with_features(q), with_features(k), v, options, Outputs::own, has_weight_mods<M>)),
        mods(bind_call(given_mods, problem)) {
    check_neighbouring_heads(given_options, "additive_attention()");
    require(std::isfinite(parameters.scale), "scale must be finite in the scalar type of the tensors, but is ",
            given_options.scale.value_or(1));
  }

  const Options options;  ///< for the loops, without a workspace
  const std::span<std::byte> workspace;
  const AdditiveParameters<T> parameters;
  const Problem problem;
  const Bound<M> mods;

  /// Returns views of outputs in the caller's memory, checked not to overlap anything that is read.
  template <class Out, class Lse>
  ResultViews<T> caller_results(Out&& out, Lse&& lse) const {
    const ResultViews<T> to = result_views<T>(problem, out, lse);
    check_all_apart({{"out", to.out}, {"lse", to.lse}}, {{"query", q},
                                                         {"key", k},
                                                         {"value", v},
                                                         {"query_weight", score_.query_weight.tensor()},
                                                         {"key_weight", score_.key_weight.tensor()},
                                                         {"score_weight", score_.score_weight.tensor()},
                                                         {"bias", score_.bias.tensor()}});
    return to;
  }

  /// Computes the call by its definition. `weights` is null if not requested.
  template <class... To>
  void naive(const DTypeView<T>& weights, To&&... result) const {
    const ResultViews<T> to = result_views<T>(problem, result...);
    const NaiveAdditive<T> score(parameters);
    NaiveMods<T> own = naive_mods<T>(mods, problem);
    own.score = &score;
    detail::naive<T>(to.out, to.lse, to.lse_rests, weights, q, k, v, own, problem, options.executor);
  }

  /// The caller's parameters.
  const AdditiveScore<T>& score() const { return score_; }

 private:
  /// Removes the options that the loops must not see: the scale, which belongs to the score's weights; the caller's
  /// workspace, of which the loops get only the part after the projected rows; and `compute`, since no product is left
  /// that the matrix unit could round.
  static Options of_loops(Options options) {
    options.scale = 1;
    options.workspace = {};
    options.compute = Compute::native;
    return options;
  }
  /// Returns a view of `t` with `hidden` features, as the loops see it.
  DTypeView<const T> with_features(const DTypeView<const T>& t) const {
    return t.part(0, {t.dim(0), t.dim(1), t.dim(2), parameters.hidden}, t.strides());
  }
};

/// The projected queries and keys of a call, and the score that uses them.
template <class Call>
class ProjectedCall {
 public:
  using T = typename Call::T;

  /// Computes sizes only: until project(), views of rows have no valid elements.
  explicit ProjectedCall(const Call& call)
      : call_(call),
        loops_(call.options),
        key_(call.k),
        weight_(call.parameters.score_weight),
        score_{family(), weight_.of(0), weight_.stride(), nullptr} {
    for (Index i = 0; i < weight_.numbers().size(); ++i) weight_.of(0)[i] *= call.parameters.scale;
    query_ = {weight_.of(0), of_queries()};
    if (projects_keys()) key_ = DTypeView<const T>(TensorView<const T, 4>(weight_.of(0), of_keys()));
  }
  ProjectedCall(const ProjectedCall&) = delete;

  /// Projects queries and keys. `workspace` is the caller's; its first part holds the projected rows. If it is empty,
  /// they are allocated.
  void project(std::span<std::byte> workspace = {}) {
    if (workspace.data()) loops_.workspace = checked_workspace(workspace, workspace_bytes());
    const TensorView<T, 4> query = take(own_query_, of_queries());
    query_ = query;
    detail::project(call_.q, call_.parameters.query_weight, call_.parameters.bias, query, loops_);
    if (!projects_keys()) return;
    const TensorView<T, 4> key = take(own_key_, of_keys());
    detail::project(call_.k, call_.parameters.key_weight, {}, key, loops_);
    key_ = DTypeView<const T>(TensorView<const T, 4>(key));
  }

  /// Returns the workspace bytes that the call needs for the projected rows and for the loops.
  Index workspace_bytes() const {
    return bytes_of(of_queries()) + (projects_keys() ? bytes_of(of_keys()) : 0) +
           flash_workspace_bytes(tensors({}, call_.v), call_.mods, call_.options) + kAlignment - 1;
  }
  Explanation explanation() const {
    Explanation e = flash_explanation(tensors({}, call_.v), call_.mods, call_.options);
    e.workspace_bytes = workspace_bytes();
    return e;
  }

  /// Adds the kernel that the backward pass needs.
  void wants_gradients() { score_.add_gradients = additive_gradients<T>(vectors_of(isa_of(call_.options))); }

  /// The options of the loops, with the rest of the workspace.
  const Options& options() const { return loops_; }
  /// The tensors as the loops see them.
  CallTensors<T> tensors(const ResultViews<T>& to, const DTypeView<const T>& value) const {
    CallTensors<T> t{to.out, to.lse, DTypeView<const T>(query_), key_, value, call_.problem, kKernelChoice<T>};
    t.score = &score_;
    t.lse_rests = to.lse_rests;
    return t;
  }
  /// The shapes of projected queries and keys.
  Shape<4> of_queries() const {
    const Problem& p = call_.problem;
    return {p.batch, p.heads, p.q_len, p.head_dim};
  }
  Shape<4> of_keys() const {
    const Problem& p = call_.problem;
    return {p.batch, p.kv_heads, p.kv_len, p.head_dim};
  }

 private:
  bool projects_keys() const { return call_.parameters.key_weight.is_given(); }
  static Index bytes_of(const Shape<4>& s) {
    return padded(s[0] * s[1] * s[2] * s[3] * static_cast<Index>(sizeof(T)), kAlignment);
  }
  /// Takes memory from the workspace, or allocates it in `own` if there is no workspace.
  TensorView<T, 4> take(Tensor<std::byte, 1>& own, const Shape<4>& shape) {
    const Index bytes = bytes_of(shape);
    std::span<std::byte>& left = loops_.workspace;
    std::byte* from = left.data();
    if (from) {
      left = left.subspan(static_cast<std::size_t>(bytes));
    } else {
      own = Tensor<std::byte, 1>::uninitialized({bytes});
      from = own.data();
    }
    return {reinterpret_cast<T*>(from), shape};
  }
  KernelFamily<T> family() const {
    const VectorSet vectors = vectors_of(isa_of(call_.options));
    const KernelFamily<T> additive = additive_family<T>(vectors);
    return call_.problem.sigmoid_bias ? with_sigmoid(additive, vectors) : additive;
  }

  const Call& call_;
  Options loops_;
  Tensor<std::byte, 1> own_query_, own_key_;
  TensorView<const T, 4> query_;
  DTypeView<const T> key_;
  HeadParameter<T> weight_;  ///< weights of the score, times the scale
  OtherScore<T> score_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
