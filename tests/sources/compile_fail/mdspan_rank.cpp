// expect: attn: query, key and value must be matrices (len, dim) or rank-4 tensors (batch, heads, len, dim); for
// expect: (batch, len, dim), pass t.unsqueeze(1)
#include <attn/attn.h>

#include "../../support/mdspan.h"

int main() {
  const float x[8] = {};
#ifdef ATTN_KO
  const auto query = attn::test::rows<const float, 3>(x, {1, 2, 4});
#else
  const auto query = attn::test::rows<const float, 4>(x, {1, 1, 2, 4});
#endif
  const attn::Tensor<float, 4> k({1, 1, 2, 4});
  attn::attention(query, k, k);
}
