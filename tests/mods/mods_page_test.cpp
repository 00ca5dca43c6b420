// The pictures in include/attn/mods/README.md show the pairs that the masks keep.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "support/drawing.h"
#include "support/mod_pictures.h"

namespace attn::test {
namespace {

/// The pictures that the page may contain; the keys are their expressions as text.
std::map<std::string, std::string> pictures() {
  std::map<std::string, std::string> all;
  for_each_mask_picture([&](const char* expression, Index rows, const auto& mask) {
    all[expression] = drawing(mask, rows, 12, "■ ", "· ", "\n");
  });
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

/// The picture below lines[at], 12 keys wide, that begins at column `column`; empty if there is none.
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

// A picture is directly below its expression; several may be side by side.
TEST(ModsPage, DrawsTheKeptPairs) {
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
