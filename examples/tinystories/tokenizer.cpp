#include "tokenizer.h"

#include <cmath>
#include <cstdio>
#include <queue>
#include <stdexcept>

namespace tinystories {

namespace {

constexpr std::uint64_t kTokenBytes = 8;  // per token, besides its piece: score and length

std::string byte_name(Index byte) {
  char text[8];
  std::snprintf(text, sizeof text, "<0x%02X>", static_cast<unsigned>(byte) & 0xFFu);
  return text;
}

/// Returns the number of bytes of the code point at the start of `text`. For invalid UTF-8 any length will do: the
/// bytes are encoded one by one.
std::size_t code_point_length(std::string_view text) {
  constexpr std::size_t kLongest = 4;
  std::size_t length = 1;
  while (length < text.size() && length < kLongest && (static_cast<unsigned char>(text[length]) & 0xC0) == 0x80)
    ++length;
  return length;
}

/// Two neighbouring symbols that can be merged into a token. Entries whose symbols have changed since stay in the queue
/// and are skipped when they reach its front.
struct Merge {
  float score;
  std::size_t left, right;  // indices of symbols
  Index left_token, right_token;
  Index token;  // the merged token

  /// Higher scores come first; of equal scores, the leftmost pair.
  bool operator<(const Merge& other) const { return score != other.score ? score < other.score : left > other.left; }
};

/// A token of the text being merged. Symbols form a linked list, so that a merge moves no other symbol.
struct Symbol {
  Index token;  // kGone after merging into its left neighbour
  std::size_t previous, next;
};
constexpr Index kGone = -1;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

}  // namespace

Tokenizer::Tokenizer(BinaryFile file, Index vocab_size) {
  const auto fail = [&](Index id, const std::string& what_is_wrong) {
    file.fail("token " + std::to_string(id) + ' ' + what_is_wrong);
  };
  const std::uint32_t longest = file.u32("the length of the longest token");
  if (vocab_size < kFirstPiece)
    file.fail("the network has " + std::to_string(vocab_size) + " tokens, but " + std::to_string(kFirstPiece) +
              " are needed for the bytes alone");
  if (file.left() / kTokenBytes < static_cast<std::uint64_t>(vocab_size))
    file.fail("truncated: the network has " + std::to_string(vocab_size) + " tokens, which do not fit in " +
              std::to_string(file.size()) + " bytes");
  for (Index id = 0; id < vocab_size; ++id) {
    const std::string what = "token " + std::to_string(id) + " of " + std::to_string(vocab_size);
    const float score = file.f32(what);
    const std::uint32_t length = file.u32(what);
    if (std::isnan(score)) fail(id, "has a score that is not a number");
    if (length == 0) fail(id, "is empty");
    if (length > longest)
      fail(id, "has " + std::to_string(length) + " bytes, but the file's maximum is " + std::to_string(longest));
    std::string piece = file.bytes(length, what);
    if (id >= kFirstByte && id < kFirstPiece && piece != byte_name(id - kFirstByte))
      fail(id, "is not the byte " + byte_name(id - kFirstByte));
    if (id >= kFirstPiece) {
      const auto [known, is_new] = ids_.emplace(piece, id);
      if (!is_new) fail(id, "repeats token " + std::to_string(known->second));
    }
    tokens_.push_back({std::move(piece), score});
  }
  if (file.left() > 0)
    file.fail(std::to_string(file.left()) + " bytes follow the last of the network's " + std::to_string(vocab_size) +
              " tokens");
}

Index Tokenizer::find(const std::string& piece) const {
  const auto found = ids_.find(piece);
  return found == ids_.end() ? -1 : found->second;
}

Tokens Tokenizer::encode(std::string_view text) const {
  Tokens tokens{kBegin};
  const auto append_code_point = [&](std::string_view bytes) {
    if (const Index token = find(std::string(bytes)); token >= 0) return tokens.push_back(token);
    for (const char byte : bytes) tokens.push_back(kFirstByte + static_cast<unsigned char>(byte));
  };
  if (!text.empty()) append_code_point(" ");
  for (std::size_t at = 0, length; at < text.size(); at += length) {
    length = code_point_length(text.substr(at));
    append_code_point(text.substr(at, length));
  }
  return merged(tokens);
}

Tokens Tokenizer::merged(const Tokens& tokens) const {
  std::vector<Symbol> symbols;
  for (std::size_t i = 0; i < tokens.size(); ++i)
    symbols.push_back({tokens[i], i > 0 ? i - 1 : kNone, i + 1 < tokens.size() ? i + 1 : kNone});

  std::priority_queue<Merge> queue;
  const auto propose = [&](std::size_t left, std::size_t right) {
    if (left == kNone || right == kNone) return;
    const Index a = symbols[left].token, b = symbols[right].token;
    if (a < kFirstPiece || b < kFirstPiece) return;  // pieces never contain BOS or single bytes
    const Index token = find(this->token(a).piece + this->token(b).piece);
    if (token >= 0) queue.push({this->token(token).score, left, right, a, b, token});
  };
  for (std::size_t i = 1; i < symbols.size(); ++i) propose(i - 1, i);
  while (!queue.empty()) {
    const Merge best = queue.top();
    queue.pop();
    Symbol &left = symbols[best.left], &right = symbols[best.right];
    if (left.token != best.left_token || right.token != best.right_token) continue;  // one of them was merged since
    left.token = best.token;
    left.next = right.next;
    right.token = kGone;
    if (left.next != kNone) symbols[left.next].previous = best.left;
    propose(left.previous, best.left);
    propose(best.left, left.next);
  }

  Tokens result;
  for (const Symbol& symbol : symbols)
    if (symbol.token != kGone) result.push_back(symbol.token);
  return result;
}

std::string Tokenizer::decode(Index previous, Index token) const {
  if (token < 0 || token >= vocab_size())
    throw std::out_of_range("token " + std::to_string(token) + " is out of range 0.." +
                            std::to_string(vocab_size() - 1));
  const bool is_byte = token >= kFirstByte && token < kFirstPiece;
  std::string text = is_byte ? std::string(1, static_cast<char>(token - kFirstByte)) : this->token(token).piece;
  if (previous == kBegin && text.front() == ' ') text.erase(0, 1);
  return text;
}

}  // namespace tinystories
