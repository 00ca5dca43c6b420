// Custom attention variants: a lambda that drops pairs, a lambda that changes scores, and both combined with a named
// mod.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <string_view>

#include <attn/attn.h>

namespace {

constexpr attn::Index kTokens = 8, kHeadDim = 16;

struct Inputs {
  Eigen::MatrixXf query = Eigen::MatrixXf::Random(kTokens, kHeadDim);
  Eigen::MatrixXf key = Eigen::MatrixXf::Random(kTokens, kHeadDim);
  Eigen::MatrixXf value = Eigen::MatrixXf::Random(kTokens, kHeadDim);
};

/// Prints a mask: a row per query, a column per key, 1 = kept.
template <class Mask>
void print_picture(const Mask& mask) {
  for (attn::Index q = 0; q < kTokens; ++q) {
    std::cout << "   ";
    for (attn::Index kv = 0; kv < kTokens; ++kv) std::cout << ' ' << int(mask.keep(attn::Position{.q = q, .kv = kv}));
    std::cout << '\n';
  }
}

/// Prints the weights and checks that flash and naive agree.
template <class Mods>
bool show(std::string_view title, const Inputs& in, const Mods& mods) {
  const auto naive = attn::naive_attention(in.query, in.key, in.value, mods);
  const auto flash = attn::attention(in.query, in.key, in.value, mods);
  const float difference = (naive.out - flash.out).cwiseAbs().maxCoeff();

  std::cout << title << '\n' << std::fixed << std::setprecision(2);
  for (const auto row : naive.weights.rowwise()) {
    std::cout << "   ";
    for (const float w : row)
      if (w > 0)
        std::cout << ' ' << w;
      else
        std::cout << "    .";
    std::cout << '\n';
  }
  // Outputs are averages of values in [-1, 1]; the two paths add the same terms in different orders.
  const bool agree = difference < 1e-5f;
  std::cout << "    flash and naive differ by at most " << std::scientific << std::setprecision(1) << difference
            << (agree ? "\n\n" : ", which is too much\n\n");
  return agree;
}

}  // namespace

int main() {
  const Inputs in;

  // A mask: true = keep. p has .batch, .head, .q and .kv; positions are absolute.
  const auto same_parity = attn::mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; });
  std::cout << "A mask lambda: tokens an even distance apart\n";
  print_picture(same_parity);

  // A score change: the returned value replaces scale * q . k. Captures are compiled in.
  const auto nearer_is_better = attn::score_mod([slope = 0.5f](auto x, auto p) {
    const auto distance = static_cast<decltype(x)>(std::abs(p.q - p.kv));
    return x - static_cast<decltype(x)>(slope) * distance;
  });

  // A hint classifies a whole tile at once, so that tiles without kept pairs are never visited. The predicate remains
  // authoritative: a hint must not contradict it.
  constexpr attn::Index kBlock = 3;
  const auto same_block =
      attn::mask_mod([](auto p) { return p.q / kBlock == p.kv / kBlock; },
                     [](const attn::Tile& t) {
                       const attn::Index first_q = t.q.begin / kBlock, last_q = (t.q.end - 1) / kBlock;
                       const attn::Index first_kv = t.kv.begin / kBlock, last_kv = (t.kv.end - 1) / kBlock;
                       if (last_q < first_kv || last_kv < first_q) return attn::Coverage::none;
                       return first_q == last_kv && last_q == first_kv ? attn::Coverage::all : attn::Coverage::some;
                     });
  std::cout << "\nA mask lambda with a coverage hint: blocks of " << kBlock << " tokens\n";
  print_picture(same_block);
  std::cout << '\n';

  bool agree = show("Weights with the mask lambda and causal()", in, same_parity | attn::causal());
  agree &= show("Weights with the score lambda", in, nearer_is_better);
  agree &= show("Weights with mask lambda | score lambda | sliding_window(4)", in,
                same_parity | nearer_is_better | attn::sliding_window(4));
  agree &= show("Weights with blocks | score lambda", in, same_block | nearer_is_better);
  return agree ? EXIT_SUCCESS : EXIT_FAILURE;
}
