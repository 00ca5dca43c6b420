// Files of trained translators, which are not trusted.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <stdexcept>
#include <string>

#include <gtest/gtest.h>

#include "printable.h"
#include "safetensors.h"
#include "translate.h"

namespace {

using namespace translation;
namespace fs = std::filesystem;

class TranslatorFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(testing::TempDir()) / "train_translation" /
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    small().save(file());
  }
  void TearDown() override { fs::remove_all(folder_); }

  static Translator small(std::uint64_t seed = 5) {
    return {Characters::from_text("你好不见久"), Pieces::learn({"no see", "no time, see", "long time"}, 10),
            Sizes{1, 2, 8, 2, 12}, 0.1, seed};
  }

  fs::path file() const { return folder_ / "model.safetensors"; }

  static std::string bytes_of(const fs::path& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write(const fs::path& file, const std::string& bytes) { std::ofstream(file, std::ios::binary) << bytes; }

  /// The error message of load() without the file's name. Checks that it is one line that begins with the name.
  std::string fault() const {
    try {
      Translator::load(file());
    } catch (const nn::FileError& error) {
      const std::string message = error.what();
      EXPECT_TRUE(message.starts_with(file().string() + ": ")) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
      return message.substr(file().string().size() + 2);
    }
    return "nothing";
  }

  /// Writes the file with a changed metadata entry.
  void change(const std::string& key, const std::string& text) const {
    Translator translator = small();
    nn::Metadata metadata = nn::SafeTensors(file()).metadata();
    metadata[key] = text;
    nn::save_safetensors(file(), nn::parameters_of<float>(translator.model), metadata);
  }

  fs::path folder_;
};

TEST_F(TranslatorFile, RoundTrips) {
  Translator saved = small();
  Translator loaded = Translator::load(file());
  EXPECT_EQ(loaded.characters.text(), saved.characters.text());
  EXPECT_EQ(loaded.pieces.merges(), saved.pieces.merges());
  const auto a = nn::parameters_of<float>(saved.model), b = nn::parameters_of<float>(loaded.model);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(std::equal(a[i].values.begin(), a[i].values.end(), b[i].values.begin(), b[i].values.end()))
        << a[i].name;
  loaded.save(folder_ / "again");
  EXPECT_EQ(bytes_of(folder_ / "again"), bytes_of(file()));
}

TEST_F(TranslatorFile, TruncatedAnywhere) {
  const std::string whole = bytes_of(file());
  for (std::size_t size = 0; size < whole.size(); size += 1 + size / 7) {
    write(file(), whole.substr(0, size));
    EXPECT_NE(fault(), "nothing") << size << " bytes";
  }
  write(file(), whole + "x");
  EXPECT_NE(fault(), "nothing");
}

TEST_F(TranslatorFile, OtherFiles) {
  write(file(), "These are words, and no model.\n");
  EXPECT_NE(fault(), "nothing");
  fs::remove(file());
  EXPECT_NE(fault(), "nothing");
  fs::create_directory(file());
  EXPECT_NE(fault(), "nothing");
}

TEST_F(TranslatorFile, OtherModels) {
  change("format", "attn gpt");
  EXPECT_EQ(fault(), "is not a model of train_translation");
}

TEST_F(TranslatorFile, OtherVersions) {
  change("version", "2");
  EXPECT_EQ(fault(), "\"version\" is \"2\", not a number from 1 to 1");
}

TEST_F(TranslatorFile, OtherVocabularies) {
  change("characters", "你好不见");
  EXPECT_EQ(fault(), "source_tokens.weight has shape [7,8], but the model needs [6,8]");
  change("characters", "你好不见久你");
  EXPECT_EQ(fault(), "its \"characters\": 你 appears twice");
  change("characters", "你好不见久");
  change("merges", "110 111");
  EXPECT_TRUE(fault().starts_with("target_tokens.weight has shape ")) << fault();
  change("merges", "110 9999");
  EXPECT_EQ(fault(), "its \"merges\": joins something that is not a piece");
}

TEST_F(TranslatorFile, HugeSizes) {
  for (const char* key : {"features", "hidden", "encoder_layers", "decoder_layers"}) {
    change(key, "1000000000000");
    EXPECT_NE(fault().find("not a number from 1"), std::string::npos) << fault();
    change(key, key == std::string("hidden") ? "65536" : key == std::string("features") ? "16384" : "100");
    EXPECT_EQ(fault(), "is too small for the sizes that it states") << key;
    SetUp();
  }
  for (const char* wrong : {"-1", "0", "x", "", "3"}) {
    change("heads", wrong);
    EXPECT_NE(fault(), "nothing") << wrong;
  }
}

TEST_F(TranslatorFile, NonFiniteValues) {
  for (const float wrong : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    Translator translator = small();
    translator.save(file());
    const std::string good = bytes_of(file());
    nn::parameters_of<float>(translator.model).back().values.back() = wrong;
    EXPECT_THROW(translator.save(file()), nn::FileError);
    EXPECT_EQ(bytes_of(file()), good);

    // The last value of the file belongs to the last parameter.
    std::fstream bytes(file(), std::ios::binary | std::ios::in | std::ios::out);
    bytes.seekp(-static_cast<std::streamoff>(sizeof wrong), std::ios::end);
    bytes.write(reinterpret_cast<const char*>(&wrong), sizeof wrong);
    bytes.close();
    EXPECT_NE(fault().find("not finite"), std::string::npos) << fault();
  }
}

TEST_F(TranslatorFile, AFailedSaveKeepsTheLastGoodFile) {
  const std::string before = bytes_of(file());
  fs::create_directory(file().string() + ".part");  // blocks the temporary file
  Translator other = small(6);
  EXPECT_THROW(other.save(file()), nn::FileError);
  EXPECT_EQ(bytes_of(file()), before);
  EXPECT_THROW(other.save(folder_ / "no" / "such" / "folder"), nn::FileError);
}

/// An untrained model may write any bytes.
TEST_F(TranslatorFile, OutputIsOneLineOfUtf8) {
  const auto lines = translate(Translator::load(file()), {"你好"}, {});
  EXPECT_EQ(lines[0], nn::as_line(lines[0]));
}

TEST_F(TranslatorFile, SizesBeyondAnyMemoryAreRefused) {
  EXPECT_THROW(
      Translator(Characters::from_text("你"), Pieces::learn({}, 0), Sizes{100, 100, 1 << 14, 1, 1 << 16}, 0, 1),
      std::invalid_argument);
}

}  // namespace
