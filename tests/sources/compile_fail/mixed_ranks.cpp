// expect: attn: query, key and value must have the same rank, all matrices or all rank-4 tensors; view a row-major
// expect: matrix m as a tensor with attn::bhsd(m.data(), 1, 1, len, dim)
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
