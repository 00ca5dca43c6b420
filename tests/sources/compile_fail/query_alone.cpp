// expect: attn: attention takes query, key and value; if one matrix is all three, pass it three times: attention(x, x,
// expect: x)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x);
#else
  attn::attention(x, x, x);
#endif
}
