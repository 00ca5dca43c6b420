// expect: attn: lengths, ids, offsets, positions and parents must be integers
#include <attn/attn.h>

#ifdef ATTN_KO
using Number = float;
#else
using Number = int;
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention(x, x, x, attn::key_ranges(std::vector<Number>{0}, {2}));
}
