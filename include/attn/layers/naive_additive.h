// The additive score and its gradients by their definition.
#pragma once

#include "attn/core/naive/naive.h"
#include "attn/layers/additive_parameters.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The sums of the gradients of parameters, each in the shape of its parameter.
template <class T>
struct AdditiveSums {
  HeadParameter<T> query_weight, key_weight, score_weight, bias;

  explicit AdditiveSums(const AdditiveParameters<T>& p)
      : query_weight(zeros(p.query_weight)),
        key_weight(zeros(p.key_weight)),
        score_weight(zeros(p.score_weight)),
        bias(zeros(p.bias)) {}

  void add_to(const AdditiveScoreGradients<T>& grads) const {
    query_weight.add_to(grads.query_weight);
    key_weight.add_to(grads.key_weight);
    score_weight.add_to(grads.score_weight);
    bias.add_to(grads.bias);
  }

 private:
  static HeadParameter<T> zeros(const HeadParameter<T>& like) {
    return {like.numbers().dim(0), like.numbers().dim(1), like.numbers().dim(2)};
  }
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
  explicit NaiveAdditive(const AdditiveParameters<T>& parameters, AdditiveSums<T>* sums = nullptr)
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
  AdditiveSums<T>* sums_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
