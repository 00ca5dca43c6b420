// Computation of a chunk of tokens: the scores of its tokens with each other (query * key, times the decay of the key),
// and what the chunk adds to the state.
#pragma once

#include <algorithm>

#include "attn/recurrent/chunk.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rows of scores that are computed at a time. Their columns end with the last token that any of them sees.
constexpr Index kScoreRows = 16;

/// Memory for computing scores with feature gates.
template <class T>
struct ScoreMemory {
  T* columns;           ///< (features, tokens): keys transposed
  Block<T> query, key;  ///< (tokens, features): decayed to the middle of a range of tokens

  static ScoreMemory take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const bool by_feature = call.gates == Gates::of_features;
    const Index row = call.row_of_features();
    return {arena.take(call.features() * kChunk), take_block(arena, by_feature ? kChunk / 2 : 0, row),
            take_block(arena, by_feature ? kChunk / 2 : 0, row)};
  }
};

/// Computes scores(i, j) = a_i * b_j for j <= i < tokens. `columns` holds b transposed, with stride `width`. Columns j
/// > i hold garbage.
template <class T>
void lower_scores(const RecurrenceFamily<T>& kernels, std::type_identity_t<Rows<T>> a, const T* columns, Index width,
                  Index tokens, Index features, const Block<T>& scores) {
  for (Index i = 0; i < tokens; i += kScoreRows) {
    const Index rows = std::min(kScoreRows, tokens - i);
    const Block<T> to{scores.row(i), scores.stride, rows, std::min(padded(i + rows, kRowUnit<T>), width)};
    matrix_product(kernels, to, Rows<T>{a.data + i * a.stride, a.stride}, {columns, width}, features);
  }
}

/// Computes scores with feature gates, whose decays differ between features and cannot be taken out of the product. For
/// queries in the second half of a range of tokens and keys in the first, decays are split at the middle: keys are
/// decayed up to the middle, and queries from the middle on. So no exponent is above 0, whatever the gates are, and
/// each pair of halves is a matrix product. Ranges of up to kNearTokens are computed pair by pair. (Yang et al. 2024,
/// "Gated linear attention transformers with hardware-efficient training", section 4.3, divide by the decays within
/// sub-chunks instead.)
template <class T>
void gated_scores(const ChunkLoader<T>& loader, Rows<T> query, Rows<T> key, const ChunkGates<T>& gates, Index features,
                  const ScoreMemory<T>& m, const Block<T>& scores) {
  const RecurrenceFamily<T>& kernels = loader.kernels();
  const auto at = [](Rows<T> rows, Index i) { return Rows<T>{rows.data + i * rows.stride, rows.stride}; };
  const Index n = gates.tokens;
  for (Index i = 0; i < n; i += kNearTokens)
    kernels.near_scores({at(query, i), at(key, i), at(gates.factor, i), std::min(kNearTokens, n - i), m.query.columns},
                        {scores.row(i) + i, scores.stride, kNearTokens, kNearTokens});
  for (Index half = kNearTokens; half < n; half *= 2)
    for (Index begin = 0; begin + half < n; begin += 2 * half) {
      const Index middle = begin + half, above = std::min(half, n - middle);
      const Block<T> q = m.query.from(0, above), k = m.key.from(0, half);
      kernels.running_sums(q, at(gates.gate, middle), Stored::exponential);
      kernels.multiply(q, q, at(query, middle));
      decays_to_last(kernels, at(gates.gate, begin), k);
      kernels.multiply(k, k, at(key, begin));
      loader.transpose(m.columns, half, k, half, features);
      const Block<T> to{scores.row(middle) + begin, scores.stride, above, half};
      matrix_product(kernels, to, q, {m.columns, half}, features);
    }
}

/// Features of a state that are updated at a time: 12 KiB with 128 columns, and whole register tiles.
constexpr Index kFeaturesAtOnce = 24;

