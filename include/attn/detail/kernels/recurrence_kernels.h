// Kernels of recurrences over tokens, one source for all instruction sets, and the choice among them at run time:
// feature maps, decays between the tokens of a chunk, pairs of near tokens, the other work on a chunk, and single
// steps.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "attn/detail/base/linker_hint.h"
#include "attn/detail/kernels/product_kernels.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Rows to be written: `columns` numbers of each, a multiple of the vectors' lanes.
template <class T>
struct Block {
  T* data;
  Index stride;
  Index rows;
  Index columns;

  T* row(Index i) const { return data + i * stride; }
  operator Rows<T>() const { return {data, stride}; }

  /// `count` of these rows, from row i on.
  Block from(Index i, Index count) const { return {row(i), stride, count, columns}; }
};

template <class T, int Bytes>
struct FeatureKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Numbers become x + 1 above 0 and e^x below (Katharopoulos et al. 2020, eq. 7). NaN stays NaN.
  static ATTN_INLINE void elu1(const Block<T>& b) {
    each_vector(b, [](const V& x) { return select(x > V{}, x + T(1), exp(select(x > V{}, V{}, x))); });
  }
  static ATTN_INLINE void relu(const Block<T>& b) {
    each_vector(b, [](const V& x) { return select(x < V{}, V{}, x); });
  }

  /// Numbers become e^(number - less[i]) in row i; infinite beyond what T holds.
  static ATTN_INLINE void exp_less(const Block<T>& b, const T* less) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) {
        const V x = V::load(b.row(i) + c) - less[i];
        V y = exp(x);
        if constexpr (V::kIsVector)
          y = select(x > -Exp2Constants<T>::kSmallest, V::broadcast(std::numeric_limits<T>::infinity()), y);
        y.store(b.row(i) + c);
      }
  }

  /// Finds the largest number of each row, ignoring NaN.
  static ATTN_INLINE void row_max(const Block<T>& b, T* largest) {
    for (Index i = 0; i < b.rows; ++i) {
      V most = V::broadcast(-std::numeric_limits<T>::infinity());
      for (Index c = 0; c < b.columns; c += kLanes) most = max(V::load(b.row(i) + c), most);
      largest[i] = most.largest();
    }
  }

  /// Multiplies each row by a power of two, `factor`, that brings its largest magnitude to 1 .. 2. This is exact,
  /// except where numbers leave the range of normal ones, and these are far below the largest.
  static ATTN_INLINE void balance(const Block<T>& b, T* factor) {
    for (Index i = 0; i < b.rows; ++i) {
      V most{};
      for (Index c = 0; c < b.columns; c += kLanes) {
        const V x = V::load(b.row(i) + c);
        most = max(select(x < V{}, -x, x), most);
      }
      const T f = inverse_power(most.largest());
      factor[i] = f;
      for (Index c = 0; c < b.columns; c += kLanes) (V::load(b.row(i) + c) * f).store(b.row(i) + c);
    }
  }

 private:
  template <class Change>
  static ATTN_INLINE void each_vector(const Block<T>& b, const Change& change) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) change(V::load(b.row(i) + c)).store(b.row(i) + c);
  }

  /// 2^-e for a number from 2^e to 2^(e + 1); 1 for 0 and for what is not finite. The exponent is held within the
  /// powers whose inverse is a normal number.
  static ATTN_INLINE T inverse_power(T x) {
    if (!(x > T(0)) || x > std::numeric_limits<T>::max()) return T(1);
    if constexpr (V::kIsVector) {
      using Int = typename V::Int;
      constexpr int kBits = Exp2Constants<T>::kMantissaBits;
      constexpr Int kBias = std::numeric_limits<T>::max_exponent - 1;
      const Int e = std::max<Int>(std::bit_cast<Int>(x) >> kBits, 1);
      return std::bit_cast<T>(std::max<Int>(2 * kBias - e, 1) << kBits);
    } else {
      return std::ldexp(T(1), -std::ilogb(x));
    }
  }
};

