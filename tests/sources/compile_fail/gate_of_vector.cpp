// expect: attn: gates and betas must be tensors (batch, kv_heads, len), or vectors (len) for one head; gates may also
// expect: have one value per feature
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const Eigen::VectorXf gate(2);
#ifdef ATTN_KO
  attn::gated_attention(x, x, x, std::vector<float>{-1, -1});
#else
  attn::gated_attention(x, x, x, gate);
#endif
}
