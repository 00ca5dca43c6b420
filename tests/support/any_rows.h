// The tables of mods, type-erased: compiled once per scalar (rows/), not in every test that uses them.
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

/// Returns all rows of mod_table.h.
template <class T>
std::vector<AnyRow<T>> all_rows(const Setting& s);

/// Returns one variant of every mod.
template <class T>
std::vector<AnyRow<T>> one_row_per_mod(const Setting& s);

/// Returns a random variant of a random mod.
template <class T>
AnyRow<T> any_row(const Setting& s);

}  // namespace attn::test