/// Some neighbouring tokens, at most kNearTokens: rows of queries, of keys, and of factors, e^gate of each feature.
template <class T>
struct NearTokens {
  Rows<T> query, key, factor;
  Index tokens;
  Index columns;  ///< a multiple of the vectors' lanes
};
/// How many neighbouring tokens form their pairs one by one. A pair of a query and a key takes two operations for each
/// feature and a sum over lanes; tokens further apart are products of matrices.
constexpr Index kNearTokens = 16;

template <class T, int Bytes>
struct GateKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// scores(i, j) = sum over features of query_i * key_j * factor_(j + 1) * .. * factor_i, for j <= i. The key decays
  /// as it passes from query to query, so that no decay is ever divided by another.
  static ATTN_INLINE void near_scores(const NearTokens<T>& n, const Block<T>& scores) {
    for (Index i = 0; i < n.tokens; ++i) std::fill_n(scores.row(i), i + 1, T(0));
    for (Index c = 0; c < n.columns; c += kLanes)
      for (Index j = 0; j < n.tokens; ++j) {
        V key = V::load(n.key.data + j * n.key.stride + c);
        for (Index i = j; i < n.tokens; ++i) {
          if (i > j) key *= V::load(n.factor.data + i * n.factor.stride + c);
          const V products = V::load(n.query.data + i * n.query.stride + c) * key;
          scores.row(i)[j] += products.total();
        }
      }
  }

  /// Adds the gradients of queries, keys and gates, given those of the scores. The gate of token t is part of all pairs
  /// j < t <= i.
  static ATTN_INLINE void near_gradients(const NearTokens<T>& n, Rows<T> grad_scores, const Block<T>& grad_query,
                                         const Block<T>& grad_key, const Block<T>& grad_gate) {
    for (Index c = 0; c < n.columns; c += kLanes)
      for (Index j = 0; j < n.tokens; ++j) {
        // For each token i >= j: what the later queries make of key_j, with the decays between i and them.
        Array<V, kNearTokens> asked;
        V sum{};
        for (Index i = n.tokens; i-- > j;) {
          sum += V::load(n.query.data + i * n.query.stride + c) * grad_scores.data[i * grad_scores.stride + j];
          asked[i] = sum;
          if (i > j) sum *= V::load(n.factor.data + i * n.factor.stride + c);
        }
        add(grad_key.row(j) + c, sum);
        V key = V::load(n.key.data + j * n.key.stride + c);
        for (Index i = j; i < n.tokens; ++i) {
          if (i > j) {
            key *= V::load(n.factor.data + i * n.factor.stride + c);
            add(grad_gate.row(i) + c, key * asked[i]);
          }
          add(grad_query.row(i) + c, key * grad_scores.data[i * grad_scores.stride + j]);
        }
      }
  }

 private:
  static ATTN_INLINE void add(T* to, const V& x) { (V::load(to) + x).store(to); }
};

/// A factor for each row, or one for all.
template <class T>
class RowFactors {
 public:
  RowFactors(const T* of_rows) : of_rows_(of_rows) { assert(of_rows != nullptr); }
  RowFactors(T of_all) : of_all_(of_all) {}
  /// With the other sign.
  RowFactors operator-() const {
    RowFactors negated = *this;
    negated.of_all_ = -of_all_;
    return negated;
  }
  ATTN_INLINE T operator[](Index row) const { return of_rows_ == nullptr ? of_all_ : of_all_ * of_rows_[row]; }

