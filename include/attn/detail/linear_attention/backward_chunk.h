// The gradients of one chunk of a recurrence.
#pragma once

#include "attn/detail/linear_attention/gate_gradients.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// What a chunk adds to the state, `value` below, is the caller's values, or what the delta rule writes. With scores P
/// (queries times keys times decays), state S in front of the chunk and gradients G of the output and E of the state
/// behind it, all products of a chunk are
///
///     grad_value = Pᵀ G + faded keys * E        grad_scores = G * valueᵀ
///     grad_query = grad_scores * key + decay * G Sᵀ      grad_key = grad_scoresᵀ * query + decay * value * Eᵀ
///     grad of S = decay * E + (decay * query)ᵀ G
///
/// with decays at their places, and the delta rule's triangular system is solved once more, transposed.
template <class T>
class RecurrenceBackwardChunk {
 public:
  RecurrenceBackwardChunk(const RecurrenceBackwardCall<T>& call, const ChunkLoader<T>& loader, std::byte* memory,
                          const KeptOfRun& kept)
      : call_(call),
        arena_(memory),
        w_(call.forward, loader, arena_),
        m_(RecurrenceBackwardMemory<T>::take(arena_, call.forward, kept)),
        kernels_(loader.kernels()) {}
  static Index bytes(const RecurrenceCall<T>& call, const KeptOfRun& kept) {
    const auto lay_out = [&](ChunkArena<T>& arena) {
      ChunkMemory<T>::take(arena, call);
      RecurrenceBackwardMemory<T>::take(arena, call, kept);
    };
    return ChunkArena<T>::count(lay_out);
  }

  ChunkWork<T>& work() { return w_; }
  RecurrenceBackwardMemory<T>& memory() { return m_; }

  /// Takes the state in front of the chunk and the gradient of the state behind it, which it turns into the gradient of
  /// the state in front.
  void run(const TokenChunk& chunk) {
    const Index n = chunk.keys.size();
    if (n > 0) {
      w_.load_keys(chunk.keys, !chunk.rows.empty());
      state_back(n);
      if (!chunk.rows.empty())
        w_.loader.transpose(m_.columns, padded(n, kRowUnit<T>), w_.value, n, w_.call.problem.v_dim);
    }
    for (Index g = 0; g < w_.call.group() && !chunk.rows.empty(); ++g) query_back(chunk, w_.first_head() + g);
    if (n == 0) return;
    if (w_.call.has_delta()) written_back(n);
    store_keys(chunk.keys);
  }

 private:
  /// to = rows * stateᵀ.
  void multiply_turned(const Block<T>& state, Rows<T> rows, const Block<T>& to) {
    w_.loader.transpose(m_.turned.data, m_.turned.stride, state, w_.call.features(), w_.call.problem.v_dim);
    kernels_.product({to.data, to.stride, rows.data, rows.stride, 1, m_.turned.data, m_.turned.stride, to.rows,
                      to.columns, w_.call.problem.v_dim});
  }
  /// gradient of the state += factor * rowsᵀ * grad.
  void add_to_grad_state(Rows<T> rows, Rows<T> grad, Index count, T before = 1) {
    const Block<T>& e = m_.grad_state;
    kernels_.product(
        {e.data, e.stride, rows.data, 1, rows.stride, grad.data, grad.stride, e.rows, e.columns, count, before});
  }

