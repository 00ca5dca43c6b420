// expect: attn: slopes, temperatures and sinks must be numbers
#include <string>
#include <vector>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
#ifdef ATTN_KO
  attn::attention(x, x, x, attn::sinks(std::vector<std::string>{"1"}));
#else
  attn::attention(x, x, x, attn::sinks(std::vector<float>{1}));
#endif
}
