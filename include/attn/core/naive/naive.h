// Attention by its definition. It reads like the formula, and is the baseline for speed and the reference for results.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <vector>

#include "attn/core/base/compiled_once.h"
#include "attn/core/mods/bound_mods.h"
#include "attn/core/tensor/problem.h"
#include "attn/dual.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class T>
using RowMajor = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

/// One head of a tensor that is stored as T.
template <class T>
using NaiveHead = typename TensorView<const T, 2>::MatrixMap;

/// A score other than the dot product of query and key, by its definition.
template <class T>
class NaiveScore {
 public:
  virtual ~NaiveScore() = default;

  /// Computes the scores (q_len, kv_len) of a head.
  virtual void form(const NaiveHead<T>& q, const NaiveHead<T>& k, Index head,
                    Eigen::Map<RowMajor<T>>& scores) const = 0;

  /// Computes the gradient of the queries, and adds to the gradients of keys and parameters. The gradients of scores
  /// are 0 for dropped pairs.
  virtual void gradients(const RowMajor<T>& grad_scores, const RowMajor<T>& q, const RowMajor<T>& k, Index head,
                         RowMajor<T>& grad_query, RowMajor<T>& grad_key) const = 0;
};

/// For each pair of a head (q_len, kv_len), whether it is kept.
using NaivePairs = Eigen::Array<bool, Eigen::Dynamic, Eigen::Dynamic>;

/// The mods of a call with their types erased, so that everything else here is compiled once per scalar type.
template <class T>
struct NaiveMods {
  /// Replaces the scores of a head with the modded ones, and the score of a dropped pair with -inf. Null if there are
  /// no mods.
  std::function<void(Eigen::Map<RowMajor<T>>& scores, Index batch, Index head)> apply;
  std::function<double(Index head)> sink;
  /// Replaces the weights of kept pairs with the modded ones, and sets `slopes`, if not null, to their derivatives with
  /// respect to the old ones. Null if no mod changes weights.
  std::function<void(Eigen::Map<RowMajor<T>>& weights, RowMajor<T>* slopes, const NaivePairs& kept, Index batch,
                     Index head)>
      change_weights;
  /// Returns the factors (q_len, kv_len) that dropout multiplies the weights of a head by. Null if there is no dropout.
  std::function<RowMajor<T>(Index batch, Index head)> factors;
  const NaiveScore<T>* score = nullptr;  ///< null: the scaled dot product of query and key
};

template <class T, class Mods>
NaiveMods<T> naive_mods(const Mods& mods, const Problem& problem) {
  NaiveMods<T> erased;
  erased.sink = [&mods](Index head) { return mods.of(0).sink(head); };
  if constexpr (Mods::kHasScores || Mods::kHasMasks)
    erased.apply = [&mods, &problem](Eigen::Map<RowMajor<T>>& scores, Index batch, Index head) {
      const auto& own = mods.of(batch);
      const Index first = problem.first_query(batch);
      for (Index i = 0; i < scores.rows(); ++i)
        for (Index j = 0; j < scores.cols(); ++j) {
          const Position p{batch, head, first + i, problem.kv_offset + j};
          scores(i, j) = own.keep(p) ? own.score(scores(i, j), p) : -std::numeric_limits<T>::infinity();
        }
    };
  if constexpr (Mods::kHasWeights)
    erased.change_weights = [&mods, &problem](Eigen::Map<RowMajor<T>>& weights, RowMajor<T>* slopes,
                                              const NaivePairs& kept, Index batch, Index head) {
      const auto& own = mods.of(batch);
      const Index first = problem.first_query(batch);
      if (slopes) slopes->setZero(weights.rows(), weights.cols());
      for (Index i = 0; i < weights.rows(); ++i)
        for (Index j = 0; j < weights.cols(); ++j) {
          if (!kept(i, j)) continue;
          const Position p{batch, head, first + i, problem.kv_offset + j};
          if (slopes) (*slopes)(i, j) = own.weight(Dual<T>(weights(i, j), T(1)), p).slope;
          weights(i, j) = own.weight(weights(i, j), p);
        }
    };
  if constexpr (Mods::kHasDropout)
    erased.factors = [&mods, &problem](Index batch, Index head) {
      RowMajor<T> factors(problem.q_len, problem.kv_len);
      const Index first = problem.first_query(batch);
      for (Index i = 0; i < factors.rows(); ++i)
        for (Index j = 0; j < factors.cols(); ++j)
          factors(i, j) =
              static_cast<T>(mods.of(batch).weight_factor(Position{batch, head, first + i, problem.kv_offset + j}));
      return factors;
    };
  return erased;
}

