// A run of tokens cut into chunks, in the order in which a recurrence meets them.
#pragma once

#include <algorithm>

#include "attn/detail/linear_attention/recurrence_call.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Some keys, some query rows that see the state as it is before them, or both of the same tokens: then each row sees
/// the keys up to its own.
struct TokenChunk {
  Range keys;
  Range rows;

  Index tokens() const { return std::max(keys.size(), rows.size()); }
};

/// Calls visit(chunk) for the chunks of a run. Row r of queries stands where row offset + r of keys does.
/// Without `is_causal` all keys come before all rows. Keys behind the last row are visited only if somebody wants
/// `all_keys`.
template <class Visit>
void for_each_chunk(const TokenRun& run, Index offset, bool is_causal, bool all_keys, const Visit& visit) {
  const auto some_keys = [&](Index begin, Index end) {
    for (Index t = begin; t < end; t += kChunk) visit(TokenChunk{{t, std::min(t + kChunk, end)}, {0, 0}});
  };
  const auto some_rows = [&](Index begin, Index end) {
    for (Index r = begin; r < end; r += kChunk) visit(TokenChunk{{0, 0}, {r, std::min(r + kChunk, end)}});
  };
  // Rows before `first` stand before all keys, those from `last` on behind them.
  const Range keys = run.keys, rows = run.rows;
  const Index first = is_causal ? std::clamp(keys.begin - offset, rows.begin, rows.end) : rows.begin;
  const Index last = is_causal ? std::clamp(keys.end - offset, first, rows.end) : rows.begin;
  const Index met = !is_causal || rows.empty() ? keys.end : std::clamp(rows.begin + offset, keys.begin, keys.end);
  some_rows(rows.begin, first);
  some_keys(keys.begin, met);
  for (Index r = first; r < last; r += kChunk) {
    const Range together{r, std::min(r + kChunk, last)};
    visit(TokenChunk{{together.begin + offset, together.end + offset}, together});
  }
  some_rows(last, rows.end);
  if (all_keys && is_causal && !rows.empty()) some_keys(std::max(met, last + offset), keys.end);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
