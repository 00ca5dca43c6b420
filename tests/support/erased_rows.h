// One variant of every mod, each behind std::function: four types for all, so that a test over them needs few
// instantiations. Predicate, score and hints are still the mod's own. Compiled once for each scalar (rows/erased.cpp).
#pragma once

#include "attn/mods.h"
#include "erased.h"
#include "row.h"

namespace attn::test {

/// kDual: scores can also be called with dual numbers.
template <class T, bool kDual = false>
struct ErasedRows {
  std::vector<Row<decltype(erased_mask(attn::full()))>> masks;
  std::vector<Row<decltype(erased_score<T, kDual>(attn::softcap(1)))>> scores;
  std::vector<Row<decltype(erased_grouped(attn::strided_sparse(1)))>> grouped;
  /// Sinks and dropouts. A row has both, of which one changes nothing.
  std::vector<Row<decltype(attn::sinks({}) | attn::dropout(0, 0))>> others;

  explicit ErasedRows(const Setting& s);
};

/// Calls visit(row) for all rows.
template <class T, bool kDual = false, class Visit>
void each_erased_row(const Setting& s, const Visit& visit) {
  const ErasedRows<T, kDual> rows(s);
  for (const auto& row : rows.masks) visit(row);
  for (const auto& row : rows.scores) visit(row);
  for (const auto& row : rows.grouped) visit(row);
  for (const auto& row : rows.others) visit(row);
}

}  // namespace attn::test
