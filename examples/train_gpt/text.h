// The text that is learned from.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "random.h"
#include "tensor.h"
#include "vocabulary.h"

namespace train_gpt {

using nn::Index;

/// Texts, and for each of their characters the one that follows: both (batch, len).
struct Batch {
  nn::Tokens inputs, targets;
};

/// A text as tokens: the first 90 % to learn from, the rest to validate.
class Text {
 public:
  /// Reads a file, without a byte order mark; or the project's own text if the name is empty.
  /// @throws nn::FileError if it cannot be read, is empty or is not UTF-8.
  explicit Text(const std::filesystem::path& file);

  /// Its absolute name, so that a run may go on elsewhere; empty for the project's own.
  const std::filesystem::path& file() const { return file_; }
  /// What messages call it.
  const std::string& name() const { return name_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  Index size() const { return static_cast<Index>(tokens_.size()); }
  /// A number that another text hardly has: its checksum (FNV-1a).
  std::uint64_t checksum() const { return checksum_; }

  std::span<const std::int32_t> training() const { return std::span(tokens_).first(split()); }
  std::span<const std::int32_t> validation() const { return std::span(tokens_).subspan(split()); }

  /// @throws nn::FileError if either part is too short for a single block of `context` characters.
  void require_blocks_of(Index context) const;

 private:
  std::size_t split() const { return tokens_.size() * 9 / 10; }

  std::filesystem::path file_;
  std::string name_;
  Vocabulary vocabulary_{""};
  std::vector<std::int32_t> tokens_;
  std::uint64_t checksum_ = 0;
};

/// Blocks of `context` characters from anywhere.
Batch random_blocks(std::span<const std::int32_t> tokens, Index batch, Index context, nn::Random& random);

/// The blocks of `context` characters that begin at `starts`.
Batch blocks_at(std::span<const std::int32_t> tokens, const std::vector<Index>& starts, Index context);

/// The beginnings of blocks that lie one behind the other; at most `most` of them, evenly spread; 0: all.
std::vector<Index> block_starts(std::span<const std::int32_t> tokens, Index context, Index most);

}  // namespace train_gpt
