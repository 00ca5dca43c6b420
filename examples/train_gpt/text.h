// The text to train on.
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

/// Blocks of text, and for each of their characters the next one: both (batch, len).
struct Batch {
  nn::Tokens inputs, targets;
};

/// A text as tokens: the first 90 % for training, the rest for validation.
class Text {
 public:
  /// Reads a file, without its byte order mark, or the project's own text if the name is empty.
  /// @throws nn::FileError if it cannot be read, is empty or is not UTF-8.
  explicit Text(const std::filesystem::path& file);

  /// Absolute file name, so that a run can resume from another folder; empty for the project's own text.
  const std::filesystem::path& file() const { return file_; }
  /// Name for messages.
  const std::string& name() const { return name_; }
  const Vocabulary& vocabulary() const { return vocabulary_; }
  Index size() const { return static_cast<Index>(tokens_.size()); }
  /// FNV-1a checksum, which identifies the text.
  std::uint64_t checksum() const { return checksum_; }

  std::span<const std::int32_t> training() const { return std::span(tokens_).first(split()); }
  std::span<const std::int32_t> validation() const { return std::span(tokens_).subspan(split()); }

  /// Checks that both parts hold a block of `context` characters.
  /// @throws nn::FileError if one of them is too short.
  void require_blocks_of(Index context) const;

 private:
  std::size_t split() const { return tokens_.size() * 9 / 10; }

  std::filesystem::path file_;
  std::string name_;
  Vocabulary vocabulary_{""};
  std::vector<std::int32_t> tokens_;
  std::uint64_t checksum_ = 0;
};

/// Returns blocks of `context` characters from random positions.
Batch random_blocks(std::span<const std::int32_t> tokens, Index batch, Index context, nn::Random& random);

/// Returns the blocks of `context` characters that begin at `starts`.
Batch blocks_at(std::span<const std::int32_t> tokens, const std::vector<Index>& starts, Index context);

/// Returns the starts of consecutive blocks; at most `most` of them, evenly spread; 0: all.
std::vector<Index> block_starts(std::span<const std::int32_t> tokens, Index context, Index most);

}  // namespace train_gpt
