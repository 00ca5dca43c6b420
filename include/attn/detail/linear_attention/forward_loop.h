// A recurrence over the tokens of a head: in chunks, which are products of matrices, or token by token.
#pragma once

#include "attn/detail/linear_attention/chunk_scores.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The state of one key and value head: sums (features, v_dim) of key * valueᵀ, and of keys alone where there is a
/// normaliser.
template <class T>
struct HeadState {
  Block<T> sums;
  T* normaliser;
};

/// What a worker has beside the state, for one chunk.
template <class T>
struct ForwardMemory {
  HeadState<T> state;
  Block<T> raw;  ///< rows that features are made of
  Block<T> key, query, value, out;
  Block<T> faded;     ///< keys or queries, decayed
  Block<T> key_sums;  ///< of the chunk's keys up to each token
  Block<T> scores;
  Block<T> written;  ///< with the delta rule, what each token adds to the state, before beta
  Block<T> written_beta;
  Block<T> among_keys;  ///< with the delta rule, -key * key, decayed
  T* numbers;           ///< (tokens): factors of rows
  T* factor;            ///< (tokens): of features of queries
  T* decay;             ///< (features)
  T* minus_one;         ///< (tokens)
  ChunkGates<T> gates;
  ScoreMemory<T> among;

  static ForwardMemory take(Pieces<T>& pieces, const RecurrenceCall<T>& call) {
    const Index in = call.row_of_inputs(), f = call.row_of_features(), v = call.row_of_values();
    const bool delta = call.has_delta();
    ForwardMemory m;
    m.state = {pieces.take(call.state.sums ? 0 : call.features(), v), pieces.take(call.state.sums ? 0 : f)};
    m.raw = pieces.take(kChunk, in);
    m.key = pieces.take(kChunk, f);
    m.query = pieces.take(kChunk, f);
    m.value = pieces.take(kChunk, v);
    m.out = pieces.take(kChunk, v);
    m.faded = pieces.take(call.gates == Gates::none ? 0 : kChunk, f);
    m.key_sums = pieces.take(kChunk, f);
    m.scores = pieces.take(kChunk, kChunk);
    m.written = pieces.take(delta ? kChunk : 0, v);
    m.written_beta = pieces.take(delta ? kChunk : 0, v);
    m.among_keys = pieces.take(delta ? kChunk : 0, kChunk);
    m.numbers = pieces.take(kChunk);
    m.factor = pieces.take(kChunk);
    m.decay = pieces.take(f);
    m.minus_one = pieces.take(kChunk);
    m.gates = ChunkGates<T>::take(pieces, call);
    m.among = ScoreMemory<T>::take(pieces, call);
    return m;
  }
};

/// The forward pass over one head of keys and values, and the query heads that share it.
template <class T>
class ForwardLoop {
 public:
  ForwardLoop(const RecurrenceCall<T>& call, const ChunkLoader<T>& loader, std::byte* memory, Index batch,
              Index kv_head)
      : call_(call), loader_(loader), kernels_(loader.kernels()), batch_(batch), kv_head_(kv_head) {
    Pieces<T> pieces(memory);
    m_ = ForwardMemory<T>::take(pieces, call);
    std::fill_n(m_.minus_one, kChunk, T(-1));
    const Index number = batch * call.problem.kv_heads + kv_head;
    if (call.state.sums) {
      const Index v = call.row_of_values();
      m_.state.sums = {call.state.sums + number * call.features() * v, v, call.features(), v};
      m_.state.normaliser = call.state.normaliser + number * call.row_of_features();
    }
  }
  static Index bytes(const RecurrenceCall<T>& call) {
    Pieces<T> pieces(nullptr);
    ForwardMemory<T>::take(pieces, call);
    return pieces.bytes();
  }

  void run() {
    for (const TokenRun& run : call_.runs.of(batch_)) {
      if (!call_.state.sums) clear_state();
      if (call_.is_causal)
        run_causal(run);
      else
        run_all(run);
    }
  }

 private:
  void clear_state() {
    std::fill_n(m_.state.sums.data, m_.state.sums.rows * m_.state.sums.stride, T(0));
    std::fill_n(m_.state.normaliser, call_.row_of_features(), T(0));
  }

  /// Every row of a run sees all its keys.
  void run_all(const TokenRun& run) {
    add_keys(run.keys);
    read_rows(run.rows);
  }

  /// A row sees the keys up to its own position: some rows stand before all keys and some behind, some keys before all
  /// rows and some behind.
  void run_causal(const TokenRun& run) {
    const Index offset = call_.problem.first_query(batch_);
    const Range keys = run.keys, at{offset + run.rows.begin, offset + run.rows.end};
    const Range both = intersect(keys, at);
    const auto row_of = [&](Index position) { return std::clamp(position - offset, run.rows.begin, run.rows.end); };
    if (at.empty() || both.empty()) {
      const bool keys_first = keys.end <= at.begin;
      if (keys_first || at.empty()) add_keys(keys);
      read_rows(run.rows);
      if (!keys_first && !at.empty() && call_.state.sums) add_keys(keys);
      return;
    }
    add_keys({keys.begin, both.begin});
    read_rows({run.rows.begin, row_of(both.begin)});
    for (Index t = both.begin; t < both.end; t += kChunk) {
      const Range tokens{t, std::min(t + kChunk, both.end)};
      if (tokens.size() == 1)
        step(t, t - offset);
      else
        run_chunk(tokens, t - offset);
    }
    read_rows({row_of(both.end), run.rows.end});
    if (call_.state.sums) add_keys({both.end, keys.end});
  }