  /// The gradients that come through the state behind the chunk: of its keys and values, and of the state in front of
  /// it, which decays into it.
  void state_back(Index n) {
    const RecurrenceCall<T>& call = w_.call;
    const ChunkGates<T>& gates = w_.m.gates;
    const Block<T> keys = m_.grad_key.from(0, n), values = m_.grad_value.from(0, n), faded = m_.faded.from(0, n);
    const Block<T>& e = m_.grad_state;
    multiply_turned(e, w_.value, keys);
    Rows<T> key = w_.key;
    std::fill_n(m_.gates, n, T(0));
    std::fill_n(m_.entering, n, T(0));
    std::fill_n(m_.leaving, n, T(0));
    passing_ = 0;
    if (call.gates == Gates::of_tokens) {
      kernels_.scale_rows(keys, keys, gates.to_end());
      kernels_.add_dots(m_.leaving, keys, key, n, keys.columns);
      kernels_.scale_rows(faded, key, gates.to_end());
      key = faded;
      const T decay = gates.over_all_of_token();
      kernels_.add_dots(&passing_, {w_.m.state.sums.data, 0}, {e.data, 0}, 1, e.rows * e.stride);
      passing_ *= decay;
    } else if (call.gates == Gates::of_features) {
      const Block<T> grad = m_.grad_gates.from(0, n), sums = m_.sums.from(0, n);
      kernels_.decays_to(gates.gate, faded);
      kernels_.multiply_by(keys, faded);
      kernels_.multiply_by(faded, key);
      std::copy_n(keys.data, n * keys.stride, sums.data);
      kernels_.multiply_by(sums, w_.key);
      std::fill_n(w_.m.decay, grad.columns, T(0));
      kernels_.add_dots(w_.m.decay, w_.m.state.sums, e, e.rows, e.columns);
      for (Index f = 0; f < call.features(); ++f) w_.m.decay[f] *= gates.over_all()[f];
      for (Index t = 0; t < n; ++t) std::copy_n(w_.m.decay, grad.columns, grad.row(t));
      add_before_each(kernels_, grad, sums, sums);
      key = faded;
    }
    kernels_.product(
        {values.data, values.stride, key.data, key.stride, 1, e.data, e.stride, n, values.columns, call.features()});
    if (call.is_normalised) kernels_.add_rows(keys, {m_.grad_normaliser, 0}, T(1));
    if (call.gates == Gates::of_tokens)
      kernels_.scale_rows(e, e, gates.over_all_of_token());
    else if (call.gates == Gates::of_features)
      kernels_.scale_rows(e, e, gates.over_all());
  }

  /// One query head of the chunk.
  void query_back(const TokenChunk& chunk, Index head) {
    const RecurrenceCall<T>& call = w_.call;
    const Index rows = chunk.rows.size(), n = chunk.keys.size();
    const Rows<T> query = w_.load_queries(head, chunk.rows.begin, rows);
    const Block<T> grad = m_.grad_out.from(0, rows), seen = m_.seen.from(0, rows), to = m_.grad_query.from(0, rows);
    w_.loader.copy(call_.grad_out.rows(w_.batch, head, chunk.rows.begin), rows, call.problem.v_dim, grad.data);
    if (n > 0) w_.find_scores(query);
    if (call.is_normalised) normaliser_back(query, rows, n);
    if (!call.is_normalised && n == 0) return;  // rows behind the last token

    multiply_turned(w_.m.state.sums, grad, to);
    if (call.is_normalised) kernels_.add_rows(to, {w_.m.state.normaliser, 0}, m_.numbers);
    Rows<T> faded = query;
    if (call.gates == Gates::of_tokens) {
      kernels_.scale_rows(to, to, w_.m.gates.from_start);
      kernels_.add_dots(m_.entering, to, query, n, to.columns);
      kernels_.scale_rows(seen, query, w_.m.gates.from_start);
      faded = seen;
    } else if (call.gates == Gates::of_features) {
      kernels_.multiply_by(to, w_.m.gates.start);
      std::copy_n(to.data, rows * to.stride, seen.data);
      kernels_.multiply_by(seen, query);
      add_from_each(kernels_, m_.grad_gates.from(0, n), seen, m_.sums.from(0, n));
      std::copy_n(w_.m.gates.start.data, rows * seen.stride, seen.data);
      kernels_.multiply_by(seen, query);
      faded = seen;
    }
    add_to_grad_state(faded, grad, rows);
    if (call.is_normalised) add_sum_of(query, rows);
    if (n > 0) scores_back(query, n);
    store_queries(chunk.rows, head, query);
  }

