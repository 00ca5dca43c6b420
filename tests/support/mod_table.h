// Every mod the tests know, each with its meaning written out by hand for the oracle. A new mod is one line in
// mod_table(), or in mask_table() where masks share a type: its factory and what it means.
#pragma once

#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "attn/mods.h"
#include "dropout_by_hand.h"
#include "mask_table.h"
#include "oracle.h"

namespace attn::test {

template <class M>
Rows<M> neutral(const char* name, const M& mod) {
  return {{name, mod, {}}};
}
template <class M, class Keep>
Rows<M> mask(const char* name, const M& mod, Keep keep) {
  return {{name, mod, {keep, {}}}};
}
template <class M, class Score>
Rows<M> score(const char* name, const M& mod, Score score) {
  return {{name, mod, {{}, score}}};
}

/// A row-major tensor of 0 or more, over the last `rank` of (batch, heads, q_len, kv_len), some of size 1.
template <class T>
struct PairValues {
  Index shape[4];
  std::vector<T> values;

  std::size_t index(const Pair& p) const {
    const Index at[4] = {p.batch, p.head, p.row, p.kv};
    Index sum = 0;
    for (int i = 0; i < 4; ++i) sum = sum * shape[i] + (shape[i] == 1 ? 0 : at[i]);
    return static_cast<std::size_t>(sum);
  }
  T operator()(const Pair& p) const { return values[index(p)]; }

  template <int Rank>
  attn::Tensor<T, Rank> tensor() const {
    attn::Shape<Rank> s;
    for (std::size_t i = 0; i < Rank; ++i) s[i] = shape[4 - Rank + i];
    auto t = attn::Tensor<T, Rank>::uninitialized(s);
    std::copy(values.begin(), values.end(), t.data());
    return t;
  }

