// expect: attn: omit enable_gqa: query heads share key heads if key and value have fewer heads than the query
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
#ifdef ATTN_KO
  attn::attention(x, x, x, {.enable_gqa = true});
#else
  attn::attention(x, x, x);
#endif
}
