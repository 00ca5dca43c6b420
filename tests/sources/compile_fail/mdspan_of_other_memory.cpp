// expect: attn: this mdspan's accessor does not use a plain pointer; use default_accessor, or copy the elements into an
// expect: attn::Tensor
#include <attn/attn.h>

#include "../../support/mdspan.h"

#ifdef ATTN_KO
struct Handle {
  const float* file = nullptr;
};
#else
using Handle = const float*;
#endif

int main() {
  const attn::test::Mdspan<const float, 2, true, Handle> query({}, {{0, 4}}, {{4, 1}});
  attn::attention(query, query, query);
}
