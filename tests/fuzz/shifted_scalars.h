// Shifted calls of each kind of scalars.
#pragma once

#include "shifted_judge.h"

namespace fuzz::shifted {

void of_float(Case&, Report&);
void of_double(Case&, Report&);
void of_half(Case&, Report&);
void of_bfloat16(Case&, Report&);
void of_mixed(Case&, Report&);

struct Scalars {
  const char* name;
  Index share;  ///< of the cases, of 100
  void (*run)(Case&, Report&);
};
constexpr Scalars kScalars[] = {
    {"float", 34, of_float},   {"double", 14, of_double}, {"half", 18, of_half},
    {"bf16", 22, of_bfloat16}, {"mixed", 12, of_mixed},
};

inline const Scalars& drawn_scalars(Random& r) {
  Index at = r.from(0, 99);
  for (const Scalars& s : kScalars)
    if ((at -= s.share) < 0) return s;
  return kScalars[0];
}

}  // namespace fuzz::shifted
