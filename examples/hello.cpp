// Attention over random matrices: every token attends to itself and to the tokens before it.
#include <iostream>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf query = Eigen::MatrixXf::Random(5, 8);  // 5 tokens, one per row, with 8 features
  const Eigen::MatrixXf key = Eigen::MatrixXf::Random(5, 8);
  const Eigen::MatrixXf value = Eigen::MatrixXf::Random(5, 3);

  const Eigen::MatrixXf out = attn::attention(query, key, value, attn::causal()).out;

  std::cout << "out is " << out.rows() << " x " << out.cols() << ":\n" << out << "\n\n";
  std::cout << "The first token sees only itself, so its row is the first value:\n" << value.row(0) << '\n';
}
