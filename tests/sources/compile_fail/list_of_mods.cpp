// expect: attn: mods cannot be stored in a list at run time; combine them with | at compile time: attn::causal() |
// expect: attn::softcap(50)
#include <vector>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, std::vector{attn::causal()});
#else
  attn::attention(x, x, x, attn::causal() | attn::softcap(50));
#endif
}
