// Kernels of recurrences over tokens, one source for all instruction sets, and the choice among them at run time:
// feature maps, sums and products over the rows of a chunk, decays and pairs of nearby tokens, and single steps.
#pragma once

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <limits>

#include "attn/recurrent/product_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rows to write, each with `columns` elements, a multiple of the vectors' lanes.
template <class T>
struct Block {
  T* data;
  Index stride;
  Index rows;
  Index columns;

  T* row(Index i) const { return data + i * stride; }
  operator Rows<T>() const { return {data, stride}; }

  /// The `count` rows from row i on.
  Block from(Index i, Index count) const { return {row(i), stride, count, columns}; }
  /// The rows in reverse order; there must be at least one.
  Block backward() const { return {row(rows - 1), -stride, rows, columns}; }
  /// All rows as one; they must be contiguous.
  Block as_row() const { return {data, stride, 1, rows * columns}; }
};

enum class FeatureKind : unsigned char { identity, elu1, relu, favor, lambda };

/// Rows to turn into features in place. A lambda has already been applied to them. For favor(), they are the products
/// with its random vectors.
template <class T>
struct FeatureRows {
  FeatureKind kind;
  Block<T> to;
  Index features;  ///< columns from here on are padding
  T* factor;       ///< (rows): receives the factors of the features of queries; null for keys
  Block<T> x;      ///< for favor(): the rows that were multiplied by the vectors
  T scale;         ///< for favor(): the scale of the softmax that it estimates
};

/// What running() stores: sums, the old values plus the sums, or products.
enum class Running : unsigned char { sums, added_sums, products };

/// At most kNearTokens neighbouring tokens: rows of queries, keys and factors (e^gate of each feature).
template <class T>
struct NearTokens {
  Rows<T> query, key, factor;
  Index tokens;
  Index columns;  ///< a multiple of the vectors' lanes
};
/// Number of neighbouring tokens whose pairs are computed one by one; tokens further apart use matrix products.
constexpr Index kNearTokens = 16;

/// A factor for each row, or one for all.
template <class T>
class RowFactors {
 public:
  RowFactors(const T* of_rows) : of_rows_(of_rows) { assert(of_rows != nullptr); }
  RowFactors(T of_all) : of_all_(of_all) {}
  /// The negated factors.
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

/// One token's step of a state (features, columns): state = decay * state + key * value + written * read * state, out =
/// scale * query * state. With the delta rule, the value is -beta * (read * state - value) instead.
template <class T>
struct StateStep {
  T* state;
  Index stride;
  Index features;
  Index columns;     ///< a multiple of the vectors' lanes
  const T* decay;    ///< factors of the rows of the state, decay_step apart
  Index decay_step;  ///< 0: one decay for all rows
  const T* key;      ///< (features), padded with zeros like the query, `read` and `written`
  const T* value;    ///< (columns)
  const T* query;    ///< (features)
  T* out;            ///< (columns)
  T scale;
  const T* read;     ///< (features): reads the old state; null if nothing does
  const T* written;  ///< (features): null with the delta rule, which writes along the key
  T factor;          ///< with the delta rule, -beta
};

template <class T, int Bytes, int kRegisters>
struct RecurrenceKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Turns rows into features. Features of queries may have any factor, because the normaliser cancels it. The factor
  /// is a power of two that scales the largest feature to 1 .. 2, so that no query has only tiny features. With favor()
  /// it is e^-(the largest product), which is not stored: `factor` gets 1.
  static ATTN_INLINE void make_features(const FeatureRows<T>& f) {
    if (f.kind == FeatureKind::favor) return favor(f);
    // Katharopoulos et al. 2020, eq. 7. NaN stays NaN in both maps.
    const auto elu1 = [](const V& x) __attribute__((always_inline)) {
      return select(x > V{}, x + T(1), exp(select(x > V{}, V{}, x)));
    };
    const auto relu = [](const V& x) __attribute__((always_inline)) { return select(x < V{}, V{}, x); };
    if (f.kind == FeatureKind::elu1) each(f.to, elu1);
    if (f.kind == FeatureKind::relu) each(f.to, relu);
    fill_padding(f, T(0));
    if (f.factor) balance(f.to, f.factor);
  }

