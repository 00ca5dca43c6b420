// The pages of one or more layers that share page tables: how tokens are appended to sequences and removed from them.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "attn/cache/kv_pages.h"
#include "attn/cache/page_tables.h"
#include "attn/kv_options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The memory of a PagedKvCache, which has one layer, or of KvCaches. A page number denotes the page with that number
/// in every layer.
template <class T>
class PagedLayers {
 public:
  using Writer = typename KvPages<T>::Writer;

  /// `config` is a PagedKvCacheConfig or KvCachesConfig. `ropes` has one element for each layer, or one for all; a
  /// layer may have no rope.
  template <class Config>
  PagedLayers(const Config& config, Index layers, std::vector<std::optional<Rope>> ropes)
      : pages_(pages_of(config, layers)),
        ropes_(std::move(ropes)),
        tables(config.pages, config.page_size, config.window, config.sinks, axes()) {
    check_cached<T>();
  }

  const KvPages<T>& pages(Index layer) const { return pages_[static_cast<std::size_t>(layer)]; }
  /// The rope of a layer; null if it has none.
  const Rope* rope(Index layer) const {
    const std::optional<Rope>& rope = ropes_[ropes_.size() == 1 ? 0 : static_cast<std::size_t>(layer)];
    return rope ? &*rope : nullptr;
  }
  /// The number of positions by which ropes rotate a token; 0 if no layer has a rope.
  Index axes() const {
    for (const std::optional<Rope>& rope : ropes_)
      if (rope) return rope->axes();
    return 0;
  }
  /// The size of all layers in bytes.
  Index bytes() const { return static_cast<Index>(pages_.size()) * pages_.front().bytes(); }