 private:
  const T* of_rows_ = nullptr;
  T of_all_ = 1;
};

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
  static ATTN_INLINE void scale_rows(const Block<T>& to, Rows<T> from, RowFactors<T> factor) {
    for (Index i = 0; i < to.rows; ++i)
      for (Index c = 0; c < to.columns; c += kLanes)
        (V::load(from.data + i * from.stride + c) * factor[i]).store(to.row(i) + c);
  }
  /// to_i = factor[i] * to_i + plus_i.
  static ATTN_INLINE void scale_and_add(const Block<T>& to, RowFactors<T> factor, Rows<T> plus) {
    each(to, [&](Index i, Index c, const V& x) { return x * factor[i] + V::load(plus.data + i * plus.stride + c); });
  }
  /// to_i += factor[i] * from_i.
  static ATTN_INLINE void add_rows(const Block<T>& to, Rows<T> from, RowFactors<T> factor) {
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

/// How many numbers rows of a chunk and of a state are padded to: a cache line, and so whole vectors of any instruction
/// set.
template <class T>
constexpr Index kRowUnit = kAlignment / static_cast<Index>(sizeof(T));

template <class T>
struct RecurrenceFamily {
  void (*product)(const Product<T>&);
  void (*elu1)(const Block<T>&);
  void (*relu)(const Block<T>&);
  void (*exp_less)(const Block<T>&, const T* less);
  void (*row_max)(const Block<T>&, T* max);
  void (*balance)(const Block<T>&, T* factor);
  void (*decays)(const T* gate, const Block<T>&, T* from_start);
  void (*decays_from)(Rows<T> gate, const Block<T>&);
  void (*decays_to)(Rows<T> gate, const Block<T>&);
  void (*multiply_by)(const Block<T>&, Rows<T> by);
  void (*scale_rows)(const Block<T>&, Rows<T> from, RowFactors<T>);
  void (*scale_and_add)(const Block<T>&, RowFactors<T>, Rows<T> plus);
  void (*add_rows)(const Block<T>&, Rows<T> from, RowFactors<T>);
  void (*add_dots)(T* sums, Rows<T> a, Rows<T> b, Index rows, Index columns);
  void (*running_sums)(const Block<T>&, Rows<T> from);
  void (*running_sums_back)(const Block<T>&, Rows<T> from);
  void (*substitute)(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end);
  void (*substitute_back)(const Block<T>& w, T* u, Rows<T> a, const T* beta, Index begin, Index end);
  void (*step)(const StateStep<T>&);
  void (*near_scores)(const NearTokens<T>&, const Block<T>& scores);
  void (*near_gradients)(const NearTokens<T>&, Rows<T> grad_scores, const Block<T>& grad_query,
                         const Block<T>& grad_key, const Block<T>& grad_gate);
};

template <class T, VectorSet kSet>
struct RecurrenceFamilyOf {
  static constexpr int kBytes = kVectorBytes<kSet>, kRegisters = kVectorRegisters<kSet>;
  using Features = FeatureKernels<T, kBytes>;
  using Recurrence = RecurrenceKernels<T, kBytes, kRegisters>;
  using Gates = GateKernels<T, kBytes>;

  static constexpr RecurrenceFamily<T> kKernels = {
      .product = compiled<kSet, ProductKernels<T, kBytes, kRegisters>::product>,
      .elu1 = compiled<kSet, Features::elu1>,
      .relu = compiled<kSet, Features::relu>,
      .exp_less = compiled<kSet, Features::exp_less>,
      .row_max = compiled<kSet, Features::row_max>,
      .balance = compiled<kSet, Features::balance>,
      .decays = compiled<kSet, Recurrence::decays>,
      .decays_from = compiled<kSet, Recurrence::decays_from>,
      .decays_to = compiled<kSet, Recurrence::decays_to>,
      .multiply_by = compiled<kSet, Recurrence::multiply_by>,
      .scale_rows = compiled<kSet, Recurrence::scale_rows>,
      .scale_and_add = compiled<kSet, Recurrence::scale_and_add>,
      .add_rows = compiled<kSet, Recurrence::add_rows>,
      .add_dots = compiled<kSet, Recurrence::add_dots>,
      .running_sums = compiled<kSet, Recurrence::running_sums>,
      .running_sums_back = compiled<kSet, Recurrence::running_sums_back>,
      .substitute = compiled<kSet, Recurrence::substitute>,
      .substitute_back = compiled<kSet, Recurrence::substitute_back>,
      .step = compiled<kSet, Recurrence::step>,
      .near_scores = compiled<kSet, Gates::near_scores>,
      .near_gradients = compiled<kSet, Gates::near_gradients>};
};

/// The kernels for these vectors, which must be available.
template <class T>
const RecurrenceFamily<T>& recurrence_family(VectorSet vectors) {
  return with_vectors<T>(
      vectors, []<VectorSet kSet>() -> const RecurrenceFamily<T>& { return RecurrenceFamilyOf<T, kSet>::kKernels; });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
