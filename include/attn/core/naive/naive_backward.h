// The gradients of attention by their definition: the reference for tests of the backward pass.
#pragma once

#include <utility>

#include "attn/core/base/compiled_once.h"
#include "attn/core/mods/learned_mods.h"
#include "attn/core/naive/naive.h"
#include "attn/dual.h"
#include "attn/parallel.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Replaces the scores of a head with the modded ones, -inf for dropped pairs, and sets `slopes` to the derivative of
/// each modded score with respect to the score. Null if no score is changed.
template <class T>
using NaiveSlopes = std::function<void(Eigen::Map<RowMajor<T>>& scores, RowMajor<T>& slopes, Index batch, Index head)>;

template <class T, class Mods>
NaiveSlopes<T> naive_slopes(const Mods& mods, const Problem& problem) {
  if constexpr (!Mods::kHasScores) {
    return nullptr;
  } else {
    return [&mods, &problem](Eigen::Map<RowMajor<T>>& scores, RowMajor<T>& slopes, Index batch, Index head) {
      const auto& own = mods.of(batch);
      const Index first = problem.first_query(batch);
      slopes.setZero(scores.rows(), scores.cols());
      for (Index i = 0; i < scores.rows(); ++i)
        for (Index j = 0; j < scores.cols(); ++j) {
          const Position p{batch, head, first + i, problem.kv_offset + j};
          if (!own.keep(p)) {
            scores(i, j) = -std::numeric_limits<T>::infinity();
            continue;
          }
          const Dual<T> y = own.score(Dual<T>(scores(i, j), T(1)), p);
          scores(i, j) = y.value;
          slopes(i, j) = y.slope;
        }
    };
  }
}

/// Returns pairs * rows over the kept pairs only; see weighted_sum_of_kept().
template <class Pairs, class Kept, class Rows>
RowMajor<typename Rows::Scalar> product_over_kept(const Pairs& pairs, const Kept& kept, const Rows& rows) {
  RowMajor<typename Rows::Scalar> sum(pairs.rows(), rows.cols());
  weighted_sum_of_kept(pairs, kept, rows, sum);
  return sum;
}

/// The weights of one head, and what their derivatives need.
template <class T>
struct NaiveWeights {
  RowMajor<T> weights;
  RowMajor<T> rest;    ///< 1 - weights, if these are sigmoids
  RowMajor<T> slopes;  ///< of the mods, if a score is changed
  NaivePairs kept;
  Eigen::Array<T, Eigen::Dynamic, 1> lse, lse_rests;  ///< not of sigmoids

  /// `scores`: before the mods.
  NaiveWeights(RowMajor<T> scores, const NaiveMods<T>& mods, const NaiveSlopes<T>& slopes_of, const Problem& problem,
               Index batch, Index head)
      : weights(std::move(scores)), lse(problem.q_len) {
    Eigen::Map<RowMajor<T>> modded(weights.data(), weights.rows(), weights.cols());
    if (slopes_of)
      slopes_of(modded, slopes, batch, head);
    else if (mods.apply)
      mods.apply(modded, batch, head);
    kept = weights.array() != -std::numeric_limits<T>::infinity();
    lse_rests.setZero(problem.q_len);
    if (problem.sigmoid_bias) {
      rest = -weights;
      sigmoid_of(rest, -*problem.sigmoid_bias);
      sigmoid_of(weights, *problem.sigmoid_bias);
    } else {
      softmax_rows(weights, static_cast<T>(mods.sink(head)), lse,
                   [&](Index i, T max, T sum) { lse_rests(i) = rest_of_lse(max, sum); });
    }
  }
};