/// Replaces each row of scores with its softmax, with one more term e^sink in the denominator, and fills in the
/// log-sum-exp of each row. A row without a kept pair gets weights 0 and lse `sink`, which is -inf if there is no sink.
/// Calls seen(row, max, sum) for all rows whose lse is not -inf.
template <class Scores, class Lse, class Seen>
void softmax_rows(Scores& scores, typename Scores::Scalar sink, Lse&& lse, const Seen& seen) {
  using std::exp, std::log;  // dual numbers, used for second derivatives, have their own
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
    // Eigen's vectorised exp() returns a tiny number instead of 0, and denormal numbers are slow. Results below the
    // smallest normal number are set to exactly 0. A select() would do the same, but stops Eigen 3.4 from vectorising.
    row = row.unaryExpr([](T x) { return x < std::numeric_limits<T>::min() ? T(0) : x; });
    const T sum = row.sum() + exp(sink - max);
    row /= sum;
    lse(i) = max + log(sum);
    seen(i, max, sum);
  }
}

/// Returns the part of max + log(sum) lost to rounding; 0 for dual numbers, which have no extra digits.
template <class T>
T rest_of_lse(T max, T sum) {
  if constexpr (std::is_floating_point_v<T>)
    return SoftmaxState<T>{max, sum}.lse_rest();
  else
    return T(0);
}

/// Replaces each score with 1 / (1 + e^-(score + bias)), which is 0 for a dropped pair, whose score is -inf.
template <class Scores>
void sigmoid_of(Scores& scores, double bias) {
  using std::exp;
  using T = typename Scores::Scalar;
  const T added = static_cast<T>(bias);
  scores = scores.unaryExpr([added](T x) { return T(1) / (T(1) + exp(-(x + added))); });
}

/// Rounds the weights once, before the value product, to the values that a 16-bit tensor would hold.
template <class Weights>
void round_weights(Weights& weights, DType dtype) {
  using T = typename Weights::Scalar;
  if (dtype != DType::native) weights = weights.unaryExpr([dtype](T w) { return rounded(dtype, w); });
}

/// Computes weights * value over the kept pairs only: 0 * NaN is NaN, so dropped pairs must be skipped, not multiplied
/// by 0.
template <class Weights, class Kept, class Value, class Out>
void weighted_sum_of_kept(const Weights& weights, const Kept& kept, const Value& value, Out&& out) {
  out.setZero();
  for (Index i = 0; i < weights.rows(); ++i)
    for (Index j = 0; j < weights.cols(); ++j)
      if (kept(i, j)) out.row(i) += weights(i, j) * value.row(j);
}

/// Copies one head, converted to T.
template <class T>
void copy_head(const DTypeView<const T>& t, Index batch, Index head, RowMajor<T>& copy) {
  const RowsToRead rows = t.rows(batch, head);
  copy.resize(t.dim(2), t.dim(3));
  for (Index i = 0; i < copy.rows(); ++i)
    for (Index j = 0; j < copy.cols(); ++j) copy(i, j) = load_number<T>(rows, i, j);
}
template <class T>
RowMajor<T> copied_head(const DTypeView<const T>& t, Index batch, Index head) {
  RowMajor<T> copy;
  copy_head(t, batch, head, copy);
  return copy;
}

/// One head as elements of type T: in place, or converted into `copy` if it is stored in a different type.
template <class T>
auto head_of(const DTypeView<const T>& t, Index batch, Index head, RowMajor<T>& copy) {
  if (t.dtype() == DType::native) return t.matrix(batch, head);
  copy_head(t, batch, head, copy);
  return TensorView<const T, 2>(copy.data(), {copy.rows(), copy.cols()}).matrix();
}

/// Stores one head, rounded to the tensor's type.
template <class T, class X>
void store_head(const X& x, const DTypeView<T>& to, Index batch, Index head) {
  const RowsToWrite rows = to.rows(batch, head);
  for (Index i = 0; i < x.rows(); ++i)
    for (Index j = 0; j < x.cols(); ++j) store_number<T>(rows, i, j, x(i, j));
}

