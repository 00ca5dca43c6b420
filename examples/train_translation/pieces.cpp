#include "pieces.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <stdexcept>

#include "merges.h"

namespace translation {

namespace {

constexpr std::int32_t kFirstMerge = 258;

/// Limits on what a file may claim; pieces learned from sentences are shorter and fewer.
constexpr std::size_t kMaxPieceBytes = 1000, kMaxMerges = 100'000;

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || static_cast<unsigned char>(c) >= 0x80;
}
bool is_small(char c) { return c >= 'a' && c <= 'z'; }
bool is_capital(char c) { return c >= 'A' && c <= 'Z'; }

/// Splits a text into units, which no piece crosses: a word with the space before it; an apostrophe and the letters
/// after it, "'t"; a digit or another character, with the space before it.
std::vector<std::string_view> units_of(std::string_view text) {
  std::vector<std::string_view> units;
  while (!text.empty()) {
    std::size_t end = text[0] == ' ' && text.size() > 1 ? 1 : 0;
    const bool word = is_letter(text[end]) || (text[end] == '\'' && end + 1 < text.size() && is_letter(text[end + 1]));
    ++end;
    while (word && end < text.size() && is_letter(text[end])) ++end;
    units.push_back(text.substr(0, end));
    text.remove_prefix(end);
  }
  return units;
}

/// Returns the text with a space before its first word, because all other words have one.
std::string with_blank(std::string_view text) { return ' ' + std::string(text); }

std::string with_small_letter(std::string text, std::size_t at) {
  text[at] = static_cast<char>(text[at] - 'A' + 'a');
  return text;
}

/// Counts the occurrences of each unit. The first unit of a text is counted in lower case unless it is more frequent
/// capitalised inside texts.
UnitCounts count_units(const std::vector<std::string>& texts) {
  UnitCounts inside, all;
  for (const std::string& text : texts) {
    const std::string spaced = with_blank(text);
    const auto units = units_of(spaced);
    for (std::size_t i = 1; i < units.size(); ++i) ++inside[std::string(units[i])];
  }
  all = inside;
  for (const std::string& text : texts) {
    const std::string spaced = with_blank(text);
    std::string first(units_of(spaced).front());
    if (first.size() > 1 && is_capital(first[1])) {
      const std::string small = with_small_letter(first, 1);
      const auto times = [&](const std::string& unit) { return inside.contains(unit) ? inside.at(unit) : 0; };
      if (times(small) >= times(first)) first = small;
    }
    ++all[first];
  }
  return all;
}

}  // namespace

Pieces::Pieces() {
  for (int byte = 0; byte < 256; ++byte) bytes_.emplace_back(1, static_cast<char>(byte));
  bytes_.resize(kFirstMerge);  // kEnd and kSmallLetter have no bytes
}

std::int32_t Pieces::add(const IdPair& parts) {
  const auto id = static_cast<std::int32_t>(bytes_.size());
  bytes_.push_back(bytes(parts[0]) + bytes(parts[1]));
  merges_.push_back(parts);
  joined_.emplace(parts, id);
  return id;
}

Pieces Pieces::learn(const std::vector<std::string>& texts, Index most) {
  Pieces pieces;
  MergeLearner learner(count_units(texts));
  for (Index i = 0; i < most; ++i) {
    const auto best = learner.most_frequent();
    if (!best) break;
    learner.join(*best, pieces.add(*best));
  }
  return pieces;
}

Pieces Pieces::from_merges(std::string_view merges) {
  Pieces pieces;
  const char* at = merges.data();
  const char* const end = at + merges.size();
  const auto number = [&] {
    if (at != end && *at == ' ') ++at;
    std::int32_t id = 0;
    const auto [next, error] = std::from_chars(at, end, id);
    if (error != std::errc() || id < 0 || id >= pieces.size() || pieces.bytes(id).empty())
      throw std::invalid_argument("joins something that is not a piece");
    at = next;
    return id;
  };
  while (at != end) {
    const std::int32_t first = number(), second = number();
    if (pieces.merges_.size() == kMaxMerges ||
        pieces.bytes(first).size() + pieces.bytes(second).size() > kMaxPieceBytes)
      throw std::invalid_argument("has too many pieces, or one that is too long");
    if (pieces.joined_.contains({first, second})) throw std::invalid_argument("joins the same pieces twice");
    pieces.add({first, second});
  }
  return pieces;
}

std::string Pieces::merges() const {
  std::string text;
  for (const IdPair& parts : merges_) {
    if (!text.empty()) text += ' ';
    text += std::to_string(parts[0]);
    text += ' ';
    text += std::to_string(parts[1]);
  }
  return text;
}

Ids Pieces::encode_unit(std::string_view unit) const {
  Ids ids;
  for (const char c : unit) ids.push_back(static_cast<unsigned char>(c));
  for (;;) {
    // Pieces that were learned first are joined first.
    std::int32_t best = std::numeric_limits<std::int32_t>::max();
    for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto found = joined_.find({ids[i], ids[i + 1]});
      if (found != joined_.end()) best = std::min(best, found->second);
    }
    if (best == std::numeric_limits<std::int32_t>::max()) return ids;
    join_all(ids, merges_[static_cast<std::size_t>(best - kFirstMerge)], best);
  }
}

Ids Pieces::encode_units(std::string_view text) const {
  Ids ids;
  for (const std::string_view unit : units_of(text)) {
    const Ids part = encode_unit(unit);
    ids.insert(ids.end(), part.begin(), part.end());
  }
  return ids;
}

Ids Pieces::encode(std::string_view text) const {
  if (text.empty()) return {};
  const std::string spaced = with_blank(text);
  Ids ids = encode_units(spaced);
  if (is_small(text[0])) ids.insert(ids.begin(), kSmallLetter);
  if (!is_capital(text[0])) return ids;
  Ids small = encode_units(with_small_letter(spaced, 1));
  return small.size() <= ids.size() ? small : ids;
}

std::string Pieces::decode(std::span<const std::int32_t> ids) const {
  const bool small = !ids.empty() && ids[0] == kSmallLetter;
  std::string text;
  for (const std::int32_t id : ids) text += bytes(id);
  if (text.starts_with(' ')) text.erase(0, 1);
  if (!small && !text.empty() && is_small(text[0])) text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return text;
}

}  // namespace translation
