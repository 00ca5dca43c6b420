// expect: attn: query must hold the scalar type of the cache, or floats of 32 and 16 bits
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
