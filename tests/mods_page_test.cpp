// The pictures in include/attn/mods/README.md are what the masks keep.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "attn/mods.h"

namespace attn::test {
namespace {

/// The pairs that a mask keeps, a line for each query.
template <class M>
std::string picture(const M& mod, Index q_len, Index kv_len) {
  Problem problem;
  problem.q_len = q_len;
  problem.kv_len = kv_len;
  problem.q_offset = kv_len - q_len;
  const auto bound = attn::detail::bind(mod, problem);
  std::string s;
  for (Index i = 0; i < q_len; ++i) {
    for (Index j = 0; j < kv_len; ++j) s += bound.keep({0, 0, problem.q_offset + i, j}) ? "■ " : "· ";
    s.back() = '\n';
  }
  return s;
}

Tensor<bool, 2> checkerboard() {
  Tensor<bool, 2> map({3, 3});
  for (Index i = 0; i < 9; ++i) map.data()[i] = i % 2 == 0;
  return map;
}

Tensor<bool, 1> even_keys() {
  Tensor<bool, 1> even({12});
  for (Index j = 0; j < 12; j += 2) even(j) = true;
  return even;
}

/// What the page may draw: the text of an expression, and its picture.
std::map<std::string, std::string> pictures() {
  const auto map = checkerboard();
  const auto even = even_keys();
  std::map<std::string, std::string> all;
#define ATTN_PICTURE(rows, expression) all[#expression] = picture(expression, rows, 12)
  ATTN_PICTURE(12, causal());
  ATTN_PICTURE(12, sliding_window(3));
  ATTN_PICTURE(12, sliding_window(3, 1));
  ATTN_PICTURE(12, prefix_lm({5}));
  ATTN_PICTURE(12, key_lengths({8}));
  ATTN_PICTURE(12, query_lengths({8}));
  ATTN_PICTURE(12, documents_at({0, 4, 9, 12}));
  ATTN_PICTURE(12, block_sparse(map, 4, 4));
  ATTN_PICTURE(12, strided_sparse(3));
  ATTN_PICTURE(12, fixed_sparse(4, 1));
  ATTN_PICTURE(12, dilated(2, 3));
  ATTN_PICTURE(12, global_tokens({0, 6}));
  ATTN_PICTURE(8, tree({-1, 0, 1, -1, 3, 3, 5, 2}));
  ATTN_PICTURE(12, keep(even));
  ATTN_PICTURE(12, drop(even));
  ATTN_PICTURE(12, any_of(sliding_window(1, 1), global_tokens({0})));
  ATTN_PICTURE(12, all_of(causal(), not_(sliding_window(2))));
  ATTN_PICTURE(12, mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; }));
#undef ATTN_PICTURE
  return all;
}

// A picture begins with a line that holds the expression alone.
TEST(ModsPage, DrawsWhatTheMasksKeep) {
  const auto expected = pictures();
  std::ifstream page(ATTN_MODS_PAGE);
  ASSERT_TRUE(page.is_open());
  std::map<std::string, std::string> drawn;
  std::string* current = nullptr;
  for (std::string line; std::getline(page, line);) {
    if (const auto found = expected.find(line); found != expected.end())
      current = &drawn[line];
    else if (current != nullptr && (line.starts_with("■") || line.starts_with("·")))
      *current += line + "\n";
    else
      current = nullptr;
  }
  for (const auto& [expression, text] : expected) EXPECT_EQ(drawn[expression], text) << expression;
}

}  // namespace
}  // namespace attn::test
