// Kernels of recurrences over tokens: decays between the tokens of a chunk, what stands around its products, and single
// steps.
#pragma once

#include "attn/detail/kernels/feature_kernels.h"
#include "attn/detail/kernels/product_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// One token's step of a state (features, columns): state = decay * state + key * value, out = scale * query * state.
/// With the delta rule, beta * (value - decay * state * key) stands in place of value, and all features have the same
/// decay.
template <class T>
struct StateStep {
  T* state;
  Index stride;
  Index features;
  Index columns;     ///< a multiple of the vectors' lanes
  const T* decay;    ///< what each row of the state is multiplied by, decay_step apart
  Index decay_step;  ///< 0: one decay for all rows
  const T* key;      ///< (features)
  const T* value;    ///< (columns)
  const T* query;    ///< (features), padded with zeros as the key is
  T* out;            ///< (columns)
  T scale;
  const T* beta;  ///< of the delta rule; null: there is none
};

template <class T, int Bytes, int kRegisters>
struct RecurrenceKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// The decays between the tokens of a chunk with gates g: decays (rows, stride) gets e^(g[j + 1] + .. + g[i]) at row
  /// i, column j <= i, and what stands at j > i is indeterminate. from_start[i] gets e^(g[0] + .. + g[i]). The sums are
  /// formed one gate at a time and never subtracted: differences of long sums would lose what near tokens need, and be
  /// NaN behind a gate of -inf.
  static ATTN_INLINE void decays(const T* gate, const Block<T>& to, T* from_start) {
    const Index n = to.rows;
    T sum = 0;
    for (Index i = 0; i < n; ++i) from_start[i] = sum += gate[i];
    for (Index i = 0; i < n; ++i) {
      for (Index c = 0; c < i; c += kLanes) (V::load(to.row(i - 1) + c) + gate[i]).store(to.row(i) + c);
      to.row(i)[i] = 0;
    }
    for (Index i = 0; i < n; ++i) exp_row(to.row(i), i + 1);
    exp_row(from_start, n);
  }

  /// For gates with a number for each feature: to_i = e^(gate_begin + .. + gate_i).
  static ATTN_INLINE void decays_from(Rows<T> gate, const Block<T>& to) {
    for (Index c = 0; c < to.columns; c += kLanes) {
      V sum{};
      for (Index i = 0; i < to.rows; ++i) add_gate(sum, gate, to, i, i, c);
    }
  }
  /// to_j = e^(gate_(j + 1) + .. + gate_(rows - 1)).
  static ATTN_INLINE void decays_to(Rows<T> gate, const Block<T>& to) {
    for (Index c = 0; c < to.columns; c += kLanes) {
      V sum{};
      for (Index j = to.rows; j-- > 0;) add_gate(sum, gate, to, j == to.rows - 1 ? -1 : j + 1, j, c);
    }
  }

  /// to *= by, number by number.
  static ATTN_INLINE void multiply_by(const Block<T>& to, Rows<T> by) {
    each(to, [&](Index i, Index c, const V& x) { return x * V::load(by.data + i * by.stride + c); });
  }
  /// to_i = factor[i] * from_i, which may be the same rows.
  static ATTN_INLINE void scale_rows(const Block<T>& to, Rows<T> from, const T* factor) {
    for (Index i = 0; i < to.rows; ++i)
      for (Index c = 0; c < to.columns; c += kLanes)
        (V::load(from.data + i * from.stride + c) * factor[i]).store(to.row(i) + c);
  }
  /// to = plus - factor[i] * to.
  static ATTN_INLINE void subtract_from(const Block<T>& to, const T* factor, Rows<T> plus) {
    each(to, [&](Index i, Index c, const V& x) { return V::load(plus.data + i * plus.stride + c) - x * factor[i]; });
  }
  /// to_i += factor[i] * from_i.
  static ATTN_INLINE void add_rows(const Block<T>& to, Rows<T> from, const T* factor) {
    each(to, [&](Index i, Index c, const V& x) { return x + V::load(from.data + i * from.stride + c) * factor[i]; });
  }

  /// sums[i] += a_i * b_i, the dot product of two rows.
  static ATTN_INLINE void add_dots(T* sums, Rows<T> a, Rows<T> b, Index rows, Index columns) {
    for (Index i = 0; i < rows; ++i) {
      V sum{};
      for (Index c = 0; c < columns; c += kLanes)
        sum += V::load(a.data + i * a.stride + c) * V::load(b.data + i * b.stride + c);
      sums[i] += sum.total();
    }
  }

  /// to_i = from_0 + .. + from_i.
  static ATTN_INLINE void running_sums(const Block<T>& to, Rows<T> from) {
    for (Index c = 0; c < to.columns; c += kLanes) {
      V sum{};
      for (Index i = 0; i < to.rows; ++i) {
        sum += V::load(from.data + i * from.stride + c);
        sum.store(to.row(i) + c);
      }
    }
  }
  /// to_i = from_i + .. + from_(rows - 1).
  static ATTN_INLINE void running_sums_back(const Block<T>& to, Rows<T> from) {
    for (Index c = 0; c < to.columns; c += kLanes) {
      V sum{};
      for (Index i = to.rows; i-- > 0;) {
        sum += V::load(from.data + i * from.stride + c);
        sum.store(to.row(i) + c);
      }
    }
  }

  /// The rows begin .. end - 1 of a unit lower triangular system: w_i += sum over j in begin .. i - 1 of a(i, j) * u_j,
  /// u_i = beta[i] * w_i.
  static ATTN_INLINE void substitute(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end) {
    constexpr int kVectors = kRegisters >= 32 ? 4 : 2;
    Index c = 0;
    for (; c + kVectors * kLanes <= w.columns; c += kVectors * kLanes)
      substitute_in<kVectors>(w, u, a, beta, begin, end, c);
    for (; c < w.columns; c += kLanes) substitute_in<1>(w, u, a, beta, begin, end, c);
  }
  /// substitute() with the transposed matrix, from the last row to the first: w_i += sum over j in i + 1 .. end - 1 of
  /// a(j, i) * u_j, u_i = beta[i] * w_i.
  static ATTN_INLINE void substitute_back(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end) {
    for (Index c = 0; c < w.columns; c += kLanes)
      for (Index i = end; i-- > begin;) {
        V sum = V::load(w.row(i) + c);
        for (Index j = i + 1; j < end; ++j) add_row(sum, u + j * w.stride + c, a.data[j * a.stride + i]);
        sum.store(w.row(i) + c);
        (sum * beta[i]).store(u + i * w.stride + c);
      }
  }

  static ATTN_INLINE void step(const StateStep<T>& s) {
    constexpr int kVectors = kRegisters >= 32 ? 8 : 4;
    T query_key = 0;
    if (s.beta) add_dots(&query_key, {s.query, 0}, {s.key, 0}, 1, padded(s.features, kLanes));
    Index c = 0;
    for (; c + kVectors * kLanes <= s.columns; c += kVectors * kLanes) step_columns<kVectors>(s, c, query_key);
    for (; c < s.columns; c += kLanes) step_columns<1>(s, c, query_key);
  }

 private:
  static ATTN_INLINE void exp_row(T* row, Index count) {
    Index c = 0;
    for (; c + kLanes <= count; c += kLanes) exp(V::load(row + c)).store(row + c);
    if (c == count) return;
    Array<T, kLanes> rest = {};
    for (Index i = c; i < count; ++i) rest[i - c] = row[i];
    exp(V::load(rest)).store(rest);
    for (Index i = c; i < count; ++i) row[i] = rest[i - c];
  }

  /// Adds gate_i to sum, unless i is -1, and stores the sum's exponential in row `to_row`.
  static ATTN_INLINE void add_gate(V& sum, Rows<T> gate, const Block<T>& to, Index i, Index to_row, Index c) {
    if (i >= 0) sum += V::load(gate.data + i * gate.stride + c);
    exp(sum).store(to.row(to_row) + c);
  }

  template <class Change>
  static ATTN_INLINE void each(const Block<T>& b, const Change& change) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) change(i, c, V::load(b.row(i) + c)).store(b.row(i) + c);
  }

  static ATTN_INLINE void add_row(V& sum, const T* row, T factor) { sum += V::load(row) * factor; }

  template <int kVectors>
  static ATTN_INLINE void substitute_in(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end,
                                        Index c) {
    for (Index i = begin; i < end; ++i) {
      Array<V, kVectors> sum;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[v] = V::load(w.row(i) + c + v * kLanes);
      for (Index j = begin; j < i; ++j) {
        const T x = a.data[i * a.stride + j];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) add_row(sum[v], u + j * w.stride + c + v * kLanes, x);
      }
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        sum[v].store(w.row(i) + c + v * kLanes);
        (sum[v] * beta[i]).store(u + i * w.stride + c + v * kLanes);
      }
    }
  }

  template <int kVectors>
  static ATTN_INLINE void step_columns(const StateStep<T>& s, Index c, T query_key) {
    Array<V, kVectors> value, out = {};
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) value[v] = V::load(s.value + c + v * kLanes);
    if (!s.beta) {
      T* row = s.state + c;
      for (Index f = 0; f < s.features; ++f, row += s.stride) {
        const T decay = s.decay[f * s.decay_step], k = s.key[f], q = s.query[f];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const V x = V::load(row + v * kLanes) * decay + value[v] * k;
          x.store(row + v * kLanes);
          out[v] += x * q;
        }
      }
    } else {
      // What is written depends on the whole state, so the state is read twice. The first time also gives the query's
      // part.
      Array<V, kVectors> seen = {};
      T* row = s.state + c;
      for (Index f = 0; f < s.features; ++f, row += s.stride) {
        const T k = s.key[f], q = s.query[f];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          V x = V::load(row + v * kLanes);
          x.keep_in_register();
          seen[v] += x * k;
          out[v] += x * q;
        }
      }
      const T decay = s.decay[0], beta = *s.beta;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        value[v] = (value[v] - seen[v] * decay) * beta;
        out[v] = out[v] * decay + value[v] * query_key;
      }
      row = s.state + c;
      for (Index f = 0; f < s.features; ++f, row += s.stride) {
        const T k = s.key[f];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          const V x = V::load(row + v * kLanes) * decay + value[v] * k;
          x.store(row + v * kLanes);
        }
      }
    }
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) { (out[v] * s.scale).store(s.out + c + v * kLanes); }
  }
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
