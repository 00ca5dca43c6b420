// Mods whose type says nothing: all masks, and all changes of scores, are one type each, so that random ones need not
// be compiled one by one. Predicates and hints are those of the library's own mods.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include <attn/attn.h>

#include "case.h"

namespace fuzz {

using attn::Coverage;
using attn::Position;
using attn::Problem;
using attn::Range;
using attn::Tile;

struct BoundMask {
  std::function<bool(const Position&)> keep;
  std::function<Coverage(const Tile&)> coverage;
  std::function<Range(const Tile&)> kv_range;
};
using AnyMask = std::function<std::shared_ptr<const BoundMask>(const Problem&)>;

struct BoundScore {
  std::function<float(float, const Position&)> of_float;
  std::function<double(double, const Position&)> of_double;
  std::function<long double(long double, const Position&)> of_long_double;

  float operator()(float x, const Position& p) const { return of_float(x, p); }
  double operator()(double x, const Position& p) const { return of_double(x, p); }
  long double operator()(long double x, const Position& p) const { return of_long_double(x, p); }
};
using AnyScore = std::function<std::shared_ptr<const BoundScore>(const Problem&)>;

/// What a mod is in a call: itself, or what it makes. It lives as long as what it was made from.
template <class M>
auto bound(const std::shared_ptr<const M>& mod, const Problem& problem) {
  if constexpr (attn::detail::is_late<M>) {
    using Made = std::remove_cvref_t<decltype(mod->make(problem))>;
    struct Held {
      std::shared_ptr<const M> mod;
      Made made;
    };
    const auto held = std::make_shared<const Held>(Held{mod, mod->make(problem)});
    return std::shared_ptr<const Made>(held, &held->made);
  } else {
    return mod;
  }
}

/// A mod may only be asked about pairs of the call.
inline void check_asked(const Position& p, const Problem& problem) {
  if (p.batch < 0 || p.batch >= problem.batch || (problem.sequence && p.batch != *problem.sequence) || p.head < 0 ||
      p.head >= problem.heads || p.q < problem.q_offset || p.q >= problem.q_offset + problem.q_len || p.kv < 0 ||
      p.kv >= problem.kv_len)
    fail("a mod is asked about (batch ", p.batch, ", head ", p.head, ", q ", p.q, ", kv ", p.kv, ")");
}

template <class M>
AnyMask any_mask(M mod) {
  return [mod = std::make_shared<const M>(std::move(mod))](const Problem& problem) {
    const auto mask = bound(mod, problem);
    return std::make_shared<const BoundMask>(BoundMask{[mask, problem](const Position& p) {
                                                         check_asked(p, problem);
                                                         return mask->keep(p);
                                                       },
                                                       [mask](const Tile& t) { return mask->coverage(t); },
                                                       [mask](const Tile& t) { return mask->kv_range(t); }});
  };
}

template <class M>
AnyScore any_score(M mod) {
  return [mod = std::make_shared<const M>(std::move(mod))](const Problem& problem) {
    const auto score = bound(mod, problem);
    const auto of = [score, problem](auto x, const Position& p) -> decltype(x) {
      check_asked(p, problem);
      return score->score(x, p);
    };
    return std::make_shared<const BoundScore>(BoundScore{of, of, of});
  };
}

/// A mask for a call. kOpaque: as of a lambda without hints, so that its predicate is asked for whole tiles.
template <bool kOpaque>
struct Coverages {
  static constexpr bool kIsOpaque = kOpaque;
  std::shared_ptr<const BoundMask> mask;
  Coverage operator()(const Tile& t) const { return mask->coverage(t); }
};
template <bool kOpaque>
auto as_mod(AnyMask mask) {
  return attn::bind_mod([mask = std::move(mask)](const Problem& problem) {
    const auto m = mask(problem);
    return attn::mask_mod([m](const Position& p) { return m->keep(p); }, Coverages<kOpaque>{m},
                          [m](const Tile& t) { return m->kv_range(t); });
  });
}
inline auto as_mod(AnyScore score) {
  return attn::bind_mod([score = std::move(score)](const Problem& problem) {
    return attn::score_mod([s = score(problem)](auto x, const Position& p) { return (*s)(x, p); });
  });
}

}  // namespace fuzz
