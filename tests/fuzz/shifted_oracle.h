// Attention, its gradients and its directional derivative by their definitions, in long double. Written for calls whose
// rows of scores are shifted by a constant; shares no code with the library or the other oracle.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "random.h"

namespace fuzz::shifted {

using Wide = long double;

/// The values of a call, packed, and the effect of its mods on each pair: score, softcap, constant, mask, in this
/// order.
struct CallValues {
  Index batch = 1, heads = 1, kv_heads = 1, q_len = 1, kv_len = 1, head_dim = 1, v_dim = 1;
  Index q_offset = 0;  // the position of the first query
  Wide scale = 1;
  std::vector<Wide> q, k, v;           // (batch, heads, len, dim)
  std::vector<Wide> grad_out;          // like out
  std::vector<Wide> grad_lse;          // (batch, heads, q_len), or empty
  std::vector<Wide> to_q, to_k, to_v;  // the direction, like q, k and v; or empty
  std::vector<Wide> added;             // the constant of each pair, (batch, heads, q_len, kv_len)
  std::vector<char> kept;              // whether the masks keep the pair
  std::vector<Wide> factor;            // of dropout, or empty
  Wide cap = 0;                        // 0: no softcap
  std::vector<Wide> sinks;             // per head; -inf: none
  Wide (*rounded)(Wide) = nullptr;     // rounds to the computation's scalar

