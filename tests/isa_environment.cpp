// One call with the instruction set of the environment variable ATTN_ISA. Prints which one it was, or exits with 1 and
// the one-line message of what was refused. A program of its own, since the variable is read once in a process.
#include <iostream>
#include <stdexcept>

#include "attn/attn.h"

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(3, 4);
  try {
    const Eigen::MatrixXf out = attn::attention(x, x, x).out;
    std::cout << "result " << out(2, 3) << " with " << attn::to_string(attn::default_isa()) << '\n';
  } catch (const std::invalid_argument& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
