// expect: attn: mods cannot be stored in a list at run time; combine them with | at compile time: attn::causal() |
// expect: attn::softcap(50)
#include <functional>
#include <vector>

#include <attn/attn.h>

int main() {
  const Eigen::MatrixXf x(2, 4);
  const std::vector<std::function<bool(attn::Position)>> masks;
#ifdef ATTN_KO
  attn::attention(x, x, x, masks);
#else
  attn::attention(x, x, x, attn::mask_mod([&](auto p) {
                    for (const auto& mask : masks)
                      if (!mask(p)) return false;
                    return true;
                  }));
#endif
}