  /// Returns a view of sequences in a layer. If `more` is given, the view of sequence i has more[i] further tokens,
  /// which have been written but not yet added to the length of the sequence.
  KvView<cached_t<T>> view(Index layer, std::span<const Index> sequences, std::span<const Index> more = {}) const {
    KvView<cached_t<T>> some = pages(layer).view(rope(layer));
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const PageTables::Sequence& s = tables.of(sequences[i]);
      some.add(s.pages, s.length + (more.empty() ? 0 : more[i]), s.positions.rows(), s.offset);
    }
    return some;
  }

  /// Drops the tokens that have left the windows of these sequences, before tokens are appended to them; see
  /// PageTables::plan_slide().
  /// @throws OutOfPages if too few pages are free.
  void slide_windows(std::span<const Index> sequences) {
    for (const Index sequence : sequences)
      if (tables.beyond_window(sequence) > 0) carry_out(sequence, tables.plan_slide(sequence));
  }
  /// PageTables::take(), and copies the shared pages that are replaced.
  void take(std::span<const Index> sequences, std::span<const Index> lens, std::span<const Index> positions) {
    tables.take(sequences, lens, positions, [&](Index page, Index copy, Index tokens) {
      for (KvPages<T>& layer : pages_) layer.copy_page(layer, page, copy, tokens);
    });
  }
  /// Writes new tokens into the pages of a layer that take() provided; see KvPages::append().
  void write(Index layer, Writer& writer, std::span<const Index> sequences, std::span<const Index> lens, bool packed) {
    pages_[static_cast<std::size_t>(layer)].append(
        writer, lens, packed, [&](std::size_t i) -> const auto& { return tables.of(sequences[i]); });
  }

  /// See PagedKvCache.
  void drop(Index sequence, Index begin, Index end, const DropOptions& options) {
    tables.check_nothing_has_left("drop", sequence);
    keep(sequence, rows_beside(begin, end, sequence, tables.of(sequence).length), !options.keep_positions);
  }
  void retain(Index sequence, std::span<const Index> rows, const DropOptions& options) {
    tables.check_nothing_has_left("retain", sequence);
    keep(sequence, listed_rows(rows, sequence, tables.of(sequence).length), !options.keep_positions);
  }
  void accept(Index sequence, std::span<const Index> path) {
    keep(sequence, tables.rows_of_path(sequence, path), false);
  }

  /// See KvCaches. Rows of a page that several sequences share have the same positions in all of them.
  void change_ropes(std::vector<std::optional<Rope>> to) {
    std::vector<typename KvPages<T>::Mover> movers;
    movers.reserve(pages_.size());
    std::vector<Index> done(static_cast<std::size_t>(tables.pages()), 0);  // rows of each page
    for (std::size_t layer = 0; layer < pages_.size(); ++layer)
      movers.emplace_back(pages_[layer], rope(static_cast<Index>(layer)));
    const auto change = [&](std::span<const Index> list, Index length, const RowPositions& positions, Index shift) {
      const Index size = pages_.front().page_size();
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Index first = static_cast<Index>(i) * size;
        Index& from = done[static_cast<std::size_t>(list[i])];
        const Range rows{from, std::max(from, std::min(size, length - first))};
        for (std::size_t layer = 0; layer < pages_.size(); ++layer)
          if (const auto& changed = to[to.size() == 1 ? 0 : layer])
            pages_[layer].change_rope(movers[layer], *changed, list[i], rows,
                                      [&](Index row, Index axis) { return positions(first + row, axis) - shift; });
        from = rows.end;
      }
    };
    tables.for_each([&](const PageTables::Sequence& s) {
      change(s.pages, s.length, s.positions.rows(), 0);
      change(s.sink_pages, tables.sinks(), s.positions.rows(), s.sink_shift);
    });
    ropes_ = std::move(to);
  }

 private:
  template <class Config>
  static std::vector<KvPages<T>> pages_of(const Config& config, Index layers) {
    bool latent = false;
    if constexpr (requires { config.latent; }) latent = config.latent.rank > 0;
    std::vector<KvPages<T>> pages;
    pages.reserve(static_cast<std::size_t>(layers));
    for (Index layer = 0; layer < layers; ++layer)
      pages.emplace_back(config.pages, config.kv_heads, config.page_size, config.head_dim, config.v_dim, latent);
    return pages;
  }

  void keep(Index sequence, const std::vector<Range>& kept, bool closes_gaps) {
    carry_out(sequence, tables.plan_kept(sequence, kept, closes_gaps));
  }
  /// Changes a sequence as planned, in all layers.
  /// @throws OutOfPages if too few pages are free, in which case nothing has changed.
  void carry_out(Index sequence, PageTables::Plan&& plan) {
    if (plan.taken > tables.free_pages()) raise(OutOfPages(plan.taken, tables.free_pages(), tables.pages()));
    std::vector<typename KvPages<T>::Mover> movers;
    if (!plan.moves.empty()) {
      movers.reserve(pages_.size());
      for (std::size_t layer = 0; layer < pages_.size(); ++layer)
        movers.emplace_back(pages_[layer], rope(static_cast<Index>(layer)));
    }
    for (std::size_t layer = 0; layer < movers.size(); ++layer) pages_[layer].move(movers[layer], plan.moves);
    tables.adopt(sequence, std::move(plan));
  }

  // Constructed before `tables`, so that a cache that is too large for the memory fails before its tables are filled.
  std::vector<KvPages<T>> pages_;  // of each layer
  std::vector<std::optional<Rope>> ropes_;

 public:
  PageTables tables;
};

/// Checks the window and the sinks of a PagedKvCacheConfig or KvCachesConfig.
template <class Config>
void check_window(const char* cache, const Config& c, bool has_rope) {
  require(c.window >= 0 && c.sinks >= 0 && c.window <= kLargestIndex && c.sinks <= kLargestIndex, cache, ": window ",
          c.window, " and sinks ", c.sinks, " must be in 0..2^", kIndexBits);
  require(c.window > 0 || c.sinks == 0, cache, ": there are ", c.sinks, " sinks, but no window");
  if (c.window == 0) return;
  const Index needed =
      ceil_div(c.sinks + c.window + c.page_size, c.page_size) + (has_rope ? ceil_div(c.sinks, c.page_size) : 0);
  require(c.pages >= needed, cache, ": a window of ", c.window, " tokens after ", c.sinks, " sinks takes ", needed,
          " pages of ", c.page_size, " tokens, but there are only ", c.pages);
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
