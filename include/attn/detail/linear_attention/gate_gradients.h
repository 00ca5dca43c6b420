// Gradients of gates: a gate stands in every decay that passes its token.
#pragma once

#include "attn/detail/linear_attention/backward_call.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Adds the gradients of token gates through the decays between tokens: that of token t is the sum of pairs(i, j),
/// score times its gradient, over j < t <= i. Formed of sums alone: differences would cancel where gates are strong.
template <class T>
void add_gates_between(const Block<T>& pairs, T* to) {
  for (Index i = 1; i < pairs.rows; ++i) {
    T before = 0;
    for (Index t = 1; t <= i; ++t) to[t] += before += pairs.row(i)[t - 1];
  }
}
/// Adds the gradients through the decays that come from before the chunk or reach to its end. Token t gets the sum of
/// entering[i] over i >= t, the sum of leaving[j] over j < t, and `passing`.
template <class T>
void add_gates_around(const T* entering, const T* leaving, T passing, Index tokens, T* to) {
  T sum = passing;
  for (Index t = tokens; t-- > 0;) to[t] += sum += entering[t];
  sum = 0;
  for (Index t = 1; t < tokens; ++t) to[t] += sum += leaving[t - 1];
}

/// to_t += row_t + row_(t + 1) + ..; `sums` is overwritten, and may be the rows.
template <class T>
void add_from_each(const RecurrenceFamily<T>& kernels, const Block<T>& to, std::type_identity_t<Rows<T>> rows,
                   const Block<T>& sums) {
  kernels.running_sums_back(sums, rows);
  kernels.add_rows(to, sums, T(1));
}
/// to_t += row_0 + .. + row_(t - 1).
template <class T>
void add_before_each(const RecurrenceFamily<T>& kernels, const Block<T>& to, std::type_identity_t<Rows<T>> rows,
                     const Block<T>& sums) {
  kernels.running_sums(sums, rows);
  if (to.rows > 1) kernels.add_rows(to.from(1, to.rows - 1), sums, T(1));
}

/// The gradients of gated_scores(): adds to those of queries, keys and gates, given that of the scores.
template <class T>
void gated_scores_backward(const ChunkWork<T>& w, Rows<T> query, const RecurrenceBackwardMemory<T>& m) {
  const RecurrenceFamily<T>& kernels = w.kernels;
  const ChunkGates<T>& gates = w.m.gates;
  const auto at = [](Rows<T> rows, Index i) { return Rows<T>{rows.data + i * rows.stride, rows.stride}; };
  const Index n = w.tokens;
  for (Index i = 0; i < n; i += kNearTokens) {
    const Index count = std::min(kNearTokens, n - i);
    kernels.near_gradients({at(query, i), at(w.key, i), at(gates.factor, i), count, m.grad_query.columns},
                           {m.grad_scores.row(i) + i, m.grad_scores.stride}, m.grad_query.from(i, count),
                           m.grad_key.from(i, count), m.grad_gates.from(i, count));
  }
  for (Index half = kNearTokens; half < n; half *= 2)
    for (Index begin = 0; begin + half < n; begin += 2 * half) {
      const Index middle = begin + half, above = std::min(half, n - middle);
      const Block<T> q = w.m.among.query.from(0, above), k = w.m.among.key.from(0, half);
      kernels.decays_from(at(gates.gate, middle), q);
      kernels.decays_to(at(gates.gate, begin), k);
      const Block<T> q_decay = m.seen.from(0, above), k_decay = m.faded.from(0, half);
      std::copy_n(q.data, above * q.stride, q_decay.data);
      std::copy_n(k.data, half * k.stride, k_decay.data);
      kernels.multiply_by(q, at(query, middle));
      kernels.multiply_by(k, at(w.key, begin));
      const T* const grad = m.grad_scores.row(middle) + begin;
      const auto back = [&](const Block<T>& own, const Block<T>& decay, const Block<T>& to, Index row, Index step,
                            const Block<T>& other, bool from_each) {
        const Block<T> sums = m.sums.from(0, own.rows);
        kernels.product(
            {sums.data, sums.stride, grad, row, step, other.data, other.stride, own.rows, sums.columns, other.rows});
        kernels.multiply_by(decay, sums);
        kernels.add_rows(to, decay, T(1));
        kernels.multiply_by(sums, own);
        const Block<T> of_gates = m.grad_gates.from(from_each ? middle : begin, own.rows);
        if (from_each)
          add_from_each(kernels, of_gates, sums, sums);
        else
          add_before_each(kernels, of_gates, sums, sums);
      };
      back(q, q_decay, m.grad_query.from(middle, above), m.grad_scores.stride, 1, k, true);
      back(k, k_decay, m.grad_key.from(begin, half), 1, m.grad_scores.stride, q, false);
    }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
