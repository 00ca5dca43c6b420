// Backward pass of a recurrence. It visits chunks from the last to the first, each with the state before it, which a
// forward pass has kept.
#pragma once

#include "attn/recurrent/chunk_work.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

template <class T>
struct RecurrenceBackwardCall {
  const RecurrenceCall<T>& forward;  ///< its output and state are not used
  DTypeView<const T> grad_out;
  DTypeView<T> grad_q, grad_k, grad_v;
  DTypeView<T> grad_gate{}, grad_beta{}, grad_a{}, grad_b{};  ///< shaped like gate etc.; null if the call has none
  StateMemory<const T> before{};                              ///< the state that the call began with; null if it was 0
  /// The gradient of the state after the call, which is replaced by the gradient of the state before the call. Null if
  /// the loss depends on neither state.
  StateMemory<T> grad_state{};
};

/// A chunk of a run, and the index of the state before it among those that are kept.
struct KeptChunk {
  TokenChunk tokens;
  Index state;
};

/// Number of states and chunks of a run that a worker keeps.
struct KeptOfRun {
  Index states;
  Index chunks;
};

/// A worker's memory for one head of keys and values, in addition to that of the forward pass.
template <class T>
struct RecurrenceBackwardMemory {
  KeptChunk* chunks;        ///< (chunks kept)
  Block<T> states;          ///< (states kept, features * v_dim + features)
  HeadState<T> grad_state;  ///< the gradient of the state after the current chunk, then before it
  Block<T> transposed;      ///< (v_dim, features): a state or its gradient, transposed
  /// The gradients of a term, and its values transposed (v_dim, tokens).
  struct OfTerm {
    Block<T> key, value;
    T* columns;
  } terms[2];
  Block<T> grad_out, grad_query, grad_seen, grad_reader, sums, decayed, grad_raw, grad_scores, grad_gates;
  T* numbers;   ///< (tokens)
  T* entering;  ///< (tokens): with token gates, gradients of the log decays from before the chunk to each token
  T* leaving;   ///< (tokens): with token gates, gradients of the log decays from each token to the chunk's end
  T* gates;     ///< (tokens)

  static RecurrenceBackwardMemory take(ChunkArena<T>& arena, const RecurrenceCall<T>& call, const KeptOfRun& kept) {
    const Index in = call.row_of_inputs(), f = call.row_of_features(), v = call.row_of_values();
    const bool by_feature = call.gates == Gates::of_features;
    RecurrenceBackwardMemory m;
    m.chunks = arena.template take_as<KeptChunk>(kept.chunks);
    arena.align();
    m.states = take_block(arena, kept.states, call.size_of_state() + f);
    m.grad_state = HeadState<T>::take(arena, call);
    m.transposed = take_block(arena, v, f);
    for (int t = 0; t < call.terms(); ++t)
      m.terms[t] = {take_block(arena, kChunk, f), take_block(arena, kChunk, v), arena.take(v * kChunk)};
    m.grad_out = take_block(arena, kChunk, v);
    m.grad_seen = take_block(arena, call.has_reads() ? kChunk : 0, v);
    m.grad_reader = take_block(arena, call.has_reads() ? kChunk : 0, f);
    for (Block<T>* rows : {&m.grad_query, &m.sums, &m.decayed}) *rows = take_block(arena, kChunk, f);
    m.grad_raw = take_block(arena, kChunk, in);
    m.grad_scores = take_block(arena, kChunk, kChunk);
    m.grad_gates = take_block(arena, by_feature ? kChunk : 0, f);
    for (T** numbers : {&m.numbers, &m.entering, &m.leaving, &m.gates}) *numbers = arena.take(kChunk);
    return m;
  }
};

