// Page tables: the pages of a pool that hold the tokens of each sequence.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/cache/sequence_rows.h"
#include "attn/core/base/check.h"
#include "attn/core/base/ranges.h"
#include "attn/core/base/short_list.h"
#include "attn/isa.h"
#include "attn/out_of_pages.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A stack of page numbers. It has capacity for all pages from the beginning, and so do its copies, so that returning a
/// page allocates nothing.
class PageList {
 public:
  /// Holds all numbers below `pages`; 0 is taken first.
  explicit PageList(Index pages) {
    pages_.reserve(static_cast<std::size_t>(pages));
    for (Index page = pages; page-- > 0;) pages_.push_back(page);
  }
  PageList(const PageList& other) {
    pages_.reserve(other.pages_.capacity());
    pages_ = other.pages_;
  }
  PageList(PageList&&) noexcept = default;
  PageList& operator=(PageList&&) noexcept = default;

  Index size() const { return static_cast<Index>(pages_.size()); }
  void put(Index page) { pages_.push_back(page); }
  Index take() {
    const Index page = pages_.back();
    pages_.pop_back();
    return page;
  }
  /// The page that take() returns after `others` calls; -1 if there are not enough.
  Index next(Index others) const {
    return others < size() ? pages_[pages_.size() - 1 - static_cast<std::size_t>(others)] : -1;
  }

 private:
  std::vector<Index> pages_;
};

/// The sequences of a PagedKvCache or of KvCaches: the number of tokens and the pages of each. Sequences may share
/// pages. This class does not access the contents of pages.
class PageTables {
 public:
  struct Sequence {
    std::vector<Index> pages;
    Index length = 0;
    ExplicitPositions positions;
    Index appended = 0;  ///< number of tokens of the last append that are still the last rows
    Index offset = 0;    ///< position of row 0 for mods: number of tokens that have left a window without sinks
    /// If keys are rotated: pages that hold the sinks as they were rotated before any token left the window.
    std::vector<Index> sink_pages;
    Index sink_shift = 0;  ///< positions by which the sinks have moved since then
  };

  /// A planned change of a sequence: its new state, the rows to move, the pages to release, and the number of free
  /// pages to take.
  struct Plan {
    Sequence after;
    std::vector<RowMove> moves;
    std::vector<Index> released;
    Index taken = 0;
  };

  /// State of a sequence before an append.
  struct Mark {
    Index length;
    std::optional<Index> last_page;
    Index appended;
  };

  /// `window` and `sinks`: see PagedKvCacheConfig. `axes`: the positions by which the ropes of layers rotate a key; 0
  /// without a rope.
  PageTables(Index pages, Index page_size, Index window, Index sinks, Index axes)
      : page_size_(page_size),
        window_(window),
        sinks_(sinks),
        axes_(axes),
        users_(static_cast<std::size_t>(pages), 0),
        free_(pages) {}

  Index pages() const { return static_cast<Index>(users_.size()); }
  Index sinks() const { return sinks_; }
  Index free_pages() const { return free_.size(); }
  Index count() const { return static_cast<Index>(sequences_.size()); }
  bool has(Index sequence) const { return sequences_.count(sequence) > 0; }
  /// Calls visit(sequence) for all sequences, in any order.
  template <class Visit>
  void for_each(const Visit& visit) const {
    for (const auto& [number, sequence] : sequences_) visit(sequence);
  }
  /// @throws std::invalid_argument if the sequence does not exist.
  const Sequence& of(Index sequence) const {
    const auto found = sequences_.find(sequence);
    require(found != sequences_.end(), "sequence ", sequence, " does not exist; it was released or never added");
    return found->second;
  }

  /// See PagedKvCache.
  Index add() {
    sequences_[next_].positions = no_positions();
    return next_++;
  }
  Index fork(Index sequence, std::optional<Index> length) {
    Sequence copy = of(sequence);
    if (length) {
      check_length("fork", sequence, *length);
      check_window("fork", sequence, *length);
      cut(copy, *length);
      copy.pages.resize(static_cast<std::size_t>(pages_for(*length)));
    }
    const auto& added = sequences_.emplace(next_, std::move(copy)).first->second;
    for (Index page : added.pages) ++users(page);
    for (Index page : added.sink_pages) ++users(page);
    return next_++;
  }
  void release(Index sequence) {
    shorten(at(sequence), 0);
    sequences_.erase(sequence);
  }
  void truncate(Index sequence, Index length) {
    check_length("truncate", sequence, length);
    check_window("truncate", sequence, length);
    shorten(at(sequence), length);
  }

  /// Rejects calls of drop() and retain() after tokens have left a window without sinks: masks would see the remaining
  /// tokens at positions of removed ones.
  void check_nothing_has_left(const char* what, Index sequence) const {
    const Index left = of(sequence).offset;
    require(left == 0, what, ": ", left, " tokens of sequence ", sequence,
            " have left its window, so that the positions of the others cannot change");
  }

