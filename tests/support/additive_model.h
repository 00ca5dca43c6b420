// Randomly drawn parameters of additive scores, and a reference of the score in long double and plain loops over plain
// vectors. It shares no code with the library.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "attn/additive_attention.h"
#include "attn/mods.h"
#include "compare.h"
#include "oracle.h"
#include "strided.h"

namespace attn::test {

/// A parameter (heads or 1, rows, columns) as doubles that every scalar represents exactly, and as tensors of T.
struct DrawnParameter {
  Index heads = 0, rows = 0, columns = 0;
  std::vector<double> values;  ///< empty if absent

  DrawnParameter() = default;
  DrawnParameter(Index h, Index r, Index c, Random& random, double spread)
      : heads(h), rows(r), columns(c), values(random.values(h * r * c, spread)) {}

  Real operator()(Index head, Index i, Index j) const {
    return values[static_cast<std::size_t>(((heads == 1 ? 0 : head) * rows + i) * columns + j)];
  }
  double& at(Index head, Index i, Index j) {
    return values[static_cast<std::size_t>(((heads == 1 ? 0 : head) * rows + i) * columns + j)];
  }

  /// The parameter as a rank-3 or rank-2 argument: (heads, rows, columns), or (heads, columns) if it has one row.
  template <class T>
  Tensor<T, 3> matrices() const {
    Tensor<T, 3> t({heads, rows, columns});
    for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = static_cast<T>(values[i]);
    return t;
  }
  template <class T>
  Tensor<T, 2> vectors() const {
    Tensor<T, 2> t({heads, columns});
    for (std::size_t i = 0; i < values.size(); ++i) t.data()[i] = static_cast<T>(values[i]);
    return t;
  }
};

/// A randomly drawn call of additive attention. `sizes.head_dim` is that of the queries.
struct AdditiveModel {
  Sizes sizes;
  Index key_dim, hidden;
  DrawnParameter query_weight, key_weight, score_weight, bias;
  std::vector<double> q, k, v;

  AdditiveModel(const Sizes& s, Index key_dim_given, Index hidden_given, Random& random)
      : sizes(s), key_dim(key_dim_given), hidden(hidden_given) {
    const auto heads = [&](Index all) { return random.chance(0.5) ? 1 : all; };
    // Where the sizes permit, weights are sometimes omitted.
    if (s.head_dim != hidden || random.chance(0.7))
      query_weight = {heads(s.heads), hidden, s.head_dim, random, 1.5 / std::sqrt(static_cast<double>(s.head_dim))};
    if (key_dim != hidden || random.chance(0.7))
      key_weight = {heads(s.kv_heads), hidden, key_dim, random, 1.5 / std::sqrt(static_cast<double>(key_dim))};
    score_weight = {heads(s.heads), 1, hidden, random, 1.5};
    if (random.chance(0.7)) bias = {heads(s.heads), 1, hidden, random, 1};
    q = random.values(s.batch * s.heads * s.q_len * s.head_dim);
    k = random.values(s.batch * s.kv_heads * s.kv_len * key_dim);
    v = random.values(s.batch * s.kv_heads * s.kv_len * s.v_dim);
  }

  /// Rounds all values to T if T has 16 bits.
  template <class T>
  void round_to() {
    if constexpr (sizeof(T) == 2)
      for (auto* values : {&q, &k, &v, &query_weight.values, &key_weight.values, &score_weight.values, &bias.values})
        for (double& x : *values) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
  }

  /// The argument of the tanh of feature `h`.
  Real sum(const Pair& p, Index h) const { return of_query(p, h, false) + of_key(p, h, false); }

  Real score(const Pair& p) const {
    Real all = 0;
    for (Index h = 0; h < hidden; ++h) all += score_weight(p.head, 0, h) * std::tanh(sum(p, h));
    return all;
  }
  /// The magnitude to which a score's rounding errors are proportional.
  Real condition(const Pair& p) const {
    Real all = 0;
    for (Index h = 0; h < hidden; ++h)
      all += std::abs(score_weight(p.head, 0, h)) * (1 + of_query(p, h, true) + of_key(p, h, true));
    return all;
  }

