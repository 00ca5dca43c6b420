// expect: attn: a tensor of bool is not a mod; use attn::keep(t) to keep the pairs where it is true, or attn::drop(t)
// expect: to drop them
#include <attn/attn.h>

#include "../../support/mdspan.h"

int main() {
  const bool mask[4] = {};
  const auto kept = attn::test::rows<const bool, 2>(mask, {2, 2});
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, kept);
#else
  attn::attention(x, x, x, attn::keep(kept));
#endif
}