/// Returns the largest numbers of chunks and states that the backward pass keeps for a run of a head's tokens. It keeps
/// all chunks of the run, and the state before each chunk that has queries; rows that see the same state share one. So
/// memory grows with the length of a run, by features * v_dim elements for every 64 tokens. Runs reuse the same memory
/// one after another.
///
/// Keys after the last row are always included, although their gradients are needed only if the final state has one.
template <class T>
KeptOfRun most_kept(const RecurrenceCall<T>& call) {
  KeptOfRun most{0, 0};
  for (Index b = 0; b < call.problem.batch; ++b)
    for (const TokenRun& run : call.runs.of(b)) {
      KeptOfRun kept{2, 0};  // states before the rows that precede all keys, and before those that follow them
      for_each_chunk(run, call.problem.first_query_among_keys(b), call.is_causal, true, kChunk,
                     [&](const TokenChunk& chunk) {
                       kept.states += !chunk.keys.empty() && !chunk.rows.empty();
                       ++kept.chunks;
                     });
      most = {std::max(most.states, kept.states), std::max(most.chunks, kept.chunks)};
    }
  return most;
}

/// Adds the gradients of token gates through the decays between tokens. The gradient of token t's gate is the sum of
/// pairs(i, j), each a score times its gradient, over j < t <= i. It is computed by additions only, because differences
/// would cancel where tokens decay quickly.
template <class T>
void add_gates_between(const Block<T>& pairs, T* to) {
  for (Index i = 1; i < pairs.rows; ++i) {
    T before = 0;
    for (Index t = 1; t <= i; ++t) to[t] += before += pairs.row(i)[t - 1];
  }
}
/// Adds the gradients of token gates through the decays that start before the chunk or reach its end. Token t gets the
/// sum of entering[i] over i >= t, the sum of leaving[j] over j < t, and `passing`.
template <class T>
void add_gates_around(const T* entering, const T* leaving, T passing, Index tokens, T* to) {
  T sum = passing;
  for (Index t = tokens; t-- > 0;) to[t] += sum += entering[t];
  sum = 0;
  for (Index t = 1; t < tokens; ++t) to[t] += sum += leaving[t - 1];
}

/// Backward pass of gated_scores(): adds to the gradients of queries, keys and gates, given the gradient of the scores.
template <class T>
void gated_scores_backward(const ChunkWork<T>& w, Rows<T> query, const Block<T>& grad_query, const Term<T>& term,
                           const Block<T>& grad_key, const RecurrenceBackwardMemory<T>& m) {
  const RecurrenceFamily<T>& kernels = w.kernels;
  const ChunkGates<T>& gates = w.m.gates;
  for (Index i = 0; i < grad_query.rows; i += kNearTokens) {
    const Index count = std::min(kNearTokens, grad_query.rows - i);
    kernels.near_gradients(
        {rows_from(query, i), rows_from(term.key, i), gates.factor.from(i, count), count, grad_query.columns},
        {m.grad_scores.row(i) + i, m.grad_scores.stride}, grad_query.from(i, count), grad_key.from(i, count),
        m.grad_gates.from(i, count));
  }
  for_each_range(grad_query.rows, [&](const HalvedRange& r) {
    const Block<T>& decay = gates.to_middle[r.halving];
    const LeftFactor<T> grad = Rows<T>{m.grad_scores.row(r.middle) + r.begin, m.grad_scores.stride};
    // Adds to the gradient of one half, and returns each of its tokens' contribution to the gradients of gates.
    const auto back = [&](Index at, Rows<T> own, const Block<T>& to, const LeftFactor<T>& of_scores, Index other_at,
                          Rows<T> other, Index others) {
      const Block<T> decayed = m.decayed.from(0, others), sums = m.sums.from(0, to.rows);
      kernels.multiply(decayed, decay.from(other_at, others), rows_from(other, other_at));
      matrix_product(kernels, sums, of_scores, decayed, others);
      kernels.multiply(sums, sums, decay.from(at, to.rows));
      kernels.scale(to, T(1), sums, to);
      kernels.multiply(sums, sums, rows_from(own, at));
      return sums;
    };
    // A gate after the middle affects the decays of the queries from its token on; a gate before the middle affects
    // those of the keys before its token.
    const Block<T> of_queries =
        back(r.middle, query, grad_query.from(r.middle, r.queries), grad, r.begin, term.key, r.half());
    kernels.running(m.grad_gates.from(r.middle, r.queries).backward(), of_queries.backward(), Running::added_sums);
    const Block<T> of_keys =
        back(r.begin, term.key, grad_key.from(r.begin, r.half()), grad.transposed(), r.middle, query, r.queries);
    kernels.running(m.grad_gates.from(r.begin + 1, r.half() - 1), of_keys, Running::added_sums);
  });
}

