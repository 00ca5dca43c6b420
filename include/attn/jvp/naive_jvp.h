// The directional derivative of attention by its definition: the reference for tests of forward mode.
#pragma once

#include "attn/core/base/compiled_once.h"
#include "attn/core/naive/naive_backward.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Query, key and value of a head or of a call, or their directions.
template <class Input>
struct JvpInputs {
  Input q, k, v;
};

/// Computes one head: out (q_len, v_dim) and its tangent. With a dot for the derivative in the given direction,
///
///     scores   X  = mods(scale * Q Kᵀ)       Ẋ = slopes of the mods * scale * (Q̇ Kᵀ + Q K̇ᵀ)
///     weights  P  = softmax of each row      Ṗ = P * (Ẋ - row sums of P * Ẋ)         (its Jacobian is diag(p) - p pᵀ)
///     or weights  P = sigmoid(X + bias)      Ṗ = P * (1 - P) * Ẋ
///     out      O  = (P * Z) V                Ȯ = (Ṗ * Z) V + (P * Z) V̇      (Z: the factors of dropout, 1 without)
template <class T>
void naive_head_jvp(const JvpInputs<RowMajor<T>>& x, const JvpInputs<RowMajor<T>>& direction, const NaiveMods<T>& mods,
                    const NaiveSlopes<T>& slopes_of, const Problem& problem, Index batch, Index head, RowMajor<T>& out,
                    RowMajor<T>& tangent) {
  const T scale = static_cast<T>(problem.scale);
  const RowMajor<T> scaled = scale * x.q, scaled_direction = scale * direction.q;
  RowMajor<T> change = scaled_direction * x.k.transpose() + scaled * direction.k.transpose();
  NaiveWeights<T> computed(scaled * x.k.transpose(), mods, slopes_of, problem, batch, head);
  auto& [weights, rest, slopes, kept, lse, lse_rests] = computed;
  const auto is_finite = [](const auto& m) { return m.q.allFinite() && m.k.allFinite() && m.v.allFinite(); };
  const bool selects = mods.apply && !(is_finite(x) && is_finite(direction));
  if (slopes_of) change.array() *= slopes.array();
  if (selects) change = kept.select(change, RowMajor<T>::Zero(change.rows(), change.cols()));
  if (problem.sigmoid_bias) {
    change.array() *= weights.array() * rest.array();
  } else {
    const Eigen::Array<T, Eigen::Dynamic, 1> mean = (weights.array() * change.array()).rowwise().sum();
    change = weights.array() * (change.array().colwise() - mean);
  }
  if (mods.factors) {
    const RowMajor<T> factors = mods.factors(batch, head);
    weights.array() *= factors.array();
    change.array() *= factors.array();
  }
  if (selects) {
    out = product_over_kept(weights, kept, x.v);
    tangent = product_over_kept(change, kept, x.v) + product_over_kept(weights, kept, direction.v);
    return;
  }
  out.noalias() = weights * x.v;
  tangent.noalias() = change * x.v;
  tangent.noalias() += weights * direction.v;
}

/// Computes all heads, each as a task.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void naive_jvp(const DTypeView<T>& out, const DTypeView<T>& tangent, const JvpInputs<DTypeView<const T>>& inputs,
               const JvpInputs<DTypeView<const T>>& directions, const NaiveMods<T>& mods, const NaiveSlopes<T>& slopes,
               const Problem& problem, const Executor& executor) {
  Workers(naive_work(problem), executor).run(problem.batch * problem.heads, [&](Index task, int) {
    const Index b = task / problem.heads, h = task % problem.heads, kv_head = problem.kv_head(h);
    const auto head = [&](const auto& t) {
      return JvpInputs<RowMajor<T>>{copied_head(t.q, b, h), copied_head(t.k, b, kv_head), copied_head(t.v, b, kv_head)};
    };
    RowMajor<T> own_out, own_tangent;
    naive_head_jvp(head(inputs), head(directions), mods, slopes, problem, b, h, own_out, own_tangent);
    store_head(own_out, out, b, h);
    store_head(own_tangent, tangent, b, h);
  });
}
ATTN_COMPILED_ONCE(naive_jvp)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