  /// to_i = from_0 + .. + from_i, or the product; both may be the same rows.
  static ATTN_INLINE void running(const Block<T>& to, Rows<T> from, Running stored) {
    switch (stored) {
      case Running::sums:
        return running_in<Running::sums>(to, from);
      case Running::added_sums:
        return running_in<Running::added_sums>(to, from);
      case Running::products:
        return running_in<Running::products>(to, from);
    }
  }
  /// Replaces each element x with e^x.
  static ATTN_INLINE void exponentials(const Block<T>& rows) {
    for (Index i = 0; i < rows.rows; ++i) exp_row(rows.row(i), rows.columns);
  }

  /// Computes the decays between the tokens of a chunk with gates g: `to` gets e^(g[j + 1] + .. + g[i]) at row i,
  /// column j <= i; columns j > i hold garbage. from_start[i] gets e^(g[0] + .. + g[i]) and must have space for whole
  /// vectors. The sums are formed one gate at a time and never subtracted: differences of long sums would lose the
  /// precision that nearby tokens need, and be NaN after a gate of -inf.
  static ATTN_INLINE void token_decays(const T* gate, const Block<T>& to, T* from_start) {
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

  /// to = a * b, elementwise. All three may be the same rows.
  static ATTN_INLINE void multiply(const Block<T>& to, Rows<T> a, Rows<T> b) {
    for (Index i = 0; i < to.rows; ++i)
      for (Index c = 0; c < to.columns; c += kLanes)
        (V::load(a.data + i * a.stride + c) * V::load(b.data + i * b.stride + c)).store(to.row(i) + c);
  }
  /// to_i = factor[i] * from_i + plus_i, or only the product if plus is null. All may be the same rows.
  static ATTN_INLINE void scale(const Block<T>& to, RowFactors<T> factor, Rows<T> from, Rows<T> plus) {
    for (Index i = 0; i < to.rows; ++i) {
      const T f = factor[i];
      const T *x = from.data + i * from.stride, *y = plus.data + i * plus.stride;
      if (plus.data == nullptr)
        for (Index c = 0; c < to.columns; c += kLanes) (V::load(x + c) * f).store(to.row(i) + c);
      else
        for (Index c = 0; c < to.columns; c += kLanes) (V::load(x + c) * f + V::load(y + c)).store(to.row(i) + c);
    }
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

  /// Solves the rows begin .. end - 1 of a unit lower triangular system: w_i += sum over j in begin .. i - 1 of a(i, j)
  /// * u_j, u_i = beta[i] * w_i. Transposed, it solves from the last row to the first: w_i += sum over j in i + 1 ..
  /// end - 1 of a(j, i) * u_j.
  static ATTN_INLINE void substitute(const Block<T>& w, T* u, Rows<T> a, const T* beta, Range rows, bool transposed) {
    constexpr int kVectors = kRegisters >= 32 ? 4 : 2;
    Index c = 0;
    for (; c + kVectors * kLanes <= w.columns; c += kVectors * kLanes)
      substitute_in<kVectors>(w, u, a, beta, rows, transposed, c);
    for (; c < w.columns; c += kLanes) substitute_in<1>(w, u, a, beta, rows, transposed, c);
  }

  /// A rule that reads the state makes two passes over it. Narrower columns, with which a head would stay in L1 in
  /// between, took 1.1 to 1.3 times as long (Zen 4, 128 x 128 floats), and prefetching the next head's state meanwhile
  /// took 1.1 times as long in L2 and 0.9 to 1.1 times from memory.
  static ATTN_INLINE void step(const StateStep<T>& s) {
    constexpr int kVectors = kRegisters >= 32 ? 8 : 4;
    T of_key = 0, of_written = 0;  // products with the query
    const Index features = padded(s.features, kLanes);
    if (s.read) add_dots(&of_key, {s.query, 0}, {s.key, 0}, 1, features);
    if (s.written) add_dots(&of_written, {s.query, 0}, {s.written, 0}, 1, features);
    Index c = 0;
    for (; c + kVectors * kLanes <= s.columns; c += kVectors * kLanes) step_columns<kVectors>(s, c, of_key, of_written);
    for (; c < s.columns; c += kLanes) step_columns<1>(s, c, of_key, of_written);
  }

  /// scores(i, j) = sum over features of query_i * key_j * factor_(j + 1) * .. * factor_i, for j <= i. The key is
  /// decayed from each query to the next, so that no decay is ever divided by another.
  static ATTN_INLINE void near_scores(const NearTokens<T>& n, const Block<T>& scores) {
    for (Index j = 0; j < n.tokens; ++j) scores_of_key<kNearTokens>(n, j, scores);
  }

  /// Adds the gradients of queries, keys and gates, given the gradients of the scores. The gate of token t affects all
  /// pairs j < t <= i.
  static ATTN_INLINE void near_gradients(const NearTokens<T>& n, Rows<T> grad_scores, const Block<T>& grad_query,
                                         const Block<T>& grad_key, const Block<T>& grad_gate) {
    for (Index c = 0; c < n.columns; c += kLanes)
      for (Index j = 0; j < n.tokens; ++j) {
        // For each token i >= j: the sum of query * grad_score over the queries from i on, with their decays since i.
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
  template <class Addend>
  static ATTN_INLINE void add(T* to, const Addend& x) {
    (V::load(to) + x).store(to);
  }

  template <class Change>
  static ATTN_INLINE void each(const Block<T>& b, const Change& change) {
    for (Index i = 0; i < b.rows; ++i)
      for (Index c = 0; c < b.columns; c += kLanes) change(V::load(b.row(i) + c)).store(b.row(i) + c);
  }
  static ATTN_INLINE void fill_padding(const FeatureRows<T>& f, T with) {
    for (Index i = 0; f.features < f.to.columns && i < f.to.rows; ++i)
      std::fill(f.to.row(i) + f.features, f.to.row(i) + f.to.columns, with);
  }

  /// Computes e^(product - less), where `less` is scale * |x|^2 / 2 for a key. For a query, that e^-less would be a
  /// common factor of all features, so `less` is the query's largest product instead.
  static ATTN_INLINE void favor(const FeatureRows<T>& f) {
    const Block<T>& to = f.to;
    fill_padding(f, -std::numeric_limits<T>::infinity());
    for (Index i = 0; i < to.rows; ++i) {
      T less = 0;
      if (f.factor) {
        V most = V::broadcast(-std::numeric_limits<T>::infinity());
        for (Index c = 0; c < to.columns; c += kLanes) most = max(V::load(to.row(i) + c), most);
        less = most.largest();
        if (less == -std::numeric_limits<T>::infinity()) less = 0;  // a row of NaN
        f.factor[i] = 1;
      } else {
        add_dots(&less, f.x.from(i, 1), f.x.from(i, 1), 1, f.x.columns);
        less *= f.scale / 2;
      }
      for (Index c = 0; c < to.columns; c += kLanes)
        exp_or_infinity(V::load(to.row(i) + c) - less).store(to.row(i) + c);
    }
  }

  /// Multiplies each row by a power of two, `factor`, that scales its largest magnitude to 1 .. 2. This is exact except
  /// for results that are denormal, which are far below the largest.
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

  /// 2^-e for x from 2^e to 2^(e + 1); 1 if x is 0 or not finite. The exponent is clamped to powers whose inverse is a
  /// normal number.
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

  /// e^x, or infinity if it exceeds the range of T.
  static ATTN_INLINE V exp_or_infinity(const V& x) {
    V y = exp(x);
    if constexpr (V::kIsVector)
      y = select(x > -Exp2Constants<T>::kSmallest, V::broadcast(std::numeric_limits<T>::infinity()), y);
    return y;
  }
  /// Replaces each of the first `count` elements x, rounded up to whole vectors, with e^x.
  static ATTN_INLINE void exp_row(T* row, Index count) {
    for (Index c = 0; c < count; c += kLanes) exp_or_infinity(V::load(row + c)).store(row + c);
  }

  template <Running kStored>
  static ATTN_INLINE void running_in(const Block<T>& to, Rows<T> from) {
    for (Index c = 0; c < to.columns; c += kLanes) {
      V total = V::broadcast(kStored == Running::products ? T(1) : T(0));
      for (Index i = 0; i < to.rows; ++i) {
        const V x = V::load(from.data + i * from.stride + c);
        if constexpr (kStored == Running::products)
          total *= x;
        else
          total += x;
        if constexpr (kStored == Running::added_sums)
          (total + V::load(to.row(i) + c)).store(to.row(i) + c);
        else
          total.store(to.row(i) + c);
      }
    }
  }

  /// Computes near_scores() for key j and all queries from it on, whose number is at most kCount. The sums over lanes
  /// come last, so that a pair takes two instructions per vector.
  template <int kCount>
  static ATTN_INLINE void scores_of_key(const NearTokens<T>& n, Index j, const Block<T>& scores) {
    if constexpr (kCount > 1)
      if (n.tokens - j < kCount) return scores_of_key<kCount - 1>(n, j, scores);
    Array<V, kCount> sums = {};
    for (Index c = 0; c < n.columns; c += kLanes) {
      V key = V::load(n.key.data + j * n.key.stride + c);
      ATTN_UNROLL for (int d = 0; d < kCount; ++d) {
        if (d > 0) key *= V::load(n.factor.data + (j + d) * n.factor.stride + c);
        sums[d] += V::load(n.query.data + (j + d) * n.query.stride + c) * key;
      }
    }
    for (int d = 0; d < kCount; ++d) scores.row(j + d)[j] = sums[d].total();
  }

  template <int kVectors>
  static ATTN_INLINE void substitute_in(const Block<T>& w, T* u, Rows<T> a, const T* beta, Range rows, bool transposed,
                                        Index c) {
    for (Index n = 0; n < rows.size(); ++n) {
      const Index i = transposed ? rows.end - 1 - n : rows.begin + n;
      const Range solved = transposed ? Range{i + 1, rows.end} : Range{rows.begin, i};
      Array<V, kVectors> sum;
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[v] = V::load(w.row(i) + c + v * kLanes);
      for (Index j = solved.begin; j < solved.end; ++j) {
        const T x = transposed ? a.data[j * a.stride + i] : a.data[i * a.stride + j];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) sum[v] += V::load(u + j * w.stride + c + v * kLanes) * x;
      }
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        sum[v].store(w.row(i) + c + v * kLanes);
        (sum[v] * beta[i]).store(u + i * w.stride + c + v * kLanes);
      }
    }
  }

  template <int kVectors>
  static ATTN_INLINE void step_columns(const StateStep<T>& s, Index c, T of_key, T of_written) {
    Array<V, kVectors> value, out = {};
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) value[v] = V::load(s.value + c + v * kLanes);
    if (!s.read) {
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
      // The value to write depends on the whole state, so the state is read twice. The first read also computes the old
      // state's part of the output.
      Array<V, kVectors> seen = {};
      T* row = s.state + c;
      for (Index f = 0; f < s.features; ++f, row += s.stride) {
        const T r = s.read[f], q = s.query[f] * s.decay[f * s.decay_step];
        ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
          V x = V::load(row + v * kLanes);
          x.keep_in_register();
          seen[v] += x * r;
          out[v] += x * q;
        }
      }
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        if (!s.written) value[v] = (seen[v] - value[v]) * s.factor;
        out[v] += value[v] * of_key + seen[v] * of_written;
      }
      s.written ? update<kVectors, true>(s, c, value, seen) : update<kVectors, false>(s, c, value, seen);
    }
    ATTN_UNROLL for (int v = 0; v < kVectors; ++v) { (out[v] * s.scale).store(s.out + c + v * kLanes); }
  }
  /// state = decay * state + key * value + written * seen
  template <int kVectors, bool kWritten>
  static ATTN_INLINE void update(const StateStep<T>& s, Index c, const Array<V, kVectors>& value,
                                 const Array<V, kVectors>& seen) {
    T* row = s.state + c;
    for (Index f = 0; f < s.features; ++f, row += s.stride) {
      const T decay = s.decay[f * s.decay_step], k = s.key[f], w = kWritten ? s.written[f] : T(0);
      ATTN_UNROLL for (int v = 0; v < kVectors; ++v) {
        V x = V::load(row + v * kLanes) * decay + value[v] * k;
        if constexpr (kWritten) x += seen[v] * w;
        x.store(row + v * kLanes);
      }
    }
  }
};

