// How tokens are appended to sequences in pages and removed from them, for the caches that have a PageTables.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "attn/detail/cache/kv_pages.h"
#include "attn/detail/cache/page_tables.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Checks lens[i], the number of tokens for sequences[i]. `tokens` is the number of tokens of each batch element or, if
/// `packed`, of all sequences back to back.
inline void check_lens(std::span<const Index> sequences, std::span<const Index> lens, Index tokens, bool packed) {
  require(lens.size() == sequences.size(), "append: got ", lens.size(), " lengths for ", sequences.size(),
          " sequences");
  Index left = tokens;
  for (std::size_t i = 0; i < lens.size(); ++i) {
    require(lens[i] >= 0 && lens[i] <= left, "append: the length for sequence ", sequences[i], " must be in 0..", left,
            " (the tokens that remain of the ", tokens, " given), but is ", lens[i]);
    if (packed) left -= lens[i];
  }
  require(!packed || left == 0, "append: the lengths add up to ", tokens - left, ", but there are ", tokens, " tokens");
}

/// Writes new tokens after the existing tokens of their sequences, into pages that PageTables::take() provided; see
/// check_lens().
template <class T>
void write_tokens(KvPages<T>& storage, typename KvPages<T>::Writer& writer, const DTypeView<const cached_t<T>>& k,
                  const DTypeView<const cached_t<T>>& v, const PageTables& tables, std::span<const Index> sequences,
                  std::span<const Index> lens, bool packed) {
  Range rows{0, 0};
  for (std::size_t i = 0; i < lens.size(); ++i) {
    const PageTables::Sequence& s = tables.of(sequences[i]);
    rows = {packed ? rows.end : 0, packed ? rows.end + lens[i] : lens[i]};
    storage.append(writer, k, v, packed ? 0 : static_cast<Index>(i), rows, s.pages, s.length, s.positions.rows());
  }
}

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
