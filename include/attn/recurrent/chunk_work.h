// Computation of a chunk of tokens: the scores of its tokens with each other (query * key, times the decay of the key),
// and what the chunk adds to the state.
#pragma once

#include <algorithm>
#include <span>

#include "attn/recurrent/chunk.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rows of scores that are computed at a time. Their columns end with the last token that any of them sees.
constexpr Index kScoreRows = 16;

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

/// The rows from row i on.
template <class T>
Rows<T> rows_from(Rows<T> rows, Index i) {
  return {rows.data + i * rows.stride, rows.stride};
}

/// Keys of a chunk, and the values that it adds to the state with them.
template <class T>
struct Term {
  Rows<T> key{}, value{};
  T* columns;         ///< (features, tokens): keys transposed; with feature gates, those of range_columns()
  Block<T> key_rows;  ///< memory of keys that cannot be read in place
  Block<T> read;      ///< (tokens, tokens): readers * keys, decayed, for earlier keys

  static Term take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    Term t;
    t.columns = arena.take(call.features() * kChunk);
    t.key_rows = take_block(arena, kChunk, call.row_of_features());
    t.read = take_block(arena, call.has_reads() ? kChunk : 0, kChunk);
    return t;
  }

  /// With feature gates, the keys of the first half of a range, decayed to its middle and transposed: (features, half).
  T* range_columns(const HalvedRange& r, Index features) const {
    return columns + features * (r.halving * kChunk / 2 + r.begin / 2);
  }
};

