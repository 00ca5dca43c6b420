// A mod and what it means, as the tables of mods hold them.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "oracle.h"

namespace attn::test {

/// The call that a row may build its mods for.
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

/// What `a | b` means: first `a`, then `b`.
inline Meaning both(const Meaning& a, const Meaning& b) {
  Meaning m;
  if (a.keep || b.keep) m.keep = [=](const Pair& p) { return (!a.keep || a.keep(p)) && (!b.keep || b.keep(p)); };
  if (a.score || b.score)
    m.score = [=](Real x, const Pair& p) {
      const Real y = a.score ? a.score(x, p) : x;
      return b.score ? b.score(y, p) : y;
    };
  if (a.sink || b.sink)
    m.sink = [=](Index head) {
      return std::log((a.sink ? std::exp(a.sink(head)) : 0) + (b.sink ? std::exp(b.sink(head)) : 0));
    };
  if (a.factor || b.factor)
    m.factor = [=](const Pair& p) { return (a.factor ? a.factor(p) : 1) * (b.factor ? b.factor(p) : 1); };
  return m;
}

template <class A, class B>
auto operator|(const Row<A>& a, const Row<B>& b) {
  return Row<decltype(a.mod | b.mod)>{a.name + " | " + b.name, a.mod | b.mod, both(a.meaning, b.meaning)};
}

/// The variants of one factory, which all have one type.
template <class M>
using Rows = std::vector<Row<M>>;

}  // namespace attn::test
