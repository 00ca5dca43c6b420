// Attention by its definition, written for this program only, with an error bound for each element of a correct result.
#pragma once

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include <Eigen/Core>

#include "case.h"
#include "support/row.h"

namespace fuzz {

using attn::test::Pair;
using Wide = attn::test::Real;

/// The name and the meaning of a mod.
struct Meaning {
  std::string text;
  attn::test::Meaning is;
};
using Meanings = std::vector<Meaning>;

/// The lengths of a batch element, or sequence.
using Lens = attn::test::Lengths;

/// The sizes of a call.
struct Sizes {
  Index heads = 1, kv_heads = 1, head_dim = 1, v_dim = 1;
  std::vector<Lens> each;  ///< per batch element
  bool has_rope = false;   ///< whether rows determine positions, which rules out trees

  Index batch() const { return static_cast<Index>(each.size()); }
  const Lens& of(Index b) const { return each[static_cast<std::size_t>(b)]; }
  /// Whether all batch elements have the same lengths.
  bool even() const {
    for (const Lens& l : each)
      if (l.q_len != each[0].q_len || l.kv_len != each[0].kv_len || l.q_offset != each[0].q_offset) return false;
    return !each.empty();
  }
};

/// The queries, keys and values of one batch element, packed: (heads, q_len, head_dim), (kv_heads, kv_len, head_dim),
/// (kv_heads, kv_len, v_dim). Errors: bounds of the elements' initial errors; empty: exact.
template <class R>
struct Sequence {
  Index batch, heads, kv_heads, head_dim, v_dim;
  Lens lens;
  Wide scale;
  std::vector<R> q, k, v;
  std::vector<R> q_error = {}, k_error = {}, v_error = {};
  std::vector<R> scores = {}, score_errors = {};  ///< (heads, q_len, kv_len), replacing products; empty: products
};

/// The precision of a path, as documented in the README.
struct Precision {
  Wide eps;                                           ///< of the computation's scalar
  Wide tiny;                                          ///< its smallest normal value: smaller ones may become 0
  Wide weights = 0;                                   ///< weights are rounded before the value product: relative
  Wide weights_tiny = 0;                              ///< and absolute
  Wide products_tiny = 0;                             ///< smaller products of weights and values may become 0
  Wide sums = 0;                                      ///< results are divided by a sum of rounded weights: relative
  Wide scores = 0;                                    ///< queries and keys are rounded: relative to scale * sum |q||k|
  Wide values = 0;                                    ///< values are rounded: relative to the largest of them
  Wide lse = 0;                                       ///< additional error of log-sum-exps
  bool weights_from_lse = false;                      ///< weights are e^(score - lse), including the error of lse
  Index in_turn = std::numeric_limits<Index>::max();  ///< largest number of weights summed one by one
  Index values_in_turn = std::numeric_limits<Index>::max();

