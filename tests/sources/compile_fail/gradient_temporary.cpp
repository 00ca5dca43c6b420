// expect: attn: gradients are added to a tensor that outlives the mod, this one is a temporary; give it a name
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
