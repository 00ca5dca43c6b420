// Every mod known to the tests, each with its meaning written out by hand for the oracle: sweeps, hints, poison and
// random calls draw from this table. A new mask is an entry of kMasks (mask_table.h), a new score mod one of kScores; a
// mod that must be compiled with its own type is a line in each_entry().
#pragma once

#include <memory>
#include <string>
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
  return {{name, mod, {.keep = keep}}};
}
template <class M, class Score>
Rows<M> score(const char* name, const M& mod, Score score) {
  return {{name, mod, {.score = score}}};
}

/// Whether a mask of rank 2 and this shape would be refused as ambiguous: its rows may be queries or batch elements.
inline bool is_either(const Setting& s, Index rows, Index columns) {
  return rows > 1 && rows == s.sizes.batch && rows == s.sizes.q_len && columns == s.sizes.kv_len;
}

/// Rows `make(tensor)` for each way to broadcast over the last Rank of (batch, heads, q_len, kv_len), or for a random
/// one.
template <int Rank, class T, class Draw, class Make>
auto broadcasts(const Setting& s, const Draw& draw, const Make& make) {
  const Index full[4] = {s.sizes.batch, s.sizes.heads, s.sizes.q_len, s.sizes.kv_len};
  std::vector<decltype(make(std::declval<Held<T>>()))> rows;
  const int first = s.one_variant ? static_cast<int>(s.random.integer(0, (1 << Rank) - 1)) : 0,
            last = s.one_variant ? first : (1 << Rank) - 1;
  for (int ones = first; ones <= last; ++ones) {
    Shape<4> shape{1, 1, 1, 1};
    for (int i = 0; i < Rank; ++i)
      if ((ones >> i & 1) == 0 && (i > 1 || s.even())) shape[static_cast<std::size_t>(3 - i)] = full[3 - i];
    if (Rank == 2 && std::is_same_v<T, bool> && is_either(s, shape[2], shape[3])) continue;
    rows.push_back(make(Held<T>(s, shape, draw)));
  }
  return rows;
}

/// keep(), or drop(), of tensors.
template <int Rank, bool kKeeps>
auto tensor_rows(const Setting& s) {
  const double share = s.random.pick(std::vector{0.0, 0.1, 0.5, 0.9, 1.0});
  const auto mod_of = [](const Held<bool>& t) {
    if constexpr (kKeeps)
      return attn::keep(t.view<Rank>());
    else
      return attn::drop(t.view<Rank>());
  };
  return broadcasts<Rank, bool>(
      s, [&] { return s.random.chance(share); },
      [&](const Held<bool>& t) {
        return Row<decltype(mod_of(t))>{
            (kKeeps ? "keep" : "drop") + t.text(), mod_of(t), {.keep = [t](const Pair& p) { return t(p) == kKeeps; }}};
      });
}
template <int Rank>
auto keep_rows(const Setting& s) {
  return tensor_rows<Rank, true>(s);
}
template <int Rank>
auto drop_rows(const Setting& s) {
  return tensor_rows<Rank, false>(s);
}

/// Adds a bias; -inf turns any score, even NaN, into -inf.
inline Real biased(Real x, float bias) {
  return bias == -std::numeric_limits<float>::infinity() ? -std::numeric_limits<Real>::infinity() : x + bias;
}
/// A random bias, or -inf with probability `drops`.
inline double draw_bias(const Setting& s, double size, double drops) {
  return s.random.chance(drops) ? -std::numeric_limits<double>::infinity() : s.random.uniform(-size, size);
}

/// Biases, some of which are -inf and drop the pair.
template <int Rank>
auto bias_rows(const Setting& s) {
  const double drops = s.random.pick(std::vector{0.0, 0.2, 0.2}),
               size = s.random.pick(std::vector{1.0, 3.0, 3.0, 30.0});
  return broadcasts<Rank, float>(
      s, [&] { return draw_bias(s, size, drops); },
      [](const Held<float>& t) {
        return Row<decltype(attn::bias(t.view<Rank>()))>{
            "bias" + t.text(), attn::bias(t.view<Rank>()), {.score = [t](Real x, const Pair& p) {
              return biased(x, t(p));
            }}};
      });
}