/// Rows of a chunk and of a state are padded to a multiple of this many elements: a cache line, and so whole vectors of
/// any instruction set.
template <class T>
constexpr Index kRowUnit = kAlignment / static_cast<Index>(sizeof(T));

/// The kernels of one instruction set. The loops over chunks call them through this table, so that the loops are
/// compiled once instead of for each set.
template <class T>
struct RecurrenceFamily {
  void (*product)(const Product<T>&);
  void (*make_features)(const FeatureRows<T>&);
  void (*running)(const Block<T>& to, Rows<T> from, Running);
  void (*exponentials)(const Block<T>&);
  void (*token_decays)(const T* gate, const Block<T>&, T* from_start);
  void (*multiply)(const Block<T>& to, Rows<T> a, Rows<T> b);
  void (*scale)(const Block<T>& to, RowFactors<T>, Rows<T> from, Rows<T> plus);
  void (*add_dots)(T* sums, Rows<T> a, Rows<T> b, Index rows, Index columns);
  void (*substitute)(const Block<T>& w, T* u, Rows<T> a, const T* beta, Range rows, bool transposed);
  void (*step)(const StateStep<T>&);
  void (*near_scores)(const NearTokens<T>&, const Block<T>& scores);
  void (*near_gradients)(const NearTokens<T>&, Rows<T> grad_scores, const Block<T>& grad_query,
                         const Block<T>& grad_key, const Block<T>& grad_gate);
};

