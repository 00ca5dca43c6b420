// train_hybrid: training, generation with states, and model files, broken ones included.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "continue_text.h"
#include "files.h"
#include "new_file.h"
#include "one_model_file.h"
#include "support/random.h"
#include "threads.h"
#include "train.h"

namespace {

namespace fs = std::filesystem;
using namespace train_hybrid;

/// A model that takes milliseconds per step.
Options small_options() {
  Options options;
  options.model = {.blocks = 1, .features = 16, .heads = 2, .kv_heads = 1, .head_dim = 8};
  options.context = 24;
  options.batch = 4;
  options.steps = 100;
  options.warm_up = 5;
  options.learning_rate = 1e-2;
  options.validation_every = 0;
  return options;
}

LanguageModel untrained(const Options& options = small_options()) {
  return {options.model, train_gpt::Text("").vocabulary(), options.seed};
}

class TrainHybrid : public OneModelFile {
 protected:
  std::string error_of(const std::string& bytes) {
    return OneModelFile::error_of(bytes, [](const fs::path& file) { load(file); });
  }

  std::string good() {
    LanguageModel model = untrained();
    save(file_, model);
    return training::read_file(file_);
  }
};

TEST_F(TrainHybrid, LearnsTheSameBitsOnOneAndTwoThreads) {
  const train_gpt::Text text("");
  std::vector<Outcome> runs;
  for (const int threads : {1, 2}) {
    nn::set_threads(threads);
    LanguageModel model = untrained();
    runs.push_back(train(model, text, small_options()));
  }
  nn::set_threads(1);
  EXPECT_EQ(runs[0].losses, runs[1].losses);
  EXPECT_EQ(runs[0].validation, runs[1].validation);
  ASSERT_EQ(runs[0].validation.size(), 2u);  // before and after
  EXPECT_NEAR(runs[0].validation[0], std::log(41), 0.1) << "random predictions of 41 characters";
  EXPECT_LT(runs[0].validation[100], 2.7);
}

/// The states of a generation give the text that the model gives for all characters so far.
TEST_F(TrainHybrid, GenerationMatchesTheWholeText) {
  const train_gpt::Text text("");
  LanguageModel model = untrained();
  train(model, text, small_options());
  std::vector<std::int32_t> tokens = model.vocabulary.encode("The garden is");
  const std::string written = continue_text(model, "The garden is", 60, {.temperature = 0});
  std::string expected;
  for (int i = 0; i < 60; ++i) {
    nn::Tokens all({1, static_cast<Index>(tokens.size())});
    std::copy(tokens.begin(), tokens.end(), all.data());
    const nn::States<float> logits = model.network(all);
    const float* last = logits.data() + logits.size() - logits.dim(2);
    tokens.push_back(static_cast<std::int32_t>(std::max_element(last, last + logits.dim(2)) - last));
    expected += model.vocabulary.character(tokens.back());
  }
  EXPECT_EQ(written, expected);
}

TEST_F(TrainHybrid, FilesHoldTheModel) {
  LanguageModel model = untrained();
  save(file_, model);
  const LanguageModel loaded = load(file_);
  const train_gpt::Sampling sampling{.seed = 7};
  EXPECT_EQ(continue_text(loaded, "The", 30, sampling), continue_text(model, "The", 30, sampling));
  EXPECT_NE(continue_text(loaded, "The", 30, {.seed = 8}), continue_text(model, "The", 30, sampling));
  EXPECT_THROW(continue_text(loaded, "好", 1, sampling), std::invalid_argument);
}

TEST_F(TrainHybrid, InvalidFiles) {
  const std::string bytes = good();
  EXPECT_EQ(error_of(bytes), "");
  for (std::size_t size = 0; size < bytes.size(); size += 1 + size / 7) EXPECT_NE(error_of(bytes.substr(0, size)), "");
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const auto header = nlohmann::json::parse(bytes.substr(8, length));
  const auto expect_error = [&](const char* key, const std::string& value, const std::string& part) {
    auto changed = header;
    changed["__metadata__"][key] = value;
    const std::string text = changed.dump();
    const std::uint64_t size = text.size();
    const std::string message =
        error_of(std::string(reinterpret_cast<const char*>(&size), sizeof size) + text + bytes.substr(8 + length));
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" should say: " << part;
  };
  expect_error("format", "train_gpt", "is not a model of train_hybrid");
  expect_error("features", "0", "features");
  expect_error("features", "16384", "is too small for the model");
  expect_error("head_dim", "1024", "is too small for the model");
  expect_error("blocks", "100", "is too small for the model");
  expect_error("blocks", "99999999999999999999", "blocks");
  expect_error("kv_heads", "3", "must be a multiple of");
  expect_error("head_dim", "7", "must be even");
  expect_error("conv_width", "5", "conv1d.weight has shape");
  expect_error("characters", "aa", "twice");
  expect_error("characters", "", "empty");
}

TEST_F(TrainHybrid, DamagedFilesGiveAnErrorOrAModel) {
  const std::string bytes = good();
  attn::test::Random random(20261129);
  for (int i = 0; i < 200; ++i) {
    std::string damaged = bytes;
    for (attn::Index changes = random.integer(1, 4); changes > 0; --changes)
      damaged[static_cast<std::size_t>(random.integer(0, 2000))] = static_cast<char>(random.integer(0, 255));
    error_of(damaged);
  }
}

TEST_F(TrainHybrid, RefusesShortTexts) {
  training::write_file(file_, "Only a few words.");
  const train_gpt::Text text(file_);
  LanguageModel model(small_options().model, text.vocabulary(), 1);
  EXPECT_THROW(train(model, text, small_options()), nn::FileError);
}

}  // namespace
