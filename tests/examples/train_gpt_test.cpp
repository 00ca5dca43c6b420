// train_gpt: its loss, exact resumption, and the same bits for any number of threads.
#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint.h"
#include "cross_entropy.h"
#include "files.h"
#include "generate.h"
#include "new_file.h"
#include "run.h"
#include "run_report.h"
#include "threads.h"

namespace {

namespace fs = std::filesystem;
using namespace train_gpt;

/// A model that takes milliseconds per step. Interruptions in the tests coincide with some validations and samples, and
/// not with others.
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

TEST_F(TrainGpt, DefaultsTrainTheSameBitsOnOneAndTwoThreads) {
#ifndef NDEBUG
  GTEST_SKIP() << "takes minutes without optimization";
#endif
  const Text text("");
  std::vector<double> losses;
  for (const int threads : {1, 2}) {
    nn::set_threads(threads);
    State state(Options{}, text);
    const double before = validation_loss(state, text);
    EXPECT_NEAR(before, std::log(text.vocabulary().size()), 0.2) << "an untrained model guesses";
    losses.push_back(run(state, text, {.save = folder_ / std::to_string(threads)}).validation_loss);
  }
  nn::set_threads(2);
  EXPECT_LT(losses[0], 0.75);
  EXPECT_EQ(losses[0], losses[1]);
  EXPECT_TRUE(training::read_file(folder_ / "1") == training::read_file(folder_ / "2"));
}

class TrainGptResumed : public TrainGpt, public testing::WithParamInterface<double> {};

TEST_P(TrainGptResumed, MatchesAnUninterruptedRun) {
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
    const Index before = state.step;
    const Outcome outcome = run(state, text, {.save = folder_ / "parts", .stop_after = steps});
    EXPECT_EQ(outcome.steps, state.step - before) << "time and speed must refer to these steps";
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

/// Repeats the trainer's steps with the parts of nn.
TEST_F(TrainGpt, StepsAreLossClippingAndAdamW) {
  const Text text("");
  Options options = small_options();
  options.steps = 4;
  options.warm_up = 1;
  options.learning_rate = 0.02;
  options.weight_decay = 0.3;
  options.clip = 0.05;
  State learner(options, text), other(options, text);
  // Linear warm-up to the highest rate, then cosine decay to a tenth of it.
  const auto between = [](double done) { return 0.002 + 0.018 * 0.5 * (1 + std::cos(done * 3.141592653589793)); };
  const std::vector<double> rates{0.01, 0.02, between(1.0 / 3), between(2.0 / 3)};
  nn::CrossEntropy<float> loss;
  nn::AdamW<float> optimizer({.beta1 = options.beta1, .beta2 = options.beta2, .weight_decay = 0.3});
  for (const double rate : rates) {
    const Batch batch = random_blocks(text.training(), options.batch, options.model.context, other.random);
    const double by_hand = loss.forward(other.model.forward(batch.inputs), batch.targets);
    nn::zero_gradients<float>(other.model);
    other.model.backward(loss.backward());
    const auto parameters = nn::parameters_of<float>(other.model);
    EXPECT_GT(nn::clip_grad_norm(parameters, 0.05), 0.1) << "clipping must have an effect";
    optimizer.step(parameters, rate);
    EXPECT_NEAR(train_step(learner, text), by_hand, 1e-6);
    const auto learned = nn::parameters_of<float>(learner.model);
    float largest = 0;
    for (std::size_t p = 0; p < learned.size(); ++p)
      for (std::size_t i = 0; i < learned[p].values.size(); ++i)
        largest = std::max(largest, std::abs(learned[p].values[i] - parameters[p].values[i]));
    EXPECT_LT(largest, 1e-6f);
  }
}

TEST_F(TrainGpt, DropoutAndSeedChangeLosses) {
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

TEST_F(TrainGpt, CtrlCSavesAResumableFile) {
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

TEST_F(TrainGpt, GenerationNeedsOnlyTheFile) {
  const Text text("");
  State state(small_options(0.1), text);
  run(state, text, {.save = folder_ / "saved"});
  const State loaded = load(folder_ / "saved");
  const Sampling sampling{.seed = 7};
  const std::string written = continue_text(state.model, state.vocabulary, "The garden", 50, sampling);
  EXPECT_EQ(written.size(), 50u);
  EXPECT_EQ(continue_text(loaded.model, loaded.vocabulary, "The garden", 50, sampling), written);
}

TEST_F(TrainGpt, GenerationWithCachesMatchesTheWholeText) {
  const Text text("");
  State state(small_options(), text);
  run(state, text, {.save = ""});
  const Index context = state.options.model.context;
  std::vector<std::int32_t> tokens = state.vocabulary.encode("The garden is");
  const std::string written =
      continue_text(state.model, state.vocabulary, "The garden is", 3 * context, {.temperature = 0});

  // The cache holds the tokens from `first` on. When it is full, it is refilled with the last context / 2 tokens.
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

TEST_F(TrainGpt, DivergingRunsThrowAndKeepTheLastFile) {
  const Text text("");
  State state(small_options(), text);
  run(state, text, {.save = folder_ / "saved", .stop_after = 2});
  const std::string good = training::read_file(folder_ / "saved");
  for (const nn::Parameter<float>& p : nn::parameters_of<float>(state.model))
    for (float& x : p.values) x = 1e30f;
  EXPECT_THROW(run(state, text, {.save = folder_ / "saved"}), std::runtime_error);
  EXPECT_TRUE(training::read_file(folder_ / "saved") == good);
}

/// Checkpoints store samples in the header, which must stay small.
TEST_F(TrainGpt, ManySamplesAreThinnedOut) {
  const Text text("");
  Options options = small_options();
  options.steps = 5000;
  options.sample_every = 1;
  State state(options, text);
  state.step = 1000;
  state.losses.resize(1000);
  for (Index step = 1; step <= 1000; ++step) state.samples[step] = "text";
  run(state, text, {.save = folder_ / "saved", .stop_after = 1});
  EXPECT_EQ(state.samples.size(), 501u);
  EXPECT_TRUE(state.samples.contains(1));
  EXPECT_FALSE(state.samples.contains(2));
  EXPECT_TRUE(state.samples.contains(1001));
  EXPECT_EQ(load(folder_ / "saved").samples, state.samples);
}

TEST_F(TrainGpt, CheckpointsHoldTheAbsolutePathOfTheText) {
  const fs::path here = fs::current_path();
  training::write_file(folder_ / "text.txt", std::string(500, 'a') + std::string(500, 'b'));
  fs::current_path(folder_);
  const Text text("text.txt");
  State state(small_options(), text);
  run(state, text, {.save = "saved", .stop_after = 1});
  fs::current_path(here);
  EXPECT_EQ(fs::path(load(folder_ / "saved").text_file), fs::canonical(folder_) / "text.txt");
}

TEST_F(TrainGpt, OtherTextsAreRefused) {
  const Text own("");
  training::write_file(folder_ / "other.txt", std::string(5000, 'a') + std::string(5000, 'b'));
  const Text other(folder_ / "other.txt");
  State state(small_options(), own);
  try {
    run(state, other, {.save = ""});
    FAIL() << "it continued with another text";
  } catch (const nn::FileError& error) {
    EXPECT_EQ(std::string(error.what()).find((folder_ / "other.txt").string() + ": "), 0u) << error.what();
  }
}

TEST(TrainGptReport, DescribesTheRun) {
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