/// Computes scores with feature gates, whose decays differ between features and cannot be taken out of the product. For
/// queries in the second half of a range of tokens and keys in the first, decays are split at the middle: keys are
/// decayed up to the middle, and queries from the middle on. So all decays are products of e^gate, whatever the gates
/// are, and each pair of halves is a matrix product. Ranges of up to kNearTokens are computed pair by pair. (Yang et
/// al. 2024, "Gated linear attention transformers with hardware-efficient training", section 4.3, divide by the decays
/// within sub-chunks instead.) `memory` is for rows of half a chunk.
template <class T>
void gated_scores(const RecurrenceFamily<T>& kernels, Rows<T> query, Index queries, const Term<T>& term,
                  const ChunkGates<T>& gates, Index features, const Block<T>& memory, const Block<T>& scores) {
  for (Index i = 0; i < queries; i += kNearTokens)
    kernels.near_scores({rows_from(query, i), rows_from(term.key, i), gates.factor.from(i, kNearTokens),
                         std::min(kNearTokens, queries - i), memory.columns},
                        {scores.row(i) + i, scores.stride, kNearTokens, kNearTokens});
  for_each_range(queries, [&](const HalvedRange& r) {
    const Block<T> q = memory.from(0, r.queries);
    kernels.multiply(q, gates.to_middle[r.halving].from(r.middle, r.queries), rows_from(query, r.middle));
    const Block<T> to{scores.row(r.middle) + r.begin, scores.stride, r.queries, r.half()};
    matrix_product(kernels, to, q, {term.range_columns(r, features), r.half()}, features);
  });
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
  Term<T> terms[2];
  Block<T> query, value, out;
  Block<T> decayed;   ///< keys or queries, decayed
  Block<T> key_sums;  ///< sums of the chunk's keys up to each token
  Block<T> scores;
  Block<T> reader;   ///< (tokens, features): the rule's a
  Block<T> seen;     ///< (tokens, v_dim): what the readers read; with beta, less the values
  Block<T> written;  ///< (tokens, v_dim): the values that result from it
  T* numbers;        ///< (tokens): factors of rows
  T* factor;         ///< (tokens): factors of query features
  T* decay;          ///< (features)
  ChunkGates<T> gates;

  /// `in_segments`: whether a run has several segments.
  static ChunkMemory take(ChunkArena<T>& arena, const RecurrenceCall<T>& call, bool in_segments = false) {
    const Index in = call.row_of_inputs(), f = call.row_of_features(), v = call.row_of_values();
    const Index readers = call.has_reads() ? kChunk : 0;
    ChunkMemory m{};
    if (!call.state.sums) m.state = HeadState<T>::take(arena, call);
    if (in_segments) {
      m.running = HeadState<T>::take(arena, call);
      m.segment = SegmentSums<T>::take(arena, call);
      m.added = take_block(arena, kFeaturesAtOnce, v);
    }
    m.raw = take_block(arena, kChunk, in);
    for (int t = 0; t < call.terms(); ++t) m.terms[t] = Term<T>::take(arena, call);
    m.query = take_block(arena, kChunk, f);
    m.value = take_block(arena, kChunk, v);
    m.out = take_block(arena, kChunk, v);
    m.decayed = take_block(arena, call.gates == Gates::none ? 0 : kChunk, f);
    m.key_sums = take_block(arena, kChunk, f);
    m.scores = take_block(arena, kChunk, kChunk);
    m.reader = take_block(arena, readers, f);
    m.seen = take_block(arena, readers, v);
    m.written = take_block(arena, readers, v);
    for (T** numbers : {&m.numbers, &m.factor}) *numbers = arena.take(kChunk);
    m.decay = arena.take(f);
    m.gates = ChunkGates<T>::take(arena, call);
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
  Rows<T> reader{};  ///< the rule's a: row i reads the state before token i

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

  std::span<Term<T>> terms() { return {m.terms, static_cast<std::size_t>(call.terms())}; }
  /// The term whose values depend on what the readers read.
  Term<T>& written_term() { return m.terms[call.terms() - 1]; }
  const Rows<T>& key() const { return m.terms[0].key; }

  /// Loads the rows of some keys, values and readers, and their gates. `for_step`: there is one token, see
  /// ChunkGates::load().
  void load_rows(Range of, bool for_step) {
    tokens = of.size();
    Term<T>& first = m.terms[0];
    first.key = loader.keys(call.k.rows(batch, kv_head, of.begin), tokens, m.raw, first.key_rows);
    first.value = loader.rows(call.v.rows(batch, kv_head, of.begin), tokens, call.problem.v_dim, m.value.data);
    m.gates.load(call, loader, batch, kv_head, of, for_step);
    if (call.has_beta()) {
      reader = m.reader;
      decay_by_own_gate(first.key, m.reader.from(0, tokens));
    } else if (call.has_reads()) {
      const auto load = [&](const DTypeView<const T>& from, const Block<T>& to) {
        return loader.rows(from.rows(batch, kv_head, of.begin), tokens, call.features(), to.data);
      };
      reader = load(call.a, m.reader);
      m.terms[1].key = load(call.b, m.terms[1].key_rows);
    }
  }
  /// Computes to = e^gate * rows, each row with the gate of its token.
  void decay_by_own_gate(Rows<T> rows, const Block<T>& to) {
    if (call.gates == Gates::of_features)
      kernels.multiply(to, m.gates.factor, rows);
    else
      kernels.scale(to, m.gates.of_token, rows, {});
  }
  /// Also loads everything that the products of a chunk need, and computes the values that depend on the state.
  /// `are_seen`: whether queries of the same chunk see these keys.
  void load_keys(Range of, bool are_seen) {
    load_rows(of, false);
    if (call.is_normalised) kernels.running(m.key_sums.from(0, tokens), key(), Running::sums);
    if (are_seen || call.has_reads())
      for (const Term<T>& t : terms()) load_columns(t);
    if (call.has_reads()) compute_written();
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

  /// Computes to = query * key of the chunk's tokens, with the decays between them, for keys up to each query.
  void compute_scores(Rows<T> query, Index queries, const Term<T>& term, const Block<T>& to) {
    if (call.gates == Gates::of_features)
      return gated_scores(kernels, query, queries, term, m.gates, call.features(), m.decayed, to);
    const Index width = padded(tokens, kRowUnit<T>);
    lower_scores(kernels, query, term.columns, width, queries, call.features(), to);
    if (call.gates == Gates::of_tokens) kernels.multiply({to.data, to.stride, queries, width}, to, m.gates.between);
  }
  /// Computes to = rows, decayed up to each query. Row i has token i - lag; rows before token 0 do not decay.
  void decay_from_start(Rows<T> rows, const Block<T>& to, Index lag) {
    const Block<T> later = to.from(lag, to.rows - lag);
    if (lag > 0 && to.data != rows.data) std::copy_n(rows.data, lag * to.columns, to.data);
    if (call.gates == Gates::of_features)
      kernels.multiply(later, m.gates.start, rows_from(rows, lag));
    else
      kernels.scale(later, m.gates.from_start, rows_from(rows, lag), {});
  }
  /// Computes to = rows, each decayed from its token to the chunk's end.
  void decay_to_end(Rows<T> rows, const Block<T>& to) {
    if (call.gates == Gates::of_features)
      kernels.multiply(to, m.gates.to_end, rows);
    else
      kernels.scale(to, m.gates.to_last(), rows, {});
  }
  /// Computes to = query * state, decayed up to each query; see decay_from_start().
  void read_decayed_state(Rows<T> query, const Block<T>& to, Index lag = 0) {
    if (call.gates != Gates::of_features) {
      read_state(query, to);
      if (call.gates == Gates::of_tokens) decay_from_start(to, to, lag);
    } else {
      const Block<T> decayed = m.decayed.from(0, to.rows);
      decay_from_start(query, decayed, lag);
      read_state(decayed, to);
    }
  }
  /// Adds scores * value to `to`.
  void add_seen_values(const Term<T>& term, const Block<T>& to) {
    matrix_product(kernels, to, m.scores, term.value, tokens, T(1), Steps::up_to_row);
  }
  /// Replaces m.numbers with 1 / (query * normaliser of the state + m.numbers), or 0 for a normaliser of 0.
  void compute_inverse_normalisers(Rows<T> query, Index rows) {
    kernels.add_dots(m.numbers, query, {m.state.normaliser, 0}, rows, call.row_of_features());
    for (Index i = 0; i < rows; ++i) m.numbers[i] = m.numbers[i] == T(0) ? T(0) : T(1) / m.numbers[i];
  }

  /// Adds the chunk's keys and values, decayed to its end, to the state.
  void add_to_state() {
    const Block<T>& s = m.state.sums;
    if (call.gates == Gates::of_features) kernels.scale(s, m.gates.over_all(), s, {});
    T before = call.gates == Gates::of_tokens ? m.gates.over_all_of_token() : T(1);
    for (const Term<T>& t : terms()) {
      const LeftFactor<T> added = decayed_keys(t);
      matrix_product(kernels, s, added.transposed(), t.value, tokens, before);
      before = 1;
    }
    if (call.is_normalised) add_normaliser(m.state, m.key_sums.row(tokens - 1));
  }
  /// Counterpart of add_to_state() in a run of several segments: adds to two states, or to one if the other is null.
  /// Some features are processed at a time, so that their product stays in the L1 cache. A state gets the same bits
  /// whether or not the other one is given. As in add_to_state(), with token gates a state with decay 0 is not read, so
  /// that none of its NaNs remain.
  void add_to_states(const HeadState<T>* running, const SegmentSums<T>* segment) {
    const Term<T>& term = m.terms[0];  // sequences of forms with more are not split
    const Rows<T> added = decayed_keys(term);
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
      matrix_product(kernels, x, some_features.transposed(), term.value, tokens);
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
  Rows<T> decayed_keys(const Term<T>& term) {
    if (call.gates == Gates::none) return term.key;
    const Block<T> decayed = m.decayed.from(0, tokens);
    decay_to_end(term.key, decayed);
    return decayed;
  }

  void load_columns(const Term<T>& term) {
    const Index features = call.features();
    if (call.gates != Gates::of_features)
      return loader.transpose(term.columns, padded(tokens, kRowUnit<T>), term.key, tokens, features);
    for_each_range(tokens, [&](const HalvedRange& r) {
      const Block<T> keys = m.decayed.from(0, r.half());
      kernels.multiply(keys, m.gates.to_middle[r.halving].from(r.begin, r.half()), rows_from(term.key, r.begin));
      loader.transpose(term.range_columns(r, features), r.half(), keys, r.half(), features);
    });
  }

  /// Computes what tokens read and the values that they write because of it. With S the state before the chunk, each
  /// depends on those before, where decay_ij is from token j to the token before i:
  ///
  ///     seen_i = decay_i * a_i * S + sum over terms and j < i of decay_ij * (a_i * key_j) * value_j
  ///
  /// The value of the term (b, seen) is seen_i itself; with the delta rule it is beta_i * (value_i - seen_i). This is
  /// the WY representation of the product of the steps' Householder-like factors (Yang et al. 2024, "Parallelizing
  /// linear transformers with the delta rule", section 3; with gates, "Gated delta networks", section 3.3). The
  /// triangular system is solved by substitution, not by its inverse: the rows are computed in order anyway, and the
  /// inverse would be one more product.
  void compute_written() {
    const Index n = tokens;
    const Block<T> seen = m.seen.from(0, n);
    read_decayed_state(reader, seen, 1);
    // Row i of the readers sees what a query of token i - 1 would see.
    for (const Term<T>& t : terms()) compute_scores(rows_from(reader, 1), n - 1, t, t.read.from(1, n - 1));
    const Term<T>& first = m.terms[0];
    Term<T>& last = written_term();
    if (call.has_beta())
      kernels.scale(seen, T(-1), first.value, seen);
    else
      matrix_product(kernels, seen.from(1, n - 1), first.read.from(1, n - 1), first.value, n - 1, T(1),
                     Steps::up_to_row);
    for (Index i = 0; i < n; i += kScoreRows) {
      const Index end = std::min(i + kScoreRows, n);
      if (i > 0) matrix_product(kernels, seen.from(i, end - i), last.read.from(i, end - i), m.written, i, T(1));
      kernels.substitute(seen, m.written.data, last.read, m.gates.written, {i, end}, false);
    }
    last.value = m.written;
  }
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
