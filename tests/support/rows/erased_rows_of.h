// How erased_rows.h is compiled for one scalar.
#pragma once

#include "../erased_rows.h"
#include "../mod_table.h"

namespace attn::test {

template <class T, bool kDual>
ErasedRows<T, kDual>::ErasedRows(const Setting& s) {
  each_kind(s, [&]<class M>(const Row<M>& row) {
    if constexpr (std::is_same_v<M, Sinks>) return sinks.push_back(row);
    if constexpr (attn::detail::is_grouped<M>) grouped.push_back({row.name, erased_grouped(row.mod), row.meaning});
    if (row.meaning.score)
      scores.push_back({row.name, erased_score<T, kDual>(row.mod), row.meaning});
    else
      masks.push_back({row.name, erased_mask(row.mod), row.meaning});
  });
}

}  // namespace attn::test
