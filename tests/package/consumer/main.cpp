// A consumer's program: uses the library as in the README and checks a result computed by hand.
#include <attn/attn.h>

#include <cmath>
#include <cstdlib>
#include <iostream>
#include <string>

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

namespace {

void check(bool condition, const char* what) {
  if (condition) return;
  std::cerr << "wrong: " << what << '\n';
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  // Scores of query 1: 0 and 1, weights 1 / (1 + e) and e / (1 + e).
  Eigen::MatrixXf x(2, 1);
  x << 0, 1;
  const auto result = attn::attention(x, x, x, attn::causal());
  check(std::abs(result.out(1) - std::exp(1.f) / (1 + std::exp(1.f))) < 1e-6f, "out of query 1");
  check(result.out(0) == 0 && result.lse(0) == 0, "query 0 sees itself only");

  const auto every_other = attn::mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; });
  const auto slope = attn::score_mod([](auto score, auto p) { return score - 0.5f * static_cast<float>(p.q - p.kv); });
  check(attn::attention(x, x, x, every_other | slope | attn::softcap(50)).out(1) == 1, "query 1 keeps itself only");

  const attn::Tensor<float, 4> q({1, 2, 3, 4}), kv({1, 1, 3, 4});
  attn::Tensor<float, 4> out({1, 2, 3, 4});
  out(0, 1, 2, 3) = 1;
  attn::attention_into(out, q, kv, kv);
  check(out(0, 1, 2, 3) == 0, "grouped heads of zeros");

  const std::string version = TEXT(ATTN_VERSION_MAJOR) "." TEXT(ATTN_VERSION_MINOR) "." TEXT(ATTN_VERSION_PATCH);
  check(argc < 2 || argv[1] == version, "the package has the version of the header");
}
