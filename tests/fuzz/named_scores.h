// Every change of scores of the library with random parameters, and what each means.
#pragma once

#include "named_mods.h"

namespace fuzz {

/// The bucket of T5 by its definition: how many borders max_exact * (max_distance / max_exact)^(i / wide) lie at or
/// below the distance.
inline Index t5_bucket(Index distance, Index buckets, Index max_distance, bool bidirectional) {
  const Index each = bidirectional ? buckets / 2 : buckets, exact = each / 2, wide = each - exact;
  const Index away = bidirectional ? std::abs(distance) : std::max<Index>(-distance, 0);
  Index bucket = std::min(away, exact);
  for (Index i = 1; i < wide && away >= exact; ++i) {
    const Wide border = static_cast<Wide>(exact) * std::pow(static_cast<Wide>(max_distance) / static_cast<Wide>(exact),
                                                            static_cast<Wide>(i) / static_cast<Wide>(wide));
    if (static_cast<Wide>(away) >= border * (1 - 1e-15L)) bucket = exact + i;
  }
  return bucket + (bidirectional && distance > 0 ? each : 0);
}

inline std::vector<double> of_heads(Random& r, Index heads, double low, double high) {
  std::vector<double> some;
  for (Index h = 0; h < heads; ++h) some.push_back(static_cast<float>(r.uniform(low, high)));
  return some;
}

/// -inf makes -inf of any score, even of NaN.
inline Wide biased(Wide x, float bias) {
  return bias == -std::numeric_limits<float>::infinity() ? -std::numeric_limits<Wide>::infinity() : x + bias;
}

/// How many kinds of changes there are below.
constexpr Index kScores = 10;

template <class Use>
void with_score(Case& c, Index kind, const Sizes& s, const Use& use) {
  Random& r = c.random;
  const auto at = [](const std::vector<double>& of, Index head) { return of[static_cast<std::size_t>(head)]; };
  switch (kind) {
    case 0: {
      const bool drops = r.percent(40);
      const double size = r.of({0.5, 3.0, 20.0});
      const auto t = pair_tensor<float>(c, s, [&]() -> double {
        const bool dropped = drops && r.percent(30);
        const double x = size * r.normal();
        return dropped ? -std::numeric_limits<double>::infinity() : x;
      });
      return use(attn::bias(t), {drops ? "bias(-inf)" : "bias", nullptr,
                                 [t](Wide x, const Place& p) { return biased(x, lookup(t, p)); }});
    }
    case 1: {
      const double cap = static_cast<float>(r.of({0.5, 5.0, 50.0}));
      return use(attn::softcap(cap), {"softcap(" + std::to_string(cap) + ")", nullptr,
                                      [cap](Wide x, const Place&) { return cap * std::tanh(x / cap); }});
    }
    case 2: {
      const bool published = r.percent(50);
      const auto slopes = published ? attn::alibi_slopes(s.heads) : of_heads(r, s.heads, -0.2, 0.5);
      return use(attn::alibi(slopes), {"alibi", nullptr, [=](Wide x, const Place& p) {
                                         return x -
                                                static_cast<Wide>(at(slopes, p.head)) * static_cast<Wide>(p.q - p.kv);
                                       }});
    }
    case 3: {
      const Index most = r.from(0, 40);
      const Index heads = size_or_one(r, s.heads, false);
      Guard4<float>& t = c.keep(Guard4<float>(r, {1, 1, heads, 2 * most + 1}, Role::input));
      const bool drops = r.percent(25);
      t.fill([&](Index, Index, Index, Index) {
        const double x = r.normal();
        return drops && x > 1.5 ? -std::numeric_limits<double>::infinity() : x;
      });
      t.finish();
      const TensorView<const float, 2> table(t.input().data(), {heads, 2 * most + 1},
                                             {t.view().stride(2), t.view().stride(3)});
      return use(attn::relative_bias(table),
                 {"relative_bias(" + std::to_string(most) + ")", nullptr, [=](Wide x, const Place& p) {
                    const Index far = std::max(-most, std::min(most, p.kv - p.q));
                    return biased(x, table(heads == 1 ? 0 : p.head, far + most));
                  }});
    }
    case 4: {
      const bool both = r.percent(50);
      const Index buckets = 2 * r.from(2, 16), most = r.from(buckets, 200);
      Guard4<float>& t = c.keep(Guard4<float>(r, {1, 1, s.heads, buckets}, Role::input));
      t.fill([&](Index, Index, Index, Index) { return r.normal(); });
      t.finish();
      const TensorView<const float, 2> table(t.input().data(), {s.heads, buckets},
                                             {t.view().stride(2), t.view().stride(3)});
      return use(
          attn::relative_bias(table, attn::T5Buckets(buckets, most, both)),
          {"relative_bias(T5 " + std::to_string(buckets) + "," + std::to_string(most) + ")", nullptr,
           [=](Wide x, const Place& p) { return x + table(p.head, t5_bucket(p.kv - p.q, buckets, most, both)); }});
    }
    case 5: {
      const auto t = of_heads(r, s.heads, 0.3, 3);
      return use(attn::temperature(t),
                 {"temperature", nullptr, [=](Wide x, const Place& p) { return x / at(t, p.head); },
                  [=](Index head) { return 1 / at(t, head); }});
    }
    case 6: {
      const float slope = static_cast<float>(r.uniform(-0.5, 0.5));
      return use(attn::score_mod([slope](auto x, auto p) {
                   using X = decltype(x);
                   return x - X(slope) * X(p.q - p.kv) + X(p.head) / 4 + X(p.batch) / 8;
                 }),
                 {"lambda(slope)", nullptr, [slope](Wide x, const Place& p) {
                    return x - static_cast<Wide>(slope) * static_cast<Wide>(p.q - p.kv) +
                           static_cast<Wide>(p.head) / 4 + static_cast<Wide>(p.batch) / 8;
                  }});
    }
    case 8: {
      if (!s.even() || s.batch() == 0) return with_score(c, 1, s, use);
      const Rows rows(c, s);
      const Index heads = size_or_one(r, s.heads, false);
      Guard4<float>& t = c.keep(Guard4<float>(r, {1, 1, heads, static_cast<Index>(rows.indices.size())}, Role::input));
      t.fill([&](Index, Index, Index, Index) { return r.normal(); });
      t.finish();
      const TensorView<const float, 2> values = t.input().select(0, 0).select(0, 0);
      return use(attn::edge_bias(rows.given(), rows.indices, values),
                 {"edge_bias", nullptr, [rows, values](Wide x, const Place& p) {
                    rows.for_each_of(p, [&](Index e) { x += values(values.dim(0) == 1 ? 0 : p.head, e); });
                    return x;
                  }});
    }
    case 7: {
      const Index step = r.from(1, 7);
      return use(attn::score_mod([step](auto x, auto p) {
                   return p.kv % step == 0 ? decltype(x)(x / 2) : -std::numeric_limits<decltype(x)>::infinity();
                 }),
                 {"lambda(-inf " + std::to_string(step) + ")", nullptr, [step](Wide x, const Place& p) {
                    return p.kv % step == 0 ? x / 2 : -std::numeric_limits<Wide>::infinity();
                  }});
    }
    default:
      return use(attn::score_mod([](auto x, auto p) { return p.kv % 3 == 0 ? -x : x; }),
                 {"lambda(sign)", nullptr, [](Wide x, const Place& p) { return p.kv % 3 == 0 ? -x : x; }});
  }
}

inline std::pair<std::vector<double>, Meaning> random_sinks(Random& r, Index heads) {
  auto logits = of_heads(r, heads, -3, 6);
  if (r.percent(15)) logits = of_heads(r, heads, 5, 20);  // one large weight before many small ones
  if (r.percent(20)) logits[0] = -std::numeric_limits<double>::infinity();
  Meaning meaning{"sinks", nullptr, nullptr, nullptr,
                  [logits](Index head) { return logits[static_cast<std::size_t>(head)]; }};
  return {logits, meaning};
}

}  // namespace fuzz
