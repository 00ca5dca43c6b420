// train_gpt: what it learns, that it goes on exactly, and that threads change no bit.
#include <csignal>
#include <filesystem>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint.h"
#include "files.h"
#include "generate.h"
#include "run.h"
#include "run_report.h"
#include "safetensors.h"
#include "threads.h"

namespace {

namespace fs = std::filesystem;
using namespace train_gpt;

/// A model that takes milliseconds a step. Validation and samples fall where a run is broken off, and elsewhere.
Options small_options(double dropout = 0) {
  Options options;
  options.model = {.context = 16, .layers = 2, .heads = 2, .features = 16, .dropout = dropout};
  options.batch = 4;
  options.steps = 30;
  options.warm_up = 5;
  options.validation_every = 10;
  options.sample_every = 15;
  options.seed = 3;
  return options;
}

class TrainGpt : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) /
              (std::string("attn_train_gpt_") + testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path folder_;
};

TEST_F(TrainGpt, TheDefaultsLearnTheSameBitsOnOneAndTwoThreads) {
#ifndef NDEBUG
  GTEST_SKIP() << "takes minutes without optimization";
#endif
  const Text text("");
  std::vector<double> losses;
  for (const int threads : {1, 2}) {
    nn::set_threads(threads);
    State state(Options{}, text);
    const double before = validation_loss(state, text);
    EXPECT_NEAR(before, std::log(text.vocabulary().size()), 0.2) << "it knows nothing yet";
    losses.push_back(run(state, text, {.save = folder_ / std::to_string(threads)}).validation_loss);
  }
  nn::set_threads(2);
  EXPECT_LT(losses[0], 0.75);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(training::read_file(folder_ / "1") == training::read_file(folder_ / "2"));
}

class TrainGptResumed : public TrainGpt, public testing::WithParamInterface<double> {};

TEST_P(TrainGptResumed, GoesOnAsIfItHadNeverStopped) {
  const Text text("");
  State whole(small_options(GetParam()), text);
  const Outcome at_once = run(whole, text, {.save = folder_ / "whole"});
  EXPECT_EQ(whole.step, 30);

  {
    State first(small_options(GetParam()), text);
    EXPECT_FALSE(run(first, text, {.save = folder_ / "parts", .stop_after = 7}).interrupted);
    EXPECT_EQ(first.step, 7);
  }
  for (const Index steps : {4, 100}) {
    State state = load(folder_ / "parts");
    const Outcome outcome = run(state, text, {.save = folder_ / "parts", .stop_after = steps});
    if (state.step == 30) {
      EXPECT_EQ(outcome.validation_loss, at_once.validation_loss);
    }
  }

  State resumed = load(folder_ / "parts");
  EXPECT_EQ(resumed.losses, whole.losses);
  EXPECT_EQ(resumed.validation, whole.validation);
  EXPECT_EQ(resumed.samples, whole.samples);
  EXPECT_EQ(whole.validation.size(), 3u);
  EXPECT_EQ(whole.samples.size(), 2u);
  EXPECT_TRUE(training::read_file(folder_ / "parts") == training::read_file(folder_ / "whole"));
}

INSTANTIATE_TEST_SUITE_P(Dropout, TrainGptResumed, testing::Values(0.0, 0.2),
                         [](const auto& p) { return p.param > 0 ? "with" : "without"; });

TEST_F(TrainGpt, DropoutAndSeedMatter) {
  const Text text("");
  const auto losses = [&](Options options) {
    State state(options, text);
    run(state, text, {.save = "", .stop_after = 3});
    return state.losses;
  };
  Options other = small_options();
  other.seed = 4;
  EXPECT_NE(losses(small_options()), losses(small_options(0.2)));
  EXPECT_NE(losses(small_options()), losses(other));
  EXPECT_EQ(losses(small_options()), losses(small_options()));
}