/// Computes the gradients of one head of keys and values at a time, and of the query heads that share it.
///
/// With scores P (queries times keys times decays), state S before the chunk and gradients G of the output and E of the
/// state after it, all products of a chunk are
///
///     grad_value = Pᵀ G + decayed keys * E      grad_scores = G * valueᵀ
///     grad_query = grad_scores * key + decay * G Sᵀ      grad_key = grad_scoresᵀ * query + decay * value * Eᵀ
///     grad of S = decay * E + (decay * query)ᵀ G
///
/// with the decays where they apply, and for each term that the chunk adds. Readers are queries of the token before
/// them, whose G is the gradient of what they read; it results from the triangular system, transposed.
template <class T>
class RecurrenceBackwardLoop {
 public:
  RecurrenceBackwardLoop(const RecurrenceBackwardCall<T>& call, const ChunkLoader<T>& loader, std::byte* memory,
                         const KeptOfRun& kept)
      : call_(call),
        arena_(memory),
        w_(call.forward, loader, arena_),
        m_(RecurrenceBackwardMemory<T>::take(arena_, call.forward, kept)),
        kernels_(loader.kernels()) {}
  static Index bytes(const RecurrenceCall<T>& call, const KeptOfRun& kept) {
    return ChunkArena<T>::count([&](ChunkArena<T>& arena) {
      ChunkMemory<T>::take(arena, call);
      RecurrenceBackwardMemory<T>::take(arena, call, kept);
    });
  }

  void run(Index batch, Index kv_head) {
    w_.begin(batch, kv_head);
    next_key_ = next_row_ = 0;
    for (const TokenRun& run : w_.call.runs.of(batch)) run_back(run);
    clear_keys({next_key_, w_.call.problem.kv_len});
    clear_rows({next_row_, w_.call.problem.q_len});
  }

 private:
  /// Keys that no row sees, and rows that see no key, have gradients of 0. These functions store them: for the tokens
  /// between the previous chunk of the head and this one, and for some keys or rows.
  void clear_before(const TokenChunk& chunk) {
    if (!chunk.keys.empty()) clear_keys({next_key_, chunk.keys.begin}), next_key_ = chunk.keys.end;
    if (!chunk.rows.empty()) clear_rows({next_row_, chunk.rows.begin}), next_row_ = chunk.rows.end;
  }
  void clear_keys(Range keys) const {
    for (const DTypeView<T>* t :
         {&call_.grad_k, &call_.grad_v, &call_.grad_gate, &call_.grad_beta, &call_.grad_a, &call_.grad_b})
      clear(*t, w_.kv_head, keys);
  }
  void clear_rows(Range rows) const {
    for (Index g = 0; g < w_.call.group(); ++g) clear(call_.grad_q, w_.first_head() + g, rows);
  }
  void clear(const DTypeView<T>& t, Index head, Range range) const {
    if (!t.data() || range.empty()) return;
    const RowsToWrite rows = t.rows(w_.batch, head);
    for (Index i = range.begin; i < range.end; ++i)
      for (Index c = 0; c < t.dim(3); ++c) store_number(rows, i, c, T(0));
  }

