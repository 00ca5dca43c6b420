#include "chrf.h"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "utf8.h"

namespace translation {

namespace {

constexpr std::size_t kOrder = 6;
constexpr double kBeta = 2;

/// Counts of all n-grams of one length.
struct Counts {
  double translation = 0, reference = 0, common = 0;
};

using NGrams = std::map<std::u32string, double>;

std::u32string without_blanks(const std::string& text) {
  std::u32string all;
  for (const std::string& letter : training::letters_of(text))
    if (!training::is_space(letter)) all += training::code_point(letter);
  return all;
}

NGrams n_grams(const std::u32string& text, std::size_t n) {
  NGrams all;
  for (std::size_t i = 0; i + n <= text.size(); ++i) ++all[text.substr(i, n)];
  return all;
}

void add(Counts& counts, const NGrams& translation, const NGrams& reference) {
  // sacreBLEU does not count n-grams of a translation whose reference is too short to have any.
  for (const auto& [n_gram, times] : translation) {
    if (!reference.empty()) counts.translation += times;
    const auto found = reference.find(n_gram);
    if (found != reference.end()) counts.common += std::min(times, found->second);
  }
  for (const auto& [n_gram, times] : reference) counts.reference += times;
}

void require_as_many(std::span<const std::string> translations, std::span<const std::string> references) {
  if (translations.size() != references.size())
    throw std::invalid_argument(std::to_string(translations.size()) + " translations, but " +
                                std::to_string(references.size()) + " references");
}

}  // namespace

double chrf(std::span<const std::string> translations, std::span<const std::string> references) {
  require_as_many(translations, references);
  Counts counts[kOrder];
  for (std::size_t i = 0; i < translations.size(); ++i) {
    const std::u32string translation = without_blanks(translations[i]), reference = without_blanks(references[i]);
    for (std::size_t n = 1; n <= kOrder; ++n) add(counts[n - 1], n_grams(translation, n), n_grams(reference, n));
  }
  double precision = 0, recall = 0, orders = 0;
  for (const Counts& c : counts) {
    if (c.translation == 0 || c.reference == 0) continue;
    precision += c.common / c.translation;
    recall += c.common / c.reference;
    ++orders;
  }
  if (precision + recall == 0) return 0;
  precision /= orders;
  recall /= orders;
  return 100 * (1 + kBeta * kBeta) * precision * recall / (kBeta * kBeta * precision + recall);
}

double exact_share(std::span<const std::string> translations, std::span<const std::string> references) {
  require_as_many(translations, references);
  if (translations.empty()) return 0;
  double exact = 0;
  for (std::size_t i = 0; i < translations.size(); ++i) exact += translations[i] == references[i] ? 1 : 0;
  return exact / static_cast<double>(translations.size());
}

}  // namespace translation
