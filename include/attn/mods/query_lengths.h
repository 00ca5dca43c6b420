// query_lengths(): padding at the end of each batch element's queries.
#pragma once

#include <utility>

#include "attn/core/mods/lengths.h"
#include "attn/mod.h"

namespace attn {

/// Keeps the query rows 0 .. lengths[batch] - 1. Later rows are padding: their output is 0 and their log-sum-exp -inf.
/// Rows are counted from the first query of the call, whatever its position. There is one length per batch element.
///
///     lengths {2}:  1 1 1
///                   1 1 1
///                   0 0 0
///
/// @throws std::invalid_argument from the attention call, unless there is one length per batch element, each in
/// 0..q_len.
inline auto query_lengths(Indices lengths) {
  return bind_mod([lengths = std::move(lengths.values)](const Problem& problem) {
    detail::check_lengths(lengths, problem, problem.q_len, "query_lengths", "q_len");
    const auto end = [length = lengths.data(), first = problem.q_offset](Index batch) { return first + length[batch]; };
    return mask_mod([end](const Position& p) { return p.q < end(p.batch); },
                    [end](const Tile& t) {
                      if (t.q.begin >= end(t.batch)) return Coverage::none;
                      return t.q.end <= end(t.batch) ? Coverage::all : Coverage::some;
                    },
                    [end](const Tile& t) {
                      return Range{t.kv.begin, t.q.begin < end(t.batch) ? t.kv.end : t.kv.begin};
                    });
  });
}

}  // namespace attn
