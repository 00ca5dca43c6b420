// train_translation learns, searches and draws.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention_map.h"
#include "chrf.h"
#include "cross_entropy.h"
#include "threads.h"
#include "trainer.h"
#include "translate.h"

namespace {

using namespace translation;

Translator new_translator(const std::vector<Pair>& pairs, const Sizes& sizes, double dropout) {
  std::vector<std::string> english;
  for (const Pair& pair : pairs) english.push_back(pair.english);
  return {Characters(pairs), Pieces::learn(english, 600), sizes, dropout, 1};
}

std::vector<float> numbers_of(Translator& translator) {
  std::vector<float> all;
  for (const auto& p : nn::parameters_of<float>(translator.model))
    all.insert(all.end(), p.values.begin(), p.values.end());
  return all;
}

std::vector<std::string> chinese_of(const std::vector<Pair>& pairs) {
  std::vector<std::string> all;
  for (const Pair& pair : pairs) all.push_back(pair.chinese);
  return all;
}

std::vector<std::string> english_of(const std::vector<Pair>& pairs) {
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

const PhraseBookRun& trained() {
  static const PhraseBookRun run;
  return run;
}

TEST(Training, LearnsThePhraseBookByHeart) {
  EXPECT_GT(trained().first_loss, 5.0);
  EXPECT_LT(trained().last_loss, 0.3);
  for (const Index beams : {1, 4}) {
    const auto translations = translate(trained().translator, chinese_of(trained().pairs), {.beams = beams});
    EXPECT_EQ(exact_share(translations, english_of(trained().pairs)), 1.0) << beams << " beams";
  }
}

TEST(Training, AnyNumberOfThreadsGivesTheSameBits) {
  const auto learned_with = [](int threads) {
    nn::set_threads(threads);
    const std::vector<Pair> pairs = phrase_book();
    Translator translator = new_translator(pairs, {}, 0.1);
    const auto examples = examples_of(pairs, translator.characters, translator.pieces);
    Trainer trainer(translator, examples, {.batch_tokens = 500, .unknown_characters = 0.5});
    std::vector<double> losses;
    for (int i = 0; i < 12; ++i) losses.push_back(trainer.step().loss);
    return std::pair(losses, numbers_of(translator));
  };
  const auto one = learned_with(1), two = learned_with(2);
  nn::set_threads(2);
  EXPECT_EQ(one.first, two.first);
  EXPECT_TRUE(one.second == two.second);
  EXPECT_LT(one.first.back(), one.first.front());
}

TEST(Batches, EveryEpochHasEachExampleOnce) {
  const std::vector<Example>& examples = trained().examples;
  Batches batches(examples, 200, 3);
  std::vector<std::vector<std::size_t>> first;
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<std::size_t> seen;
    const Index count = batches.per_epoch();
    for (Index i = 0; i < count; ++i) {
      const std::vector<std::size_t>& which = batches.next();
      const Batch batch = batch_of(examples, which);
      EXPECT_LE(batch.sources.size() + batch.given.size(), 200);
      seen.insert(seen.end(), which.begin(), which.end());
      if (epoch == 0) first.push_back(which);
    }
    std::sort(seen.begin(), seen.end());
    ASSERT_EQ(seen.size(), examples.size());
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i);
  }
  EXPECT_GT(first.size(), 3u);
  Batches again(examples, 200, 3);
  for (const auto& which : first) EXPECT_EQ(again.next(), which);
}

TEST(Batches, HaveTokensThatFollow) {
  const std::vector<Example> examples{{{5, 6, 1}, {300, 301}}, {{7, 1}, {302}}};
  const Batch batch = batch_of(examples, {1, 0});
  EXPECT_EQ(batch.lengths, (std::vector<Index>{2, 3}));
  EXPECT_EQ(batch.tokens, 3 + 3 + 2 + 2);
  const auto row = [](const nn::Tokens& tokens, Index i) {
    return Ids(tokens.data() + i * tokens.dim(1), tokens.data() + (i + 1) * tokens.dim(1));
  };
  EXPECT_EQ(row(batch.given, 0), (Ids{256, 302, 256}));
  EXPECT_EQ(row(batch.wanted, 0), (Ids{302, 256, nn::CrossEntropy<float>::kIgnored}));
  EXPECT_EQ(row(batch.given, 1), (Ids{256, 300, 301}));
  EXPECT_EQ(row(batch.wanted, 1), (Ids{300, 301, 256}));
  EXPECT_EQ(row(batch.sources, 1), (Ids{5, 6, 1}));
}

