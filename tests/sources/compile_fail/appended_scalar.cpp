// expect: attn: keys and values to append must have the scalar type that the cache computes in (float and 16-bit floats
// expect: may be mixed)
#include <attn/attn.h>

int main() {
  attn::KvCache<float> cache({.head_dim = 4});
  const Eigen::MatrixXd k(2, 4);
#ifdef ATTN_KO
  cache.append(k, k);
#else
  const Eigen::MatrixXf narrow = k.cast<float>();
  cache.append(narrow, narrow);
#endif
}