  /// Returns how many free pages it takes to append lens[i] tokens to sequences[i], for all i. The sequences must be
  /// distinct. A shared page is copied before it is written to. If every sequence that shares the page is appended to,
  /// the longest of them keeps the original.
  Index pages_needed(std::span<const Index> sequences, std::span<const Index> lens) const {
    Index needed = 0;
    std::unordered_map<Index, Index> copies;  // number of copies per page
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      const Sequence& s = of(sequences[i]);
      needed += pages_for(s.length + lens[i]) - static_cast<Index>(s.pages.size());
      if (!writes_to_last(s, lens[i]) || users(s.pages.back()) == 1) continue;
      Index& copied = copies[s.pages.back()];
      if (copied + 1 < users(s.pages.back())) ++copied, ++needed;
    }
    return needed;
  }

  /// Returns how many free pages it takes to append `tokens` tokens to one sequence if its window slides first, less
  /// the pages that the slide frees.
  /// @throws std::invalid_argument for a negative or overflowing number of tokens.
  Index pages_needed(Index sequence, Index tokens) const {
    require(tokens >= 0 && tokens <= kLargestIndex, "pages_needed: tokens must be in 0..2^", kIndexBits, ", but is ",
            tokens);
    Index needed = pages_needed({&sequence, 1}, {&tokens, 1});
    if (beyond_window(sequence) == 0) return needed;
    const Sequence& s = of(sequence);
    const Plan slide = plan_slide(sequence);
    needed += slide.taken;
    for (Index page : slide.released) needed -= users(page) == 1;
    const bool copies_last = writes_to_last(s, tokens) && users(s.pages.back()) > 1;
    if (copies_last && slide.after.pages.back() != s.pages.back()) --needed;  // the slide copies it already
    return std::max<Index>(needed, 0);
  }

  /// Makes the checks of an append that can be made before it slides any window. Whether there are enough pages is
  /// checked only for a single sequence whose window slides.
  /// @throws OutOfPages; std::invalid_argument if a sequence does not exist or is given twice.
  void check_append(std::span<const Index> sequences, std::span<const Index> lens) const {
    for (auto s = sequences.begin(); s != sequences.end(); ++s) {
      require(std::find(sequences.begin(), s, *s) == s, "sequence ", *s, " appears twice");
      of(*s);
    }
    if (sequences.size() != 1 || beyond_window(sequences[0]) == 0) return;
    const Index needed = pages_needed(sequences[0], lens[0]);
    if (needed > free_pages()) raise(OutOfPages(needed, free_pages(), pages()));
  }

  /// Gives each of sequences[i] the pages and positions of lens[i] more tokens, without increasing its length yet (see
  /// lengthen()). `positions` has those of all sequences back to back, or is empty. Calls copy(from, to, tokens), which
  /// must not throw, for each shared page that has to be replaced.
  /// @throws OutOfPages, in which case nothing has changed.
  template <class Copy>
  void take(std::span<const Index> sequences, std::span<const Index> lens, std::span<const Index> positions,
            const Copy& copy) {
    const Index needed = pages_needed(sequences, lens);
    if (needed > free_pages()) raise(OutOfPages(needed, free_pages(), pages()));
    // The longest sequence comes last and thus keeps a page whose other users get copies. It writes after the tokens of
    // all other users, so restore() can give the page back to them.
    ShortList<std::size_t> order;
    for (std::size_t i = 0; i < sequences.size(); ++i) order.push_back(i);
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(of(sequences[a]).length, a) < std::pair(of(sequences[b]).length, b);
    });
    // Allocations, which may throw, come before any change.
    ShortList<const Index*> given;  // the positions of each sequence
    for_each_given(positions, axes_, lens, [&](std::size_t i, const Index* of_sequence) {
      Sequence& s = at(sequences[i]);
      given.push_back(of_sequence);
      s.pages.reserve(static_cast<std::size_t>(pages_for(s.length + lens[i])));
      s.positions.reserve(s.length, lens[i], of_sequence);
    });
    for (const std::size_t i : order) {
      Sequence& s = at(sequences[i]);
      s.positions.append(s.length, lens[i], given[i]);
      take(s, lens[i], copy);
    }
  }
  /// Replaces the positions of tokens whose pages were taken: `positions` is as for take(). If it throws, some
  /// sequences may already have their new positions.
  void reposition(std::span<const Index> sequences, std::span<const Index> lens, std::span<const Index> positions) {
    for_each_given(positions, axes_, lens, [&](std::size_t i, const Index* given) {
      Sequence& s = at(sequences[i]);
      s.positions.truncate(s.length);
      s.positions.reserve(s.length, lens[i], given);
      s.positions.append(s.length, lens[i], given);
    });
  }
  /// Adds lens[i] tokens, whose pages were taken, to sequences[i].
  void lengthen(std::span<const Index> sequences, std::span<const Index> lens) {
    for (std::size_t i = 0; i < lens.size(); ++i) {
      Sequence& s = at(sequences[i]);
      s.length += lens[i];
      if (lens[i] > 0) s.appended = lens[i];
    }
  }

  /// The rows that accept() keeps; see rows_of_path().
  std::vector<Range> rows_of_path(Index sequence, std::span<const Index> path) const {
    const Sequence& s = of(sequence);
    auto kept = detail::rows_of_path(path, s.appended, sequence, s.length,
                                     has_rope() ? std::optional(s.positions.rows()) : std::nullopt);
    check_window("accept", sequence, s.length - s.appended + static_cast<Index>(path.size()));
    return kept;
  }
  /// Plans a change that keeps only some rows of a sequence; see plan_removal(). More pages may be needed than are
  /// free.
  Plan plan_kept(Index sequence, std::span<const Range> kept, bool closes_gaps) const {
    const Sequence& s = of(sequence);
    Index taken = 0;
    Removal removal = plan_removal(s.pages, page_size_, s.positions.rows(), kept, closes_gaps && has_rope(),
                                   [&](Index page) { return users(page) > 1 ? free_.next(taken++) : page; });
    Plan plan{{std::move(removal.pages), removal.length, std::move(removal.positions), 0, s.offset, {}, 0},
              std::move(removal.moves),
              std::move(removal.released),
              removal.taken};
    if (!kept.empty() && kept[0].begin == 0 && kept[0].end >= sinks_) {
      plan.after.sink_pages = s.sink_pages;
      plan.after.sink_shift = s.sink_shift;
    } else {
      plan.released.insert(plan.released.end(), s.sink_pages.begin(), s.sink_pages.end());
    }
    return plan;
  }

  /// How many tokens of a sequence have left its window, in whole pages: those that neither the last token nor a later
  /// one sees.
  Index beyond_window(Index sequence) const {
    const Index tokens = of(sequence).length - sinks_ - window_;
    return window_ == 0 ? 0 : std::max<Index>(tokens, 0) / page_size_ * page_size_;
  }
  /// Plans the removal of the tokens that have left the window of a sequence, in whole pages. Later tokens keep their
  /// rows within pages, and their positions, so that their keys need no rotation. Sinks move to the positions just
  /// before the later tokens; sinks that do not fill a page move into the page of the first later token. The keys of
  /// sinks are always rotated from their original positions: rotating them further each time a page leaves would round
  /// them each time. The pages with the original keys are kept for this. More pages may be needed than are free.
  Plan plan_slide(Index sequence) const {
    const Sequence& s = of(sequence);
    const RowPositions at = s.positions.rows();
    const Index tokens = beyond_window(sequence), pages = ceil_div(sinks_, page_size_);
    const auto table = s.pages.begin(), leaving = table + sinks_ / page_size_, later = leaving + tokens / page_size_;
    Plan plan{{{table, leaving}, s.length - tokens, no_positions(), s.appended, s.offset, s.sink_pages, s.sink_shift},
              {},
              {},
              0};
    Sequence& after = plan.after;
    after.pages.insert(after.pages.end(), later, s.pages.end());
    if (after.appended > after.length - sinks_) after.appended = 0;
    if (sinks_ == 0) after.offset += tokens;

    // Differences of smallest positions add up over several slides, so that the sinks stay before the window.
    const auto smallest = [&](Index row) {
      Index least = at(row);
      for (Index axis = 1; axis < at.axes; ++axis) least = std::min(least, at(row, axis));
      return least;
    };
    const Index shift = smallest(sinks_ + tokens) - smallest(sinks_);
    for (Index row = 0; row < after.length; ++row)
      after.positions.append(row,
                             [&](Index axis) { return row < sinks_ ? at(row, axis) + shift : at(row + tokens, axis); });

    const bool keeps_sinks = has_rope() && after.sink_pages.empty();
    if (keeps_sinks) {
      after.sink_pages.assign(table, table + pages);
      after.sink_shift = 0;
    }
    after.sink_shift += shift;
    plan.released.assign(keeps_sinks && leaving != table + pages ? leaving + 1 : leaving, later);
    // Released pages are used before free ones.
    const auto spare = [&] {
      const auto own = std::find_if(plan.released.begin(), plan.released.end(), [&](Index p) { return users(p) == 1; });
      if (own == plan.released.end()) return free_.next(plan.taken++);
      const Index page = *own;
      plan.released.erase(own);
      return page;
    };
    for (Index i = 0; i < pages; ++i) {
      const Index first = i * page_size_, count = std::min(page_size_, sinks_ - first);
      const bool is_full = count == page_size_;
      if (is_full && !has_rope()) continue;
      Index& page = after.pages[static_cast<std::size_t>(i)];
      const Index old = page;
      if (users(old) > 1 || (is_full && keeps_sinks)) page = spare();
      const Index from = has_rope() ? after.sink_pages[static_cast<std::size_t>(i)] : *leaving;
      plan.moves.push_back({from, 0, page, 0, count, has_rope() ? after.sink_shift : 0});
      if (page == old) continue;
      const Index held = std::min(page_size_, after.length - first);
      if (!is_full) plan.moves.push_back({old, count, page, count, held - count, 0});
      if (!(is_full && keeps_sinks)) plan.released.push_back(old);
    }
    return plan;
  }
  /// Puts a plan into effect once its moves have been made; nothing else may have changed since it was made.
  void adopt(Index sequence, Plan&& plan) noexcept {
    for (Index i = 0; i < plan.taken; ++i) take();
    for (Index page : plan.released) drop(page);
    at(sequence) = std::move(plan.after);
  }

  ShortList<Mark> marks(std::span<const Index> sequences) const {
    ShortList<Mark> all;
    for (Index sequence : sequences) {
      const Sequence& s = of(sequence);
      all.push_back({s.length, s.pages.empty() ? std::nullopt : std::optional(s.pages.back()), s.appended});
    }
    return all;
  }
  /// Undoes take() and lengthen(); call it before anything else changes. It allocates nothing, because the free list
  /// still has capacity for the pages it had.
  void restore(std::span<const Index> sequences, std::span<const Mark> marks) noexcept {
    for (std::size_t i = 0; i < marks.size(); ++i) {
      Sequence& s = at(sequences[i]);
      shorten(s, marks[i].length);
      s.appended = marks[i].appended;
      if (s.pages.empty() || s.pages.back() == *marks[i].last_page) continue;
      ++users(*marks[i].last_page);  // others share it, or it would not have been copied
      drop(std::exchange(s.pages.back(), *marks[i].last_page));
    }
  }

 private:
  Sequence& at(Index sequence) { return const_cast<Sequence&>(std::as_const(*this).of(sequence)); }
  void check_length(const char* what, Index sequence, Index length) const {
    const Index has = of(sequence).length;
    require(length >= 0 && length <= has, what, ": length must be in 0..", has, " (the tokens of sequence ", sequence,
            "), but is ", length);
  }
  void check_window(const char* what, Index sequence, Index length) const {
    const Sequence& s = of(sequence);
    require(s.offset == 0 || length >= window_, what, ": length must be in ", window_, "..", s.length,
            ", because tokens before the last ", s.length, " of sequence ", sequence, " have left its window, but is ",
            length);
  }
  Index pages_for(Index tokens) const { return ceil_div(tokens, page_size_); }
  /// Whether an append writes into a page that the sequence already has.
  bool writes_to_last(const Sequence& s, Index tokens) const { return tokens > 0 && s.length % page_size_ != 0; }

  Index& users(Index page) { return users_[static_cast<std::size_t>(page)]; }
  Index users(Index page) const { return users_[static_cast<std::size_t>(page)]; }
  template <class Copy>
  void take(Sequence& s, Index tokens, const Copy& copy) {
    if (writes_to_last(s, tokens) && users(s.pages.back()) > 1) {
      const Index page = take();
      copy(s.pages.back(), page, s.length % page_size_);
      drop(std::exchange(s.pages.back(), page));
    }
    while (static_cast<Index>(s.pages.size()) < pages_for(s.length + tokens)) s.pages.push_back(take());
  }
  Index take() {
    const Index page = free_.take();
    users(page) = 1;
    return page;
  }
  void drop(Index page) {
    if (--users(page) == 0) free_.put(page);
  }
  bool has_rope() const { return axes_ > 0; }
  ExplicitPositions no_positions() const { return ExplicitPositions(std::max<Index>(axes_, 1)); }
  void cut(Sequence& s, Index length) const {
    if (length < sinks_) s.sink_pages.clear();
    s.appended = std::max<Index>(s.appended - (s.length - length), 0);
    s.length = length;
    s.positions.truncate(length);
  }
  /// Keeps the first `length` tokens of a sequence, and drops pages that hold none of them.
  void shorten(Sequence& s, Index length) {
    if (length < sinks_)
      for (Index page : s.sink_pages) drop(page);
    cut(s, length);
    const auto keep = static_cast<std::size_t>(pages_for(length));
    for (; s.pages.size() > keep; s.pages.pop_back()) drop(s.pages.back());
  }

  Index page_size_, window_, sinks_, axes_;
  std::vector<Index> users_;  // number of page tables and lists of sinks' pages that each page is in
  PageList free_;
  std::unordered_map<Index, Sequence> sequences_;
  Index next_ = 0;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
