// The rows of mod_table.h with their mods behind std::function: four types for all, so that a test over them needs few
// instantiations. Predicate, score and hints are still the mod's own. Compiled once (rows/erased.cpp).
#pragma once

#include "attn/mods.h"
#include "erased.h"
#include "row.h"

namespace attn::test {

struct ErasedRows {
  std::vector<Row<decltype(erased_mask(attn::full()))>> masks;
  std::vector<Row<decltype(erased_score(attn::softcap(1)))>> scores;
  std::vector<Row<decltype(erased_grouped(attn::strided_sparse(1)))>> grouped;  ///< which are among the masks too
  /// Sinks and dropouts. A row has both, of which one changes nothing.
  std::vector<Row<decltype(attn::sinks({}) | attn::dropout(0, 0))>> others;
};

/// One variant of every mod.
ErasedRows erased_rows(const Setting& s);

/// The rows of one kind, as &ErasedRows::masks, of an entry of the table drawn at random; at least one.
template <class R>
R random_rows(const Setting& s, R ErasedRows::*kind);

/// Calls visit(row) for one variant of every mod.
template <class Visit>
void each_erased_row(const Setting& s, const Visit& visit) {
  const ErasedRows rows = erased_rows(s);
  for (const auto& row : rows.masks) visit(row);
  for (const auto& row : rows.scores) visit(row);
  for (const auto& row : rows.grouped) visit(row);
  for (const auto& row : rows.others) visit(row);
}

}  // namespace attn::test
