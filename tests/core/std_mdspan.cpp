// Conversions to and from the standard library's std::mdspan (C++23). Prints the first failure.
#include <attn/attn.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <mdspan>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(bool condition, const char* what) {
  if (condition) return;
  std::cerr << "wrong: " << what << '\n';
  std::exit(1);
}

}  // namespace

int main() {
  std::vector<float> q(5 * 8, 0.5f), k(7 * 8, 0.25f), v(7 * 6), out(5 * 6);
  for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i / 6);

  const std::mdspan sq(q.data(), 5, 8), sk(k.data(), 7, 8), sv(v.data(), 7, 6);
  attn::attention_into(std::mdspan(out.data(), 5, 6), sq, sk, sv);
  check(out[0] > 2.99f && out[0] < 3.01f, "equal scores give the mean of the values");

  using Columns = std::mdspan<float, std::extents<int, 3, 4>, std::layout_left>;
  std::array<float, 12> numbers{};
  numbers[1 + 3 * 2] = 7;
  check(attn::view(Columns(numbers.data()))(1, 2) == 7, "layout_left with fixed extents");

  attn::Tensor<float, 3> t({2, 3, 4});
  t(1, 0, 2) = 5;
  const auto back = t.view().transpose(1, 2).to_mdspan();
  static_assert(back.rank() == 3);
  check(back.extent(1) == 4 && (back[std::array{1, 2, 0}]) == 5, "to_mdspan() of a transposed view");
  back[std::array{0, 0, 0}] = 9;
  check(t(0, 0, 0) == 9 && attn::view(back).strides() == t.view().transpose(1, 2).strides(), "there and back");
  const attn::Tensor<float, 2> empty({0, 3});
  check(empty.view().to_mdspan().size() == 0, "an empty tensor");
  check(attn::TensorView<float, 2>(t.data(), {1, 4}, {0, 1}).to_mdspan().extent(0) == 1, "one row repeated once");
  try {
    attn::TensorView<float, 2>(t.data(), {2, 4}, {0, 1}).to_mdspan();
    check(false, "repeated rows have no mdspan");
  } catch (const std::invalid_argument& e) {
    check(std::string(e.what()).find("(2, 4) has strides (0, 1)") != std::string::npos, e.what());
  }
}