  /// For products in bf16, which round weights, and so the sums by which results are divided. The hardware takes
  /// numbers below 2^-126 as 0, products as well.
  void multiply_in_bf16() {
    weights = sums = 0x1p-8;
    weights_tiny = products_tiny = 0x1p-126;
    lse = 2e-4;
  }
};

template <class T>
Precision precision_of() {
  return {std::numeric_limits<T>::epsilon(), std::numeric_limits<T>::min()};
}
/// The flash path sums weights in groups of sixteen, then in tiles of 64 keys, then over tiles with compensated
/// summation. It sums weighted values in tiles, then in stretches of 64 tiles, then over stretches with compensated
/// summation.
template <class T>
Precision flash_precision_of() {
  Precision p = precision_of<T>();
  p.in_turn = 24, p.values_in_turn = 128;
  return p;
}

/// A head's expected results, each with its largest allowed error. NaN must be matched by NaN, infinity by any value
/// that is not finite. An infinite error allows anything.
template <class R>
struct Expected {
  using Matrix = Eigen::Matrix<R, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  Matrix out, out_error;          // (q_len, v_dim)
  Matrix weights, weights_error;  // (q_len, kv_len)
  std::vector<R> lse, lse_error;
};

/// Computes results and error bounds, to first order and with some margin, for each row. Rounding errors of a sum of d
/// products are modelled as random, as they are for random values (Higham & Mary 2019): eps * (2 + sqrt(d)) * sum
/// |q||k|, several times the largest observed. On the way into the exponential, a score also gets an error of 3 eps,
/// relative to itself, and of 1 eps, relative to the row's largest score; each mod adds at most 4 eps. That changes a
/// weight by factors of e^(+-error). A sum of n elements has an error of n eps / 2 if they are added one by one; the
/// flash path adds them in stretches, so that the error does not grow with the number of keys.
template <class R>
Expected<R> attend(const Sequence<R>& s, Index head, const Meanings& meanings, const Precision& p) {
  using Matrix = typename Expected<R>::Matrix;
  using Map = Eigen::Map<const Matrix>;
  const Index n = s.lens.q_len, m = s.lens.kv_len, d = s.head_dim, kv_head = head / (s.heads / s.kv_heads);
  const auto head_of = [](const std::vector<R>& all, Index h, Index rows, Index columns) {
    return Map(all.data() + (all.empty() ? 0 : h * rows * columns), all.empty() ? 0 : rows, columns);
  };
  const Map q = head_of(s.q, head, n, d), k = head_of(s.k, kv_head, m, d), v = head_of(s.v, kv_head, m, s.v_dim);
  const Map q_error = head_of(s.q_error, head, n, d), k_error = head_of(s.k_error, kv_head, m, d),
            v_error = head_of(s.v_error, kv_head, m, s.v_dim);
  constexpr R kInf = std::numeric_limits<R>::infinity(), kNan = std::numeric_limits<R>::quiet_NaN();
  const R eps = static_cast<R>(p.eps), scale = static_cast<R>(s.scale), size = std::abs(scale);
  const R own_eps =
      std::numeric_limits<R>::epsilon();  // the oracle rounds too; for long double its eps is that of the library

  Expected<R> e;
  e.out.setZero(n, s.v_dim), e.out_error.setZero(n, s.v_dim);
  e.weights.setZero(n, m), e.weights_error.setZero(n, m);
  e.lse.assign(static_cast<std::size_t>(n), -kInf), e.lse_error.assign(static_cast<std::size_t>(n), 0);

  Matrix scores = head_of(s.scores, head, n, m), errors = head_of(s.score_errors, head, n, m);
  if (s.scores.empty()) {
    scores = scale * (q * k.transpose());
    const Matrix q_abs = q.cwiseAbs(), k_abs = k.cwiseAbs();
    const R rounding = (eps + own_eps) * (2 + std::sqrt(static_cast<R>(d))) + static_cast<R>(p.scores);
    errors = (size * rounding) * (q_abs * k_abs.transpose());
    if (s.q_error.size() > 0) errors += size * (q_error * k_abs.transpose());
    if (s.k_error.size() > 0) errors += size * (q_abs * k_error.transpose());
  }

  Index passes = 1;
  for (const Meaning& meaning : meanings) passes = std::max(passes, meaning.is.passes);
  const R of_passes = 2 * eps * static_cast<R>(passes - 1);

  R sink = -kInf;
  for (const Meaning& meaning : meanings)
    if (meaning.is.sink) {
      const R logit = static_cast<R>(meaning.is.sink(head)), most = std::max(sink, logit);
      if (most > -kInf) sink = most + std::log(std::exp(sink - most) + std::exp(logit - most));
    }

  std::vector<bool> kept(static_cast<std::size_t>(m));
  std::vector<Index> tainted;  // keys with a non-finite value
  Matrix values = v;
  for (Index j = 0; j < m; ++j)
    if (!v.row(j).allFinite()) tainted.push_back(j);
  for (Index j : tainted)
    for (Index c = 0; c < s.v_dim; ++c)
      if (!std::isfinite(v(j, c))) values(j, c) = 0;

  R largest_factor = 1;
  for (Index i = 0; i < n; ++i) {
    R largest = sink;
    Index count = 0;
    bool is_nan = false, is_open = false;
    for (Index j = 0; j < m; ++j) {
      const Pair pair{s.batch, head, i, s.lens.q_offset + i, j};
      Wide x = scores(i, j), error = errors(i, j);
      bool keep = true;
      for (const auto& [text, meaning] : meanings) {
        if (meaning.keep) keep = keep && meaning.keep(pair);
        if (!meaning.score) continue;
        const Wide y = meaning.score(x, pair), gain = meaning.gain ? meaning.gain(head) : 1;
        const bool exact = std::isinf(x) || std::isinf(y);  // infinities are not rounded
        error = exact ? 0 : gain * error + 4 * p.eps * (gain * std::abs(x) + std::abs(y));
        x = y;
      }
      keep = keep && !(x == -std::numeric_limits<Wide>::infinity());
      kept[static_cast<std::size_t>(j)] = keep;
      scores(i, j) = keep ? static_cast<R>(x) : -kInf;
      errors(i, j) = keep ? static_cast<R>(error) + 3 * eps * std::abs(scores(i, j)) : 0;
      if (!keep) continue;
      ++count;
      is_nan |= std::isnan(scores(i, j));
      is_open |= scores(i, j) == kInf || (!std::isnan(scores(i, j)) && !std::isfinite(errors(i, j)));
      if (scores(i, j) > largest) largest = scores(i, j);
    }
    const auto row = static_cast<std::size_t>(i);
    if (is_nan || is_open) {  // results with +inf among the scores are unspecified
      e.out.row(i).setConstant(kNan), e.weights.row(i).setConstant(kNan), e.lse[row] = kNan;
      for (Index j = 0; j < m; ++j)  // dropped pairs are unspecified there
        if (!kept[static_cast<std::size_t>(j)]) e.weights_error(i, j) = kInf;
      if (is_open) {
        e.out_error.row(i).setConstant(kInf), e.weights_error.row(i).setConstant(kInf), e.lse_error[row] = kInf;
      }
      continue;
    }
    if (largest == -kInf) continue;
    const R common = eps * std::abs(largest);
    const R sink_error = sink == -kInf ? 0 : eps * (1 + 4 * std::abs(sink)) + common;
    R sum = std::exp(sink - largest), low = std::exp(sink - sink_error - largest),
      high = std::exp(sink + sink_error - largest);
    for (Index j = 0; j < m; ++j)
      if (kept[static_cast<std::size_t>(j)]) {
        const R x = scores(i, j) - largest, error = errors(i, j) + common;
        sum += std::exp(x), low += std::exp(x - error), high += std::exp(x + error);
      }
    const R lse = std::log(sum), between = of_passes * (1 + std::abs(largest + lse));
    const R own_sums = own_eps * (8 + static_cast<R>(count) / 2);
    const R of_sums = own_sums + between + eps * (8 + static_cast<R>(std::min(count, p.in_turn)) / 2),
            of_values = own_sums + between + eps * (8 + static_cast<R>(std::min(count, p.values_in_turn)) / 2);
    e.lse[row] = largest + lse;
    e.lse_error[row] = std::max(std::log(high) - lse, lse - std::log(low)) + of_sums + static_cast<R>(p.lse) +
                       eps * (2 * std::abs(largest + lse) + std::abs(lse));
    for (Index j = 0; j < m; ++j) {
      if (!kept[static_cast<std::size_t>(j)]) continue;
      const R x = scores(i, j) - largest, error = errors(i, j) + common, w = std::exp(x) / sum;
      R most = std::min(R(1), std::exp(x + error) / low), least = std::exp(x - error) / high;
      if (p.weights_from_lse) {
        const R off = error + e.lse_error[row];
        most = w * std::exp(off), least = w * std::exp(-off);
      }
      // Weight mods, whose slopes grow with the weight, and then dropout are applied after the softmax.
      const Pair pair{s.batch, head, i, s.lens.q_offset + i, j};
      Wide factor = 1, changed = w, slope = 1, steepest = most;
      for (const Meaning& meaning : meanings) {
        if (meaning.is.factor) factor *= meaning.is.factor(pair);
        if (!meaning.is.weight) continue;
        slope *= meaning.is.weight_slope(steepest, pair);
        changed = meaning.is.weight(changed, pair), steepest = meaning.is.weight(steepest, pair);
      }
      const R magnitude = static_cast<R>(std::abs(changed)), steep = static_cast<R>(slope),
              of_mods = changed == w ? R(0) : 4 * eps * (magnitude + steep * w);
      const R z = static_cast<R>(factor), of_factor = z == 1 ? 0 : 4 * eps;
      largest_factor = std::max(largest_factor, z);
      e.weights(i, j) = z * static_cast<R>(changed);
      e.weights_error(i, j) = z * (steep * std::max(most - w, w - least) + of_mods +
                                   magnitude * (of_values + of_factor + static_cast<R>(p.weights)) +
                                   4 * static_cast<R>(p.tiny) + static_cast<R>(p.weights_tiny));
    }
    for (Index j : tainted) {
      if (!kept[static_cast<std::size_t>(j)]) continue;
      for (Index c = 0; c < s.v_dim; ++c)
        if (!std::isfinite(v(j, c)) && !std::isnan(e.out(i, c))) e.out(i, c) = std::isnan(v(j, c)) ? kNan : kInf;
    }
  }

  const Matrix tainted_out = e.out;  // 0 where everything is finite
  Matrix weights = e.weights, weights_error = e.weights_error;
  for (Index i = 0; i < n; ++i)
    if (!std::isfinite(e.lse[static_cast<std::size_t>(i)])) weights.row(i).setZero(), weights_error.row(i).setZero();
  const Matrix values_abs = values.cwiseAbs();
  const R largest_value = values_abs.size() > 0 ? values_abs.maxCoeff() : R(0);
  e.out += weights * values;
  e.out_error += weights_error * values_abs;
  e.out_error.array() += static_cast<R>(m) * largest_factor * static_cast<R>(p.products_tiny);
  if (s.v_error.size() > 0) e.out_error += weights * v_error;
  for (Index i = 0; i < n; ++i)
    for (Index c = 0; c < s.v_dim && !std::isnan(e.lse[static_cast<std::size_t>(i)]); ++c)
      e.out_error(i, c) += (4 * eps + static_cast<R>(p.sums)) * std::abs(e.out(i, c)) +
                           static_cast<R>(p.values) * largest_factor * largest_value + static_cast<R>(p.tiny);
  for (Index i = 0; i < n; ++i)
    for (Index c = 0; c < s.v_dim; ++c)
      if (tainted_out(i, c) != 0) e.out(i, c) = tainted_out(i, c);
  return e;
}

}  // namespace fuzz