inline auto window_rows(const Setting& s) {
  constexpr Index kHuge = std::numeric_limits<Index>::max();
  const Index any[] = {s.random.integer(0, 90), s.random.integer(0, 70)};
  const Index sides[][2] = {{0, 0},      {1, 0},           {0, 2},         {3, 5},
                            {17, 0},     {40, 40},         {kHuge, 0},     {0, kHuge},
                            {any[0], 0}, {any[0], any[1]}, {kHuge, kHuge}, {s.sizes.kv_len, s.sizes.q_len}};
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
    auto lengths = draw_key_lengths(s);
    for (Index b = 0; b < s.sizes.batch && variant < 2; ++b)
      lengths[static_cast<std::size_t>(b)] = variant == 0 ? 0 : s.of(b).kv_len;
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

/// A learned table with an entry per distance; the same memory serves as its gradient.
inline auto learned_rows(const Setting& s) {
  const auto table = std::make_shared<attn::Tensor<float, 1>>(attn::Shape<1>{7});
  for (Index i = 0; i < 7; ++i) (*table)(i) = static_cast<float>(s.random.uniform(-1, 1));
  const auto place = [](const auto& p) { return ((p.kv - p.q) % 7 + 7) % 7; };
  const auto change = [](auto x, auto w, const auto&) { return x * (2 - w) + w; };
  auto rows = score("learned", attn::learned(*table, *table, place, change), [table, place](Real x, const Pair& p) {
    const Real w = (*table)(place(p));
    return x * (2 - w) + w;
  });
  rows[0].meaning.gain = [](Index) { return 3.0; };
  return rows;
}

/// The published slopes, or random ones.
inline auto alibi_rows(const Setting& s) {
  std::vector<double> slopes = attn::alibi_slopes(s.sizes.heads);
  if (s.random.chance(0.7))
    for (double& x : slopes) x = s.random.uniform(-0.2, 0.5);
  return score("alibi", attn::alibi(slopes), [slopes](Real x, const Pair& p) {
    return x - Real(slopes[static_cast<std::size_t>(p.head)]) * static_cast<Real>(p.q - p.kv);
  });
}

/// User-defined mods, one of each kind: without hints, with each hint, and dependent on the call's sizes.
inline auto lambda_parity() {
  return attn::mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; });
}
inline auto lambda_documents() {  // queries see keys of their own block of 7 positions and of earlier blocks
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
  const auto of = [t](Index head) { return t[static_cast<std::size_t>(head)]; };
  auto rows = score("temperature", attn::temperature(t), [of](Real x, const Pair& p) { return x / Real(of(p.head)); });
  rows[0].meaning.gain = [of](Index head) { return 1 / of(head); };
  return rows;
}

/// Sinks: some heads have a logit, sometimes one that exceeds all keys, and some have none.
inline auto sink_rows(const Setting& s) {
  std::vector<double> logits;
  const double most = s.random.chance(0.15) ? 20 : 4;
  for (Index h = 0; h < s.sizes.heads; ++h)
    logits.push_back(s.random.chance(0.3) ? -std::numeric_limits<double>::infinity() : s.random.uniform(-3, most));
  return Rows<decltype(attn::sinks(logits))>{{"sinks", attn::sinks(logits), {.sink = [logits](Index h) {
                                                return Real(logits[static_cast<std::size_t>(h)]);
                                              }}}};
}

/// Dropouts, from dropping nothing to dropping everything.
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

/// Weights that are not multiples of those of the softmax, depend on the pair, and are not 0 where a weight is.
inline auto weight_rows(const Setting&) {
  const auto factor = [](const auto& p) { return ((p.q + p.kv) & 1) == 0 ? 1.0f : 2.0f; };
  const auto mod = attn::weight_mod([=](auto w, const auto& p) { return w * w * factor(p) + w * 0.5f + 0.0078125f; });
  Meaning meaning;
  meaning.weight = [=](Real w, const Pair& p) { return w * w * factor(p) + w / 2 + 0.0078125L; };
  meaning.weight_slope = [=](Real w, const Pair& p) { return 2 * w * factor(p) + 0.5L; };
  return Rows<std::remove_const_t<decltype(mod)>>{{"lambda of weights", mod, meaning}};
}

/// A table of biases with `columns` columns, per head or for all heads.
inline Held<float> draw_table(const Setting& s, Index columns, double drops) {
  return Held<float>(s, {1, 1, s.random.chance(0.3) ? 1 : s.sizes.heads, columns},
                     [&] { return draw_bias(s, 3, drops); });
}

/// One bias per distance for small distances, and a shared one beyond; some drop the pair.
inline auto relative_bias_rows(const Setting& s) {
  const Index most = s.random.chance(0.5) ? 3 : s.random.integer(0, 40);
  const auto table = draw_table(s, 2 * most + 1, 0.2);
  return score("relative_bias", attn::relative_bias(table.view<2>()), [=](Real x, const Pair& p) {
    const Index far = p.kv - p.q;
    return biased(x, table(0, 0, p.head, far <= -most ? 0 : far >= most ? 2 * most : far + most));
  });
}

using ScoreRows = Rows<decltype(erased_score(attn::softcap(1)))>;

template <class M, class Score>
void add_score(ScoreRows& rows, const std::string& name, const M& mod, Score score) {
  rows.push_back({name, erased_score(mod), {.score = score}});
}

/// The bucket of T5 by its definition: a distance below max_exact is its own bucket; beyond, it is max_exact plus the
/// number of borders max_exact * (max_distance / max_exact)^(i / wide), i = 1, 2, …, at or below the distance.
inline Index t5_bucket(Index distance, Index buckets, Index max_distance, bool bidirectional) {
  const Index each = bidirectional ? buckets / 2 : buckets, exact = each / 2, wide = each - exact;
  const Index away = bidirectional ? std::abs(distance) : std::max<Index>(-distance, 0);
  Index bucket = std::min(away, exact);
  for (Index i = 1; i < wide && away >= exact; ++i) {
    const Real border = static_cast<Real>(exact) * std::pow(static_cast<Real>(max_distance) / static_cast<Real>(exact),
                                                            static_cast<Real>(i) / static_cast<Real>(wide));
    if (static_cast<Real>(away) >= border * (1 - 1e-15L)) bucket = exact + i;
  }
  return bucket + (bidirectional && distance > 0 ? each : 0);
}

