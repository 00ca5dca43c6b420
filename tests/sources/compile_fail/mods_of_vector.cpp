// expect: attn: this has no shape; see it as a tensor by attn::bhsd(ptr, batch, heads, len, dim)
#include <vector>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const std::vector<float> added(4);
#ifdef ATTN_KO
  attn::attention(x, x, x, added);
#else
  attn::attention(x, x, x, attn::bias(attn::bhsd(added.data(), 1, 1, 2, 2)));
#endif
}