/// A worker's memory for one chunk, and for the state unless it is the caller's.
template <class T>
struct ChunkMemory {
  HeadState<T> state;
  HeadState<T> running{};    ///< in a run of several segments, the state of the current one
  SegmentSums<T> segment{};  ///< sums that the current segment adds
  Block<T> added{};          ///< sums that a chunk adds for some features
  Block<T> raw;              ///< rows that features are computed from
  Block<T> key, query, value, out;
  Block<T> decayed;   ///< keys or queries, decayed
  Block<T> key_sums;  ///< sums of the chunk's keys up to each token
  Block<T> scores;
  Block<T> written;  ///< with the delta rule, the values that tokens add to the state, before beta
  Block<T> written_beta;
  Block<T> among_keys;  ///< with the delta rule, -key * key, decayed
  T* numbers;           ///< (tokens): factors of rows
  T* factor;            ///< (tokens): factors of query features
  T* decay;             ///< (features)
  ChunkGates<T> gates;
  ScoreMemory<T> among;

  /// `in_segments`: whether a run has several segments.
  static ChunkMemory take(ChunkArena<T>& arena, const RecurrenceCall<T>& call, bool in_segments = false) {
    const Index in = call.row_of_inputs(), f = call.row_of_features(), v = call.row_of_values();
    const bool delta = call.has_delta();
    ChunkMemory m{};
    if (!call.state.sums) m.state = HeadState<T>::take(arena, call);
    if (in_segments) {
      m.running = HeadState<T>::take(arena, call);
      m.segment = SegmentSums<T>::take(arena, call);
      m.added = take_block(arena, kFeaturesAtOnce, v);
    }
    m.raw = take_block(arena, kChunk, in);
    m.key = take_block(arena, kChunk, f);
    m.query = take_block(arena, kChunk, f);
    m.value = take_block(arena, kChunk, v);
    m.out = take_block(arena, kChunk, v);
    m.decayed = take_block(arena, call.gates == Gates::none ? 0 : kChunk, f);
    m.key_sums = take_block(arena, kChunk, f);
    m.scores = take_block(arena, kChunk, kChunk);
    m.written = take_block(arena, delta ? kChunk : 0, v);
    m.written_beta = take_block(arena, delta ? kChunk : 0, v);
    m.among_keys = take_block(arena, delta ? kChunk : 0, kChunk);
    m.numbers = arena.take(kChunk);
    m.factor = arena.take(kChunk);
    m.decay = arena.take(f);
    m.gates = ChunkGates<T>::take(arena, call);
    m.among = ScoreMemory<T>::take(arena, call);
    return m;
  }
};

/// A head of keys and values, its state, and the current chunk of its tokens.
template <class T>
struct ChunkWork {
  const RecurrenceCall<T>& call;
  const ChunkLoader<T>& loader;
  const RecurrenceFamily<T>& kernels;
  ChunkMemory<T> m;
  Index batch = 0, kv_head = 0;
  Index tokens = 0;  ///< of the current chunk
  Rows<T> key{}, value{};

  ChunkWork(const RecurrenceCall<T>& c, const ChunkLoader<T>& l, ChunkArena<T>& arena, bool in_segments = false)
      : call(c), loader(l), kernels(l.kernels()), m(ChunkMemory<T>::take(arena, c, in_segments)) {}

  /// Begins a head, with its state in the caller's memory if there is one.
  void begin(Index of_batch, Index of_kv_head) {
    batch = of_batch;
    kv_head = of_kv_head;
    if (call.state.sums) m.state = HeadState<T>::in(call.state_in(call.state, head_number()), call);
  }
  void clear_state() { m.state.clear(call); }
  /// Index of the current head among all states.
  Index head_number() const { return batch * call.problem.kv_heads + kv_head; }
  /// The first of the query heads that share the current head's keys.
  Index first_head() const { return kv_head * call.group(); }