inline void add_t5(ScoreRows& rows, const Setting& s) {
  const bool both = s.random.chance(0.5);
  const Index buckets = 2 * s.random.integer(2, 16), most = s.random.integer(buckets, 200);
  const auto table = draw_table(s, buckets, 0);
  add_score(rows, "relative_bias(T5 " + std::to_string(buckets) + ", " + std::to_string(most) + ")",
            attn::relative_bias(table.view<2>(), attn::T5Buckets(buckets, most, both)),
            [=](Real x, const Pair& p) { return x + table(0, 0, p.head, t5_bucket(p.kv - p.q, buckets, most, both)); });
}

/// Lambdas that drop keys, and that flip the signs of scores.
inline void add_score_lambdas(ScoreRows& rows, const Setting& s) {
  const Index step = s.random.integer(1, 7);
  add_score(
      rows, "lambda of -inf except at multiples of " + std::to_string(step), attn::score_mod([step](auto x, auto p) {
        using X = decltype(x);
        return p.kv % step == 0 ? X(x / X(2)) : X(-std::numeric_limits<float>::infinity());
      }),
      [step](Real x, const Pair& p) { return p.kv % step == 0 ? x / 2 : -std::numeric_limits<Real>::infinity(); });
  add_score(rows, "lambda of signs",
            attn::score_mod([](auto x, auto p) { return p.kv % 3 == 0 ? decltype(x)(-x) : x; }),
            [](Real x, const Pair& p) { return p.kv % 3 == 0 ? -x : x; });
}

/// Each adds rows, or none if its mods do not suit the setting.
inline constexpr void (*kScores[])(ScoreRows&, const Setting&) = {add_t5, add_score_lambdas};

/// The rows requested by the setting: all variants of a mod, or a random one.
template <class M>
Rows<M> variants(const Setting& s, Rows<M> rows) {
  return s.one_variant && rows.size() > 1 ? Rows<M>(1, s.random.pick(rows)) : std::move(rows);
}

/// Calls visit(draw) for every entry of the table; draw(setting) returns its rows, which all have the same type. The
/// masks of kMasks share one type, and so do the scores of kScores.
template <class Visit>
void each_entry(const Visit& visit) {
  const auto own = [&](auto draw) { visit([draw](const Setting& s) { return variants(s, draw(s)); }); };
  own([](const Setting&) { return neutral("none", attn::Mods<>()); });
  own([](const Setting&) { return neutral("full", attn::full()); });
  own([](const Setting&) { return mask("causal", attn::causal(), [](const Pair& p) { return p.kv <= p.q; }); });
  own(window_rows);
  own(key_length_rows);
  own(keep_rows<1>);
  own(keep_rows<2>);
  own(keep_rows<3>);
  own(keep_rows<4>);
  own(drop_rows<1>);
  own(drop_rows<4>);
  own(bias_rows<1>);
  own(bias_rows<2>);
  own(bias_rows<3>);
  own(bias_rows<4>);
  own([](const Setting&) { return softcap_rows(); });
  own(learned_rows);
  own(alibi_rows);
  own(temperature_rows);
  own(relative_bias_rows);
  own(sink_rows);
  own(dropout_rows);
  own(weight_rows);
  own(strided_rows);
  own(fixed_rows);
  own(dilated_rows);
  own(neighbourhood_rows);
  own(select_rows);
  own(edge_rows);
  own([](const Setting&) {
    return mask("lambda parity", lambda_parity(), [](const Pair& p) { return ((p.q ^ p.kv) & 1) == 0; });
  });
  own([](const Setting&) {
    return mask("lambda documents", lambda_documents(), [](const Pair& p) { return p.kv / 7 <= p.q / 7; });
  });
  own([](const Setting&) {
    return mask("lambda sink", lambda_sink(),
                [](const Pair& p) { return p.kv <= 2 || (p.q >= p.kv && p.q < p.kv + 20); });
  });
  own([](const Setting& s) {
    return mask("bound not last", bound_not_last(), [s](const Pair& p) { return p.kv != s.of(p.batch).kv_len - 1; });
  });
  own([](const Setting&) { return score("lambda distance", lambda_distance(), lambda_distance_by_hand); });
  const auto shared = [&]<class R>(void (*add)(R&, const Setting&)) {
    visit([add](const Setting& s) {
      R rows;
      add(rows, s);
      return rows;
    });
  };
  for (const auto add : kMasks) shared(add);
  for (const auto add : kScores) shared(add);
}

/// Calls `visit(row)` for every row of the table.
template <class Visit>
void each_mod(const Setting& s, const Visit& visit) {
  each_entry([&](const auto& draw) {
    for (const auto& row : draw(s)) visit(row);
  });
}

}  // namespace attn::test