  void run_back(const TokenRun& run) {
    const RecurrenceCall<T>& call = w_.call;
    const Index head = w_.head_number();
    const HeadState<T>& state = w_.m.state;
    const bool has_state_gradient = call_.grad_state.sums != nullptr;  // whether the final state has a gradient
    state.clear(call);
    if (call_.before.sums) state.copy_from(call.state_in(call_.before, head), call);
    Index states = 0, chunks = 0;
    bool is_new = true;  // whether the state has changed since one was kept
    for_each_chunk(run, call.problem.first_query_among_keys(w_.batch), call.is_causal, has_state_gradient, kChunk,
                   [&](const TokenChunk& chunk) {
                     clear_before(chunk);
                     if (!chunk.rows.empty() && is_new) kept(states++).copy_from(state, call);
                     is_new = !chunk.keys.empty();
                     m_.chunks[chunks++] = {chunk, states - 1};
                     if (chunk.keys.empty()) return;
                     w_.load_keys(chunk.keys, false);
                     w_.add_to_state();
                   });
    m_.grad_state.clear(call);
    if (has_state_gradient) {
      m_.grad_state.copy_from(HeadState<T>::in(call.state_in(call_.grad_state, head), call), call);
      if (!call.is_normalised) std::fill_n(m_.grad_state.normaliser, call.row_of_features(), T(0));
    }
    bool is_seen = has_state_gradient;  // by rows of later chunks
    while (chunks-- > 0) {
      const KeptChunk& c = m_.chunks[chunks];
      if (!c.tokens.rows.empty()) {
        state.copy_from(kept(c.state), call);
      } else if (!is_seen) {
        clear_keys(c.tokens.keys);
        continue;
      }
      run_chunk(c.tokens);
      is_seen = true;
    }
    if (has_state_gradient)
      HeadState<T>::in(call.state_in(call_.grad_state, head), call).copy_from(m_.grad_state, call);
  }

  HeadState<T> kept(Index i) const {
    T* const sums = m_.states.row(i);
    return HeadState<T>::in({sums, sums + w_.call.size_of_state()}, w_.call);
  }

  /// Computes the gradients of a chunk from the state before it and the gradient of the state after it. Replaces that
  /// gradient with the gradient of the state before the chunk.
  void run_chunk(const TokenChunk& chunk) {
    const Index n = chunk.keys.size();
    if (n > 0) {
      w_.load_keys(chunk.keys, !chunk.rows.empty());
      state_back(n);
      if (!chunk.rows.empty() || w_.call.has_reads())
        for (int t = 0; t < w_.call.terms(); ++t)
          w_.loader.transpose(m_.terms[t].columns, padded(n, kRowUnit<T>), w_.m.terms[t].value, n,
                              w_.call.problem.v_dim);
    }
    if (!chunk.rows.empty() || w_.call.has_reads()) transpose(w_.m.state.sums);
    for (Index g = 0; g < w_.call.group() && !chunk.rows.empty(); ++g) query_back(chunk, w_.first_head() + g);
    if (n == 0) return;
    if (w_.call.has_reads()) readers_back(n);
    store_keys(chunk.keys);
  }

  /// Makes m_.transposed the transpose of a state or its gradient.
  void transpose(const Block<T>& state) {
    w_.loader.transpose(m_.transposed.data, m_.transposed.stride, state, w_.call.features(), w_.call.problem.v_dim);
  }
  /// Computes to = rows * m_.transposed.
  void multiply_transposed(Rows<T> rows, const Block<T>& to) {
    matrix_product(kernels_, to, rows, m_.transposed, w_.call.problem.v_dim);
  }

  /// Computes the gradients through the state after the chunk: the gradients of the chunk's keys and values, and of the
  /// state before the chunk, which decays into the state after it.
  void state_back(Index n) {
    const RecurrenceCall<T>& call = w_.call;
    const ChunkGates<T>& gates = w_.m.gates;
    const Block<T>& e = m_.grad_state.sums;
    std::fill_n(m_.gates, n, T(0));
    std::fill_n(m_.entering, n, T(0));
    std::fill_n(m_.leaving, n, T(0));
    passing_ = 0;
    if (call.gates == Gates::of_tokens) {
      kernels_.add_dots(&passing_, {w_.m.state.sums.data, 0}, {e.data, 0}, 1, e.rows * e.stride);
      passing_ *= gates.over_all_of_token();
    } else if (call.gates == Gates::of_features) {
      std::fill_n(w_.m.decay, m_.grad_gates.columns, T(0));
      kernels_.add_dots(w_.m.decay, w_.m.state.sums, e, e.rows, e.columns);
      for (Index f = 0; f < call.features(); ++f) w_.m.decay[f] *= gates.over_all()[f];
      for (Index t = 0; t < n; ++t) std::copy_n(w_.m.decay, m_.grad_gates.columns, m_.grad_gates.row(t));
    }
    transpose(e);
    for (int t = 0; t < call.terms(); ++t) {
      const Term<T>& term = w_.m.terms[t];
      const Block<T> keys = m_.terms[t].key.from(0, n), decayed = m_.decayed.from(0, n), sums = m_.sums.from(0, n);
      multiply_transposed(term.value, keys);
      Rows<T> key = term.key;
      if (call.gates != Gates::none) {
        w_.decay_to_end(keys, keys);
        w_.decay_to_end(key, decayed);
        if (call.gates == Gates::of_tokens) {
          kernels_.add_dots(m_.leaving, keys, key, n, keys.columns);
        } else {
          kernels_.multiply(sums, keys, key);
          kernels_.running(m_.grad_gates.from(1, n - 1), sums, Running::added_sums);
        }
        key = decayed;
      }
      matrix_product(kernels_, m_.terms[t].value.from(0, n), key, e, call.features());
      if (call.is_normalised) kernels_.scale(keys, T(1), {m_.grad_state.normaliser, 0}, keys);
    }
    if (call.gates == Gates::of_tokens)
      kernels_.scale(e, gates.over_all_of_token(), e, {});
    else if (call.gates == Gates::of_features)
      kernels_.scale(e, gates.over_all(), e, {});
  }

