// expect: attn: this mdspan's layout has no strides; use layout_right, layout_left or layout_stride, or copy
#include <attn/attn.h>

#include "../../support/mdspan.h"

#ifdef ATTN_KO
constexpr bool kStrided = false;
#else
constexpr bool kStrided = true;
#endif

int main() {
  const float x[8] = {};
  const attn::test::Mdspan<const float, 2, kStrided> query(x, {{2, 4}}, {{4, 1}});
  attn::attention(query, query, query);
}
