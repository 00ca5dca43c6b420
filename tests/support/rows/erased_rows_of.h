// How erased_rows.h is compiled for one scalar.
#pragma once

#include "../erased_rows.h"
#include "../mod_table.h"

namespace attn::test {

inline auto no_sinks(const Setting& s) {
  const auto heads = static_cast<std::size_t>(s.sizes.heads);
  return attn::sinks(std::vector<double>(heads, -std::numeric_limits<double>::infinity()));
}

template <class T, bool kDual>
ErasedRows<T, kDual>::ErasedRows(const Setting& s) {
  each_kind(s, [&]<class M>(const Row<M>& row) {
    if constexpr (std::is_same_v<M, decltype(attn::sinks({}))>)
      return others.push_back({row.name, row.mod | attn::dropout(0, 0), row.meaning});
    if constexpr (std::is_same_v<M, DropoutMod>)
      return others.push_back({row.name, no_sinks(s) | row.mod, row.meaning});
    if constexpr (attn::detail::is_grouped<M>) grouped.push_back({row.name, erased_grouped(row.mod), row.meaning});
    if (row.meaning.score)
      scores.push_back({row.name, erased_score<T, kDual>(row.mod), row.meaning});
    else
      masks.push_back({row.name, erased_mask(row.mod), row.meaning});
  });
}

}  // namespace attn::test
