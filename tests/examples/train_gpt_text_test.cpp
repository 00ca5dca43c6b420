// train_gpt's texts, sampling and options.
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "files.h"
#include "generate.h"
#include "new_file.h"
#include "support/allocations.h"
#include "trainer.h"

namespace {

using namespace train_gpt;

TEST(TrainGptDraw, FollowsTheProbabilities) {
  const std::vector<float> logits{std::log(0.1f), std::log(0.6f), std::log(0.3f)};
  const auto shares = [&](const Sampling& sampling) {
    nn::Random random(1);
    std::vector<double> counts(3);
    for (int i = 0; i < 20'000; ++i) counts[static_cast<std::size_t>(draw(logits, sampling, random))] += 1.0 / 20'000;
    return counts;
  };
  const auto expect = [&](const Sampling& sampling, double a, double b, double c) {
    const std::vector<double> s = shares(sampling);
    EXPECT_NEAR(s[0], a, 0.015);
    EXPECT_NEAR(s[1], b, 0.015);
    EXPECT_NEAR(s[2], c, 0.015);
  };
  expect({.temperature = 1}, 0.1, 0.6, 0.3);
  expect({.temperature = 1, .top_k = 2}, 0, 2.0 / 3, 1.0 / 3);
  expect({.temperature = 1, .top_k = 1}, 0, 1, 0);
  expect({.temperature = 0}, 0, 1, 0);
  expect({.temperature = 0.5}, 0.01 / 0.46, 0.36 / 0.46, 0.09 / 0.46);
  nn::Random random(1);
  const std::vector<float> infinite{0, std::numeric_limits<float>::infinity()};
  EXPECT_THROW(draw(infinite, {}, random), std::runtime_error);
}

TEST(TrainGptText, CharactersAreCodePoints) {
  const Vocabulary vocabulary = Vocabulary::of("b好a\nb");
  EXPECT_EQ(vocabulary.text(), "\nab好");
  EXPECT_EQ(vocabulary.encode("好a"), (std::vector<std::int32_t>{3, 1}));
  EXPECT_EQ(vocabulary.character(3), "好");
  EXPECT_TRUE(vocabulary.contains("好"));
  EXPECT_FALSE(vocabulary.contains("c"));
  EXPECT_THROW(vocabulary.encode("c"), std::invalid_argument);
  EXPECT_THROW(Vocabulary("aba"), std::invalid_argument);
  EXPECT_THROW(Vocabulary::of("\xe5\xa5"), std::invalid_argument);
}

TEST(TrainGptText, NinetyPercentAreTrainingText) {
  const Text text("");
  EXPECT_EQ(static_cast<Index>(text.training().size()), text.size() * 9 / 10);
  EXPECT_EQ(static_cast<Index>(text.training().size() + text.validation().size()), text.size());
  text.require_blocks_of(64);
  EXPECT_THROW(text.require_blocks_of(1000), nn::FileError);
}

TEST(TrainGptText, BlocksAreConsecutive) {
  std::vector<std::int32_t> tokens(101);
  std::iota(tokens.begin(), tokens.end(), 0);
  EXPECT_EQ(block_starts(tokens, 10, 0), (std::vector<Index>{0, 10, 20, 30, 40, 50, 60, 70, 80, 90}));
  EXPECT_EQ(block_starts(tokens, 10, 3), (std::vector<Index>{0, 30, 60}));
  const Batch batch = blocks_at(tokens, {30, 90}, 10);
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(batch.inputs(0, i), 30 + i);
    EXPECT_EQ(batch.targets(1, i), 91 + i);
  }
  nn::Random random(1);
  std::vector<bool> seen(101);
  for (int i = 0; i < 300; ++i) {
    const Batch drawn = random_blocks(tokens, 4, 10, random);
    for (int b = 0; b < 4; ++b) seen[static_cast<std::size_t>(drawn.inputs(b, 0))] = true;
    EXPECT_EQ(drawn.targets(3, 9), drawn.inputs(3, 0) + 10);
  }
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 91) << "every start of a block is drawn, and none past the end";
}

