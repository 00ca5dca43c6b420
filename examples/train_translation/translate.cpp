#include "translate.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "batches.h"
#include "printable.h"

namespace translation {

namespace {

/// Limit on the source tokens of a batch, including padding: enough to occupy all threads, while memory stays bounded.
constexpr std::size_t kTokens = 1024;

std::string label_of(const std::string& bytes) { return bytes == " " ? "\u2423" : nn::as_line(bytes); }

}  // namespace

std::vector<std::string> translate(const Translator& translator, const std::vector<std::string>& sentences,
                                   const SearchConfig& config, std::set<std::string>* unknown) {
  std::vector<Ids> sources;
  for (const std::string& sentence : sentences) sources.push_back(translator.characters.encode(sentence, unknown));
  std::vector<std::size_t> order(sentences.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return sources[a].size() < sources[b].size(); });

  std::vector<std::string> translations(sentences.size());
  for (std::size_t first = 0; first < order.size();) {
    std::vector<Ids> batch;
    std::size_t last = first;
    // Sorted by length: the last that fits is the longest.
    for (; last < order.size(); ++last) {
      const Ids& source = sources[order[last]];
      if (!batch.empty() && (batch.size() + 1) * source.size() > kTokens) break;
      batch.push_back(source);
    }
    const std::vector<Ids> targets = search(translator.model, batch, config);
    for (std::size_t i = first; i < last; ++i)
      if (batch[i - first].size() > 1)  // more than kEnd
        translations[order[i]] = nn::as_line(translator.pieces.decode(targets[i - first]));
    first = last;
  }
  return translations;
}

AttendedTranslation attended_translation(const Translator& translator, const std::string& sentence,
                                         const SearchConfig& config) {
  const Ids source = translator.characters.encode(sentence);
  if (source.size() == 1) throw std::invalid_argument("there is nothing to translate in it");
  const Ids target = search(translator.model, {source}, config).front();
  AttendedTranslation attended{
      nn::as_line(sentence), nn::as_line(translator.pieces.decode(target)), characters_of(sentence), {}, {}};
  attended.characters.push_back("end");
  Ids given = target;
  given.insert(given.begin(), Pieces::kEnd);
  for (const std::int32_t id : target) attended.pieces.push_back(label_of(translator.pieces.bytes(id)));
  attended.pieces.push_back("end");
  translator.model(padded({source}, Characters::kEnd), {static_cast<Index>(source.size())},
                   padded({given}, Pieces::kEnd), &attended.layers);
  return attended;
}

}  // namespace translation
