// A checked call of additive attention, the counterpart of CheckedCall, and the parameters of its score, checked and
// copied into contiguous memory. Also the score and its gradients by their definition.
#pragma once

#include <algorithm>
#include <cmath>
#include <utility>

#include "attn/additive_score.h"
#include "attn/core/base/check.h"
#include "attn/core/flash/checked_call.h"
#include "attn/core/flash/flash.h"
#include "attn/core/naive/naive.h"
#include "attn/layers/additive_kernels.h"
#include "attn/layers/linear.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A parameter copied into a contiguous tensor of T, (heads, rows, columns). of(head) is the parameter of one head. The
/// copy is cheap: parameters are small compared to the tensors that are multiplied by them.
template <class T>
class HeadParameter {
 public:
  HeadParameter() = default;
  template <int kRank>
  explicit HeadParameter(const ScoreParameter<const T, kRank>& given) {
    if (!given.is_given()) return;
    numbers_ = Tensor<T, 3>::uninitialized({given.heads(), given.rows(), given.columns()});
    for (Index h = 0; h < heads(); ++h)
      for (Index i = 0; i < given.rows(); ++i)
        for (Index j = 0; j < given.columns(); ++j) numbers_(h, i, j) = load_number<T>(given.tensor().rows(0, h), i, j);
  }

  bool is_given() const { return numbers_.size() > 0; }
  Index heads() const { return numbers_.dim(0); }
  Index size_of_head() const { return numbers_.dim(1) * numbers_.dim(2); }
  /// Elements from one head to the next; 0 if heads share the parameter.
  Index stride() const { return heads() == 1 ? 0 : size_of_head(); }
  T* of(Index head) { return numbers_.data() + head * stride(); }
  const T* of(Index head) const { return numbers_.data() + head * stride(); }
  const Tensor<T, 3>& numbers() const { return numbers_; }
  Tensor<T, 3>& numbers() { return numbers_; }

  /// Adds these values to the caller's parameter, if there is one.
  template <int kRank>
  void add_to(const ScoreParameter<T, kRank>& sum) const {
    if (!sum.is_given()) return;
    for (Index h = 0; h < heads(); ++h)
      for (Index i = 0; i < sum.rows(); ++i)
        for (Index j = 0; j < sum.columns(); ++j) {
          const RowsToWrite rows = sum.tensor().rows(0, h);
          store_number<T>(rows, i, j, load_number<T>(RowsToRead(rows), i, j) + numbers_(h, i, j));
        }
  }

 private:
  Tensor<T, 3> numbers_;
};

/// The parameters of a score, or sums of their gradients in the same shapes.
template <class T>
struct AdditiveNumbers {
  HeadParameter<T> query_weight, key_weight, score_weight, bias;
};

/// Calls visit(name, member of each of `all`) for each parameter of structs with the members of AdditiveScore.
template <class Visit, class... All>
void each_parameter(const Visit& visit, All&&... all) {
  visit("query_weight", all.query_weight...);
  visit("key_weight", all.key_weight...);
  visit("score_weight", all.score_weight...);
  visit("bias", all.bias...);
}

/// The parameters of a call, and the sizes that they were checked against.
template <class T>
struct AdditiveParameters : AdditiveNumbers<T> {
  Index heads, kv_heads, head_dim, key_dim, hidden;
  T scale;  ///< of the scores

  /// @throws std::invalid_argument if a parameter does not fit queries (batch, heads, q_len, head_dim) and keys
  /// (batch, kv_heads, kv_len, key_dim).
  AdditiveParameters(const AdditiveScore<T>& score, const Shape<4>& q, const Shape<4>& k, double given_scale)
      : heads(q[1]), kv_heads(k[1]), head_dim(q[3]), key_dim(k[3]), scale(static_cast<T>(given_scale)) {
    require(score.score_weight.is_given(), "an additive score needs a score_weight (hidden), but has none");
    hidden = score.score_weight.columns();
    require(hidden > 0, "score_weight must have at least one element, but has ", hidden);
    const auto check_heads = [](const char* name, Index of, Index have, const char* have_name) {
      require(of == 1 || of == have, name, " has ", of, " heads, but ", have_name, " is ", have,
              "; give one for all heads, or one per head");
    };
    check_heads("score_weight", score.score_weight.heads(), heads, "heads");
    const auto check_weight = [&](const char* name, const auto& weight, Index of, const char* of_name, Index features,
                                  const char* features_name) {
      if (weight.is_given()) {
        require(weight.rows() == hidden && weight.columns() == features, name, " has shape (", weight.rows(), ", ",
                weight.columns(), "), expected (", hidden, ", ", features, ") as (hidden, features): score_weight has ",
                hidden, " elements, and ", features_name, " has ", features, " features");
        check_heads(name, weight.heads(), of, of_name);
      } else {
        require(features == hidden, features_name, " has ", features, " features, but without ", name,
                " it must have one per element of score_weight, ", hidden);
      }
    };
    require(head_dim > 0 && key_dim > 0, "queries and keys must have at least one feature, but have ", head_dim,
            " and ", key_dim);
    check_weight("query_weight", score.query_weight, heads, "heads", head_dim, "query");
    check_weight("key_weight", score.key_weight, kv_heads, "kv_heads", key_dim, "key");
    if (score.bias.is_given()) {
      require(score.bias.columns() == hidden, "bias has ", score.bias.columns(), " elements, but score_weight has ",
              hidden);
      check_heads("bias", score.bias.heads(), heads, "heads");
    }
    each_parameter([](const char*, HeadParameter<T>& to, const auto& from) { to = HeadParameter<T>(from); }, *this,
                   score);
  }

