// Type-erased mods for calls, which check that they are evaluated only for pairs of that call.
#pragma once

#include <memory>
#include <utility>

#include <attn/attn.h>

#include "case.h"
#include "support/erased.h"

namespace fuzz {

using attn::Coverage;
using attn::Position;
using attn::Problem;
using attn::Range;
using attn::Tile;

using AnyMask = decltype(attn::test::erased_mask(attn::full()));
using AnyScore = decltype(attn::test::erased_score(attn::softcap(1)));

inline void check_asked(const Position& p, const Problem& problem) {
  if (p.batch < 0 || p.batch >= problem.batch || (problem.sequence && p.batch != *problem.sequence) || p.head < 0 ||
      p.head >= problem.heads || p.q < problem.q_offset || p.q >= problem.q_offset + problem.q_len || p.kv < 0 ||
      p.kv >= problem.kv_len)
    fail("a mod was evaluated outside the call, for (batch ", p.batch, ", head ", p.head, ", q ", p.q, ", kv ", p.kv,
         ")");
}

/// A mask for a call. kOpaque: like a lambda without hints, so that its predicate is evaluated for whole tiles.
template <bool kOpaque, class Mask>
struct Coverages {
  static constexpr bool kIsOpaque = kOpaque;
  std::shared_ptr<const Mask> mask;
  Coverage operator()(const Tile& t) const { return mask->coverage(t); }
};
template <bool kOpaque>
auto checked(const AnyMask& mask) {
  return attn::bind_mod([mask](const Problem& problem) {
    using Mask = decltype(mask.make(problem));
    const auto m = std::make_shared<const Mask>(mask.make(problem));
    return attn::mask_mod(
        [m, problem](const Position& p) {
          check_asked(p, problem);
          return m->keep(p);
        },
        Coverages<kOpaque, Mask>{m}, [m](const Tile& t) { return m->kv_range(t); });
  });
}
inline auto checked(const AnyScore& score) {
  return attn::bind_mod([score](const Problem& problem) {
    using Score = decltype(score.make(problem));
    return attn::score_mod(
        [s = std::make_shared<const Score>(score.make(problem)), problem](auto x, const Position& p) {
          check_asked(p, problem);
          return s->score(x, p);
        });
  });
}

}  // namespace fuzz
