// expect: attn: pass the sizes in braces: TensorView<float, 4>(ptr, {batch, heads, len, dim})
#include <attn/attn.h>

int main() {
  const float x[8] = {};
#ifdef ATTN_KO
  const attn::TensorView<const float, 4> v(x, 1, 1, 2, 4);
#else
  const attn::TensorView<const float, 4> v(x, {1, 1, 2, 4});
#endif
}