  /// Sums of gradients, which are 0 so far.
  AdditiveNumbers<T> zeros() const {
    AdditiveNumbers<T> sums = *this;
    each_parameter([](const char*, HeadParameter<T>& sum) { std::fill_n(sum.of(0), sum.numbers().size(), T(0)); },
                   sums);
    return sums;
  }

  Index kv_head(Index head) const { return head / (heads / kv_heads); }
};

/// With U = Q Wqᵀ + b (q_len, hidden) and Z = K Wkᵀ (kv_len, hidden) of one head, the score of row i and key j is
///
///     S_ij = scale * sum over h of w_h tanh(U_ih + Z_jh)                 (Bahdanau et al. 2015, appendix A.1.2)
///
/// and with T = tanh(U_ih + Z_jh), and dS for the gradients of scores,
///
///     dw_h = scale * sum_ij dS_ij T
///     dU_ih = scale * w_h sum_j dS_ij (1 - T²),   dZ_jh = scale * w_h sum_i dS_ij (1 - T²)
///     dQ = dU Wq,   dWq = dUᵀ Q,   db = column sums of dU,   dK = dZ Wk,   dWk = dZᵀ K
template <class T>
class NaiveAdditive final : public NaiveScore<T> {
 public:
  /// `sums` is null if no gradients are requested.
  explicit NaiveAdditive(const AdditiveParameters<T>& parameters, AdditiveNumbers<T>* sums = nullptr)
      : p_(parameters), sums_(sums) {}

  void form(const NaiveHead<T>& q, const NaiveHead<T>& k, Index head, Eigen::Map<RowMajor<T>>& scores) const override {
    const RowMajor<T> u = of_queries(q, head), z = of_keys(k, head);
    const T* const w = p_.score_weight.of(head);
    for (Index i = 0; i < u.rows(); ++i)
      for (Index j = 0; j < z.rows(); ++j) {
        T sum = 0;
        for (Index h = 0; h < p_.hidden; ++h) sum += w[h] * std::tanh(u(i, h) + z(j, h));
        scores(i, j) = p_.scale * sum;
      }
  }

  void gradients(const RowMajor<T>& grad_scores, const RowMajor<T>& q, const RowMajor<T>& k, Index head,
                 RowMajor<T>& grad_query, RowMajor<T>& grad_key) const override {
    const RowMajor<T> u = of_queries(q, head), z = of_keys(k, head);
    const T* const w = p_.score_weight.of(head);
    T* const grad_w = sums_->score_weight.of(head);
    RowMajor<T> grad_u = RowMajor<T>::Zero(u.rows(), u.cols()), grad_z = RowMajor<T>::Zero(z.rows(), z.cols());
    for (Index i = 0; i < u.rows(); ++i)
      for (Index j = 0; j < z.rows(); ++j) {
        const T grad = p_.scale * grad_scores(i, j);
        if (grad == T(0)) continue;  // a dropped pair may hold anything
        for (Index h = 0; h < p_.hidden; ++h) {
          const T t = std::tanh(u(i, h) + z(j, h)), slope = w[h] * (1 - t * t);
          grad_w[h] += grad * t;
          grad_u(i, h) += grad * slope;
          grad_z(j, h) += grad * slope;
        }
      }
    grad_query = through(p_.query_weight, head, grad_u, q, sums_->query_weight);
    grad_key += through(p_.key_weight, p_.kv_head(head), grad_z, k, sums_->key_weight);
    for (Index h = 0; p_.bias.is_given() && h < p_.hidden; ++h) sums_->bias.of(head)[h] += grad_u.col(h).sum();
  }

 private:
  using Map = Eigen::Map<const RowMajor<T>>;
  Map matrix(const HeadParameter<T>& weight, Index head) const {
    return Map(weight.of(head), weight.numbers().dim(1), weight.numbers().dim(2));
  }

  template <class Head>
  RowMajor<T> of_queries(const Head& q, Index head) const {
    RowMajor<T> u = q;
    if (p_.query_weight.is_given()) u = q * matrix(p_.query_weight, head).transpose();
    if (p_.bias.is_given()) u.rowwise() += Map(p_.bias.of(head), 1, p_.hidden).row(0);
    return u;
  }
  template <class Head>
  RowMajor<T> of_keys(const Head& k, Index head) const {
    if (p_.key_weight.is_given()) return k * matrix(p_.key_weight, p_.kv_head(head)).transpose();
    return k;
  }

  /// Returns the gradient of x, given `grad`, the gradient of x * weightᵀ. Adds to the gradient of the weight row by
  /// row, and skips rows in which `grad` is 0, because such rows of x may hold anything.
  RowMajor<T> through(const HeadParameter<T>& weight, Index head, const RowMajor<T>& grad, const RowMajor<T>& x,
                      HeadParameter<T>& sum) const {
    if (!weight.is_given()) return grad;
    Eigen::Map<RowMajor<T>> grad_weight(sum.of(head), p_.hidden, x.cols());
    for (Index i = 0; i < x.rows(); ++i)
      if ((grad.row(i).array() != T(0)).any()) grad_weight += grad.row(i).transpose() * x.row(i);
    return grad * matrix(weight, head);
  }

  const AdditiveParameters<T>& p_;
  AdditiveNumbers<T>* sums_;
};

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
