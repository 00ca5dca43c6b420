// A mod and what it means, as the tables of mods hold them.
#pragma once

#include <string>
#include <vector>

#include "oracle.h"

namespace attn::test {

/// What a row may build its mods for.
struct Setting {
  Sizes sizes;
  Numbers numbers;
  Random& random;

  Index first() const { return numbers.first_position(sizes); }
};

/// One mod object and what it means.
template <class M>
struct Row {
  std::string name;
  M mod;
  Meaning meaning;
};

/// The variants of one factory: all of one type.
template <class M>
using Rows = std::vector<Row<M>>;

}  // namespace attn::test
