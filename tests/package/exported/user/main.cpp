#include <tokens.h>

int main() {
  attn::Tensor<float, 4> tokens({1, 1, 2, 1});
  tokens(0, 0, 0, 0) = 3;
  return mix(tokens)(0, 0, 0, 0) == 3 ? 0 : 1;
}
