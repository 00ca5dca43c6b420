// Random mods from the tests' table (support/mod_table.h), with their meanings. One mask may be combined from several.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "erased.h"
#include "numbers.h"
#include "oracle.h"
#include "support/erased_rows.h"

namespace fuzz {

inline std::string listed(const std::vector<Index>& numbers) {
  std::string text = "{";
  for (std::size_t i = 0; i < numbers.size(); ++i) text += (i == 0 ? "" : ",") + std::to_string(numbers[i]);
  return text + "}";
}

/// The table's setting: the sizes, and guarded memory for the tensors that mods read.
attn::test::Setting setting_of(Case& c, const Sizes& s);

template <class M>
Meaning meaning_of(const attn::test::Row<M>& row) {
  return {row.name, row.meaning};
}

using MaskRow = attn::test::Row<AnyMask>;
using ScoreRow = attn::test::Row<AnyScore>;
using OtherRow = decltype(attn::test::ErasedRows::others)::value_type;
using GroupedRow = decltype(attn::test::ErasedRows::grouped)::value_type;
using ListedRow = attn::test::Row<decltype(attn::select(TensorView<const Index, 4>()))>;

/// A mask from the table, or any_of(), all_of() or not_() of such masks, nested up to `depth` deep.
MaskRow random_mask(Case& c, const Sizes& s, int depth = 2);
ScoreRow random_score(Case& c, const Sizes& s);
/// A mask that groups tokens or gathers keys. It is not combined into another mask, which would prevent that.
GroupedRow random_grouped(Case& c, const Sizes& s);
/// Sinks or dropout.
OtherRow random_other(Case& c, const Sizes& s);
/// select() with its own type, so that keys are gathered; batch elements, heads and queries may share lists.
ListedRow random_lists(Case& c, const Sizes& s);

/// Calls make() with two masks, two score mods, and sinks or dropout.
template <class Make>
void with_all_mods(Case& c, const Sizes& s, const Make& make) {
  const ScoreRow first = random_score(c, s), second = random_score(c, s);
  const MaskRow near = random_mask(c, s, 1), far = random_mask(c, s);
  const OtherRow other = random_other(c, s);
  make(checked(first.mod) | checked<false>(near.mod) | checked(second.mod) | checked<true>(far.mod) | other.mod,
       Meanings{meaning_of(first), meaning_of(near), meaning_of(second), meaning_of(far), meaning_of(other)});
}

/// Calls make() with a mask that groups tokens, and others.
template <class Make>
void with_grouped_mods(Case& c, const Sizes& s, const Make& make) {
  const ScoreRow score = random_score(c, s);
  const GroupedRow grouped = random_grouped(c, s);
  const MaskRow mask = random_mask(c, s, 1);
  const OtherRow other = random_other(c, s);
  make(checked(score.mod) | grouped.mod | checked<true>(mask.mod) | other.mod,
       Meanings{meaning_of(score), meaning_of(grouped), meaning_of(mask), meaning_of(other)});
}

/// Calls make() with listed keys and a mask, half of the time also with a score mod, and sinks or dropout.
template <class Make>
void with_listed_mods(Case& c, const Sizes& s, const Make& make) {
  const ListedRow lists = random_lists(c, s);
  const MaskRow mask = random_mask(c, s, 1);
  if (c.random.percent(50))
    return make(lists.mod | checked<false>(mask.mod), Meanings{meaning_of(lists), meaning_of(mask)});
  const ScoreRow score = random_score(c, s);
  const OtherRow other = random_other(c, s);
  make(checked(score.mod) | lists.mod | checked<true>(mask.mod) | other.mod,
       Meanings{meaning_of(score), meaning_of(lists), meaning_of(mask), meaning_of(other)});
}

/// Calls make(mods, meanings) once, with a call's masks and score mods in order, in one of a few types.
template <class Make>
void with_random_mods(Case& c, const Sizes& s, const Make& make) {
  const Index kind = c.random.from(0, 99);
  if (kind < 12) return make(attn::Mods<>(), Meanings{});
  if (kind < 37) {
    const MaskRow m = random_mask(c, s);
    return make(checked<false>(m.mod), Meanings{meaning_of(m)});
  }
  if (kind < 52) {
    const MaskRow m = random_mask(c, s);
    return make(checked<true>(m.mod), Meanings{meaning_of(m)});
  }
  if (kind < 62) {
    const ScoreRow x = random_score(c, s);
    return make(checked(x.mod), Meanings{meaning_of(x)});
  }
  if (kind < 70) return with_grouped_mods(c, s, make);
  with_all_mods(c, s, make);
}

}  // namespace fuzz