/// Computes one head: query (q_len, head_dim), key (kv_len, head_dim), value (kv_len, v_dim). Every call of the library
/// computes this, on any path:
///
///     1. scores   = scale * query * keyᵀ                        (q_len, kv_len)
///     2. scores   = mods(scores), -inf where a pair is dropped
///     3. weights  = softmax of each row, and its lse            (q_len, kv_len) and (q_len)
///     4. weights  = weight mods(weights) * dropout's factors, 0 where a pair is dropped
///     5. out      = weights * value                             (q_len, v_dim)
///
/// `weights` first holds the scores, and finally the weights, rounded to `dtype`.
template <class T, class Matrix, class Out, class Lse>
void naive_head(const Matrix& q, const Matrix& k, const Matrix& v, const NaiveMods<T>& mods, const Problem& problem,
                Index batch, Index head, DType dtype, Eigen::Map<RowMajor<T>>& weights, Out&& out, Lse&& lse,
                Lse&& lse_rests) {
  // 1. Scores.
  if (mods.score) {
    mods.score->form(q, k, head, weights);
  } else {
    // Scales the queries: scaling the product, as the formula is usually written, would take another pass over q_len x
    // kv_len elements.
    const RowMajor<T> scaled = static_cast<T>(problem.scale) * q;
    weights.noalias() = scaled * k.transpose();
  }

  // 2. Mods.
  if (mods.apply) mods.apply(weights, batch, head);
  const bool selects = mods.apply && !v.allFinite();
  NaivePairs kept;
  if (selects || mods.change_weights) kept = weights.array() != -std::numeric_limits<T>::infinity();

  // 3. Weights.
  if (problem.sigmoid_bias)
    sigmoid_of(weights, *problem.sigmoid_bias);
  else
    softmax_rows(weights, static_cast<T>(mods.sink(head)), lse,
                 [&](Index i, T max, T sum) { lse_rests(i) = rest_of_lse(max, sum); });

  // 4. Changes of weights.
  if (mods.change_weights) mods.change_weights(weights, nullptr, kept, batch, head);
  if (mods.factors) weights.array() *= mods.factors(batch, head).array();

  // 5. Output.
  round_weights(weights, dtype);
  if (selects)
    weighted_sum_of_kept(weights, kept, v, out);
  else
    out.noalias() = weights * v;
}

/// The work of a call on the naive path. Without compiler flags, Eigen's products run at a quarter of the speed of the
/// kernels.
inline Work naive_work(const Problem& problem) {
  return {8 * static_cast<double>(problem.batch * problem.heads) * static_cast<double>(problem.q_len) *
          static_cast<double>(problem.kv_len) * static_cast<double>(problem.head_dim + problem.v_dim)};
}

/// Computes all heads, each as a task. lse and weights are null if not requested; if `weights` is null, each worker
/// holds the weights of one head at a time.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void naive(const DTypeView<T>& out, const TensorView<T, 3>& lse, const KeptLseRests<T>& lse_rests,
           const DTypeView<T>& weights, const DTypeView<const T>& q, const DTypeView<const T>& k,
           const DTypeView<const T>& v, const NaiveMods<T>& mods, const Problem& problem, const Executor& executor) {
  const Workers workers(naive_work(problem), executor);
  struct Room {
    RowMajor<T> weights, out, q, k, v;
  };
  std::vector<Room> rooms(static_cast<std::size_t>(workers.count()));
  const bool in_place = weights.data() && weights.dtype() == DType::native && weights.stride(2) == problem.kv_len &&
                        weights.stride(3) == 1;
  workers.run(problem.batch * problem.heads, [&](Index task, int worker) {
    const Index b = task / problem.heads, h = task % problem.heads, kvh = problem.kv_head(h);
    Room& room = rooms[static_cast<std::size_t>(worker)];
    Eigen::Array<T, Eigen::Dynamic, 1> row_lse(problem.q_len), row_rests;
    row_rests.setZero(problem.q_len);
    if (!in_place) room.weights.resize(problem.q_len, problem.kv_len);  // once, and only for workers that have work
    T* const first = in_place ? reinterpret_cast<T*>(weights.rows(b, h).data) : room.weights.data();
    Eigen::Map<RowMajor<T>> w(first, problem.q_len, problem.kv_len);
    const auto head = [&](auto&& to) {
      naive_head(head_of(q, b, h, room.q), head_of(k, b, kvh, room.k), head_of(v, b, kvh, room.v), mods, problem, b, h,
                 q.dtype(), w, to, row_lse, row_rests);
    };
    if (out.dtype() == DType::native) {
      head(out.matrix(b, h));
    } else {
      room.out.resize(problem.q_len, problem.v_dim);
      head(TensorView<T, 2>(room.out.data(), {problem.q_len, problem.v_dim}).matrix());
      store_head(room.out, out, b, h);
    }
    if (weights.data() && !in_place) store_head(w, weights, b, h);
    for (Index i = 0; lse.data() && i < problem.q_len; ++i) {
      lse(b, h, i) = row_lse(i);
      lse_rests.set(&lse(b, h, i), row_rests(i));
    }
  });
}
ATTN_COMPILED_ONCE(naive)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