  /// Loads the rows of some keys and values, and their gates. `for_step`: there is one token, see ChunkGates::load().
  void load_rows(Range of, bool for_step) {
    tokens = of.size();
    key = loader.keys(call.k.rows(batch, kv_head, of.begin), tokens, m.raw, m.key);
    value = loader.rows(call.v.rows(batch, kv_head, of.begin), tokens, call.problem.v_dim, m.value.data);
    m.gates.load(call, loader, batch, kv_head, of, for_step);
  }
  /// Also loads everything that the products of a chunk need. With the delta rule, the values that the tokens write
  /// replace their values. `are_seen`: whether queries of the same chunk see these keys.
  void load_keys(Range of, bool are_seen) {
    load_rows(of, false);
    if (call.is_normalised) kernels.running_sums(m.key_sums.from(0, tokens), key, Stored::sum);
    if (call.has_delta() || (are_seen && call.gates != Gates::of_features))
      loader.transpose(m.among.columns, padded(tokens, kRowUnit<T>), key, tokens, call.features());
    if (call.has_delta()) compute_written();
  }

  /// Loads queries. Unless `scaled`, the caller multiplies by the scale, and queries without features may stay in
  /// place.
  Rows<T> load_queries(Index head, Index row, Index count, bool scaled = true) {
    return loader.queries(call.q.rows(batch, head, row), count, m.raw, m.query, m.factor, scaled);
  }

  /// Computes to = rows * state.
  void read_state(Rows<T> rows, const Block<T>& to) {
    matrix_product(kernels, to, rows, m.state.sums, call.features());
  }

  /// Computes m.scores = query * key of the chunk's tokens, with the decays between them, for keys up to each query.
  void compute_scores(Rows<T> query) {
    if (call.gates == Gates::of_features)
      return gated_scores(loader, query, key, m.gates, call.features(), m.among, m.scores);
    const Index width = padded(tokens, kRowUnit<T>);
    lower_scores(kernels, query, m.among.columns, width, tokens, call.features(), m.scores);
    if (call.gates == Gates::of_tokens)
      kernels.multiply({m.scores.data, m.scores.stride, tokens, width}, m.scores, m.gates.between);
  }
  /// Computes to = query * state, decayed up to each query.
  void read_decayed_state(Rows<T> query, const Block<T>& to) {
    if (call.gates != Gates::of_features) {
      read_state(query, to);
      if (call.gates == Gates::of_tokens) kernels.scale(to, m.gates.from_start, to, {});
    } else {
      const Block<T> decayed = m.decayed.from(0, tokens);
      kernels.multiply(decayed, m.gates.start, query);
      read_state(decayed, to);
    }
  }
  /// Adds scores * value to `to`.
  void add_seen_values(const Block<T>& to) {
    matrix_product(kernels, to, m.scores, value, tokens, T(1), Steps::up_to_row);
  }
  /// Replaces m.numbers with 1 / (query * normaliser of the state + m.numbers), or 0 for a normaliser of 0.
  void compute_inverse_normalisers(Rows<T> query, Index rows) {
    kernels.add_dots(m.numbers, query, {m.state.normaliser, 0}, rows, call.row_of_features());
    for (Index i = 0; i < rows; ++i) m.numbers[i] = m.numbers[i] == T(0) ? T(0) : T(1) / m.numbers[i];
  }

