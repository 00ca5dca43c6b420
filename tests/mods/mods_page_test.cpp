// The pictures in include/attn/mods/README.md are what the masks keep.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "attn/mods.h"
#include "support/drawing.h"

namespace attn::test {
namespace {

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

/// Four keys for each query, of which some are repeated or -1.
Tensor<int, 2> listed_keys() {
  Tensor<int, 2> keys({12, 4});
  for (int i = 0; i < 12; ++i) {
    const int of_query[] = {i, i / 2, (7 * i + 3) % 12, -1};
    std::copy_n(of_query, 4, &keys(i, 0));
  }
  return keys;
}

/// Keys whose blocks of three have the means 1, 3, 0 and 2.
Eigen::MatrixXf keys_of_blocks() {
  Eigen::MatrixXf k(12, 1);
  k << 0, 1, 2, 3, 3, 3, -1, 0, 1, 2, 1, 3;
  return k;
}

/// What the page may draw: the text of an expression, and its picture.
std::map<std::string, std::string> pictures() {
  const auto map = checkerboard();
  const auto even = even_keys();
  const auto keys = listed_keys();
  const Eigen::MatrixXf q = Eigen::MatrixXf::Ones(12, 1), k = keys_of_blocks();
  const std::vector<Index> ids{0, 0, 1, 1, 0, 0, 2, 2, 2, 1, 1, 0};
  std::map<std::string, std::string> all;
#define ATTN_PICTURE(rows, expression) all[#expression] = drawing(expression, rows, 12, "■ ", "· ", "\n")
  ATTN_PICTURE(12, causal());
  ATTN_PICTURE(12, sliding_window(3));
  ATTN_PICTURE(12, sliding_window(3, 1));
  ATTN_PICTURE(12, prefix_lm({5}));
  ATTN_PICTURE(12, key_lengths({8}));
  ATTN_PICTURE(12, query_lengths({8}));
  ATTN_PICTURE(12, key_ranges({3}, {9}));
  ATTN_PICTURE(12, padding(even));
  ATTN_PICTURE(12, keep_keys(even));
  ATTN_PICTURE(12, documents_at({0, 4, 9, 12}));
  ATTN_PICTURE(12, documents(ids));
  ATTN_PICTURE(12, block_sparse(map, 4, 4));
  ATTN_PICTURE(12, top_k_blocks(q, k, {.count = 2, .block_q = 3, .block_kv = 3}));
  ATTN_PICTURE(12, neighbourhood({12}, {3}, {2}));
  ATTN_PICTURE(12, neighbourhood({3, 4}, {2, 3}));
  ATTN_PICTURE(12, neighbourhood({3, 4}, {2, 3}, {}, {1, 0}));
  ATTN_PICTURE(12, bidirectional_spans({{2, 5}, {7, 11}}));
  ATTN_PICTURE(12, select(keys));
  ATTN_PICTURE(12, strided_sparse(3));
  ATTN_PICTURE(12, fixed_sparse(4, 1));
  ATTN_PICTURE(12, dilated(2, 3));
  ATTN_PICTURE(12, global_tokens({0, 6}));
  ATTN_PICTURE(8, tree({-1, 0, 1, -1, 3, 3, 5, 2}));
  ATTN_PICTURE(12, keep(even));
  ATTN_PICTURE(12, drop(even));
  ATTN_PICTURE(12, any_of(sliding_window(1, 1), global_tokens({0})));
  ATTN_PICTURE(12, all_of(causal(), not_(sliding_window(2))));
  ATTN_PICTURE(12, not_(causal()));
  ATTN_PICTURE(12, full());
  ATTN_PICTURE(12, block_mask(sliding_window(3), 12, 12));
  ATTN_PICTURE(12, mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; }));
#undef ATTN_PICTURE
  return all;
}

/// The characters of a line of UTF-8.
std::vector<std::string> characters(const std::string& line) {
  std::vector<std::string> all;
  for (const char c : line) {
    const bool continues = (static_cast<unsigned char>(c) & 0xC0) == 0x80;
    if (!continues || all.empty()) all.emplace_back();
    all.back() += c;
  }
  return all;
}

/// The lines below lines[at] from column `column` on, as far as they are a picture 12 keys wide.
std::string picture_below(const std::vector<std::string>& lines, std::size_t at, std::size_t column) {
  std::string picture;
  while (++at < lines.size()) {
    const auto line = characters(lines[at]);
    if (line.size() <= column || (line[column] != "■" && line[column] != "·")) break;
    for (std::size_t key = 0; key < 12; ++key) picture += line.at(column + 2 * key) + " ";
    picture += "\n";
  }
  return picture;
}

// A picture has its expression right above it; several stand side by side.
TEST(ModsPage, DrawsWhatTheMasksKeep) {
  std::ifstream page(ATTN_MODS_PAGE);
  ASSERT_TRUE(page.is_open());
  std::vector<std::string> lines;
  for (std::string line; std::getline(page, line);) lines.push_back(line);
  for (const auto& [expression, expected] : pictures()) {
    std::string drawn = "(no such picture)";
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
      const std::size_t column = (lines[i] + " ").find(expression + " ");
      if (column == std::string::npos) continue;
      if (const std::string below = picture_below(lines, i, column); !below.empty()) drawn = below;
    }
    EXPECT_EQ(drawn, expected) << expression;
  }
}

}  // namespace
}  // namespace attn::test