TEST(TrainGptText, ValidationLossIsTheMeanOverAllCharacters) {
  const Text text("");
  Options options;
  options.model = {.context = 16, .layers = 1, .heads = 2, .features = 16};
  const State state(options, text);
  const auto tokens = text.validation();
  // Block by block, each character separately.
  double sum = 0;
  for (std::size_t first = 0; first + 1 < tokens.size(); first += 16) {
    const std::size_t length = std::min<std::size_t>(16, tokens.size() - 1 - first);
    const Batch batch = blocks_at(tokens, {static_cast<Index>(first)}, static_cast<Index>(length));
    const nn::States<float> logits = state.model(batch.inputs);
    for (Index i = 0; i < static_cast<Index>(length); ++i) {
      double all = 0;
      for (Index t = 0; t < logits.dim(2); ++t) all += std::exp(static_cast<double>(logits(0, i, t)));
      sum += std::log(all) - static_cast<double>(logits(0, i, batch.targets(0, i)));
    }
  }
  EXPECT_NEAR(validation_loss(state, text), sum / static_cast<double>(tokens.size() - 1), 1e-5);
  EXPECT_EQ(validation_loss(state, text, 1000), validation_loss(state, text)) << "there are fewer blocks";
  EXPECT_NE(validation_loss(state, text, 3), validation_loss(state, text));
}

TEST(TrainGptText, ByteOrderMarksAreSkipped) {
  const std::filesystem::path file = std::filesystem::path(testing::TempDir()) / "attn_train_gpt_mark";
  training::write_file(file, "\xEF\xBB\xBFHello, hello.");
  const Text text(file);
  training::write_file(file, "Hello, hello.");
  const Text plain(file);
  std::filesystem::remove(file);
  EXPECT_EQ(text.size(), 13);
  EXPECT_EQ(text.vocabulary().text(), plain.vocabulary().text());
  EXPECT_EQ(text.checksum(), plain.checksum());
}

/// Reading a text takes four bytes per character besides the text itself, without a string for each.
TEST(TrainGptText, ReadingTakesFourBytesPerCharacter) {
  std::string text;
  while (text.size() < 1'000'000) text += "some words, 好久不见\n";
  std::size_t characters = 0;
  const auto taken = attn::test::allocations_of([&] {
    const Vocabulary vocabulary = Vocabulary::of(text);
    characters = vocabulary.encode(text).size();
  });
  EXPECT_LT(taken.peak, static_cast<std::ptrdiff_t>(4 * characters + 65536));
}

TEST(TrainGptOptions, OutOfRangeIsRefused) {
  const auto refused = [](const std::function<void(Options&)>& change) {
    Options options = Options{};
    change(options);
    EXPECT_THROW(check(options), std::invalid_argument);
  };
  check(Options{});
  check(preset("small"));
  check(preset("shakespeare"));
  EXPECT_THROW(preset("x"), std::invalid_argument);
  refused([](Options& o) { o.model.layers = 0; });
  refused([](Options& o) { o.model.heads = 3; });
  refused([](Options& o) { o.model.features = 1 << 30; });
  refused([](Options& o) { o.model.context = 1; });
  refused([](Options& o) { o.model.dropout = 1; });
  refused([](Options& o) { o.batch = 1 << 20; });
  refused([](Options& o) { o.steps = 0; });
  refused([](Options& o) { o.learning_rate = std::numeric_limits<double>::quiet_NaN(); });
  refused([](Options& o) { o.clip = 0; });
  refused([](Options& o) { o.beta2 = 1; });
}

TEST(TrainGptOptions, MessagesNameTheOption) {
  Options options;
  options.warm_up = -1;
  const auto message = [&](auto... name) {
    try {
      check(options, name...);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message().find("--warm-up must be in "), 0u) << message();
  EXPECT_EQ(message([](const std::string& key) { return "key " + key; }).find("key warm_up must be in "), 0u);
}

TEST(TrainGptOptions, SizesBeyondAnyMemoryAreRefused) {
  Options options;
  options.model.layers = 1000;
  options.model.features = 65'536;
  try {
    State state(options, Vocabulary("abc"));
    FAIL() << "200 TB were allocated";
  } catch (const std::invalid_argument& error) {
    EXPECT_NE(std::string(error.what()).find("GB"), std::string::npos) << error.what();
  }
}

}  // namespace
