// The rows of mod_table.h with mods type-erased by std::function: five types for all, so that tests need few
// instantiations. Predicates, scores and hints are still those of the mods. Compiled once (rows/erased.cpp).
#pragma once

#include "attn/mods.h"
#include "erased.h"
#include "row.h"

namespace attn::test {

struct ErasedRows {
  std::vector<Row<decltype(erased_mask(attn::full()))>> masks;
  std::vector<Row<decltype(erased_score(attn::softcap(1)))>> scores;
  std::vector<Row<decltype(erased_grouped(attn::strided_sparse(1)))>> grouped;  ///< also included in the masks
  /// Sinks and dropouts. Each row has both, one of which changes nothing.
  std::vector<Row<decltype(attn::sinks({}) | attn::dropout(0, 0))>> others;
  std::vector<Row<decltype(erased_weight(attn::weight_mod(Identity())))>> weights;
};

/// Returns one variant of every mod.
ErasedRows erased_rows(const Setting& s);

/// Returns the rows of one kind, such as &ErasedRows::masks, of a random entry of the table that has any.
template <class R>
R random_rows(const Setting& s, R ErasedRows::*kind);

/// Calls visit(row) for one variant of every mod except weight mods.
template <class Visit>
void each_erased_row(const Setting& s, const Visit& visit) {
  const ErasedRows rows = erased_rows(s);
  for (const auto& row : rows.masks) visit(row);
  for (const auto& row : rows.scores) visit(row);
  for (const auto& row : rows.grouped) visit(row);
  for (const auto& row : rows.others) visit(row);
}

/// Calls visit(row) for each weight mod.
template <class Visit>
void each_weight_row(const Setting& s, const Visit& visit) {
  for (const auto& row : erased_rows(s).weights) visit(row);
}

}  // namespace attn::test
