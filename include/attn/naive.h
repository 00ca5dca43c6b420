// Layer 3: attention by its definition. Reads like the formula; the yardstick for speed and the reference for numbers.
#pragma once

#include <cmath>
#include <limits>

#include "attn/detail/bound_mods.h"
#include "attn/detail/problem.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// Scores become what the mods make of them; the score of a dropped pair becomes -inf.
template <class Scores, class Mods>
void apply_mods(Scores& scores, const Mods& mods, const Problem& problem, Index batch, Index head) {
  using T = typename Scores::Scalar;
  for (Index i = 0; i < scores.rows(); ++i)
    for (Index j = 0; j < scores.cols(); ++j) {
      const Position p{batch, head, problem.q_offset + i, j};
      scores(i, j) = mods.keep(p) ? mods.score(scores(i, j), p) : -std::numeric_limits<T>::infinity();
    }
}

/// Each row of scores becomes its softmax, with one more term e^sink in the denominator; fills in the log-sum-exp of each
/// row. Without a kept pair: weights 0, lse `sink`, which is -inf where there is none.
template <class Scores, class Lse>
void softmax_rows(Scores& scores, typename Scores::Scalar sink, Lse&& lse) {
  using T = typename Scores::Scalar;
  constexpr T kInf = std::numeric_limits<T>::infinity();
  for (Index i = 0; i < scores.rows(); ++i) {
    auto row = scores.row(i).array();
    const T highest = row.size() == 0 ? -kInf : row.template maxCoeff<Eigen::PropagateNaN>();
    const T max = highest < sink ? sink : highest;
    if (max == -kInf) {
      row.setZero();
      lse(i) = -kInf;
      continue;
    }
    row = (row - max).exp();
    // Eigen's vectorised exp() never gets below the smallest numbers, and those are slow where they are denormal: what is
    // dropped or vanishes weighs exactly nothing. A select() would say so too, but keeps Eigen 3.4 from using vectors.
    row = row.unaryExpr([](T x) { return x < std::numeric_limits<T>::min() ? T(0) : x; });
    const T sum = row.sum() + std::exp(sink - max);
    row /= sum;
    lse(i) = max + std::log(sum);
  }
}

/// weights * value over the kept pairs only: 0 * NaN is NaN, so a dropped pair must not even be multiplied.
template <class Weights, class Kept, class Value, class Out>
void weighted_sum_of_kept(const Weights& weights, const Kept& kept, const Value& value, Out&& out) {
  out.setZero();
  for (Index i = 0; i < weights.rows(); ++i)
    for (Index j = 0; j < weights.cols(); ++j)
      if (kept(i, j)) out.row(i) += weights(i, j) * value.row(j);
}

/// The weights of one head in a tensor without gaps, as a map that Eigen can work on with vectors.
template <class T>
Eigen::Map<RowMajor<T>> head_of(const TensorView<T, 4>& weights, Index batch, Index head) {
  const Index rows = weights.dim(2), cols = weights.dim(3);
  return {weights.data() + (batch * weights.dim(1) + head) * rows * cols, rows, cols};
}

/// One head. `weights` (q_len, kv_len) holds the scores on the way; out (q_len, v_dim); lse (q_len).
template <class Q, class K, class V, class Mods, class Weights, class Out, class Lse>
void naive_head(const Q& q, const K& k, const V& v, const Mods& mods, const Problem& problem, Index batch, Index head,
                Weights& weights, Out&& out, Lse&& lse) {
  using T = typename Weights::Scalar;
  constexpr bool kModded = Mods::kHasScores || Mods::kHasMasks;

  // The scale goes into the queries: scaling the product, as formulas are usually written, is a second pass over q_len
  // x kv_len numbers.
  const RowMajor<T> scaled = static_cast<T>(problem.scale) * q;
  weights.noalias() = scaled * k.transpose();

  const T sink = static_cast<T>(mods.sink(head));
  if constexpr (kModded) apply_mods(weights, mods, problem, batch, head);

  if (!kModded || v.allFinite()) {
    softmax_rows(weights, sink, lse);
    out.noalias() = weights * v;
  } else {
    const Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic> kept =
        weights.array() != -std::numeric_limits<T>::infinity();
    softmax_rows(weights, sink, lse);
    weighted_sum_of_kept(weights, kept, v, out);
  }
}

/// All heads, each a task; `weights_of(batch, head, worker)` gives the room for a head's weights. Null lse: not wanted.
template <class T, class Mods, class WeightsOf>
void naive(TensorView<T, 4> out, TensorView<T, 3> lse, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
           const TensorView<const T, 4>& v, const Mods& mods, const Problem& problem, const Executor& executor,
           const WeightsOf& weights_of) {
  executor.run(problem.batch * problem.heads, [&](Index task, int worker) {
    const Index b = task / problem.heads, h = task % problem.heads, kvh = problem.kv_head(h);
    Eigen::Array<T, Eigen::Dynamic, 1> row_lse(problem.q_len);
    auto&& weights = weights_of(b, h, worker);
    naive_head(q.matrix(b, h), k.matrix(b, kvh), v.matrix(b, kvh), mods, problem, b, h, weights, out.matrix(b, h),
               row_lse);
    for (Index i = 0; lse.data() && i < problem.q_len; ++i) lse(b, h, i) = row_lse(i);
  });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
