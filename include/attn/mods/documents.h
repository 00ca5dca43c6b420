// documents(): a mask for documents packed into one sequence.
#pragma once

#include <algorithm>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/core/mods/hints.h"
#include "attn/core/mods/lengths.h"

namespace attn {

namespace detail {

/// Lookup tables for the predicate and the hints of documents(), with one entry per position.
struct DocumentTable {
  std::vector<Index> ids;
  std::vector<Index> run_end;  ///< the end of the run of equal ids around the position
  std::vector<Range> span;     ///< the span of the document at the position, from its first to its last token

  explicit DocumentTable(std::vector<Index> id_of_each)
      : ids(std::move(id_of_each)), run_end(ids.size()), span(ids.size()) {
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

/// The keys that each query of documents_at() sees: the keys of its document. Neither `begin` nor `end` decreases from
/// one query to the next.
struct PackedDocuments {
  std::vector<Index> begin, end;  ///< one per query

  /// @throws std::invalid_argument if there are too many queries for a table.
  PackedDocuments(std::span<const Index> query_offsets, std::span<const Index> key_offsets) {
    require(query_offsets.back() <= kLargestTable, "documents_at: the last offset must be at most ", kLargestTable,
            ", but is ", query_offsets.back());
    const auto queries = static_cast<std::size_t>(query_offsets.back());
    begin.reserve(queries), end.reserve(queries);
    for (std::size_t i = 1; i < query_offsets.size(); ++i) {
      const auto after = static_cast<std::size_t>(query_offsets[i]);
      begin.resize(after, key_offsets[i - 1]), end.resize(after, key_offsets[i]);
    }
  }

  Index queries() const { return static_cast<Index>(begin.size()); }

  /// Returns the mask for a call whose first query has this position. The table must outlive it.
  auto mask(Index first) const {
    const Index *from = begin.data(), *to = end.data();
    const auto seen = keep_ranges([=](const Position& p) { return Range{from[p.q - first], to[p.q - first]}; });
    return mask_mod(
        seen.keep,
        [=](const Tile& t) {
          const Index row = t.q.begin - first, last = t.q.end - 1 - first;
          if (from[last] <= t.kv.begin && t.kv.end <= to[row]) return Coverage::all;
          // Only the first document that ends after the tile's first key needs a check: the others begin no earlier.
          const Index* const reaching = std::upper_bound(to + row, to + last + 1, t.kv.begin);
          return reaching <= to + last && from[reaching - to] < t.kv.end ? Coverage::some : Coverage::none;
        },
        seen.kv_range_hint);
  }
};

/// @throws std::invalid_argument unless the offsets begin with 0 and do not decrease. Messages call an offset `name`.
inline void check_offsets(std::span<const Index> at, const char* name) {
  require(!at.empty(), "documents_at: the first ", name, " must be 0, but there are no ", name, "s");
  require(at[0] == 0, "documents_at: the first ", name, " must be 0, but is ", at[0]);
  for (std::size_t i = 1; i < at.size(); ++i)
    require(at[i] >= at[i - 1], "documents_at: ", name, "s must not decrease, but ", name, " ", i, " is ", at[i],
            " after ", at[i - 1]);
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
  return bind_mod([table = detail::DocumentTable(std::move(ids.values).to_vector())](const Problem& problem) {
    const Index count = static_cast<Index>(table.ids.size());
    detail::require(detail::fits_keys(count, problem), "documents has ", count, " ids for ", problem.keys().end,
                    " keys", detail::note_of_part(problem));
    detail::check_positions(count, problem, "documents", "ids cover");
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

/// documents() for contiguous documents: document i has the positions offsets[i] .. offsets[i + 1] - 1, and the last
/// offset is kv_len (the "cu_seqlens" of variable-length batches). Documents may be empty.
///
///     documents_at({0, 2, 5}), as documents({0, 0, 1, 1, 1}):  1 1 0 0 0
///                                                              1 1 0 0 0
///                                                              0 0 1 1 1
///                                                              0 0 1 1 1
///                                                              0 0 1 1 1
///
/// @throws std::invalid_argument unless the offsets begin with 0 and do not decrease, and from the attention call as
/// documents() does.
inline auto documents_at(const Indices& offsets) {
  const std::span<const Index> at = offsets.values;
  detail::check_offsets(at, "offset");
  return bind_mod([table = detail::PackedDocuments(at, at)](const Problem& problem) {
    const Index count = table.queries();
    detail::require(detail::fits_keys(count, problem), "documents_at: the last offset is ", count,
                    ", but the keys end at ", problem.keys().end, detail::note_of_part(problem));
    detail::check_positions(count, problem, "documents_at", "offsets cover");
    return table.mask(0);
  });
}

/// Packed cross-attention: the queries of document i see the keys of document i. Document i has the query rows
/// query_offsets[i] .. query_offsets[i + 1] - 1 and the keys key_offsets[i] .. key_offsets[i + 1] - 1 (the
/// "cu_seqlens_q" and "cu_seqlens_k" of FlashAttention; Dao 2023). Documents may have no queries, or no keys: queries
/// without keys give 0, and their log-sum-exp is -inf. The offsets apply to every batch element.
///
///     documents_at({0, 1, 3, 4}, {0, 2, 2, 5}):  1 1 0 0 0
///                                                0 0 0 0 0
///                                                0 0 0 0 0
///                                                0 0 1 1 1
///
/// Rows are counted from the first query of the call, whatever its position, because positions of queries and keys are
/// unrelated here; the last query offset is q_len. A call with only some of the queries needs the offsets of those
/// queries. Keys are counted by their positions; the last key offset is kv_len, or, with a kv_offset, at least
/// kv_offset + kv_len. causal() compares positions in the whole sequences, not within documents; see the mods page for
/// causal documents.
///
/// A hint costs O(log n) for a tile of n queries. Memory: two Index per query.
/// @throws std::invalid_argument unless there are as many query offsets as key offsets, and both begin with 0 and do
/// not decrease; and from the attention call unless the last offsets fit.
inline auto documents_at(const Indices& query_offsets, const Indices& key_offsets) {
  const std::span<const Index> of_queries = query_offsets.values, of_keys = key_offsets.values;
  detail::check_offsets(of_queries, "query offset");
  detail::check_offsets(of_keys, "key offset");
  detail::require(of_queries.size() == of_keys.size(), "documents_at: there are ", of_queries.size(),
                  " query offsets, but ", of_keys.size(),
                  " key offsets; pass equally many, and repeat an offset for a document without queries or keys");
  return bind_mod(
      [table = detail::PackedDocuments(of_queries, of_keys), keys = of_keys.back()](const Problem& problem) {
        detail::require(table.queries() == problem.q_len, "documents_at: the last query offset is ", table.queries(),
                        ", but the call has ", problem.q_len, " queries; offsets count its rows, from 0");
        detail::require(detail::fits_keys(keys, problem), "documents_at: the last key offset is ", keys,
                        ", but the keys end at ", problem.keys().end, detail::note_of_part(problem));
        return table.mask(problem.q_offset);
      });
}

}  // namespace attn