  /// The meaning of this score followed by a mod.
  Meaning meaning(const Meaning& mod, Real scale) const {
    Meaning all = mod;
    all.score = [this, scale, after = mod.score](Real, const Pair& p) {
      const Real x = scale * score(p);
      return after ? after(x, p) : x;
    };
    return all;
  }

  /// The oracle of attention, with this score in place of the product of query and key.
  Truth truth(const Meaning& mod, const Numbers& numbers) const {
    Sizes s = sizes;
    s.head_dim = 1;
    const auto zeros = [](Index count) { return std::vector<double>(static_cast<std::size_t>(count)); };
    const Inputs in(s, zeros(s.batch * s.heads * s.q_len), zeros(s.batch * s.kv_heads * s.kv_len), v);
    const Real scale = numbers.scale.value_or(1.0);
    Truth t = oracle(in, meaning(mod, scale), {1.0, numbers.q_offset});
    for (Index b = 0; b < s.batch; ++b)
      for (Index head = 0; head < s.heads; ++head)
        for (Index i = 0; i < s.q_len; ++i)
          for (Index j = 0; j < s.kv_len; ++j)
            t.dot_condition = std::max(t.dot_condition, std::abs(scale) * condition({b, head, i, 0, j}));
    return t;
  }
  /// Sizes with the longest sum in a score as head_dim, for the bounds of the naive path.
  Sizes sizes_of_sums() const {
    Sizes s = sizes;
    s.head_dim = std::max({hidden, s.head_dim, key_dim});
    return s;
  }

 private:
  static Real value(Real x, bool magnitude) { return magnitude ? std::abs(x) : x; }

  Real of_query(const Pair& p, Index h, bool magnitude) const {
    const Index row = (p.batch * sizes.heads + p.head) * sizes.q_len + p.row;
    Real all = bias.values.empty() ? 0 : value(bias(p.head, 0, h), magnitude);
    if (query_weight.values.empty()) return all + value(q[at(row * sizes.head_dim + h)], magnitude);
    for (Index d = 0; d < sizes.head_dim; ++d)
      all += value(query_weight(p.head, h, d) * q[at(row * sizes.head_dim + d)], magnitude);
    return all;
  }
  Real of_key(const Pair& p, Index h, bool magnitude) const {
    const Index kv_head = p.head / (sizes.heads / sizes.kv_heads),
                row = (p.batch * sizes.kv_heads + kv_head) * sizes.kv_len + p.kv;
    if (key_weight.values.empty()) return value(k[at(row * key_dim + h)], magnitude);
    Real all = 0;
    for (Index d = 0; d < key_dim; ++d) all += value(key_weight(kv_head, h, d) * k[at(row * key_dim + d)], magnitude);
    return all;
  }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
};

/// A model's tensors of T and its parameters of P.
template <class T, class P = T>
struct AdditiveArguments {
  Strided<T> q, k, v;
  Tensor<P, 3> query_weight, key_weight;
  Tensor<P, 2> score_weight, bias;

  AdditiveArguments(const AdditiveModel& m, Layout q_layout = Layout::bhsd, Layout k_layout = Layout::bhsd,
                    Layout v_layout = Layout::bhsd)
      : q(q_layout, {m.sizes.batch, m.sizes.heads, m.sizes.q_len, m.sizes.head_dim}, m.q),
        k(k_layout, {m.sizes.batch, m.sizes.kv_heads, m.sizes.kv_len, m.key_dim}, m.k),
        v(v_layout, {m.sizes.batch, m.sizes.kv_heads, m.sizes.kv_len, m.sizes.v_dim}, m.v),
        query_weight(m.query_weight.matrices<P>()),
        key_weight(m.key_weight.matrices<P>()),
        score_weight(m.score_weight.vectors<P>()),
        bias(m.bias.vectors<P>()) {}

  AdditiveScore<Wide<T>> score() const { return {query_weight, key_weight, score_weight, bias}; }
};

}  // namespace attn::test
