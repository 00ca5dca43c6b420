// Rows of a tensor in an order of their own.
#pragma once

#include "attn/types.h"

namespace attn::detail {

/// Lists of rows, one for each batch element and head: number i of a list stands for row rows[i] of the tensor. Lists
/// are cut into runs from their beginning; the rows of a run lie `step` rows apart.
struct RowList {
  const Index* rows = nullptr;      ///< null: there is none, number i is row i
  Index of_batch = 0, of_head = 0;  ///< from the list of a batch element, or head, to that of the next
  Index run = 1;
  Index step = 1;
  /// Where each list begins in `rows`, if lists are not equally long; of_batch and of_head count its entries then.
  const Index* begins = nullptr;

  constexpr bool exists() const { return rows != nullptr; }
  constexpr const Index* of(Index batch, Index head) const {
    const Index first = batch * of_batch + head * of_head;
    return rows + (begins != nullptr ? begins[first] : first);
  }
  constexpr Index at(Index batch, Index head, Index number) const { return of(batch, head)[number]; }
  /// How many entries, from `number` on, are left of its run.
  constexpr Index left_of_run(Index number) const { return run - number % run; }
};

}  // namespace attn::detail
