// Conversion between text and tokens.
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

/// A tokenizer of llama2.c: byte-pair encoding that merges the pair with the best-scored token first (Sennrich et al.
/// 2016; Kudo and Richardson 2018). Ids 0 to 2 are <unk>, BOS and EOS; 3 to 258 the single bytes, for characters
/// without a token; the rest are pieces of text. Layout of the file, little-endian: u32 length of the longest token;
/// for each token f32 score, u32 length, bytes.
class Tokenizer {
 public:
  static constexpr Index kBegin = 1;      // BOS: begins every text, so predicting it ends the text
  static constexpr Index kFirstByte = 3;  // token of byte 0
  static constexpr Index kFirstPiece = kFirstByte + 256;

  /// Reads a tokenizer.
  /// @param vocab_size  number of tokens of the network; the file must have the same number.
  /// @throws FileError if the file is not such a tokenizer, is truncated or has trailing bytes.
  Tokenizer(BinaryFile file, Index vocab_size);

  Index vocab_size() const { return static_cast<Index>(tokens_.size()); }

  /// Returns BOS and the tokens of the text, which may be any bytes: code points without a token are encoded as the
  /// tokens of their bytes. A text that is not empty gets a leading space. Cost: O(n log n).
  Tokens encode(std::string_view text) const;

  /// Returns the text of a token that follows `previous`: a byte or a piece, without its leading space right after BOS.
  /// The tokens of encode(text) after BOS decode to the text.
  /// @throws std::out_of_range if the token does not exist.
  std::string decode(Index previous, Index token) const;

 private:
  struct Token {
    std::string piece;
    float score;
  };

  const Token& token(Index id) const { return tokens_[static_cast<std::size_t>(id)]; }

  /// Returns the token of a piece of text, or -1.
  Index find(const std::string& piece) const;

  /// Merges the best-scored pair of neighbours repeatedly, until no pair is a token.
  Tokens merged(const Tokens& tokens) const;

  std::vector<Token> tokens_;
  std::unordered_map<std::string, Index> ids_;  // only pieces of text: "<s>" in a text is not the token <s>
};

}  // namespace tinystories