  Index group() const { return heads / kv_heads; }
  std::size_t row(Index b, Index h, Index i) const { return static_cast<std::size_t>((b * heads + h) * q_len + i); }
  std::size_t pair(Index b, Index h, Index i, Index j) const {
    return row(b, h, i) * static_cast<std::size_t>(kv_len) + static_cast<std::size_t>(j);
  }
  const Wide* of_query(const std::vector<Wide>& all, Index b, Index h, Index i, Index dim) const {
    return all.data() + ((b * heads + h) * q_len + i) * dim;
  }
  const Wide* of_key(const std::vector<Wide>& all, Index b, Index h, Index j, Index dim) const {
    return all.data() + ((b * kv_heads + h / group()) * kv_len + j) * dim;
  }
};

/// A tensor's correct values, the largest sum of the magnitudes of an element's terms, and, for gradients, the root of
/// the largest sum of their squares.
struct Part {
  std::vector<Wide> x;
  Wide size = 0, root = 0;
};

struct CorrectValues {
  Part out, lse, weights;        // weights after dropout
  Part query, key, value;        // gradients
  Part sinks;                    // gradients of the sinks' logits
  std::vector<Wide> pairs;       // gradients of the scores before the constant was added, if the mods end with it
  std::vector<Wide> pair_sizes;  // their magnitudes
  Part tangent;
  Wide below_sink = 0;  // largest difference between a row's sink and its largest score
};

/// A sum of products, and the root of the sum of their squares, to which its rounding error is relative.
struct Dot {
  Wide sum = 0, size = 0;
};
inline Dot dot(const Wide* a, const Wide* b, Index n) {
  Dot d;
  for (Index i = 0; i < n; ++i) d.sum += a[i] * b[i], d.size += a[i] * b[i] * a[i] * b[i];
  d.size = std::max(std::sqrt(d.size), std::abs(d.sum));
  return d;
}

/// The score of a pair before the constant, with its slope. The slope of a capped score is computed as a difference
/// from 1, so its error is relative to 1.
struct Capped {
  Wide x, slope;
};
inline Capped capped(const CallValues& g, Wide score) {
  if (g.cap == 0) return {score, 1};
  const Wide t = std::tanh(score / g.cap);
  return {g.cap * t, 1 - t * t};
}

/// The score, the constant and their sum are each rounded to the computation's scalar.
inline Wide with_constant(const CallValues& g, Wide x, Wide constant) {
  return constant == 0 ? x : g.rounded(g.rounded(x) + constant);
}

inline CorrectValues correct_values(const CallValues& g, bool backward) {
  constexpr Wide kInf = std::numeric_limits<Wide>::infinity();
  const Index n = g.q_len, m = g.kv_len;
  CorrectValues r;
  const auto zeros = [](Part& p, Index count) { p.x.assign(static_cast<std::size_t>(count), 0); };
  const Index rows = g.batch * g.heads * n, keys = g.batch * g.kv_heads * m;
  zeros(r.out, rows * g.v_dim), zeros(r.lse, rows), zeros(r.weights, rows * m);
  zeros(r.query, rows * g.head_dim), zeros(r.key, keys * g.head_dim), zeros(r.value, keys * g.v_dim);
  zeros(r.sinks, g.heads), zeros(r.tangent, rows * g.v_dim);
  r.pairs.assign(r.weights.x.size(), 0), r.pair_sizes = r.pairs;
  Part key_sizes = r.key, value_sizes = r.value, sink_sizes = r.sinks;
  Part key_squares = r.key, value_squares = r.value;
  std::vector<Wide> w(static_cast<std::size_t>(m)), slope(w), grad(w), grad_size(w), moves(w), move_size(w);

  for (Index b = 0; b < g.batch; ++b)
    for (Index h = 0; h < g.heads; ++h)
      for (Index i = 0; i < n; ++i) {
        const Wide sink = g.sinks.empty() ? -kInf : g.sinks[static_cast<std::size_t>(h)];
        const std::size_t row = g.row(b, h, i);
        const auto at = [](Index j) { return static_cast<std::size_t>(j); };
        const Wide* const q = g.of_query(g.q, b, h, i, g.head_dim);
        Wide highest = sink;
        for (Index j = 0; j < m; ++j) {
          const std::size_t pair = g.pair(b, h, i, j);
          if (!g.kept[pair]) {
            w[at(j)] = -kInf, slope[at(j)] = 0;
            continue;
          }
          const Capped c = capped(g, g.scale * dot(q, g.of_key(g.k, b, h, j, g.head_dim), g.head_dim).sum);
          w[at(j)] = with_constant(g, c.x, g.added[pair]), slope[at(j)] = c.slope;
          highest = std::max(highest, w[at(j)]);
        }
        if (highest == -kInf) {
          r.lse.x[row] = -kInf;
          continue;
        }
        if (sink == highest && m > 0) {
          const Wide most = *std::max_element(w.begin(), w.end());
          if (most != -kInf) r.below_sink = std::max(r.below_sink, sink - most);
        }
        Wide sum = std::exp(sink - highest);
        for (Index j = 0; j < m; ++j) sum += w[at(j)] = std::exp(w[at(j)] - highest);
        r.lse.x[row] = highest + std::log(sum);
        r.lse.size = std::max(r.lse.size, std::abs(highest) + std::abs(std::log(sum)));
        const Wide of_sink = std::exp(sink - highest) / sum;
        for (Index j = 0; j < m; ++j) {
          w[at(j)] /= sum;
          r.weights.x[g.pair(b, h, i, j)] = w[at(j)] * (g.factor.empty() ? 1 : g.factor[g.pair(b, h, i, j)]);
        }
        const Wide* const kept_weights = &r.weights.x[g.pair(b, h, i, 0)];

        for (Index c = 0; c < g.v_dim; ++c) {
          Wide size = 0, &out = r.out.x[row * at(g.v_dim) + at(c)];
          for (Index j = 0; j < m; ++j) {
            const Wide x = kept_weights[j] * g.of_key(g.v, b, h, j, g.v_dim)[c];
            out += x, size += std::abs(x);
          }
          r.out.size = std::max(r.out.size, size);
        }
        if (!backward) continue;

        const Wide* const grad_out = g.of_query(g.grad_out, b, h, i, g.v_dim);
        const Wide grad_lse = g.grad_lse.empty() ? 0 : g.grad_lse[row];
        Wide delta = -grad_lse, delta_size = std::abs(grad_lse), moved = 0, moved_size = 0;
        for (Index j = 0; j < m; ++j) {
          const Wide factor = g.factor.empty() ? 1 : g.factor[g.pair(b, h, i, j)];
          const Dot d = dot(grad_out, g.of_key(g.v, b, h, j, g.v_dim), g.v_dim);
          grad[at(j)] = factor * d.sum, grad_size[at(j)] = factor * d.size;
          delta += w[at(j)] * grad[at(j)], delta_size += w[at(j)] * grad_size[at(j)];
          if (g.to_q.empty()) continue;
          const Dot by_q = dot(g.of_query(g.to_q, b, h, i, g.head_dim), g.of_key(g.k, b, h, j, g.head_dim), g.head_dim),
                    by_k = dot(q, g.of_key(g.to_k, b, h, j, g.head_dim), g.head_dim);
          moves[at(j)] = slope[at(j)] * g.scale * (by_q.sum + by_k.sum);
          move_size[at(j)] = std::abs(g.scale) * (by_q.size + by_k.size);
          moved += w[at(j)] * moves[at(j)], moved_size += w[at(j)] * move_size[at(j)];
        }
        r.sinks.x[at(h)] -= of_sink * delta, sink_sizes.x[at(h)] += of_sink * delta_size;
        std::vector<Wide> query_sizes(at(g.head_dim), 0), query_squares = query_sizes, tangent_sizes(at(g.v_dim), 0);
        for (Index j = 0; j < m; ++j) {
          if (w[at(j)] == 0) continue;
          const std::size_t key = at((b * g.kv_heads + h / g.group()) * m + j);
          const Wide x = w[at(j)] * (grad[at(j)] - delta), size = w[at(j)] * (grad_size[at(j)] + delta_size);
          r.pairs[g.pair(b, h, i, j)] = x, r.pair_sizes[g.pair(b, h, i, j)] = size;
          const Wide dx = x * slope[at(j)] * g.scale, dx_size = size * std::abs(g.scale);
          const Wide* const k = g.of_key(g.k, b, h, j, g.head_dim);
          for (Index c = 0; c < g.head_dim; ++c) {
            r.query.x[row * at(g.head_dim) + at(c)] += dx * k[c];
            query_sizes[at(c)] += dx_size * std::abs(k[c]), query_squares[at(c)] += dx * k[c] * dx * k[c];
            r.key.x[key * at(g.head_dim) + at(c)] += dx * q[c];
            key_sizes.x[key * at(g.head_dim) + at(c)] += dx_size * std::abs(q[c]);
            key_squares.x[key * at(g.head_dim) + at(c)] += dx * q[c] * dx * q[c];
          }
          const Wide* const v = g.of_key(g.v, b, h, j, g.v_dim);
          for (Index c = 0; c < g.v_dim; ++c) {
            const Wide term = kept_weights[j] * grad_out[c];
            r.value.x[key * at(g.v_dim) + at(c)] += term;
            value_sizes.x[key * at(g.v_dim) + at(c)] += std::abs(term);
            value_squares.x[key * at(g.v_dim) + at(c)] += term * term;
            if (g.to_q.empty()) continue;
            const Wide by_value = kept_weights[j] * g.of_key(g.to_v, b, h, j, g.v_dim)[c];
            r.tangent.x[row * at(g.v_dim) + at(c)] += kept_weights[j] * (moves[at(j)] - moved) * v[c] + by_value;
            tangent_sizes[at(c)] +=
                kept_weights[j] * (move_size[at(j)] + moved_size) * std::abs(v[c]) + std::abs(by_value);
          }
        }
        for (const Wide size : query_sizes) r.query.size = std::max(r.query.size, size);
        for (const Wide squares : query_squares) r.query.root = std::max(r.query.root, std::sqrt(squares));
        for (const Wide size : tangent_sizes) r.tangent.size = std::max(r.tangent.size, size);
      }
  const auto largest = [](const Part& p) { return p.x.empty() ? Wide(0) : *std::max_element(p.x.begin(), p.x.end()); };
  r.weights.size = largest(r.weights);
  r.key.size = largest(key_sizes), r.value.size = largest(value_sizes),
  r.sinks.size = 2 * largest(sink_sizes);  // there are few of them
  r.key.root = std::sqrt(largest(key_squares)), r.value.root = std::sqrt(largest(value_squares));
  return r;
}

/// Whether no score of the call can round to another value when the constant is added, given errors of `error` relative
/// to the score's magnitude.
inline bool is_clear(const CallValues& g, Wide error) {
  for (Index b = 0; b < g.batch; ++b)
    for (Index h = 0; h < g.heads; ++h)
      for (Index i = 0; i < g.q_len; ++i)
        for (Index j = 0; j < g.kv_len; ++j) {
          const Wide constant = g.added[g.pair(b, h, i, j)];
          if (constant == 0) continue;
          const Dot d = dot(g.of_query(g.q, b, h, i, g.head_dim), g.of_key(g.k, b, h, j, g.head_dim), g.head_dim);
          const Wide x = capped(g, g.scale * d.sum).x,
                     off = error * (std::abs(g.scale) * d.size * std::sqrt(static_cast<Wide>(g.head_dim)) + g.cap);
          if (g.rounded(x - off + constant) != g.rounded(x + off + constant)) return false;
        }
  return true;
}

/// Scale of the error of inexact scores, in units of the rounding error.
inline Wide score_unit(const CallValues& g) {
  Wide most = 0;
  for (Index b = 0; b < g.batch; ++b)
    for (Index h = 0; h < g.heads; ++h)
      for (Index i = 0; i < g.q_len; ++i)
        for (Index j = 0; j < g.kv_len; ++j)
          most = std::max(
              most, dot(g.of_query(g.q, b, h, i, g.head_dim), g.of_key(g.k, b, h, j, g.head_dim), g.head_dim).size);
  return 2 * std::abs(g.scale) * most + g.cap;
}

}  // namespace fuzz::shifted
