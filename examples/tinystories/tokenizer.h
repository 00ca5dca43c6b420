// Text as tokens, and back.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include <Eigen/Core>

#include "binary_file.h"

namespace tinystories {

using Index = Eigen::Index;
using Tokens = std::vector<Index>;

/// A tokenizer of llama2.c: byte-pair encoding whose merges are those of the best-scored tokens (Sennrich et al. 2016;
/// Kudo and Richardson 2018). Ids 0 to 2 are <unk>, BOS and EOS; 3 to 258 the single bytes, for what has no token; the
/// rest are pieces of text. Layout of the file, little-endian: u32 length of the longest token; for each token f32
/// score, u32 length, bytes.
class Tokenizer {
 public:
  static constexpr Index kBegin = 1;      // BOS: every text starts with it, and it says that the next one would start
  static constexpr Index kFirstByte = 3;  // the token of byte 0
  static constexpr Index kFirstPiece = kFirstByte + 256;

  /// @param vocab_size  how many tokens the network knows; the file must have as many.
  /// @throws FileError if the file is not such a tokenizer, whole and without anything behind it.
  Tokenizer(BinaryFile file, Index vocab_size);

  Index vocab_size() const { return static_cast<Index>(tokens_.size()); }

  /// BOS and then the text, whatever its bytes are: code points without a token become the tokens of their bytes. A
  /// space goes before a text that is not empty. Cost: O(n log n).
  Tokens encode(std::string_view text) const;

  /// What a token adds to the text when it follows `previous`: a byte or a piece, without its first space right after
  /// BOS. The tokens of encode(text) behind BOS give the text again.
  /// @throws std::out_of_range if there is no such token.
  std::string decode(Index previous, Index token) const;

 private:
  struct Token {
    std::string piece;
    float score;
  };

  const Token& token(Index id) const { return tokens_[static_cast<std::size_t>(id)]; }

  /// The token of a piece of text, or -1.
  Index find(const std::string& piece) const;

  /// The tokens with the best-scored pair of neighbours made one, again and again until none is a token.
  Tokens merged(const Tokens& tokens) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, Index> ids_;  // of pieces of text: no text spells <s> or <0x0A>
};

}  // namespace tinystories
