// How any_rows.h is compiled for one scalar. Floats of 16 bits are computed with as float, so that they share most of
// it.
#pragma once

#include "../any_rows.h"
#include "../mod_table.h"

namespace attn::test {

template <class T>
std::vector<AnyRow<T>> all_rows(const Setting& s) {
  std::vector<AnyRow<T>> rows;
  each_mod(s, [&](const auto& row) { rows.emplace_back(row); });
  return rows;
}

template <class T>
std::vector<AnyRow<T>> a_row_of_each_kind(const Setting& s) {
  std::vector<AnyRow<T>> rows;
  each_kind(s, [&](const auto& row) { rows.emplace_back(row); });
  return rows;
}

#define ATTN_TEST_ROWS_OF(T)                                \
  template std::vector<AnyRow<T>> all_rows(const Setting&); \
  template std::vector<AnyRow<T>> a_row_of_each_kind(const Setting&);

}  // namespace attn::test
