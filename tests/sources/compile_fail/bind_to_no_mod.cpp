// expect: attn::bind_mod: the lambda must return a mask, a score mod or a sink; wrap a lambda in attn::mask_mod(...)
// expect: or attn::score_mod(...)
#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const auto first_half = [](const attn::Problem& c) {
    const auto keep = [n = c.kv_len / 2](auto p) { return p.kv < n; };
#ifdef ATTN_KO
    return keep;
#else
    return attn::mask_mod(keep);
#endif
  };
  attn::attention(x, x, x, attn::bind_mod(first_half));
}
