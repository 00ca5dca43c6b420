// Rows of a tensor in any order.
#pragma once

#include "attn/types.h"

namespace attn::detail {

/// Lists of rows, one per batch element and head: entry i of a list is row rows[i] of the tensor. Lists are split into
/// runs of `run` entries from their beginning; the rows of a run are `step` rows apart.
struct RowList {
  const Index* rows = nullptr;      ///< null: no lists, entry i is row i
  Index of_batch = 0, of_head = 0;  ///< distance from the list of a batch element, or head, to the next
  Index run = 1;
  Index step = 1;
  /// Where each list begins in `rows`, if their lengths differ; of_batch and of_head then count entries of `begins`.
  const Index* begins = nullptr;

  constexpr bool exists() const { return rows != nullptr; }
  constexpr const Index* of(Index batch, Index head) const {
    const Index first = batch * of_batch + head * of_head;
    return rows + (begins != nullptr ? begins[first] : first);
  }
  constexpr Index at(Index batch, Index head, Index number) const { return of(batch, head)[number]; }
  /// Number of entries left in the run, from `number` on.
  constexpr Index left_of_run(Index number) const { return run - number % run; }
};

}  // namespace attn::detail
