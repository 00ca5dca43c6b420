// Sentences in two languages.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "tensor.h"

namespace translation {

using nn::Index;

struct Pair {
  std::string english, chinese;
};

/// The phrase book of the project's own.
std::vector<Pair> phrase_book();

/// The pairs of a file, one on each line: English, tab, Chinese, and, behind another tab, anything. Blank lines are
/// left out.
/// @throws nn::FileError with the number of the line that is something else.
std::vector<Pair> read_pairs(const std::filesystem::path& file);

/// The pairs of a text in that form; `name` is for messages.
std::vector<Pair> pairs_of(std::string_view text, const std::string& name);

struct Split {
  std::vector<Pair> training, held_back;
};

/// Holds `count` pairs back, drawn by the seed from those whose Chinese occurs once. Both parts keep their order.
/// @throws std::invalid_argument if there are not so many, or none is left to learn from.
Split hold_back(const std::vector<Pair>& pairs, Index count, std::uint64_t seed);

}  // namespace translation
