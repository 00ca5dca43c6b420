// Broken files in train_gpt: an error that names the file and says what is wrong; never a crash, and never more memory
// than the file's size justifies.
#include <cstring>
#include <filesystem>
#include <functional>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "checkpoint.h"
#include "files.h"
#include "new_file.h"
#include "one_model_file.h"
#include "run.h"
#include "support/random.h"

namespace {

namespace fs = std::filesystem;
using namespace train_gpt;
using attn::test::Random;
using nlohmann::json;

/// The header and data of a checkpoint.
struct Parts {
  json header;
  std::string numbers;

  explicit Parts(const std::string& bytes) {
    std::uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof length);
    header = json::parse(bytes.substr(8, length));
    numbers = bytes.substr(8 + length);
  }

  std::string bytes() const {
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + text + numbers;
  }

  /// Writes an element of a tensor.
  void set(const std::string& tensor, std::size_t index, float value) {
    const auto begin = header[tensor]["data_offsets"][0].get<std::size_t>();
    std::memcpy(numbers.data() + begin + index * sizeof value, &value, sizeof value);
  }
};

class TrainGptFiles : public OneModelFile {
 protected:
  static void SetUpTestSuite() {
    const Text text("");
    Options options;
    options.model = {.context = 8, .layers = 1, .heads = 2, .features = 8, .dropout = 0.1};
    options.batch = 2;
    options.steps = 6;
    options.validation_every = 2;
    options.sample_every = 3;
    State state(options, text);
    const fs::path file = fs::path(testing::TempDir()) / "attn_train_gpt_good";
    run(state, text, {.save = file, .stop_after = 4});
    good_ = training::read_file(file);
    fs::remove(file);
  }

  std::string error_of(const std::string& bytes) {
    return OneModelFile::error_of(bytes, [](const fs::path& file) { load(file); });
  }

  void expect_error(const std::string& part, const std::function<void(Parts&)>& change) {
    Parts parts(good_);
    change(parts);
    const std::string message = error_of(parts.bytes());
    EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" should say: " << part;
  }

  void expect_metadata_error(const std::string& part, const std::string& key, const std::string& value) {
    expect_error(part, [&](Parts& p) { p.header["__metadata__"][key] = value; });
  }

  static std::string good_;
};

std::string TrainGptFiles::good_;

TEST_F(TrainGptFiles, GoodFilesAreAccepted) {
  EXPECT_EQ(error_of(good_), "");
  EXPECT_EQ(error_of(Parts(good_).bytes()), "");
}

TEST_F(TrainGptFiles, Truncated) {
  for (std::size_t size = 0; size < good_.size(); size += 1 + size / 7) EXPECT_NE(error_of(good_.substr(0, size)), "");
  EXPECT_NE(error_of(good_.substr(0, good_.size() - 1)), "");
  EXPECT_NE(error_of(good_ + "x"), "");
}

TEST_F(TrainGptFiles, NotACheckpoint) {
  EXPECT_NE(error_of("These are words, and no model at all.\n"), "");
  expect_metadata_error("is not a checkpoint of train_gpt", "format", "train_translation");
  expect_error("is not a checkpoint of train_gpt", [](Parts& p) { p.header.erase("__metadata__"); });
  expect_metadata_error("has version \"2\"", "version", "2");
}

TEST_F(TrainGptFiles, SizesThatExceedTheFile) {
  for (const char* key : {"layers", "features", "context"}) {
    const std::string named = '"' + std::string(key) + "\" must be in ";
    expect_metadata_error(named, key, "4000000000000");
    expect_metadata_error(named, key, "0");
    expect_metadata_error(named, key, "-8");
    expect_metadata_error("not a valid number", key, "99999999999999999999999");
    expect_metadata_error("not a valid number", key, "many");
  }
  expect_metadata_error("is too small for the model", "layers", "1000");
  expect_metadata_error("is too small for the model", "features", "65536");
  expect_metadata_error("is too small for the model", "context", "100000");
  // A million characters with a vector for each: a file of 4 MB that implies almost a GB.
  std::string characters;
  for (char32_t c = 0x10000; c < 0x10000 + 1'000'000; ++c) {
    characters += static_cast<char>(0xF0 | c >> 18);
    for (const int shift : {12, 6, 0}) characters += static_cast<char>(0x80 | (c >> shift & 0x3F));
  }
  expect_error("is too small for the model", [&](Parts& p) {
    p.header["__metadata__"]["characters"] = characters;
    p.header["__metadata__"]["features"] = "64";
  });
  expect_metadata_error("a multiple of", "heads", "3");
  expect_metadata_error("positions.weight has shape", "context", "9");
  expect_metadata_error("\"step\"", "step", "7");
  expect_error("is too small for the losses", [](Parts& p) {
    p.header["__metadata__"]["steps"] = "10000000";
    p.header["__metadata__"]["step"] = "9000000";
  });
  expect_metadata_error("\"validations\"", "validations", "1000000");
  expect_metadata_error("losses.training has shape", "step", "3");
}