TEST_F(TrainGpt, CtrlCSavesAndTheRunGoesOn) {
  const Text text("");
  Options options = small_options();
  options.validation_every = 1;
  options.steps = 1'000'000;
  State state(options, text);
  const fs::path file = folder_ / "saved";
  std::thread user([&] {
    while (!fs::exists(file)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::raise(SIGINT);
  });
  const Outcome outcome = run(state, text, {.save = file});
  user.join();
  EXPECT_TRUE(outcome.interrupted);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_GE(state.step, 1);
  const State saved = load(file);
  EXPECT_EQ(saved.step, state.step);
  EXPECT_EQ(saved.losses, state.losses);
}

TEST_F(TrainGpt, TheFileServesForGenerationAlone) {
  const Text text("");
  State state(small_options(0.1), text);
  run(state, text, {.save = folder_ / "saved"});
  const State loaded = load(folder_ / "saved");
  const Sampling sampling{.seed = 7};
  const std::string written = continue_text(state.model, state.vocabulary, "The garden", 50, sampling);
  EXPECT_EQ(written.size(), 50u);
  EXPECT_EQ(continue_text(loaded.model, loaded.vocabulary, "The garden", 50, sampling), written);
}

TEST_F(TrainGpt, GenerationWithCachesIsThatOfTheWholeText) {
  const Text text("");
  State state(small_options(), text);
  run(state, text, {.save = ""});
  const Index context = state.options.model.context;
  std::vector<std::int32_t> tokens = state.vocabulary.encode("The garden is");
  const std::string written =
      continue_text(state.model, state.vocabulary, "The garden is", 3 * context, {.temperature = 0});

  // What is in the cache: all since the last time that it was full, when it began again with half of it.
  Index first = 0;
  std::string expected;
  for (Index i = 0; i < 3 * context; ++i) {
    const auto size = static_cast<Index>(tokens.size());
    if (size - first > context) first = size - context / 2;
    nn::Tokens window({1, size - first});
    std::copy(tokens.begin() + first, tokens.end(), window.data());
    const nn::States<float> logits = state.model(window);
    const float* last = logits.data() + logits.size() - logits.dim(2);
    tokens.push_back(static_cast<std::int32_t>(std::max_element(last, last + logits.dim(2)) - last));
    expected += state.vocabulary.character(tokens.back());
  }
  EXPECT_EQ(written, expected);
}

TEST_F(TrainGpt, PromptsOfAnyLength) {
  const Text text("");
  const State state(small_options(), text);
  for (const std::size_t length : std::vector<std::size_t>{0, 1, 15, 16, 17, 100}) {
    const std::string prompt(length, 'e');
    const auto write = [&](Index count) {
      return continue_text(state.model, state.vocabulary, prompt, count, {.seed = 5});
    };
    EXPECT_EQ(write(0), "");
    EXPECT_EQ(write(40).size(), 40u);
    EXPECT_EQ(write(40).substr(0, 10), write(10));
  }
  EXPECT_THROW(continue_text(state.model, state.vocabulary, "\u00e9", 1, {}), std::invalid_argument);
}

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
  EXPECT_EQ(vocabulary.decode({3, 0, 2}), "好\nb");
  EXPECT_THROW(vocabulary.encode("c"), std::invalid_argument);
  EXPECT_THROW(Vocabulary("aba"), std::invalid_argument);
  EXPECT_THROW(Vocabulary::of("\xe5\xa5"), std::invalid_argument);
}

TEST(TrainGptText, NinetyPercentAreLearned) {
  const Text text("");
  EXPECT_EQ(static_cast<Index>(text.training().size()), text.size() * 9 / 10);
  EXPECT_EQ(static_cast<Index>(text.training().size() + text.validation().size()), text.size());
  text.require_blocks_of(64);
  EXPECT_THROW(text.require_blocks_of(1000), nn::FileError);
}

TEST(TrainGptText, BlocksLieOneBehindTheOther) {
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
  EXPECT_EQ(std::count(seen.begin(), seen.end(), true), 91) << "every block, and none past the end";
}

TEST(TrainGptText, TheValidationLossIsTheMeanOverAllCharacters) {
  const Text text("");
  const State state(small_options(), text);
  const auto tokens = text.validation();
  // Block by block, each character on its own.
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

TEST_F(TrainGpt, ARunThatDivergesSaysSoAndKeepsTheLastFile) {
  const Text text("");
  State state(small_options(), text);
  run(state, text, {.save = folder_ / "saved", .stop_after = 2});
  const std::string good = training::read_file(folder_ / "saved");
  for (const nn::Parameter<float>& p : nn::parameters_of<float>(state.model))
    for (float& x : p.values) x = 1e30f;
  EXPECT_THROW(run(state, text, {.save = folder_ / "saved"}), std::runtime_error);
  EXPECT_TRUE(training::read_file(folder_ / "saved") == good);
}

TEST_F(TrainGpt, AnotherTextIsRefused) {
  const Text own("");
  training::write_file(folder_ / "other.txt", std::string(5000, 'a') + std::string(5000, 'b'));
  const Text other(folder_ / "other.txt");
  State state(small_options(), own);
  try {
    run(state, other, {.save = ""});
    FAIL() << "it went on with another text";
  } catch (const nn::FileError& error) {
    EXPECT_EQ(std::string(error.what()).find((folder_ / "other.txt").string() + ": "), 0u) << error.what();
  }
}

TEST(TrainGptOptions, OutOfRangeIsRefused) {
  const auto refused = [](const std::function<void(Options&)>& change) {
    Options options = small_options();
    change(options);
    EXPECT_THROW(check(options), std::invalid_argument);
  };
  check(small_options());
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

TEST(TrainGptReport, HasTheRunInIt) {
  const Text text("");
  State state(small_options(), text);
  const Outcome outcome = run(state, text, {.save = ""});
  const training::Report page = report(state, text, outcome);
  EXPECT_EQ(page.losses.training.size(), 30u);
  EXPECT_EQ(page.losses.validation.size(), 3u);
  ASSERT_EQ(page.samples.size(), 2u);
  EXPECT_EQ(page.samples[0].step, 15);
  ASSERT_EQ(page.maps.size(), 2u);
  for (const training::AttentionMaps& maps : page.maps) {
    ASSERT_EQ(maps.layers.size(), 2u);
    EXPECT_EQ(maps.rows.size(), 16u) << "no more than the context";
    for (const auto& weights : maps.layers)
      for (Index head = 0; head < 2; ++head)
        for (Index row = 0; row < 16; ++row) {
          float sum = 0;
          for (Index column = 0; column < 16; ++column) sum += weights(0, head, row, column);
          EXPECT_NEAR(sum, 1, 1e-5f);
        }
  }
  EXPECT_NE(training::report_html(page).find("validation loss"), std::string::npos);
}

}  // namespace
