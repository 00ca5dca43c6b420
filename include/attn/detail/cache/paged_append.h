// How tokens are appended to sequences in pages, for the caches that have a PageTables.
#pragma once

#include <span>

#include "attn/detail/cache/kv_pages.h"
#include "attn/detail/cache/page_tables.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Checks that there are lens[i] tokens for sequences[i] among `tokens` tokens of each batch element or, if `packed`, of
/// all sequences back to back.
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

/// Writes tokens after those of their sequences, into pages that PageTables::take() provided; see check_lens().
template <class T>
void write_tokens(KvPages<T>& storage, typename KvPages<T>::Writer& writer, const DTypeView<const cached_t<T>>& k,
                  const DTypeView<const cached_t<T>>& v, const PageTables& tables, std::span<const Index> sequences,
                  std::span<const Index> lens, bool packed) {
  Range rows{0, 0};
  for (std::size_t i = 0; i < lens.size(); ++i) {
    const auto& [pages, length, positions] = tables.of(sequences[i]);
    rows = {packed ? rows.end : 0, packed ? rows.end + lens[i] : lens[i]};
    storage.append(writer, k, v, packed ? 0 : static_cast<Index>(i), rows, pages, length, positions.rows());
  }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
