// Two calls with the instruction set from the environment variable ATTN_ISA. Prints the instruction set used and what
// explain() says about it. A separate program, since a process reads the variable once.
#include <iostream>
#include <sstream>

#include "attn/attn.h"

int main() {
  const Eigen::MatrixXf x = Eigen::MatrixXf::Ones(3, 4);
  attn::attention(x, x, x);
  const Eigen::MatrixXf out = attn::attention(x, x, x).out;
  std::ostringstream explanation;
  explanation << attn::explain(x, x, x);
  std::cout << "result " << out(2, 3) << " with " << attn::to_string(attn::default_isa()) << '\n'
            << explanation.str().substr(0, explanation.str().find('\n') + 1);
}
