// Sentence pairs in English and Chinese.
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

/// Returns the project's own phrase book.
std::vector<Pair> phrase_book();

/// Reads the pairs of a file, one per line: English, tab, Chinese, and, after another tab, anything. Blank lines are
/// skipped.
/// @throws nn::FileError with the number of the first line that does not have this form.
std::vector<Pair> read_pairs(const std::filesystem::path& file);

/// Parses the pairs of a text in that form; `name` is for messages.
std::vector<Pair> pairs_of(std::string_view text, const std::string& name);

struct Split {
  std::vector<Pair> training, held_back;
};

/// Holds back `count` pairs, drawn by the seed from those whose Chinese occurs once. Both parts keep their order.
/// @throws std::invalid_argument if there are too few such pairs, or none would be left for training.
Split hold_back(const std::vector<Pair>& pairs, Index count, std::uint64_t seed);

}  // namespace translation