  /// With a normaliser, the gradient of the output becomes that of the numerator, and m_.numbers becomes that of the
  /// normaliser. The normaliser is the output of a value that is 1 for every key.
  void normaliser_back(Rows<T> query, Index rows, Index n) {
    const Block<T> grad = m_.grad_out.from(0, rows), out = w_.m.out.from(0, rows);
    w_.read_state(query, out);
    std::fill_n(w_.m.numbers, rows, T(0));
    if (n > 0) {
      w_.add_seen_values(out);
      kernels_.add_dots(w_.m.numbers, query, w_.m.key_sums, n, w_.m.key_sums.columns);
    }
    w_.find_inverse_normalisers(query, rows);
    kernels_.scale_rows(grad, grad, w_.m.numbers);
    kernels_.scale_rows(out, out, w_.m.numbers);
    std::fill_n(m_.numbers, rows, T(0));
    kernels_.add_dots(m_.numbers, grad, out, rows, out.columns);
    for (Index i = 0; i < rows; ++i) m_.numbers[i] = -m_.numbers[i];
  }
  /// grad_normaliser += sum of the normalisers' gradients times queries.
  void add_sum_of(Rows<T> query, Index rows) {
    for (Index i = 0; i < rows; ++i)
      for (Index f = 0; f < w_.call.features(); ++f)
        m_.grad_normaliser[f] += m_.numbers[i] * query.data[i * query.stride + f];
  }

  /// The gradients that come through the scores of the chunk's tokens with each other.
  void scores_back(Rows<T> query, Index n) {
    const RecurrenceCall<T>& call = w_.call;
    const Index width = padded(n, kRowUnit<T>);
    const Block<T> grad = m_.grad_out.from(0, n), values = m_.grad_value.from(0, n), keys = m_.grad_key.from(0, n),
                   queries = m_.grad_query.from(0, n), scores{w_.m.scores.data, w_.m.scores.stride, n, width},
                   grad_scores{m_.grad_scores.data, m_.grad_scores.stride, n, width};
    kernels_.product({values.data, values.stride, scores.data, 1, scores.stride, grad.data, grad.stride, n,
                      values.columns, n, T(1), Steps::from_row});
    lower_scores(kernels_, grad, m_.columns, width, n, call.problem.v_dim, grad_scores);
    if (call.is_normalised)
      for (Index i = 0; i < n; ++i)
        for (Index j = 0; j <= i; ++j) grad_scores.row(i)[j] += m_.numbers[i];
    if (call.gates == Gates::of_features) return gated_scores_backward(w_, query, m_);
    if (call.gates == Gates::of_tokens) {
      kernels_.multiply_by(scores, grad_scores);
      add_gates_between(scores, m_.gates);
      kernels_.multiply_by(grad_scores, w_.m.gates.between);
    }
    add_pairs(grad_scores, w_.key, queries, Steps::up_to_row);
    add_pairs(grad_scores, query, keys, Steps::from_row);
  }
  /// to += pairs * rows, over the tokens up to each, or pairsᵀ * rows, over those from each on.
  void add_pairs(const Block<T>& pairs, Rows<T> rows, const Block<T>& to, Steps steps) {
    const bool forward = steps == Steps::up_to_row;
    kernels_.product({to.data, to.stride, pairs.data, forward ? pairs.stride : 1, forward ? 1 : pairs.stride, rows.data,
                      rows.stride, to.rows, to.columns, pairs.rows, T(1), steps});
  }

  /// From what the delta rule wrote to keys, values and betas. With a = -decay * key * key, the forward pass solved w_i
  /// = value_i - decay_i * state * key_i + sum over j < i of a_ij u_j, u_i = beta_i w_i.
  void written_back(Index n) {
    const RecurrenceCall<T>& call = w_.call;
    const Index width = padded(n, kRowUnit<T>);
    const Block<T> grad_w = m_.grad_value.from(0, n), grad_value = w_.m.out.from(0, n), seen = m_.seen.from(0, n),
                   keys = m_.grad_key.from(0, n), pairs{w_.m.scores.data, w_.m.scores.stride, n, width},
                   a{w_.m.among_keys.data, w_.m.among_keys.stride, n, width};
    const T* const beta = w_.m.gates.beta;
    for (Index end = n; end > 0;) {
      const Index begin = (end - 1) / kScoreRows * kScoreRows;
      if (end < n)
        kernels_.product({grad_w.row(begin), grad_w.stride, a.row(end) + begin, 1, a.stride, grad_value.row(end),
                          grad_value.stride, end - begin, grad_w.columns, n - end, T(1)});
      kernels_.substitute_back(grad_w, grad_value.data, a, beta, begin, end);
      end = begin;
    }
    // grad_w is that of u with all that u changes; beta times it is that of w, and so of the values.
    std::fill_n(m_.numbers, n, T(0));
    kernels_.add_dots(m_.numbers, grad_w, w_.m.written, n, grad_w.columns);
    std::copy_n(grad_value.data, n * grad_value.stride, grad_w.data);

    multiply_turned(w_.m.state.sums, grad_w, seen);
    kernels_.scale_rows(seen, seen, w_.m.gates.from_start);
    kernels_.scale_rows(seen, seen, T(-1));
    kernels_.add_rows(keys, seen, T(1));
    kernels_.add_dots(m_.entering, seen, w_.key, n, seen.columns);
    const Block<T> faded = m_.faded.from(0, n);
    kernels_.scale_rows(faded, w_.key, w_.m.gates.from_start);
    kernels_.scale_rows(faded, faded, T(-1));
    add_to_grad_state(faded, grad_w, n);

    lower_scores(kernels_, grad_w, m_.columns, width, n, call.problem.v_dim, pairs);
    const Block<T> of_gates{m_.grad_scores.data, m_.grad_scores.stride, n, width};
    for (Index i = 0; i < n; ++i) std::copy_n(pairs.row(i), i + 1, of_gates.row(i));
    kernels_.multiply_by(of_gates, a);
    add_gates_between(of_gates, m_.gates);
    kernels_.multiply_by(pairs, w_.m.gates.between);
    kernels_.scale_rows(pairs, pairs, T(-1));
    for (Index i = 0; i < n; ++i) pairs.row(i)[i] = 0;
    add_pairs(pairs, w_.key, keys, Steps::up_to_row);
    add_pairs(pairs, w_.key, keys, Steps::from_row);
  }