/// The kernels for these vectors, which must be available.
template <class T>
const RecurrenceFamily<T>& recurrence_family(VectorSet vectors) {
  return with_vectors<T>(vectors, []<VectorSet kSet>() -> const RecurrenceFamily<T>& {
    using Kernels = RecurrenceKernels<T, kVectorBytes<kSet>, kVectorRegisters<kSet>>;
    static constexpr RecurrenceFamily<T> kKernels = {
        .product = compiled<kSet, ProductKernels<T, kVectorBytes<kSet>, kVectorRegisters<kSet>>::product>,
        .make_features = compiled<kSet, Kernels::make_features>,
        .running = compiled<kSet, Kernels::running>,
        .exponentials = compiled<kSet, Kernels::exponentials>,
        .token_decays = compiled<kSet, Kernels::token_decays>,
        .multiply = compiled<kSet, Kernels::multiply>,
        .scale = compiled<kSet, Kernels::scale>,
        .add_dots = compiled<kSet, Kernels::add_dots>,
        .substitute = compiled<kSet, Kernels::substitute>,
        .step = compiled<kSet, Kernels::step>,
        .near_scores = compiled<kSet, Kernels::near_scores>,
        .near_gradients = compiled<kSet, Kernels::near_gradients>};
    return kKernels;
  });
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
