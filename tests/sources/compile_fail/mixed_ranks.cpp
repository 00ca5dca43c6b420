// expect: attn: query, key and value must have the same rank, all matrices or all rank-4 tensors; a matrix m is one by
// expect: attn::bhsd(m.data(), 1, 1, len, dim) if it is row-major
#include <attn/attn.h>

#ifdef ATTN_KO
const Eigen::MatrixXf query(2, 4);
#else
const attn::Tensor<float, 4> query({1, 1, 2, 4});
#endif

int main() {
  const attn::Tensor<float, 4> x({1, 1, 2, 4});
  attn::attention(query, x, x);
}
