// expect: attn: lengths, ids, offsets, positions and parents must be integers
#include <attn/attn.h>

#ifdef ATTN_KO
using Length = float;
#else
using Length = int;
#endif

int main() {
  const Eigen::MatrixXf x(2, 4);
  attn::attention(x, x, x, attn::key_lengths(std::vector<Length>{2}));
}
