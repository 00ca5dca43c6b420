// A translator that learned the phrase book, for tests.
#pragma once

#include <string>
#include <vector>

#include "cross_entropy.h"
#include "trainer.h"
#include "translate.h"

namespace attn::test {

using namespace translation;

inline Translator new_translator(const std::vector<Pair>& pairs, const Sizes& sizes, double dropout) {
  std::vector<std::string> english;
  for (const Pair& pair : pairs) english.push_back(pair.english);
  return {Characters(pairs), Pieces::learn(english, 600), sizes, dropout, 1};
}

inline std::vector<std::string> chinese_of(const std::vector<Pair>& pairs) {
  std::vector<std::string> all;
  for (const Pair& pair : pairs) all.push_back(pair.chinese);
  return all;
}

inline std::vector<std::string> english_of(const std::vector<Pair>& pairs) {
  std::vector<std::string> all;
  for (const Pair& pair : pairs) all.push_back(pair.english);
  return all;
}

/// The program's defaults, trained once for all tests.
struct PhraseBookRun {
  std::vector<Pair> pairs = phrase_book();
  Translator translator = new_translator(pairs, {}, 0);
  std::vector<Example> examples = examples_of(pairs, translator.characters, translator.pieces);
  double first_loss = mean_loss(translator, examples, 4096), last_loss = 0;

  PhraseBookRun() {
    const TrainingConfig config;
    Trainer trainer(translator, examples, config);
    while (trainer.steps_done() < config.steps) trainer.step();
    last_loss = mean_loss(translator, examples, 4096);
  }
};

inline const PhraseBookRun& trained() {
  static const PhraseBookRun run;
  return run;
}

}  // namespace attn::test
