#include <functional>
#include <limits>
#include <vector>

#include "../erased_rows.h"
#include "../mod_table.h"

namespace attn::test {
namespace {

auto no_sinks(const Setting& s) {
  const auto heads = static_cast<std::size_t>(s.sizes.heads);
  return attn::sinks(std::vector<double>(heads, -std::numeric_limits<double>::infinity()));
}

/// Whether a mod changes scores.
template <class M>
constexpr bool changes_scores() {
  if constexpr (requires(const M& m) { m.make(Problem()); })
    return changes_scores<std::remove_cvref_t<decltype(std::declval<const M&>().make(Problem()))>>();
  else
    return requires(const M& m) { m.score(1.0f, Position()); };
}

template <class M>
void add(const Row<M>& row, const Setting& s, ErasedRows& to) {
  if constexpr (requires { erased_grouped(row.mod); })
    to.grouped.push_back({row.name, erased_grouped(row.mod), row.meaning});
  if constexpr (std::is_same_v<Rows<M>, decltype(to.scores)>)
    to.scores.push_back(row);
  else if constexpr (std::is_same_v<Rows<M>, decltype(to.masks)>)
    to.masks.push_back(row);
  else if constexpr (std::is_same_v<M, decltype(attn::sinks({}))>)
    to.others.push_back({row.name, row.mod | attn::dropout(0, 0), row.meaning});
  else if constexpr (std::is_same_v<M, DropoutMod>)
    to.others.push_back({row.name, no_sinks(s) | row.mod, row.meaning});
  else if constexpr (requires { erased_weight(row.mod); })
    to.weights.push_back({row.name, erased_weight(row.mod), row.meaning});
  else if constexpr (changes_scores<M>())
    to.scores.push_back({row.name, erased_score(row.mod), row.meaning});
  else
    to.masks.push_back({row.name, erased_mask(row.mod), row.meaning});
}

Setting with_one_variant(Setting s) {
  s.one_variant = true;
  return s;
}

using Entry = std::function<ErasedRows(const Setting&)>;

std::vector<Entry> all_entries() {
  std::vector<Entry> all;
  each_entry([&](const auto& draw) {
    all.push_back([draw](const Setting& s) {
      ErasedRows rows;
      for (const auto& row : draw(s)) add(row, s, rows);
      return rows;
    });
  });
  return all;
}

/// The entries that have rows of one kind.
template <class R>
const std::vector<Entry>& entries_of(R ErasedRows::*kind) {
  static const std::vector<Entry> entries = [kind] {
    std::vector<Entry> some = all_entries();
    Random random(1);
    const Setting small{{1, 1, 1, 4, 4, 1, 1}, {}, random};
    std::erase_if(some, [&](const Entry& entry) { return (entry(small).*kind).empty(); });
    return some;
  }();
  return entries;
}

}  // namespace

ErasedRows erased_rows(const Setting& s) {
  ErasedRows rows;
  each_mod(with_one_variant(s), [&](const auto& row) { add(row, s, rows); });
  return rows;
}

template <class R>
R random_rows(const Setting& s, R ErasedRows::*kind) {
  const Setting one = with_one_variant(s);
  for (;;)
    if (R rows = s.random.pick(entries_of(kind))(one).*kind; !rows.empty()) return rows;
}
template decltype(ErasedRows::masks) random_rows(const Setting&, decltype(ErasedRows::masks) ErasedRows::*);
template decltype(ErasedRows::scores) random_rows(const Setting&, decltype(ErasedRows::scores) ErasedRows::*);
template decltype(ErasedRows::grouped) random_rows(const Setting&, decltype(ErasedRows::grouped) ErasedRows::*);
template decltype(ErasedRows::others) random_rows(const Setting&, decltype(ErasedRows::others) ErasedRows::*);

}  // namespace attn::test