  /// Computes the gradients of one query head of the chunk.
  void query_back(const TokenChunk& chunk, Index head) {
    const RecurrenceCall<T>& call = w_.call;
    const Index rows = chunk.rows.size(), n = chunk.keys.size();
    const Rows<T> query = w_.load_queries(head, chunk.rows.begin, rows);
    const Block<T> grad = m_.grad_out.from(0, rows), to = m_.grad_query.from(0, rows), scores = w_.m.scores.from(0, n);
    w_.loader.copy(call_.grad_out.rows(w_.batch, head, chunk.rows.begin), rows, call.problem.v_dim, grad.data);
    if (!call.is_normalised && n == 0) return clear(call_.grad_q, head, chunk.rows);  // after the last token
    if (call.is_normalised) normaliser_back(query, rows, n);
    read_back(query, grad, to, 0);
    if (call.is_normalised) add_sum_of(query, rows);
    for (int t = 0; t < call.terms() && n > 0; ++t) {
      if (!call.is_normalised) w_.compute_scores(query, n, w_.m.terms[t], scores);
      add_pairs(scores, grad, m_.terms[t].value.from(0, n), Steps::from_row);
      scores_back(query, grad, to, t, scores);
    }
    store_queries(chunk.rows, head, query);
  }

  /// Computes `to`, the gradient of queries through the state before the chunk, which they see decayed, and adds to the
  /// gradient of that state; see ChunkWork::decay_from_start() for `lag`.
  void read_back(Rows<T> query, const Block<T>& grad, const Block<T>& to, Index lag) {
    const RecurrenceCall<T>& call = w_.call;
    multiply_transposed(grad, to);
    if (call.is_normalised) kernels_.scale(to, m_.numbers, {w_.m.state.normaliser, 0}, to);
    Rows<T> decayed = query;
    if (call.gates != Gates::none) {
      const Block<T> rows = m_.decayed.from(0, to.rows), later = to.from(lag, to.rows - lag);
      w_.decay_from_start(to, to, lag);
      if (call.gates == Gates::of_tokens) {
        kernels_.add_dots(m_.entering, later, rows_from(query, lag), later.rows, to.columns);
      } else if (later.rows > 0) {
        const Block<T> products = m_.sums.from(0, later.rows);
        kernels_.multiply(products, later, rows_from(query, lag));
        kernels_.running(m_.grad_gates.from(0, later.rows).backward(), products.backward(), Running::added_sums);
      }
      w_.decay_from_start(query, rows, lag);
      decayed = rows;
    }
    matrix_product(kernels_, m_.grad_state.sums, LeftFactor<T>(decayed).transposed(), grad, grad.rows, T(1));
  }

