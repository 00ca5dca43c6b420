// expect: attn: additive attention does not support forward mode; use attn::additive_attention_backward()
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(3, 4);
  const Eigen::VectorXf w = Eigen::VectorXf::Ones(4);
  const attn::AdditiveScore<float> score{{}, {}, w};
#ifdef ATTN_KO
  attn::attention_jvp(x, x, x, x, x, x, score);
#else
  attn::additive_attention_backward(x, x, x, x, score, attn::additive_attention(x, x, x, score));
#endif
}
