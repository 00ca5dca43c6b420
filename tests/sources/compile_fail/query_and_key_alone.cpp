// expect: attn: attention takes query, key and value; where one matrix is all three, attention(x, x, x)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  auto out = attn::attention(x, x).out;
#else
  auto out = attn::attention(x, x, x).out;
#endif
}