  /// With a normaliser, replaces the gradient of the output with the gradient of the numerator, and sets m_.numbers to
  /// the gradient of the normaliser. The normaliser is the output of a value that is 1 for every key.
  void normaliser_back(Rows<T> query, Index rows, Index n) {
    const Block<T> grad = m_.grad_out.from(0, rows), out = w_.m.out.from(0, rows);
    w_.read_state(query, out);
    std::fill_n(w_.m.numbers, rows, T(0));
    if (n > 0) {
      w_.compute_scores(query, n, w_.m.terms[0], w_.m.scores);
      w_.add_seen_values(w_.m.terms[0], out);
      kernels_.add_dots(w_.m.numbers, query, w_.m.key_sums, n, w_.m.key_sums.columns);
    }
    w_.compute_inverse_normalisers(query, rows);
    kernels_.scale(grad, w_.m.numbers, grad, {});
    kernels_.scale(out, w_.m.numbers, out, {});
    std::fill_n(m_.numbers, rows, T(0));
    kernels_.add_dots(m_.numbers, grad, out, rows, out.columns);
    for (Index i = 0; i < rows; ++i) m_.numbers[i] = -m_.numbers[i];
  }
  /// Adds the queries, each times the gradient of its normaliser, to the gradient of the state's normaliser.
  void add_sum_of(Rows<T> query, Index rows) {
    for (Index i = 0; i < rows; ++i)
      for (Index f = 0; f < w_.call.features(); ++f)
        m_.grad_state.normaliser[f] += m_.numbers[i] * query.data[i * query.stride + f];
  }

  /// Adds the gradients through the scores of queries with the keys of a term, which are overwritten; query i sees keys
  /// up to token i.
  void scores_back(Rows<T> query, const Block<T>& grad, const Block<T>& to, int t, const Block<T>& scores) {
    const RecurrenceCall<T>& call = w_.call;
    const Index n = scores.rows, width = padded(w_.tokens, kRowUnit<T>);
    const Block<T> pairs{scores.data, scores.stride, n, width},
        keys = m_.terms[t].key.from(0, n), grad_scores{m_.grad_scores.data, m_.grad_scores.stride, n, width};
    const Term<T>& term = w_.m.terms[t];
    lower_scores(kernels_, grad, m_.terms[t].columns, width, n, call.problem.v_dim, grad_scores);
    if (call.is_normalised)
      for (Index i = 0; i < n; ++i)
        for (Index j = 0; j <= i; ++j) grad_scores.row(i)[j] += m_.numbers[i];
    if (call.gates == Gates::of_features) return gated_scores_backward(w_, query, to, term, keys, m_);
    if (call.gates == Gates::of_tokens) {
      kernels_.multiply(pairs, pairs, grad_scores);
      add_gates_between(pairs, m_.gates);
      kernels_.multiply(grad_scores, grad_scores, w_.m.gates.between);
    }
    add_pairs(grad_scores, term.key, to, Steps::up_to_row);
    add_pairs(grad_scores, query, keys, Steps::from_row);
  }
  /// Adds pairs * rows, where the sum for a token ends at that token, or pairsᵀ * rows, where it begins there.
  void add_pairs(const Block<T>& pairs, Rows<T> rows, const Block<T>& to, Steps steps) {
    const LeftFactor<T> left = pairs;
    matrix_product(kernels_, to, steps == Steps::up_to_row ? left : left.transposed(), rows, pairs.rows, T(1), steps);
  }