  void store_queries(Range rows, Index head, Rows<T> query) {
    const RecurrenceCall<T>& call = w_.call;
    const Block<T> grad = m_.grad_query.from(0, rows.size()), raw = w_.m.raw.from(0, rows.size()),
                   to = m_.grad_raw.from(0, rows.size());
    const RowsToWrite out = call_.grad_q.rows(w_.batch, head, rows.begin);
    if (!call.is_normalised) {
      kernels_.scale_rows(grad, grad, call.scale);
      return w_.loader.store(grad, rows.size(), call.problem.head_dim, out);
    }
    w_.loader.copy(call.q.rows(w_.batch, head, rows.begin), rows.size(), call.problem.head_dim, raw.data);
    call.map.gradients(kernels_, raw, query, w_.m.factor, grad, to, true);
    w_.loader.store(to, rows.size(), call.problem.head_dim, out);
  }

  void store_keys(Range keys) {
    const RecurrenceCall<T>& call = w_.call;
    const Index n = keys.size(), batch = w_.batch, head = w_.kv_head;
    const Block<T> grad = m_.grad_key.from(0, n), raw = w_.m.raw.from(0, n), to = m_.grad_raw.from(0, n);
    w_.loader.store(m_.grad_value.from(0, n), n, call.problem.v_dim, call_.grad_v.rows(batch, head, keys.begin));
    const RowsToWrite out = call_.grad_k.rows(batch, head, keys.begin);
    if (call.is_normalised) {
      w_.loader.copy(call.k.rows(batch, head, keys.begin), n, call.problem.head_dim, raw.data);
      call.map.gradients(kernels_, raw, w_.key, nullptr, grad, to, false);
      w_.loader.store(to, n, call.problem.head_dim, out);
    } else {
      w_.loader.store(grad, n, call.problem.head_dim, out);
    }
    if (call.gates == Gates::of_tokens) {
      add_gates_around(m_.entering, m_.leaving, passing_, n, m_.gates);
      const RowsToWrite rows = call_.grad_gate.rows(batch, head, keys.begin);
      for (Index i = 0; i < n; ++i) store_number(rows, i, 0, m_.gates[i]);
    } else if (call.gates == Gates::of_features) {
      w_.loader.store(m_.grad_gates.from(0, n), n, call.features(), call_.grad_gate.rows(batch, head, keys.begin));
    }
    if (!call.has_delta()) return;
    const RowsToWrite rows = call_.grad_beta.rows(batch, head, keys.begin);
    for (Index i = 0; i < n; ++i) store_number(rows, i, 0, m_.numbers[i]);
  }

  const RecurrenceBackwardCall<T>& call_;
  ChunkArena<T> arena_;
  ChunkWork<T> w_;
  RecurrenceBackwardMemory<T> m_;
  const RecurrenceFamily<T>& kernels_;
  T passing_ = 0;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
