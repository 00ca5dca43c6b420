// Random mods of erased type: one mask may be made of several.
#pragma once

#include <utility>
#include <vector>

#include "erased.h"
#include "named_scores.h"

namespace fuzz {

struct MaskChoice {
  AnyMask mask;
  Meaning meaning;
};
struct ScoreChoice {
  AnyScore score;
  Meaning meaning;
};

/// A mask of the library, or any_of(), all_of() or not_() of such, down to `depth` of them.
MaskChoice random_mask(Case& c, const Sizes& s, int depth = 2);
ScoreChoice random_score(Case& c, const Sizes& s);

/// Up to three masks and changes, with sinks.
template <class Make>
void with_all_mods(Case& c, const Sizes& s, const Make& make) {
  ScoreChoice first = random_score(c, s), second = random_score(c, s);
  MaskChoice near = random_mask(c, s, 1), far = random_mask(c, s);
  auto sinks = random_sinks(c.random, s.heads);
  make(as_mod(first.score) | as_mod<false>(near.mask) | as_mod(second.score) | as_mod<true>(far.mask) |
           attn::sinks(sinks.first),
       Meanings{first.meaning, near.meaning, second.meaning, far.meaning, sinks.second});
}

/// A mask that groups tokens beside others: its type must be its own.
template <class Make>
void with_grouped_mods(Case& c, const Sizes& s, const Make& make) {
  ScoreChoice x = random_score(c, s);
  MaskChoice other = random_mask(c, s, 1);
  auto sinks = random_sinks(c.random, s.heads);
  const auto gather = [&](const auto& mask, const Meaning& meaning) {
    make(as_mod(x.score) | mask | as_mod<true>(other.mask) | attn::sinks(sinks.first),
         Meanings{x.meaning, meaning, other.meaning, sinks.second});
  };
  const Index kind = c.random.from(0, 3);
  if (kind < 2 && with_gathered_mask(c, kind, s, gather)) return;
  const Index stride = c.random.from(1, 40);
  make(as_mod(x.score) | attn::strided_sparse(stride) | as_mod<true>(other.mask) | attn::sinks(sinks.first),
       Meanings{x.meaning,
                {"strided_sparse(" + std::to_string(stride) + ")",
                 [stride](const Place& p) {
                   const Index far = p.q - p.kv;
                   return far >= 0 && (far <= stride || far % stride == 0);
                 },
                 nullptr, nullptr, nullptr, 2},
                other.meaning,
                sinks.second});
}

/// The masks and changes of scores of one call, in order, as `make(mods, meanings)` gets them, in one of a few types.
/// Calls it once.
template <class Make>
void with_random_mods(Case& c, const Sizes& s, const Make& make) {
  const Index kind = c.random.from(0, 99);
  if (kind < 12) return make(attn::Mods<>(), Meanings{});
  if (kind < 37) {
    MaskChoice m = random_mask(c, s);
    return make(as_mod<false>(m.mask), Meanings{m.meaning});
  }
  if (kind < 52) {
    MaskChoice m = random_mask(c, s);
    return make(as_mod<true>(m.mask), Meanings{m.meaning});
  }
  if (kind < 62) {
    ScoreChoice x = random_score(c, s);
    return make(as_mod(x.score), Meanings{x.meaning});
  }
  if (kind < 70) return with_grouped_mods(c, s, make);
  with_all_mods(c, s, make);
}

}  // namespace fuzz
