// expect: attn: query must have the scalar type that the cache computes in (float and 16-bit floats may be mixed)
#include <attn/attn.h>

#ifdef ATTN_KO
using Query = Eigen::MatrixXd;
#else
using Query = Eigen::MatrixXf;
#endif

int main() {
  const attn::KvCache<float> cache({.head_dim = 4});
  attn::attention(Query(2, 4), cache);
}
