// How tokens are removed from sequences in pages, for the caches that have a PageTables.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "attn/detail/cache/kv_pages.h"
#include "attn/detail/cache/page_tables.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Changes a sequence as planned, in each of `storages`, which share the tables. rope_of(i) is the rope of storages[i],
/// or null.
/// @throws OutOfPages if too few pages are free, in which case nothing has changed.
template <class T, class RopeOf>
void carry_out(PageTables::Plan&& plan, std::span<KvPages<T>> storages, PageTables& tables, Index sequence,
               const RopeOf& rope_of) {
  if (plan.taken > tables.free_pages()) raise(OutOfPages(plan.taken, tables.free_pages(), tables.pages()));
  std::vector<typename KvPages<T>::Mover> movers;
  if (!plan.moves.empty()) movers.reserve(storages.size());
  for (std::size_t i = 0; !plan.moves.empty() && i < storages.size(); ++i)
    movers.emplace_back(moving_family<T>(), storages[i].keys().numbers.dim(3), rope_of(i));
  for (std::size_t i = 0; i < movers.size(); ++i) storages[i].move(movers[i], plan.moves);
  tables.adopt(sequence, std::move(plan));
}

/// Drops the tokens that have left the windows of these sequences, before tokens are appended to them; see
/// PageTables::plan_slide().
template <class T, class RopeOf>
void slide_windows(std::span<KvPages<T>> storages, PageTables& tables, std::span<const Index> sequences,
                   const RopeOf& rope_of) {
  for (const Index sequence : sequences)
    if (tables.beyond_window(sequence) > 0) carry_out(tables.plan_slide(sequence), storages, tables, sequence, rope_of);
}

/// Checks the window and the sinks of a cache.
inline void check_window(const char* cache, Index window, Index sinks, Index pages, Index page_size, bool has_rope) {
  require(window >= 0 && sinks >= 0 && window <= kLargestIndex && sinks <= kLargestIndex, cache, ": window ", window,
          " and sinks ", sinks, " must be in 0..2^", kIndexBits);
  require(window > 0 || sinks == 0, cache, ": there are ", sinks, " sinks, but no window");
  if (window == 0) return;
  const Index needed = ceil_div(sinks + window + page_size, page_size) + (has_rope ? ceil_div(sinks, page_size) : 0);
  require(pages >= needed, cache, ": a window of ", window, " tokens after ", sinks, " sinks takes ", needed,
          " pages of ", page_size, " tokens, but there are only ", pages);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