  /// Keys that no row of the present run stands between.
  void add_keys(Range keys) {
    for (Index t = keys.begin; t < keys.end; t += kChunk) {
      load_keys({t, std::min(t + kChunk, keys.end)});
      add_to_state();
    }
  }

  /// Rows that see the state as it is. Gated forms have none: a row behind the last token stands for none itself.
  void read_rows(Range rows) {
    for (Index r = rows.begin; r < rows.end; r += kChunk) {
      const Index count = std::min(kChunk, rows.end - r);
      for (Index g = 0; g < call_.group(); ++g) {
        const Index head = kv_head_ * call_.group() + g;
        const Block<T> to = output(head, r, count);
        if (call_.is_normalised) {
          const Rows<T> query = load_queries(head, r, count);
          read_state(query, to);
          std::fill_n(m_.numbers, count, T(0));
          normalise(query, to);
        } else {
          for (Index i = 0; i < count; ++i) std::fill_n(to.row(i), to.columns, T(0));
        }
        store(to, head, r);
      }
    }
  }

  void run_chunk(Range tokens, Index first_row) {
    const Index n = tokens.size(), features = call_.features(), width = padded(n, kRowUnit<T>);
    load_keys(tokens);
    // All heads of the group see the same keys.
    if (call_.gates != Gates::of_features) loader_.transpose(m_.among.columns, width, key_, n, features);
    if (call_.has_delta()) find_written(width);
    for (Index g = 0; g < call_.group(); ++g) {
      const Index head = kv_head_ * call_.group() + g;
      const Rows<T> query = load_queries(head, first_row, n);
      const Block<T> to = output(head, first_row, n);
      if (call_.gates == Gates::of_features) {
        gated_scores(loader_, query, key_, m_.gates, features, m_.among, m_.scores);
        const Block<T> faded = m_.faded.from(0, n);
        std::copy_n(m_.gates.start.data, n * faded.stride, faded.data);
        kernels_.multiply_by(faded, query);
        read_state(faded, to);
      } else {
        lower_scores(kernels_, query, m_.among.columns, width, n, features, m_.scores);
        read_state(query, to);
      }
      if (call_.gates == Gates::of_tokens) {
        kernels_.multiply_by({m_.scores.data, m_.scores.stride, n, width}, m_.gates.between);
        kernels_.scale_rows(to, to, m_.gates.from_start);
      }
      kernels_.product({to.data, to.stride, m_.scores.data, m_.scores.stride, 1, value_.data, value_.stride, n,
                        to.columns, n, T(1), Steps::up_to_row});
      if (call_.is_normalised) {
        std::fill_n(m_.numbers, n, T(0));
        kernels_.add_dots(m_.numbers, query, m_.key_sums, n, m_.key_sums.columns);
        normalise(query, to);
      }
      store(to, head, first_row);
    }
    add_to_state();
  }

  /// One token, whose products would be of single rows.
  void step(Index token, Index row) {
    const T* decay = load_step(token);
    const Index head = kv_head_ * call_.group();
    for (Index g = 0; g < call_.group(); ++g) {
      const Rows<T> query = load_queries(head + g, row, 1);
      const Block<T> to = output(head + g, row, 1);
      if (g == 0)
        kernels_.step({m_.state.sums.data, m_.state.sums.stride, call_.features(), m_.state.sums.columns, decay,
                       key_.data, value_.data, query.data, to.data, call_.has_delta() ? m_.gates.beta : nullptr});
      else
        read_state(query, to);
      if (g == 0 && call_.is_normalised) add_normaliser();
      std::fill_n(m_.numbers, 1, T(0));
      if (call_.is_normalised) normalise(query, to);
      store(to, head + g, row);
    }
  }

  /// Brings in a single token, and returns what each feature decays by.
  const T* load_step(Index token) {
    load_rows({token, token + 1});
    if (call_.gates == Gates::of_features) return m_.gates.factor.data;
    std::fill_n(m_.decay, call_.features(), call_.gates == Gates::none ? T(1) : m_.gates.from_start[0]);
    return m_.decay;
  }