  std::string text() const {
    std::string s = "[";
    for (Index d : shape) s += std::to_string(d) + " ";
    s.back() = ']';
    return s;
  }
};

/// Whether a mask of rank 2 and of this shape would be refused, because its rows may be queries and batch elements.
inline bool is_either(const Setting& s, Index rows, Index columns) {
  return rows > 1 && rows == s.sizes.batch && rows == s.sizes.q_len && columns == s.sizes.kv_len;
}

/// A row from `make(PairValues)` for each way to broadcast over the last Rank dimensions.
template <int Rank, class T, class Draw, class Make>
auto broadcasts(const Setting& s, Draw draw, Make make) {
  const Index full[4] = {s.sizes.batch, s.sizes.heads, s.sizes.q_len, s.sizes.kv_len};
  std::vector<decltype(make(PairValues<T>()))> rows;
  for (int ones = 0; ones < 1 << Rank; ++ones) {
    PairValues<T> t{{1, 1, 1, 1}, {}};
    Index count = 1;
    for (int i = 0; i < Rank; ++i) count *= t.shape[3 - i] = (ones >> i & 1) ? 1 : full[3 - i];
    for (Index i = 0; i < count; ++i) t.values.push_back(draw());
    if constexpr (Rank == 2 && std::is_same_v<T, bool>)
      if (is_either(s, t.shape[2], t.shape[3])) continue;
    rows.push_back(make(t));
  }
  return rows;
}

template <int Rank>
auto keep_rows(const Setting& s) {
  const double kept = s.random.pick(std::vector{0.1, 0.5, 0.9});
  return broadcasts<Rank, bool>(
      s, [&, kept] { return s.random.chance(kept); },
      [](const PairValues<bool>& t) {
        return Row<decltype(attn::keep(t.tensor<Rank>()))>{
            "keep" + t.text(), attn::keep(t.tensor<Rank>()), {[t](const Pair& p) { return t(p); }, {}}};
      });
}

template <int Rank>
auto drop_rows(const Setting& s) {
  const double dropped = s.random.pick(std::vector{0.1, 0.5, 0.9});
  return broadcasts<Rank, bool>(
      s, [&, dropped] { return s.random.chance(dropped); },
      [](const PairValues<bool>& t) {
        return Row<decltype(attn::drop(t.tensor<Rank>()))>{
            "drop" + t.text(), attn::drop(t.tensor<Rank>()), {[t](const Pair& p) { return !t(p); }, {}}};
      });
}

/// Biases with some elements of -inf, which drop the pair.
template <int Rank>
auto bias_rows(const Setting& s) {
  return broadcasts<Rank, float>(
      s,
      [&] {
        return s.random.chance(0.2) ? -std::numeric_limits<float>::infinity()
                                    : static_cast<float>(s.random.uniform(-3, 3));
      },
      [](const PairValues<float>& t) {
        return Row<decltype(attn::bias(t.tensor<Rank>()))>{
            "bias" + t.text(), attn::bias(t.tensor<Rank>()), {{}, [t](Real x, const Pair& p) { return x + t(p); }}};
      });
}

inline auto window_rows(const Setting& s) {
  constexpr Index kHuge = std::numeric_limits<Index>::max();
  const Index sides[][2] = {{0, 0},   {1, 0},     {0, 2},     {3, 5},         {17, 0},
                            {40, 40}, {kHuge, 0}, {0, kHuge}, {kHuge, kHuge}, {s.sizes.kv_len, s.sizes.q_len}};
  Rows<decltype(attn::sliding_window(0, 0))> rows;
  for (const auto& side : sides) {
    const Index left = side[0], right = side[1];
    rows.push_back({"sliding_window(" + std::to_string(left) + ", " + std::to_string(right) + ")",
                    attn::sliding_window(left, right),
                    {[=](const Pair& p) { return p.kv >= p.q ? p.kv - p.q <= right : p.q - p.kv <= left; }, {}}});
  }
  return rows;
}

inline auto key_length_rows(const Setting& s) {
  Rows<decltype(attn::key_lengths(std::vector<Index>()))> rows;
  for (int variant = 0; variant < 3; ++variant) {
    std::vector<Index> lengths;
    for (Index b = 0; b < s.sizes.batch; ++b)
      lengths.push_back(variant == 0 ? 0 : variant == 1 ? s.sizes.kv_len : s.random.integer(0, s.sizes.kv_len));
    rows.push_back({"key_lengths #" + std::to_string(variant),
                    attn::key_lengths(lengths),
                    {[=](const Pair& p) { return p.kv < lengths[static_cast<std::size_t>(p.batch)]; }, {}}});
  }
  return rows;
}

inline auto softcap_rows() {
  Rows<decltype(attn::softcap(1))> rows;
  for (double cap : {0.5, 2.0, 50.0})
    rows.push_back({"softcap(" + std::to_string(cap) + ")", attn::softcap(cap), {{}, [=](Real x, const Pair&) {
                                                                                   return cap * std::tanh(x / cap);
                                                                                 }}});
  return rows;
}

/// A learned table with a number for each distance; the same memory stands for its gradient.
inline auto learned_rows(const Setting& s) {
  const auto table = std::make_shared<attn::Tensor<float, 1>>(attn::Shape<1>{7});
  for (Index i = 0; i < 7; ++i) (*table)(i) = static_cast<float>(s.random.uniform(-1, 1));
  const auto place = [](const auto& p) { return ((p.kv - p.q) % 7 + 7) % 7; };
  const auto change = [](auto x, auto w, const auto&) { return x * (2 - w) + w; };
  return score("learned", attn::learned(*table, *table, place, change), [table, place](Real x, const Pair& p) {
    const Real w = (*table)(place(p));
    return x * (2 - w) + w;
  });
}

inline auto alibi_rows(const Setting& s) {
  std::vector<double> slopes;
  for (Index h = 0; h < s.sizes.heads; ++h) slopes.push_back(s.random.uniform(0.01, 0.5));
  return score("alibi", attn::alibi(slopes), [slopes](Real x, const Pair& p) {
    return x - Real(slopes[static_cast<std::size_t>(p.head)]) * static_cast<Real>(p.q - p.kv);
  });
}

/// Mods that a user wrote in place, one of each kind: without hint, with each hint, and with the sizes of the call.
inline auto lambda_parity() {
  return attn::mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; });
}
inline auto lambda_documents() {  // queries see keys of their own block of 7 positions and before
  return attn::mask_mod([](const attn::Position& p) { return p.kv / 7 <= p.q / 7; },
                        [](const attn::Tile& t) {
                          return (t.kv.end - 1) / 7 <= t.q.begin / 7 ? attn::Coverage::all : attn::Coverage::some;
                        });
}
inline auto lambda_sink() {  // the first 3 keys, and keys near the query
  return attn::mask_mod([](const attn::Position& p) { return p.kv < 3 || (p.kv <= p.q && p.q - p.kv < 20); },
                        [](const attn::Tile& t) {
                          return t.kv.begin >= 3 && t.kv.begin >= t.q.end ? attn::Coverage::none : attn::Coverage::some;
                        },
                        [](const attn::Tile& t) {
                          return attn::Range{t.kv.begin, std::max<attn::Index>(t.q.end, 3)};
                        });
}
inline auto bound_not_last() {
  return attn::bind_mod(
      [](const attn::Problem& c) { return attn::mask_mod([n = c.kv_len](auto p) { return p.kv + 1 < n; }); });
}
inline auto lambda_distance() {
  return attn::score_mod([](auto x, auto p) {
    using X = decltype(x);
    return x - X(0.125) * static_cast<X>((p.q - p.kv) % 5) + X(0.5) * static_cast<X>(p.head) -
           X(0.25) * static_cast<X>(p.batch);
  });
}

inline Real lambda_distance_by_hand(Real x, const Pair& p) {
  return x - Real((p.q - p.kv) % 5) / 8 + Real(p.head) / 2 - Real(p.batch) / 4;
}