  /// Adds the chunk's keys and values, decayed to its end, to the state.
  void add_to_state() {
    const Block<T>& s = m.state.sums;
    const LeftFactor<T> added = decayed_keys();
    if (call.gates == Gates::of_features) kernels.scale(s, m.gates.over_all(), s, {});
    const T before = call.gates == Gates::of_tokens ? m.gates.over_all_of_token() : T(1);
    matrix_product(kernels, s, added.transposed(), value, tokens, before);
    if (call.is_normalised) add_normaliser(m.state, m.key_sums.row(tokens - 1));
  }
  /// Counterpart of add_to_state() in a run of several segments: adds to two states, or to one if the other is null.
  /// Some features are processed at a time, so that their product stays in the L1 cache. A state gets the same bits
  /// whether or not the other one is given. As in add_to_state(), with token gates a state with decay 0 is not read, so
  /// that none of its NaNs remain.
  void add_to_states(const HeadState<T>* running, const SegmentSums<T>* segment) {
    const Rows<T> added = decayed_keys();
    const bool forgets = call.gates == Gates::of_tokens && m.gates.over_all_of_token() == T(0);
    const auto advance = [&](const Block<T>& to, const Block<T>& by, const T* decay) {
      if (!forgets) return kernels.scale(to, decay, to, by);
      for (Index i = 0; i < to.rows; ++i) std::copy_n(by.row(i), to.columns, to.row(i));
    };
    for (Index f = 0; f < call.features(); ++f)
      m.decay[f] = call.gates == Gates::none        ? T(1)
                   : call.gates == Gates::of_tokens ? m.gates.over_all_of_token()
                                                    : m.gates.over_all()[f];
    for (Index f = 0; f < call.features(); f += kFeaturesAtOnce) {
      const Index n = std::min(kFeaturesAtOnce, call.features() - f);
      const Block<T> x = m.added.from(0, n);
      const LeftFactor<T> some_features = Rows<T>{added.data + f, added.stride};
      matrix_product(kernels, x, some_features.transposed(), value, tokens);
      if (running) advance(running->sums.from(f, n), x, m.decay + f);
      if (segment) advance(segment->sums.sums.from(f, n), x, m.decay + f);
    }
    if (segment && call.gates != Gates::none)
      for (Index f = 0; f < call.features(); ++f) segment->decay[f] *= m.decay[f];
    if (!call.is_normalised) return;
    if (running) add_normaliser(*running, m.key_sums.row(tokens - 1));
    if (segment) add_normaliser(segment->sums, m.key_sums.row(tokens - 1));
  }
  void add_normaliser(const HeadState<T>& to, const T* sum) {
    for (Index f = 0; f < call.features(); ++f) to.normaliser[f] += sum[f];
  }

 private:
  /// Returns the chunk's keys, decayed to its end.
  Rows<T> decayed_keys() {
    if (call.gates == Gates::none) return key;
    const Block<T> decayed = m.decayed.from(0, tokens);
    if (call.gates == Gates::of_tokens) {
      kernels.scale(decayed, m.gates.to_end(), key, {});
    } else {
      decays_to_last(kernels, m.gates.gate, decayed);
      kernels.multiply(decayed, decayed, key);
    }
    return decayed;
  }

  /// Computes the values u_i = beta_i * w_i that the delta rule writes, where each w_i depends on those before:
  ///
  ///     w_i = value_i - decay_i * state * key_i - sum over j < i of decay_ij * (key_i * key_j) * u_j
  ///
  /// This is the WY representation of the product of the steps' Householder-like factors (Yang et al. 2024,
  /// "Parallelizing linear transformers with the delta rule", section 3; with gates, "Gated delta networks", section
  /// 3.3). The triangular system is solved by substitution, not by its inverse: the rows are computed in order anyway,
  /// and the inverse would be one more product.
  void compute_written() {
    const Index n = tokens, width = padded(n, kRowUnit<T>);
    const Block<T> w = m.written.from(0, n), a{m.among_keys.data, m.among_keys.stride, n, width};
    read_state(key, w);
    kernels.scale(w, -RowFactors<T>(m.gates.from_start), w, value);
    lower_scores(kernels, key, m.among.columns, width, n, call.features(), a);
    kernels.multiply(a, a, m.gates.between);
    kernels.scale(a, T(-1), a, {});
    for (Index i = 0; i < n; i += kScoreRows) {
      const Index end = std::min(i + kScoreRows, n);
      if (i > 0) matrix_product(kernels, w.from(i, end - i), a.from(i, end - i), m.written_beta, i, T(1));
      kernels.substitute(w, m.written_beta.data, a, m.gates.beta, {i, end}, false);
    }
    value = m.written_beta;
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
