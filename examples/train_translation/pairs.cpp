#include "pairs.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "characters.h"
#include "files.h"
#include "new_file.h"
#include "random.h"
#include "utf8.h"

namespace training {

extern const std::string_view kPhraseBook;  // phrase_book.tsv, embedded by the build

}  // namespace training

namespace translation {

namespace {

/// Limit on the length of a sentence. Sentences are far shorter; the limit bounds the memory and time that a line can
/// take.
constexpr std::size_t kMaxBytes = 4000;

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r") == std::string_view::npos; }

Pair pair_of(std::string_view line) {
  if (line.size() > kMaxBytes && line.find('\t') > kMaxBytes) throw std::invalid_argument("is too long for a sentence");
  const std::size_t first = line.find('\t');
  if (first == std::string_view::npos) throw std::invalid_argument("has no tab between English and Chinese");
  const std::size_t second = line.find('\t', first + 1);
  Pair pair{std::string(line.substr(0, first)),
            std::string(line.substr(first + 1, second == std::string_view::npos ? second : second - first - 1))};
  if (pair.english.size() > kMaxBytes || pair.chinese.size() > kMaxBytes)
    throw std::invalid_argument("is too long for a sentence");
  if (is_blank(pair.english)) throw std::invalid_argument("has no English");
  training::letters_of(pair.english);  // throws if it is not UTF-8
  if (characters_of(pair.chinese).empty()) throw std::invalid_argument("has no Chinese");
  return pair;
}

}  // namespace

std::vector<Pair> phrase_book() { return pairs_of(training::kPhraseBook, "phrase_book.tsv"); }

std::vector<Pair> read_pairs(const std::filesystem::path& file) {
  return pairs_of(training::read_file(file), file.string());
}

std::vector<Pair> pairs_of(std::string_view text, const std::string& name) {
  text = training::without_byte_order_mark(text);
  std::vector<Pair> pairs;
  for (std::size_t number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (is_blank(line)) continue;
    try {
      pairs.push_back(pair_of(line));
    } catch (const std::invalid_argument& error) {
      throw nn::FileError(name + ": line " + std::to_string(number) + ": " + error.what());
    }
  }
  if (pairs.empty()) throw nn::FileError(name + ": has no sentence pairs");
  return pairs;
}

Split hold_back(const std::vector<Pair>& pairs, Index count, std::uint64_t seed) {
  // Compares pairs as the model sees them: two that differ only in their full stop are equal.
  const auto seen = [](const Pair& pair) {
    std::string all;
    for (const std::string& c : characters_of(pair.chinese)) all += c;
    return all;
  };
  std::map<std::string, int> times;
  for (const Pair& pair : pairs) ++times[seen(pair)];
  std::vector<std::size_t> candidates;
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (times[seen(pairs[i])] == 1) candidates.push_back(i);
  const auto wanted = static_cast<std::size_t>(count);
  if (wanted > candidates.size() || wanted >= pairs.size())
    throw std::invalid_argument(std::to_string(count) + " pairs cannot be held back: " +
                                std::to_string(candidates.size()) + " of " + std::to_string(pairs.size()) +
                                " have a Chinese sentence that occurs only once, and a pair must remain to learn from");

  nn::Random random(seed);
  for (std::size_t i = 0; i < wanted; ++i) {
    const auto others = static_cast<std::int64_t>(candidates.size() - i);
    std::swap(candidates[i], candidates[i + static_cast<std::size_t>(random.below(others))]);
  }
  std::vector<bool> held(pairs.size(), false);
  for (std::size_t i = 0; i < wanted; ++i) held[candidates[i]] = true;
  Split split;
  for (std::size_t i = 0; i < pairs.size(); ++i) (held[i] ? split.held_back : split.training).push_back(pairs[i]);
  return split;
}

}  // namespace translation