  /// Computes the gradients through what the readers read. The forward pass solved, with factors f,
  ///
  ///     seen_i = .. + sum over j < i of read_ij * written_j,   written_i = f_i * seen_i
  void readers_back(Index n) {
    const RecurrenceCall<T>& call = w_.call;
    const int last = call.terms() - 1;
    const Rows<T> read = w_.written_term().read;
    const Block<T> grad_written = m_.terms[last].value.from(0, n), grad_seen = m_.grad_seen.from(0, n),
                   to = m_.grad_reader.from(0, n);
    for (Index end = n; end > 0;) {
      const Index begin = (end - 1) / kScoreRows * kScoreRows;
      if (end < n) {
        const LeftFactor<T> below = Rows<T>{read.data + end * read.stride + begin, read.stride};
        matrix_product(kernels_, grad_written.from(begin, end - begin), below.transposed(),
                       grad_seen.from(end, n - end), n - end, T(1));
      }
      kernels_.substitute(grad_written, grad_seen.data, read, w_.m.gates.written, {begin, end}, true);
      end = begin;
    }
    read_back(w_.reader, grad_seen, to, 1);
    const Index later = n - 1;  // readers of the chunk's own tokens
    for (int t = 0; t <= last; ++t) {
      const Block<T> scores = w_.m.terms[t].read.from(1, later), grad = grad_seen.from(1, later);
      if (t < last) add_pairs(scores, grad, m_.terms[t].value.from(0, later), Steps::from_row);
      scores_back(rows_from(w_.reader, 1), grad, to.from(1, later), t, scores);
    }
    if (call.has_beta()) beta_back(grad_written, grad_seen, to);
  }
  /// With beta, readers are e^gate * key, seen_i lacks value_i, and the factors are -beta.
  void beta_back(const Block<T>& grad_written, const Block<T>& grad_seen, const Block<T>& grad_reader) {
    const Index n = w_.tokens;
    std::fill_n(m_.numbers, n, T(0));
    kernels_.add_dots(m_.numbers, grad_written, w_.m.seen, n, grad_written.columns);
    kernels_.scale(grad_written, T(-1), grad_seen, {});  // now the gradient of the values
    const Block<T> keys = m_.terms[0].key.from(0, n), sums = m_.sums.from(0, n);
    if (w_.call.gates == Gates::of_tokens) {
      kernels_.add_dots(m_.gates, grad_reader, w_.reader, n, grad_reader.columns);
    } else {
      kernels_.multiply(sums, grad_reader, w_.reader);
      kernels_.scale(m_.grad_gates.from(0, n), T(1), sums, m_.grad_gates);
    }
    w_.decay_by_own_gate(grad_reader, grad_reader);
    kernels_.scale(keys, T(1), grad_reader, keys);
  }

  void store_queries(Range rows, Index head, Rows<T> query) {
    const RecurrenceCall<T>& call = w_.call;
    const Block<T> grad = m_.grad_query.from(0, rows.size()), raw = w_.m.raw.from(0, rows.size()),
                   to = m_.grad_raw.from(0, rows.size());
    const RowsToWrite out = call_.grad_q.rows(w_.batch, head, rows.begin);
    if (!call.is_normalised) {
      kernels_.scale(grad, call.scale, grad, {});
      return w_.loader.store(grad, rows.size(), call.problem.head_dim, out);
    }
    w_.loader.copy(call.q.rows(w_.batch, head, rows.begin), rows.size(), call.problem.head_dim, raw.data);
    call.map.gradients(kernels_, raw, query, w_.m.factor, grad, to, true);
    w_.loader.store(to, rows.size(), call.problem.head_dim, out);
  }

  void store_keys(Range keys) {
    const RecurrenceCall<T>& call = w_.call;
    const Index n = keys.size(), batch = w_.batch, head = w_.kv_head;
    const Block<T> grad = m_.terms[0].key.from(0, n), raw = w_.m.raw.from(0, n), to = m_.grad_raw.from(0, n);
    w_.loader.store(m_.terms[0].value.from(0, n), n, call.problem.v_dim, call_.grad_v.rows(batch, head, keys.begin));
    const RowsToWrite out = call_.grad_k.rows(batch, head, keys.begin);
    if (call.is_normalised) {
      w_.loader.copy(call.k.rows(batch, head, keys.begin), n, call.problem.head_dim, raw.data);
      call.map.gradients(kernels_, raw, w_.key(), nullptr, grad, to, false);
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
    if (call.has_beta()) {
      const RowsToWrite rows = call_.grad_beta.rows(batch, head, keys.begin);
      for (Index i = 0; i < n; ++i) store_number(rows, i, 0, -m_.numbers[i]);
    } else if (call.has_reads()) {
      w_.loader.store(m_.grad_reader.from(0, n), n, call.features(), call_.grad_a.rows(batch, head, keys.begin));
      w_.loader.store(m_.terms[1].key.from(0, n), n, call.features(), call_.grad_b.rows(batch, head, keys.begin));
    }
  }

  const RecurrenceBackwardCall<T>& call_;
  ChunkArena<T> arena_;
  ChunkWork<T> w_;
  RecurrenceBackwardMemory<T> m_;
  const RecurrenceFamily<T>& kernels_;
  T passing_ = 0;
  Index next_key_ = 0, next_row_ = 0;  ///< of the head: the tokens before them have gradients
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
