// expect: attn: the tensor that gradients are added to must outlive the mod, but this one is a temporary; store it in a
// expect: variable
#include <attn/attn.h>

int main() {
  const attn::Tensor<float, 2> table({2, 2});
#ifdef ATTN_KO
  attn::bias(table, attn::Tensor<float, 2>({2, 2}));
#else
  attn::Tensor<float, 2> grad({2, 2});
  attn::bias(table, grad);
#endif
}
