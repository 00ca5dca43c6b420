#include "random_mods.h"

namespace fuzz {

MaskChoice random_mask(Case& c, const Sizes& s, int depth) {
  const Index kind = depth > 0 ? c.random.from(0, 99) : 0;
  if (kind < 70) {
    MaskChoice choice;
    with_mask(c, c.random.from(0, kMasks - 1), s, [&](const auto& mod, Meaning meaning) {
      choice = {any_mask(mod), std::move(meaning)};
    });
    return choice;
  }
  const MaskChoice a = random_mask(c, s, depth - 1);
  if (kind < 80)
    return {any_mask(attn::not_(as_mod<false>(a.mask))),
            {"not_(" + a.meaning.text + ")", [keeps = a.meaning.keeps](const Place& p) { return !keeps(p); }}};
  const MaskChoice b = random_mask(c, s, depth - 1);
  const auto x = a.meaning.keeps, y = b.meaning.keeps;
  const std::string both = "(" + a.meaning.text + "," + b.meaning.text + ")";
  if (kind < 90)
    return {any_mask(attn::any_of(as_mod<false>(a.mask), as_mod<true>(b.mask))),
            {"any_of" + both, [x, y](const Place& p) { return x(p) || y(p); }}};
  return {any_mask(attn::all_of(as_mod<true>(a.mask), as_mod<false>(b.mask))),
          {"all_of" + both, [x, y](const Place& p) { return x(p) && y(p); }}};
}

ScoreChoice random_score(Case& c, const Sizes& s) {
  ScoreChoice choice;
  with_score(c, c.random.from(0, kScores - 1), s, [&](const auto& mod, Meaning meaning) {
    choice = {any_score(mod), std::move(meaning)};
  });
  return choice;
}

}  // namespace fuzz