/// Computes the gradients of one head. Adds to grad_key (kv_len, head_dim) and grad_value (kv_len, v_dim), which heads
/// may share, and sets grad_query (q_len, head_dim).
///
///     scores   X  = mods(scale * Q Kᵀ)                    (q_len, kv_len)
///     weights  P  = softmax of each row of X
///     out      O  = (f(P) * Z) V                          f: the weight mods; Z: the factors of dropout, 1 without
///
/// Backwards, with dO for the gradient of out and dL for that of the log-sum-exp:
///
///     dV = (f(P) * Z)ᵀ dO
///     dP = dO Vᵀ * Z * f'(P)
///     dX = P * (dP - row sums of P * dP + dL)             the softmax has the Jacobian diag(p) - p pᵀ, the log-sum-exp
///                                                         p (Dao et al. 2022, appendix B.2)
/// If weights are sigmoids of X, dX = P * (1 - P) * dP. Then
///
///     dS = dX * slopes of the mods
///     dQ = scale * dS K,   dK = scale * dSᵀ Q
template <class T, class Matrix, class GradQuery>
void naive_head_backward(const Matrix& q, const Matrix& k, const Matrix& v, const Matrix& grad_out,
                         const Eigen::Array<T, Eigen::Dynamic, 1>& grad_lse, const NaiveMods<T>& mods,
                         const NaiveSlopes<T>& slopes_of, const LearnedMods<T>* learned, GradientSum<T>* sums,
                         const Problem& problem, Index batch, Index head, GradQuery& grad_query, RowMajor<T>& grad_key,
                         RowMajor<T>& grad_value) {
  const T scale = static_cast<T>(problem.scale);
  const RowMajor<T> scaled = scale * q;
  RowMajor<T> scores(problem.q_len, problem.kv_len);
  if (mods.score) {
    const auto seen = [](const Matrix& x) { return TensorView<const T, 2>(x.data(), {x.rows(), x.cols()}).matrix(); };
    Eigen::Map<RowMajor<T>> formed(scores.data(), scores.rows(), scores.cols());
    mods.score->form(seen(q), seen(k), head, formed);
  } else {
    scores.noalias() = scaled * k.transpose();
  }
  const RowMajor<T> raw = learned ? scores : RowMajor<T>();
  NaiveWeights<T> computed(std::move(scores), mods, slopes_of, problem, batch, head);
  auto& [weights, rest, slopes, kept, lse, lse_rests] = computed;
  const bool selects = mods.apply && !(q.allFinite() && k.allFinite() && v.allFinite() && grad_out.allFinite());

  RowMajor<T> grad = grad_out * v.transpose(), factors;  // grad: of the weights
  if (mods.factors) {
    factors = mods.factors(batch, head);
    grad.array() *= factors.array();
  }
  RowMajor<T> changed, weight_slopes;  // the weights after the weight mods
  if (mods.change_weights) {
    changed = weights;
    Eigen::Map<RowMajor<T>> map(changed.data(), changed.rows(), changed.cols());
    mods.change_weights(map, &weight_slopes, kept, batch, head);
    grad.array() *= weight_slopes.array();
  }
  if (selects) grad = kept.select(grad, RowMajor<T>::Zero(grad.rows(), grad.cols()));
  Eigen::Array<T, Eigen::Dynamic, 1> delta = Eigen::Array<T, Eigen::Dynamic, 1>::Zero(problem.q_len);
  if (problem.sigmoid_bias) {
    grad.array() *= weights.array() * rest.array();  // of the modded scores
  } else {
    delta = (weights.array() * grad.array()).rowwise().sum() - grad_lse;
    grad = weights.array() * (grad.array().colwise() - delta);
  }
  if (learned) {
    const Index first = problem.first_query(batch);
    for (Index i = 0; i < grad.rows(); ++i)
      for (Index j = 0; j < grad.cols(); ++j) {
        const Index at = first + i, kv = problem.kv_offset + j;
        if (kept(i, j)) learned->learn(&raw(i, j), &grad(i, j), 1, {batch, head, {at, at + 1}, {kv, kv + 1}}, sums);
      }
    if (!problem.sigmoid_bias)
      learned->learn_sinks(head, lse.data(), lse_rests.data(), delta.data(), problem.q_len, sums + learned->slots());
  } else if (slopes_of) {
    grad.array() *= slopes.array();
  }
  if (mods.change_weights) weights = changed;
  if (mods.factors) weights.array() *= factors.array();
  if (selects) grad = kept.select(grad, RowMajor<T>::Zero(grad.rows(), grad.cols()));
  if (mods.score) mods.score->gradients(grad, q, k, head, grad_query, grad_key);
  if (selects) {
    grad_value += product_over_kept(weights.transpose(), kept.transpose(), grad_out);
    if (mods.score) return;
    grad_query = scale * product_over_kept(grad, kept, k);
    grad_key += product_over_kept(grad.transpose(), kept.transpose(), scaled);
    return;
  }
  grad_value.noalias() += weights.transpose() * grad_out;
  if (mods.score) return;
  grad_query.noalias() = scale * grad * k;
  grad_key.noalias() += grad.transpose() * scaled;
}

/// Computes all heads. Those that share a key and value head are one task, and run in turn. A null grad_lse means
/// zeros.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void naive_backward(const DTypeView<T>& grad_q, const DTypeView<T>& grad_k, const DTypeView<T>& grad_v,
                    const DTypeView<const T>& grad_out, const TensorView<const T, 3>& grad_lse,
                    const DTypeView<const T>& q, const DTypeView<const T>& k, const DTypeView<const T>& v,
                    const NaiveMods<T>& mods, const NaiveSlopes<T>& slopes, const LearnedMods<T>* learned,
                    const Problem& problem, const Executor& given_executor) {
  // Heads run in turn if they add to the same parameter gradients.
  const Executor executor = learned || mods.score ? serial() : given_executor;
  const Workers workers(naive_work(problem), executor);
  std::vector<GradientSum<T>> sums(static_cast<std::size_t>(learned ? learned->slots() + learned->sinks() : 0), 0);
  workers.run(problem.batch * problem.kv_heads, [&](Index task, int) {
    const Index b = task / problem.kv_heads, kv_head = task % problem.kv_heads;
    const auto copied = [&](const DTypeView<const T>& t, Index head) { return copied_head(t, b, head); };
    const RowMajor<T> key = copied(k, kv_head), value = copied(v, kv_head);
    RowMajor<T> grad_key = RowMajor<T>::Zero(key.rows(), key.cols()),
                grad_value = RowMajor<T>::Zero(value.rows(), value.cols()), grad_query;
    for (Index number = 0; number < problem.heads / problem.kv_heads; ++number) {
      const Index h = problem.head_of(kv_head, number);
      Eigen::Array<T, Eigen::Dynamic, 1> own_grad_lse = Eigen::Array<T, Eigen::Dynamic, 1>::Zero(problem.q_len);
      for (Index i = 0; grad_lse.data() && i < problem.q_len; ++i) own_grad_lse(i) = grad_lse(b, h, i);
      grad_query.resize(problem.q_len, problem.head_dim);
      naive_head_backward(copied(q, h), key, value, copied(grad_out, h), own_grad_lse, mods, slopes, learned,
                          sums.data(), problem, b, h, grad_query, grad_key, grad_value);
      store_head(grad_query, grad_q, b, h);
    }
    store_head(grad_key, grad_k, b, kv_head);
    store_head(grad_value, grad_v, b, kv_head);
  });
  if (learned) learned->add(sums.data(), sums.data() + learned->slots());
}
ATTN_COMPILED_ONCE(naive_backward)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