  void load_rows(Range tokens) {
    n_ = tokens.size();
    key_ = loader_.keys(call_.k.rows(batch_, kv_head_, tokens.begin), n_, m_.raw, m_.key, m_.numbers);
    value_ = loader_.rows(call_.v.rows(batch_, kv_head_, tokens.begin), n_, call_.problem.v_dim, m_.value.data);
    m_.gates.load(call_, loader_, batch_, kv_head_, tokens);
  }
  void load_keys(Range tokens) {
    load_rows(tokens);
    if (call_.is_normalised) kernels_.running_sums(m_.key_sums.from(0, n_), key_);
  }
  Rows<T> load_queries(Index head, Index row, Index count) {
    return loader_.queries(call_.q.rows(batch_, head, row), count, m_.raw, m_.query, m_.factor);
  }

  /// The delta rule writes u_i = beta_i * w_i, of which each w_i depends on those before:
  ///
  ///     w_i = value_i - decay_i * state * key_i - sum over j < i of decay_ij * (key_i * key_j) * u_j
  ///
  /// This is the WY representation of the product of the steps' Householder-like factors (Yang et al. 2024,
  /// "Parallelizing linear transformers with the delta rule", section 3; with gates, "Gated delta networks", section
  /// 3.3), with the triangular system solved by substitution, not by its inverse: the rows come one after the other
  /// here anyway, and the inverse would be a product more.
  void find_written(Index width) {
    const Index n = n_;
    const Block<T> w = m_.written.from(0, n), a{m_.among_keys.data, m_.among_keys.stride, n, width};
    read_state(key_, w);
    kernels_.subtract_from(w, m_.gates.from_start, value_);
    lower_scores(kernels_, key_, m_.among.columns, width, n, call_.features(), a);
    kernels_.multiply_by(a, m_.gates.between);
    kernels_.scale_rows(a, a, m_.minus_one);
    for (Index i = 0; i < n; i += kScoreRows) {
      const Index end = std::min(i + kScoreRows, n);
      if (i > 0)
        kernels_.product(
            {w.row(i), w.stride, a.row(i), a.stride, 1, m_.written_beta.data, w.stride, end - i, w.columns, i, T(1)});
      kernels_.substitute(w, m_.written_beta.data, a, m_.gates.beta, i, end);
    }
    value_ = m_.written_beta;
  }

  /// to = rows * state.
  void read_state(Rows<T> rows, const Block<T>& to) {
    const Block<T>& s = m_.state.sums;
    kernels_.product(
        {to.data, to.stride, rows.data, rows.stride, 1, s.data, s.stride, to.rows, to.columns, call_.features()});
  }

  /// Divides rows by their normalisers: query * the state's, and what m_.numbers has already. A normaliser of 0 gives 0.
  void normalise(Rows<T> query, const Block<T>& to) {
    kernels_.add_dots(m_.numbers, query, {m_.state.normaliser, 0}, to.rows, call_.row_of_features());
    for (Index i = 0; i < to.rows; ++i) m_.numbers[i] = m_.numbers[i] == T(0) ? T(0) : T(1) / m_.numbers[i];
    kernels_.scale_rows(to, to, m_.numbers);
  }

  /// Adds the chunk's keys and values, decayed to its end, to the state.
  void add_to_state() {
    const Block<T>& s = m_.state.sums;
    Rows<T> key = key_;
    T before = 1;
    if (call_.gates != Gates::none) {
      const Block<T> faded = m_.faded.from(0, n_);
      if (call_.gates == Gates::of_tokens) {
        kernels_.scale_rows(faded, key_, m_.gates.to_end());
        before = m_.gates.over_all_of_token();
      } else {
        kernels_.decays_to(m_.gates.gate, faded);
        kernels_.multiply_by(faded, key_);
        kernels_.scale_rows(s, s, m_.gates.over_all());
      }
      key = faded;
    }
    kernels_.product(
        {s.data, s.stride, key.data, 1, key.stride, value_.data, value_.stride, s.rows, s.columns, n_, before});
    if (call_.is_normalised) add_normaliser();
  }
  void add_normaliser() {
    T* const z = m_.state.normaliser;
    const T* const sum = n_ == 1 ? key_.data : m_.key_sums.row(n_ - 1);
    for (Index f = 0; f < call_.features(); ++f) z[f] += sum[f];
  }

  /// Where rows of the output are formed: in the caller's memory, if kernels can write there.
  Block<T> output(Index head, Index row, Index count) const {
    const RowsToWrite rows = call_.out.rows(batch_, head, row);
    const Index columns = call_.row_of_values();
    if (rows.dtype == DType::native && rows.column == 1 && columns == call_.problem.v_dim)
      return {reinterpret_cast<T*>(rows.data), rows.stride, count, columns};
    return m_.out.from(0, count);
  }
  void store(const Block<T>& from, Index head, Index row) const {
    if (from.data == m_.out.data)
      loader_.store(from, from.rows, call_.problem.v_dim, call_.out.rows(batch_, head, row));
  }

  const RecurrenceCall<T>& call_;
  const ChunkLoader<T>& loader_;
  const RecurrenceFamily<T>& kernels_;
  const Index batch_, kv_head_;
  ForwardMemory<T> m_;
  Index n_ = 0;  ///< tokens of the present chunk
  Rows<T> key_{}, value_{};
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
