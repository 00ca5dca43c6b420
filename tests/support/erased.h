// Mods type-erased by std::function, so that tests over all mods need few instantiations. Predicates, scores and hints
// are still those of the mods.
#pragma once

#include <functional>
#include <memory>
#include <tuple>

#include "attn/core/mods/bound_mods.h"

namespace attn::test {

using Keep = std::function<bool(const Position&)>;
using CoverageOf = std::function<Coverage(const Tile&)>;
using RangeOf = std::function<Range(const Tile&)>;

struct ErasedMask {
  std::function<MaskMod<Keep, CoverageOf, RangeOf>(const Problem&)> make;
  MaskMod<Keep, CoverageOf, RangeOf> operator()(const Problem& problem) const { return make(problem); }
};

/// The function of a score or weight mod, for every scalar and for dual numbers.
class ErasedScore {
  template <class X>
  using Of = std::function<X(X, const Position&)>;

 public:
  template <class F>
  explicit ErasedScore(const F& f) : of_(f, f, f, f, f, f) {}

  template <class X>
  X operator()(X x, const Position& p) const {
    return std::get<Of<X>>(of_)(x, p);
  }

 private:
  std::tuple<Of<float>, Of<double>, Of<long double>, Of<Dual<float>>, Of<Dual<double>>, Of<Dual<long double>>> of_;
};

struct ErasedScoreOfCall {
  std::function<ScoreMod<ErasedScore>(const Problem&)> make;
  ScoreMod<ErasedScore> operator()(const Problem& problem) const { return make(problem); }
};

template <class M>
auto erased_mask(const M& mod) {
  return bind_mod(ErasedMask{[mod](const Problem& problem) {
    // The bound mod may refer to `mod`, so both are kept alive together.
    const auto kept = std::make_shared<const M>(mod);
    const auto bound =
        std::make_shared<decltype(attn::detail::bind(*kept, problem))>(attn::detail::bind(*kept, problem));
    return mask_mod(Keep([kept, bound](const Position& p) { return bound->keep(p); }),
                    CoverageOf([kept, bound](const Tile& t) { return bound->coverage(t); }),
                    RangeOf([kept, bound](const Tile& t) { return bound->kv_range(t); }));
  }});
}

/// Erases a mask that groups tokens, with its groups. Without a near part, it gets one that keeps nothing.
template <class Mask, class Near, class Far>
auto erased_grouped(const attn::detail::GroupedMask<Mask, Near, Far>& mod) {
  const auto part = [](const auto& mask) {
    return mask_mod(Keep([mask](const Position& p) { return mask.keep(p); }),
                    CoverageOf([mask](const Tile& t) { return mask.coverage(t); }),
                    RangeOf([mask](const Tile& t) { return mask.kv_range(t); }));
  };
  if constexpr (std::is_same_v<Near, attn::detail::NoHint>)
    return attn::detail::grouped_mask(part(mod), part(mask_mod([](const Position&) { return false; })), part(mod.far),
                                      mod.grouping);
  else
    return attn::detail::grouped_mask(part(mod), part(mod.near), part(mod.far), mod.grouping);
}

struct Identity {
  template <class X>
  X operator()(X x, const Position&) const {
    return x;
  }
};

template <class F>
auto erased_weight(const WeightMod<F>& mod) {
  return weight_mod(ErasedScore(mod.weight));
}

template <class M>
auto erased_score(const M& mod) {
  return bind_mod(ErasedScoreOfCall{[mod](const Problem& problem) {
    const auto kept = std::make_shared<const M>(mod);
    const auto bound =
        std::make_shared<decltype(attn::detail::bind(*kept, problem))>(attn::detail::bind(*kept, problem));
    return score_mod(ErasedScore([kept, bound](auto x, const Position& p) { return bound->score(x, p); }));
  }});
}

}  // namespace attn::test
