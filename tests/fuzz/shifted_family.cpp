// Rows of scores with a large constant, and keys with a common part, among the other random calls: see shifted_call.h.
#include "families.h"
#include "shifted_scalars.h"

namespace fuzz {

void shifted_rows(Case& c) {
  shifted::Sums sums;
  shifted::Report report{sums, "", "0", 0};
  shifted::drawn_scalars(c.random).run(c, report);
  for (const auto& [kind, sum] : sums)
    if (sum.missed > 0) fail(kind, ", ", sum.first);
  for (const auto& [kind, sum] : sums) c.used(kind.substr(0, kind.find(',')), sum.share);
}

}  // namespace fuzz
