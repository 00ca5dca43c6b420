// Training and attention maps of train_translation.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attention_map.h"
#include "chrf.h"
#include "threads.h"
#include "train_translation_trained.h"

namespace {

using namespace translation;
using namespace attn::test;

std::vector<float> parameter_values(Translator& translator) {
  std::vector<float> all;
  for (const auto& p : nn::parameters_of<float>(translator.model))
    all.insert(all.end(), p.values.begin(), p.values.end());
  return all;
}

TEST(Training, LearnsThePhraseBook) {
  EXPECT_GT(trained().first_loss, 5.0);
  EXPECT_LT(trained().last_loss, 0.3);
  for (const Index beams : {1, 4}) {
    const auto translations = translate(trained().translator, chinese_of(trained().pairs), {.beams = beams});
    EXPECT_EQ(exact_share(translations, english_of(trained().pairs)), 1.0) << beams << " beams";
  }
}

TEST(Training, ThreadsDoNotChangeResults) {
  const auto learned_with = [](int threads) {
    nn::set_threads(threads);
    const std::vector<Pair> pairs = phrase_book();
    Translator translator = new_translator(pairs, {}, 0.1);
    const auto examples = examples_of(pairs, translator.characters, translator.pieces);
    Trainer trainer(translator, examples, {.batch_tokens = 500, .unknown_characters = 0.5});
    std::vector<double> losses;
    for (int i = 0; i < 12; ++i) losses.push_back(trainer.step().loss);
    return std::pair(losses, parameter_values(translator));
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

TEST(Batches, RareCharactersAreHiddenMoreOften) {
  // 2 occurs three times, 3 once, 4 never. The end, 1, is not a character.
  const std::vector<Example> examples{{{2, 2, 2, 3, 1}, {300}}, {{1}, {301}}};
  const std::vector<double> chances = chances_of_hiding(examples, 5, 1);
  EXPECT_DOUBLE_EQ(chances[2], 1.0 / 4);
  EXPECT_DOUBLE_EQ(chances[3], 1.0 / 2);
  EXPECT_DOUBLE_EQ(chances[4], 1);
  for (const double chance : chances_of_hiding(examples, 5, 0)) EXPECT_EQ(chance, 0);

  nn::Random random(1);
  double twos = 0, threes = 0;
  constexpr int kTimes = 4000;
  for (int i = 0; i < kTimes; ++i) {
    Batch batch = batch_of(examples, {0, 1});
    hide_characters(batch, chances, random);
    for (Index c = 0; c < 3; ++c) twos += batch.sources(0, c) == Characters::kUnknown ? 1.0 / (3 * kTimes) : 0;
    threes += batch.sources(0, 3) == Characters::kUnknown ? 1.0 / kTimes : 0;
    ASSERT_EQ(batch.sources(0, 4), Characters::kEnd);
    for (Index c = 0; c < 5; ++c) ASSERT_EQ(batch.sources(1, c), Characters::kEnd) << "the end, and padding";
  }
  EXPECT_NEAR(twos, 0.25, 0.02);
  EXPECT_NEAR(threes, 0.5, 0.03);
}

/// Repeats the trainer's steps with the parts of nn.
TEST(Training, StepsAreLossClippingAndAdamW) {
  const std::vector<Pair> pairs{{"Long time, no see.", "好久不见。"}};  // always the same batch
  Translator learner = new_translator(pairs, {}, 0), other = new_translator(pairs, {}, 0);
  const auto examples = examples_of(pairs, learner.characters, learner.pieces);
  const TrainingConfig config{.steps = 4,
                              .warm_up = 1,
                              .learning_rate = 0.01,
                              .lowest_rate = 0.002,
                              .weight_decay = 0.3,
                              .label_smoothing = 0.2,
                              .clip = 0.05};
  Trainer trainer(learner, examples, config);
  // Linear warm-up to the highest rate, then cosine decay.
  const auto between = [](double done) { return 0.002 + 0.008 * 0.5 * (1 + std::cos(done * 3.141592653589793)); };
  const std::vector<double> rates{0.005, 0.01, between(1.0 / 3), between(2.0 / 3)};
  nn::CrossEntropy<float> loss(0.2);
  nn::AdamW<float> optimizer({.beta1 = 0.9, .beta2 = 0.98, .epsilon = 1e-9, .weight_decay = 0.3});
  const Batch batch = batch_of(examples, {0});
  for (const double rate : rates) {
    const double by_hand = loss.forward(other.model.forward(batch.sources, batch.lengths, batch.given), batch.wanted);
    nn::zero_gradients<float>(other.model);
    other.model.backward(loss.backward());
    const auto parameters = nn::parameters_of<float>(other.model);
    EXPECT_GT(nn::clip_grad_norm(parameters, 0.05), 0.1) << "clipping must have an effect";
    optimizer.step(parameters, rate);
    const Trainer::Step step = trainer.step();
    EXPECT_NEAR(step.loss, by_hand, 1e-6);
    EXPECT_EQ(step.tokens, batch.tokens);
    const std::vector<float> a = parameter_values(learner), b = parameter_values(other);
    float largest = 0;
    for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
    EXPECT_LT(largest, 1e-6f);
  }
}

TEST(Training, NonFiniteLossEndsTraining) {
  const std::vector<Pair> pairs = phrase_book();
  Translator translator = new_translator(pairs, {}, 0);
  const auto examples = examples_of(pairs, translator.characters, translator.pieces);
  Trainer trainer(translator, examples, {});
  for (const nn::Parameter<float>& p : nn::parameters_of<float>(translator.model))
    for (float& x : p.values) x *= 1e30f;
  const std::vector<float> before = parameter_values(translator);
  EXPECT_THROW(trainer.step(), std::runtime_error);
  EXPECT_TRUE(parameter_values(translator) == before);
}

TEST(Batches, TargetsAreTheNextTokens) {
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

TEST(AttentionMap, HasLabelsAndWeights) {
  const AttendedTranslation attended = attended_translation(trained().translator, "好久不见。", {});
  EXPECT_EQ(attended.translation, "Long time, no see.");
  EXPECT_EQ(attended.characters, (std::vector<std::string>{"好", "久", "不", "见", "end"}));
  ASSERT_EQ(attended.layers.size(), 2u);
  for (const auto& weights : attended.layers) {
    ASSERT_EQ(weights.dim(2), static_cast<Index>(attended.pieces.size()));
    ASSERT_EQ(weights.dim(3), 5);
    for (Index h = 0; h < weights.dim(1); ++h)
      for (Index p = 0; p < weights.dim(2); ++p) EXPECT_NEAR(weights.matrix(0, h).row(p).sum(), 1, 1e-5);
  }
  const std::string svg = attention_map_svg(attended);
  for (const char* label : {">好</text>", ">久</text>", ">不</text>", ">见</text>", ">time</text>", ">see</text>",
                            ">end</text>", "好久不见。 → Long time, no see."})
    EXPECT_NE(svg.find(label), std::string::npos) << label;
  const std::string cell = "class=\"cell weight\"";
  std::size_t cells = 0;
  for (std::size_t at = svg.find(cell); at != std::string::npos; at = svg.find(cell, at + 1)) ++cells;
  EXPECT_EQ(cells, 2 * 5 * attended.pieces.size());
  EXPECT_NE(svg.find("prefers-color-scheme:dark"), std::string::npos);
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
}

TEST(AttentionMap, OfALongSentenceHasALimitedWidth) {
  AttendedTranslation attended{"好", "Good.", {}, {}, {}};
  for (int i = 0; i < 300; ++i) attended.characters.push_back("好"), attended.pieces.push_back(" good");
  attended.sentence = attended.translation = std::string(3000, 'x');
  attended.layers.assign(2, nn::Weights<float>({1, 4, 300, 300}));
  const std::string svg = attention_map_svg(attended), width = "width=\"";
  EXPECT_LT(std::stoi(svg.substr(svg.find(width) + width.size())), 2600);
  EXPECT_NE(svg.find(std::string(60, 'x') + "\u2026 \u2192 "), std::string::npos);
  EXPECT_NE(svg.find(">decoder layer 2<"), std::string::npos);
}

TEST(AttentionMap, TextIsEscaped) {
  AttendedTranslation attended = attended_translation(trained().translator, "你好<&>", {});
  attended.pieces.front() = " <b>&";
  const std::string svg = attention_map_svg(attended);
  EXPECT_EQ(svg.find("<b>"), std::string::npos);
  EXPECT_NE(svg.find("&lt;b&gt;&amp;"), std::string::npos);
  EXPECT_THROW(attended_translation(trained().translator, "。", {}), std::invalid_argument);
}

}  // namespace
