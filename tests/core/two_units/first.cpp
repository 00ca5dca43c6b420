#include <attn/attn.h>

#include "two_units/units.h"

Column windowed(const Column& x, attn::Isa isa) {
  return attn::attention(x, x, x, attn::sliding_window(1), {.isa = isa}).out;
}

std::vector<attn::Isa> sets_of_first() {
  std::vector<attn::Isa> sets;
  for (attn::Isa isa : attn::kIsas)
    if (attn::available(isa)) sets.push_back(isa);
  return sets;
}

attn::Isa default_of_first() { return attn::default_isa(); }

std::vector<const void*> code_of_first() {
  const auto at = [](auto* function) { return reinterpret_cast<const void*>(function); };
  return {at(&attn::detail::kernel_family<float>), at(&attn::detail::make_problem<float>),
          at(&attn::attention<Column, Column, Column, attn::Mods<>>)};
}

// Attention over Eigen matrices local to this unit, called from several places so that not everything is inlined.
float matrices_of_first() {
  const auto sum = [](attn::Index rows) {
    const Eigen::MatrixXf ones = Eigen::MatrixXf::Ones(rows, 16);
    return attn::attention(ones, ones, ones.topRows(rows), attn::sliding_window(1)).out.sum();
  };
  const Eigen::MatrixXf ones = Eigen::MatrixXf::Ones(30, 16);
  return sum(40) + sum(20) + attn::attention(ones.topRows(3), ones, ones, attn::sliding_window(1)).out.sum();
}