TEST_F(TrainGptFiles, InvalidNumbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  expect_error("not finite", [&](Parts& p) { p.set("tokens.weight", 5, nan); });
  expect_error("not finite", [&](Parts& p) { p.set("m.norm.weight", 0, std::numeric_limits<float>::infinity()); });
  expect_error("negative", [](Parts& p) { p.set("v.norm.weight", 0, -1); });
  expect_error("a step that was not run", [](Parts& p) { p.set("losses.validation_steps", 0, 5); });
  expect_error("a step that was not run", [](Parts& p) { p.set("losses.validation_steps", 0, -1); });
  expect_metadata_error("\"learning_rate\" must be in 0..1, but is nan", "learning_rate", "nan");
  expect_metadata_error("not a valid number", "random", "-1");
  expect_metadata_error("not a valid number", "seed", "");
  expect_metadata_error("sample.9", "sample.9", "of a step that was not run");
  expect_metadata_error("sample.x", "sample.x", "of no step");
}

TEST_F(TrainGptFiles, AnotherVocabulary) {
  expect_metadata_error("tokens.weight", "characters", "abc");
  expect_metadata_error("twice", "characters", "abca");
  expect_metadata_error("empty", "characters", "");
  expect_error("characters", [](Parts& p) { p.header["__metadata__"].erase("characters"); });
}

TEST_F(TrainGptFiles, MessagesAreOneShortLine) {
  const std::string lines = std::string(1000, 'x') + "\nsecond line\n";
  for (const char* key : {"version", "layers", "learning_rate", "random", "text_checksum", "characters"})
    expect_metadata_error("", key, lines);
  expect_metadata_error("sample.", "sample." + lines, "text");
}

TEST_F(TrainGptFiles, MissingAndExtraTensors) {
  expect_error("is missing", [](Parts& p) {
    p.header["another"] = p.header["norm.weight"];
    p.header.erase("norm.weight");
  });
}

TEST_F(TrainGptFiles, DamagedFilesGiveAnErrorOrAModel) {
  Random random(20251122);
  for (int i = 0; i < 400; ++i) {
    std::string bytes = good_;
    const auto header = static_cast<attn::Index>(good_.size() - Parts(good_).numbers.size());
    for (attn::Index changes = random.integer(1, 4); changes > 0; --changes)
      bytes[static_cast<std::size_t>(random.integer(0, header - 1))] = static_cast<char>(random.integer(0, 255));
    error_of(bytes);
  }
}

TEST_F(TrainGptFiles, AFailedSaveLeavesTheLastFile) {
  training::write_file(file_, good_);
  State state = load(file_);
  state.losses[0] += 1;
  const fs::path part = file_.string() + ".part";
  fs::create_directory(part);  // blocks the temporary file
  EXPECT_THROW(save(file_, state), nn::FileError);
  fs::remove(part);
  EXPECT_TRUE(training::read_file(file_) == good_);
  save(file_, state);
  EXPECT_FALSE(training::read_file(file_) == good_);
}

TEST_F(TrainGptFiles, Texts) {
  const auto error = [&](const std::string& bytes) {
    training::write_file(file_, bytes);
    try {
      Text{file_};
    } catch (const nn::FileError& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  EXPECT_EQ(error(""), file_.string() + ": is empty");
  EXPECT_EQ(error("ab\xff"), file_.string() + ": byte 3 is not valid UTF-8");
  EXPECT_EQ(error("\xEF\xBB\xBF"), file_.string() + ": is empty") << "only a byte order mark";
  EXPECT_EQ(error("ab"), "");
}

}  // namespace
