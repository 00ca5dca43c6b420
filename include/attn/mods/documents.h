// documents(): a mask for documents packed into one sequence.
#pragma once

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/detail/base/ranges.h"
#include "attn/detail/mods/lengths.h"
#include "attn/mod.h"

namespace attn {

namespace detail {

/// Lookup tables for the predicate and the hints of documents().
struct DocumentTable {
  // Each has one entry per position.
  std::vector<Index> ids;
  std::vector<Index> run_end;  ///< the end of the run of equal ids around the position
  std::vector<Range> span;     ///< the span of the document at the position, from its first to its last token

  bool are_given_by_offsets;  ///< whether documents_at() made the table; error messages then mention offsets

  DocumentTable(std::vector<Index> id_of_each, bool given_by_offsets)
      : ids(std::move(id_of_each)), run_end(ids.size()), span(ids.size()), are_given_by_offsets(given_by_offsets) {
    const Index n = static_cast<Index>(ids.size());
    std::unordered_map<Index, Range> spans;
    for (Index i = 0; i < n; ++i) spans.try_emplace(id(i), Range{i, i}).first->second.end = i + 1;
    for (Index i = n; i-- > 0;) {
      run_end[at(i)] = i + 1 < n && id(i + 1) == id(i) ? run_end[at(i + 1)] : i + 1;
      span[at(i)] = spans[id(i)];
    }
  }

  /// Returns the smallest range that contains all documents of these positions. Cost: one step per run.
  Range span_of(Range positions) const {
    Range all{span[at(positions.begin)]};
    for (Index i = run_end[at(positions.begin)]; i < positions.end; i = run_end[at(i)])
      all = detail::hull(all, span[at(i)]);
    return all;
  }
  bool is_one_document(Range positions) const { return run_end[at(positions.begin)] >= positions.end; }
  Index id(Index i) const { return ids[at(i)]; }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }
};

/// Returns the mask of documents() and of documents_at().
inline auto documents_of(DocumentTable given) {
  return bind_mod([table = std::move(given)](const Problem& problem) {
    const Index count = static_cast<Index>(table.ids.size());
    const bool by_offsets = table.are_given_by_offsets;
    require(fits_keys(count, problem) || by_offsets, "documents has ", count, " ids for ", problem.keys().end, " keys",
            note_of_part(problem));
    require(fits_keys(count, problem), "documents_at: the last offset is ", count, ", but the keys end at ",
            problem.keys().end, note_of_part(problem));
    require(problem.q_len == 0 || (problem.q_offset >= 0 && problem.q_offset + problem.q_len <= count),
            by_offsets ? "documents_at" : "documents", ": queries have positions ", problem.q_offset, "..",
            problem.q_offset + problem.q_len - 1,
            by_offsets ? ", but the offsets cover 0.." : ", but the ids cover 0..", count - 1);
    return mask_mod([id = table.ids.data()](const Position& p) { return id[p.q] == id[p.kv]; },
                    [&table](const Tile& t) {
                      const Range seen = intersect(table.span_of(t.q), t.kv);
                      if (seen.empty()) return Coverage::none;
                      return table.is_one_document(t.q) && table.is_one_document(t.kv) &&
                                     table.id(t.q.begin) == table.id(t.kv.begin)
                                 ? Coverage::all
                                 : Coverage::some;
                    },
                    [&table](const Tile& t) { return table.span_of(t.q); });
  });
}

}  // namespace detail

/// Keeps pairs within the same document. `ids` gives the document of each position 0 .. kv_len - 1; it need not be
/// sorted, and applies to every batch element. With causal(), each document is causal on its own. A contiguous document
/// costs as much as in a separate call.
///
///     ids {0, 0, 1, 1, 1}:  1 1 0 0 0
///                           1 1 0 0 0
///                           0 0 1 1 1
///                           0 0 1 1 1
///                           0 0 1 1 1
///
/// @throws std::invalid_argument from the attention call, unless there is one id per key and all queries have positions
/// in 0..kv_len - 1.
inline auto documents(Indices ids) {
  return detail::documents_of(detail::DocumentTable(std::move(ids.values).to_vector(), false));
}

/// documents() for contiguous documents: document i has the positions offsets[i] .. offsets[i + 1] - 1, and the last
/// offset is kv_len (the "cu_seqlens" of variable-length batches).
///
///     documents_at({0, 2, 5}), as documents({0, 0, 1, 1, 1}):  1 1 0 0 0
///                                                              1 1 0 0 0
///                                                              0 0 1 1 1
///                                                              0 0 1 1 1
///                                                              0 0 1 1 1
///
/// @throws std::invalid_argument unless the offsets begin with 0 and increase, and from the attention call as
/// documents() does.
inline auto documents_at(const Indices& offsets) {
  const std::span<const Index> at = offsets.values;
  detail::require(!at.empty(), "documents_at: the first offset must be 0, but there are no offsets");
  detail::require(at[0] == 0, "documents_at: the first offset must be 0, but is ", at[0]);
  for (std::size_t i = 1; i < at.size(); ++i)
    detail::require(at[i] > at[i - 1], "documents_at: offsets must increase, but offset ", i, " is ", at[i], " after ",
                    at[i - 1]);
  detail::require(at.back() <= detail::kLargestTable, "documents_at: the last offset must be at most ",
                  detail::kLargestTable, ", but is ", at.back());
  std::vector<Index> ids;
  for (std::size_t i = 1; i < at.size(); ++i)
    ids.insert(ids.end(), static_cast<std::size_t>(at[i] - at[i - 1]), static_cast<Index>(i - 1));
  return detail::documents_of(detail::DocumentTable(std::move(ids), true));
}

}  // namespace attn