/// The likeliest next piece again and again, without caches.
Ids without_caches(const nn::Transformer<float>& model, const Ids& source) {
  Ids given{Pieces::kEnd};
  while (given.size() < 3 * source.size() + 20 + 1) {
    const auto logits = model(padded({source}, 0), {static_cast<Index>(source.size())}, padded({given}, 0));
    Index best = 0;
    nn::rows_of(logits).row(logits.dim(1) - 1).maxCoeff(&best);
    if (best == Pieces::kEnd) break;
    given.push_back(static_cast<std::int32_t>(best));
  }
  given.erase(given.begin());
  return given;
}

TEST(Search, OneBeamIsGreedy) {
  for (const Example& example : trained().examples)
    EXPECT_EQ(search(trained().translator.model, {example.source}, {.beams = 1}).front(),
              without_caches(trained().translator.model, example.source));
}

TEST(Search, ASentenceAloneOrAmongOthers) {
  std::vector<std::string> sentences = chinese_of(trained().pairs);
  for (const char* other : {"", "。", "我爱好久", "你的妹妹在桌子下面", "龘", "火车站在学校下面吗？"})
    sentences.push_back(other);
  for (const Index beams : {1, 3}) {
    const SearchConfig config{.beams = beams};
    const auto together = translate(trained().translator, sentences, config);
    for (std::size_t i = 0; i < sentences.size(); ++i)
      EXPECT_EQ(translate(trained().translator, {sentences[i]}, config).front(), together[i]) << sentences[i];
    EXPECT_EQ(together[trained().pairs.size()], "");
    EXPECT_EQ(together[trained().pairs.size() + 1], "");
    EXPECT_NE(together[trained().pairs.size() + 4], "");
  }
}

/// The log-probability of a target with its end.
double log_prob(const nn::Transformer<float>& model, const Ids& source, Ids target) {
  Ids given = target;
  given.insert(given.begin(), Pieces::kEnd);
  target.push_back(Pieces::kEnd);
  const nn::CrossEntropy<float> loss;
  return -loss(model(padded({source}, 0), {static_cast<Index>(source.size())}, padded({given}, 0)),
               padded({target}, 0)) *
         static_cast<double>(target.size());
}

TEST(Search, MoreBeamsFindLikelierTargets) {
  // Of a model that has just begun to learn: the next piece alone is a bad guide.
  const std::vector<Pair> pairs = phrase_book();
  Translator translator = new_translator(pairs, {}, 0);
  const auto examples = examples_of(pairs, translator.characters, translator.pieces);
  Trainer trainer(translator, examples, {.steps = 60});
  for (int i = 0; i < 60; ++i) trainer.step();
  double greedy = 0, beams = 0;
  int differ = 0;
  for (const Example& example : examples) {
    const Ids one = search(translator.model, {example.source}, {.beams = 1, .length_penalty = 0}).front();
    const Ids five = search(translator.model, {example.source}, {.beams = 5, .length_penalty = 0}).front();
    differ += one == five ? 0 : 1;
    greedy += log_prob(translator.model, example.source, one);
    beams += log_prob(translator.model, example.source, five);
  }
  EXPECT_GT(differ, 0);
  EXPECT_GT(beams, greedy);
}

TEST(AttentionMap, HasLabelsAndWeights) {
  const Look look = look_of(trained().translator, "好久不见。", {});
  EXPECT_EQ(look.translation, "Long time, no see.");
  EXPECT_EQ(look.characters, (std::vector<std::string>{"好", "久", "不", "见", "end"}));
  ASSERT_EQ(look.layers.size(), 2u);
  for (const auto& weights : look.layers) {
    ASSERT_EQ(weights.dim(2), static_cast<Index>(look.pieces.size()));
    ASSERT_EQ(weights.dim(3), 5);
    for (Index h = 0; h < weights.dim(1); ++h)
      for (Index p = 0; p < weights.dim(2); ++p) EXPECT_NEAR(weights.matrix(0, h).row(p).sum(), 1, 1e-5);
  }
  const std::string svg = attention_map_svg(look);
  for (const char* label : {">好</text>", ">久</text>", ">不</text>", ">见</text>", ">time</text>", ">see</text>",
                            ">end</text>", "好久不见。 → Long time, no see."})
    EXPECT_NE(svg.find(label), std::string::npos) << label;
  const std::string cell = "<rect x=";
  std::size_t cells = 0;
  for (std::size_t at = svg.find(cell); at != std::string::npos; at = svg.find(cell, at + 1)) ++cells;
  EXPECT_EQ(cells, 2 * 5 * look.pieces.size());
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(AttentionMap, TextIsEscaped) {
  Look look = look_of(trained().translator, "你好<&>", {});
  look.pieces.front() = " <b>&";
  const std::string svg = attention_map_svg(look);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;b&gt;&amp;"), std::string::npos);
  EXPECT_THROW(look_of(trained().translator, "。", {}), std::invalid_argument);
}

}  // namespace
