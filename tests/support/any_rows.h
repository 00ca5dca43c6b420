// The tables of mods with their types erased: they are compiled once for each scalar (rows/), not in every test that
// uses them.
#pragma once

#include "any_mods.h"
#include "row.h"

namespace attn::test {

template <class T>
struct AnyRow {
  std::string name;
  AnyMods<T> mod;
  Meaning meaning;

  template <class M>
  explicit(false) AnyRow(const Row<M>& row) : name(row.name), mod(row.mod), meaning(row.meaning) {}
};

/// Every row of mod_table.h.
template <class T>
std::vector<AnyRow<T>> all_rows(const Setting& s);

/// One variant of every mod.
template <class T>
std::vector<AnyRow<T>> a_row_of_each_kind(const Setting& s);

/// One variant of a mod, both drawn at random.
template <class T>
AnyRow<T> any_row(const Setting& s);

}  // namespace attn::test
