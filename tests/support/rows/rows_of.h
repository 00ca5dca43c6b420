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
  Setting one = s;
  one.one_variant = true;
  return all_rows<T>(one);
}

template <class T>
AnyRow<T> any_row(const Setting& s) {
  Index entries = 0;
  each_entry([&](const auto&) { ++entries; });
  Setting one = s;
  one.one_variant = true;
  for (;;) {
    std::vector<AnyRow<T>> rows;
    Index at = s.random.integer(0, entries - 1);
    each_entry([&](const auto& draw) {
      if (at-- != 0) return;
      for (const auto& row : draw(one)) rows.emplace_back(row);
    });
    if (!rows.empty()) return s.random.pick(rows);
  }
}

#define ATTN_TEST_ROWS_OF(T)                                          \
  template std::vector<AnyRow<T>> all_rows(const Setting&);           \
  template std::vector<AnyRow<T>> a_row_of_each_kind(const Setting&); \
  template AnyRow<T> any_row(const Setting&);

}  // namespace attn::test
