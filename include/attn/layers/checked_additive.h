// A checked call of additive attention, the counterpart of CheckedCall.
#pragma once

#include <utility>

#include "attn/core/flash/checked_call.h"
#include "attn/core/flash/flash.h"
#include "attn/layers/additive_kernels.h"
#include "attn/layers/additive_projection.h"
#include "attn/layers/naive_additive.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

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
        problem(make_problem<T>(with_features(q), with_features(k), v, options)),
        mods(bind_call(given_mods, problem)) {
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
template <class T>
class ProjectedCall {
 public:
  /// `workspace` is the caller's; its first part holds the projected rows. If it is empty, they are allocated.
  template <class Call>
  explicit ProjectedCall(const Call& call, std::span<std::byte> workspace = {}) : ProjectedCall(call, Sizes()) {
    loops_.workspace = workspace;
    if (workspace.data()) loops_.workspace = checked_workspace(workspace, workspace_bytes(call));
    const Problem& p = problem_;
    T* const query = take(own_query_, bytes_of(p.heads * p.q_len));
    query_ = {query, query_.shape()};
    project(call.q, call.parameters.query_weight, call.parameters.bias, TensorView<T, 4>(query, query_.shape()),
            loops_);
    if (!call.parameters.key_weight.is_given()) return;
    T* const key = take(own_key_, bytes_of(p.kv_heads * p.kv_len));
    const TensorView<T, 4> rows(key, {p.batch, p.kv_heads, p.kv_len, p.head_dim});
    project(call.k, call.parameters.key_weight, {}, rows, loops_);
    key_ = DTypeView<const T>(TensorView<const T, 4>(rows));
  }
  ProjectedCall(const ProjectedCall&) = delete;

  /// Returns the workspace bytes that a call needs for the projected rows and for the loops.
  template <class Call>
  static Index workspace_bytes(const Call& call) {
    const ProjectedCall sizes(call, Sizes());
    const Problem& p = call.problem;
    return sizes.bytes_of(p.heads * p.q_len) +
           (call.parameters.key_weight.is_given() ? sizes.bytes_of(p.kv_heads * p.kv_len) : 0) +
           flash_workspace_bytes(sizes.tensors({}, call.v), call.mods, call.options) + kAlignment - 1;
  }
  template <class Call>
  static Explanation explanation(const Call& call) {
    const ProjectedCall sizes(call, Sizes());
    Explanation e = flash_explanation(sizes.tensors({}, call.v), call.mods, call.options);
    e.workspace_bytes = workspace_bytes(call);
    return e;
  }

  /// Adds the kernel that the backward pass needs.
  void wants_gradients(VectorSet vectors) { score_.add_gradients = additive_gradients<T>(vectors); }

  /// The options of the loops, with the rest of the workspace.
  const Options& options() const { return loops_; }
  /// Returns the tensors as the loops see them.
  CallTensors<T> tensors(const ResultViews<T>& to, const DTypeView<const T>& value) const {
    CallTensors<T> t{to.out, to.lse, DTypeView<const T>(query_), key_, value, problem_, kKernelChoice<T>};
    t.score = &score_;
    t.lse_rests = to.lse_rests;
    return t;
  }

 private:
  struct Sizes {};

  /// Computes sizes only: the views of rows have sizes and strides, but no valid elements.
  template <class Call>
  ProjectedCall(const Call& call, Sizes)
      : problem_(call.problem),
        loops_(call.options),
        key_(call.k),
        weight_(call.parameters.score_weight),
        score_{family(vectors_of(isa_of(call.options)), problem_), weight_.of(0), weight_.stride(), nullptr} {
    const Problem& p = problem_;
    for (Index h = 0; h < weight_.heads(); ++h)
      for (Index f = 0; f < weight_.size_of_head(); ++f) weight_.of(h)[f] *= call.parameters.scale;
    query_ = {weight_.of(0), {p.batch, p.heads, p.q_len, p.head_dim}};
    if (call.parameters.key_weight.is_given())
      key_ = DTypeView<const T>(TensorView<const T, 4>(weight_.of(0), {p.batch, p.kv_heads, p.kv_len, p.head_dim}));
  }

  Index bytes_of(Index rows) const {
    return padded(problem_.batch * rows * problem_.head_dim * static_cast<Index>(sizeof(T)), kAlignment);
  }
  /// Returns the next bytes of the workspace, or allocates them in `own` if there is no workspace.
  T* take(Tensor<std::byte, 1>& own, Index bytes) {
    std::span<std::byte>& left = loops_.workspace;
    std::byte* from = left.data();
    if (from) {
      left = left.subspan(static_cast<std::size_t>(bytes));
    } else {
      own = Tensor<std::byte, 1>::uninitialized({bytes});
      from = own.data();
    }
    return reinterpret_cast<T*>(from);
  }

  static KernelFamily<T> family(VectorSet vectors, const Problem& problem) {
    const KernelFamily<T> additive = additive_family<T>(vectors);
    return problem.sigmoid_bias ? with_sigmoid(additive, vectors) : additive;
  }

  const Problem& problem_;
  Options loops_;
  Tensor<std::byte, 1> own_query_, own_key_;
  TensorView<const T, 4> query_;
  DTypeView<const T> key_;
  HeadParameter<T> weight_;  ///< weights of the score, times the scale
  OtherScore<T> score_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
