// Instantiates any_rows.h for one scalar. 16-bit floats are computed in float, so they share most of that code.
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
std::vector<AnyRow<T>> one_row_per_mod(const Setting& s) {
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

#define ATTN_TEST_ROWS_OF(T)                                       \
  template std::vector<AnyRow<T>> all_rows(const Setting&);        \
  template std::vector<AnyRow<T>> one_row_per_mod(const Setting&); \
  template AnyRow<T> any_row(const Setting&);

}  // namespace attn::test