inline auto temperature_rows(const Setting& s) {
  std::vector<double> t;
  for (Index h = 0; h < s.sizes.heads; ++h) t.push_back(s.random.uniform(0.25, 4));
  return score("temperature", attn::temperature(t),
               [t](Real x, const Pair& p) { return x / Real(t[static_cast<std::size_t>(p.head)]); });
}

/// Sinks: some heads have a logit, some have none.
inline auto sink_rows(const Setting& s) {
  std::vector<double> logits;
  for (Index h = 0; h < s.sizes.heads; ++h)
    logits.push_back(s.random.chance(0.3) ? -std::numeric_limits<double>::infinity() : s.random.uniform(-3, 3));
  return Rows<decltype(attn::sinks(logits))>{{"sinks", attn::sinks(logits), {{}, {}, [logits](Index h) {
                                                                               return Real(
                                                                                   logits[static_cast<std::size_t>(h)]);
                                                                             }}}};
}

/// Dropouts, from one that drops nothing to one that drops everything.
inline auto dropout_rows(const Setting& s) {
  Rows<attn::DropoutMod> rows;
  for (const double p : {0.5, 0.1, 0.0, 1.0}) {
    const auto seed = static_cast<std::uint64_t>(s.random.integer(0, 1 << 30)) << 20;
    rows.push_back(
        {"dropout(" + std::to_string(p) + ")",
         attn::dropout(p, seed),
         {{}, {}, {}, [=](const Pair& at) { return dropout_factor(p, seed, at.batch, at.head, at.q, at.kv); }}});
  }
  return rows;
}

/// Biases that are single for distances up to 3 and shared beyond; some drop the pair.
inline auto relative_bias_rows(const Setting& s) {
  attn::Tensor<float, 2> table({s.sizes.heads, 7});
  for (Index i = 0; i < table.size(); ++i)
    table.data()[i] =
        s.random.chance(0.2) ? -std::numeric_limits<float>::infinity() : static_cast<float>(s.random.uniform(-3, 3));
  return score("relative_bias", attn::relative_bias(attn::Tensor(table)), [table](Real x, const Pair& p) {
    const Index distance = p.kv - p.q;
    return x + table(p.head, distance <= -3 ? 0 : distance >= 3 ? 6 : distance + 3);
  });
}

/// The table: a tuple of Rows, one entry for each type of mod.
inline auto mod_table(const Setting& s) {
  return std::tuple{
      neutral("none", attn::Mods<>()),
      neutral("full", attn::full()),
      mask("causal", attn::causal(), [](const Pair& p) { return p.kv <= p.q; }),
      window_rows(s),
      key_length_rows(s),
      keep_rows<1>(s),
      keep_rows<2>(s),
      keep_rows<3>(s),
      keep_rows<4>(s),
      drop_rows<1>(s),
      drop_rows<4>(s),
      bias_rows<1>(s),
      bias_rows<2>(s),
      bias_rows<3>(s),
      bias_rows<4>(s),
      softcap_rows(),
      learned_rows(s),
      alibi_rows(s),
      temperature_rows(s),
      relative_bias_rows(s),
      sink_rows(s),
      dropout_rows(s),
      strided_rows(s),
      fixed_rows(s),
      dilated_rows(s),
      neighbourhood_rows(s),
      select_rows(s),
      edge_rows(s),
      mask("lambda parity", lambda_parity(), [](const Pair& p) { return ((p.q ^ p.kv) & 1) == 0; }),
      mask("lambda documents", lambda_documents(), [](const Pair& p) { return p.kv / 7 <= p.q / 7; }),
      mask("lambda sink", lambda_sink(), [](const Pair& p) { return p.kv <= 2 || (p.q >= p.kv && p.q < p.kv + 20); }),
      mask("bound not last", bound_not_last(), [n = s.sizes.kv_len](const Pair& p) { return p.kv != n - 1; }),
      score("lambda distance", lambda_distance(), lambda_distance_by_hand),
  };
}

/// Calls `visit(row)` for every row of the table.
template <class Visit>
void each_mod(const Setting& s, Visit visit) {
  std::apply(
      [&](const auto&... rows) {
        (..., [&] {
          for (const auto& row : rows) visit(row);
        }());
      },
      mod_table(s));
  for (const auto& row : mask_table(s)) visit(row);
}

/// Calls `visit(row)` for one variant of every entry that has any, drawn at random.
template <class Visit>
void each_kind(const Setting& s, Visit visit) {
  const auto visit_one = [&](const auto& rows) {
    if (!rows.empty()) visit(s.random.pick(rows));
  };
  std::apply([&](const auto&... rows) { (..., visit_one(rows)); }, mod_table(s));
  for (const auto& row : mask_table(s)) visit(row);
}

}  // namespace attn::test
