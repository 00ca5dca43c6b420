// Broken files and odd input in the transliteration example: an error that says what is wrong, or a result; never a
// crash, and never more memory than the file's size justifies.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <sstream>

#include <gtest/gtest.h>

#include "decode.h"
#include "model_file.h"
#include "support/allocations.h"
#include "support/tiny_model.h"
#include "transformer.h"

namespace {

namespace fs = std::filesystem;
using namespace transliterate;
using attn::test::allocations_of;
using attn::test::ModelBytes;
using attn::test::tiny_model;

constexpr const char* kName = "some/model.bin";

Transformer network_of(const std::string& bytes) {
  std::istringstream in(bytes);
  ModelFile file = ModelFile::read(in, bytes.size(), kName);
  return Transformer(file);
}

/// Returns the error message, empty if the file is accepted.
std::string error_of(const std::string& bytes) {
  try {
    network_of(bytes);
  } catch (const FileError& error) {
    return error.what();
  }
  return {};
}

void expect_error(const std::string& bytes, const std::string& part) {
  const std::string message = error_of(bytes);
  EXPECT_EQ(message.rfind(std::string(kName) + ": ", 0), 0u) << message;
  EXPECT_NE(message.find(part), std::string::npos) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

/// Whether the file is refused. A damaged file must give a network or a one-line error that names the file, and take no
/// more memory than its real size justifies.
bool is_refused(const std::string& bytes) {
  std::string message;
  const auto taken = allocations_of([&] { message = error_of(bytes); });
  // The stream, the file's variables and the network's copies of them, plus some memory for names and tables.
  EXPECT_LE(taken.peak, static_cast<std::ptrdiff_t>(6 * bytes.size() + 65536));
  if (message.empty()) return false;
  EXPECT_EQ(message.rfind(std::string(kName) + ": ", 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 400u) << message;
  return true;
}

std::string with_bytes_flipped(std::string bytes, std::mt19937& random) {
  const auto below = [&](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  for (std::size_t flips = 1 + below(4); flips > 0; --flips)
    bytes[below(bytes.size())] ^= static_cast<char>(1 + below(255));
  return bytes;
}

TEST(TinyModel, IsAcceptedAndWritesUntilStopped) {
  ASSERT_FALSE(is_refused(tiny_model().bytes()));
  const auto results = greedy(network_of(tiny_model().bytes()), {{3, 4}, {5}}, {}, attn::Path::flash);
  ASSERT_EQ(results.size(), 2u);
  for (const Scored& result : results) {
    EXPECT_LE(result.tokens.size(), kMaxTargetLength);
    EXPECT_GE(result.log_probs.size(), result.tokens.size());
  }
}

TEST(TinyModel, PaddingDoesNotChangeResults) {
  const Transformer network = network_of(tiny_model().bytes());
  const Tokens long_source{3, 4, 5, 6, 5, 4, 3, 3, 4}, short_source{5};
  const Tokens long_target{3, 4, 3, 4}, short_target{4};
  for (const auto path : {attn::Path::naive, attn::Path::flash}) {
    const auto together = score(network, {long_source, short_source}, {short_target, long_target}, path);
    const auto first = score(network, {long_source}, {short_target}, path);
    const auto second = score(network, {short_source}, {long_target}, path);
    ASSERT_EQ(together[0].log_probs.size(), 2u);
    ASSERT_EQ(together[1].log_probs.size(), 5u);
    for (std::size_t t = 0; t < 2; ++t) EXPECT_NEAR(together[0].log_probs[t], first[0].log_probs[t], 1e-5f);
    for (std::size_t t = 0; t < 5; ++t) EXPECT_NEAR(together[1].log_probs[t], second[0].log_probs[t], 1e-5f);
    EXPECT_GT(std::abs(together[0].log_probs[0] - together[1].log_probs[0]), 1e-3f)
        << "the sources must affect the results";
  }
}

TEST(BrokenModel, TruncatedAnywhere) {
  const std::string bytes = tiny_model().bytes();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    EXPECT_TRUE(is_refused(part)) << size << " of " << bytes.size() << " bytes";
    expect_error(part, size == 0 ? "empty" : "truncated");
    if (HasFailure()) break;
  }
}

TEST(BrokenModel, BytesFlippedAnywhere) {
  const std::string bytes = tiny_model().bytes();
  std::mt19937 random(7);
  int refused = 0;
  for (int trial = 0; trial < 3000 && !HasFailure(); ++trial) {
    const std::string damaged = with_bytes_flipped(bytes, random);
    SCOPED_TRACE("trial " + std::to_string(trial));
    if (is_refused(damaged)) {
      ++refused;
      continue;
    }
    const Transformer network = network_of(damaged);
    if (network.source_tokens() < 6 || network.target_tokens() < 5) continue;
    try {
      score(network, {{3, 4}, {5}}, {{3}, {4, 3}}, attn::Path::flash);
    } catch (const std::runtime_error&) {  // weights so large that the network overflows
    }
  }
  EXPECT_GT(refused, 300) << "names, sizes and counts are a large part of this file";
  EXPECT_LT(refused, 2900) << "most flipped weights are still valid";
}

TEST(BrokenModel, ErrorsSayWhatIsWrong) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
  expect_error("", "the file is empty");
  expect_error("These are words, and no model.", "not a model file");
  expect_error(ModelBytes(3).bytes(), "version 3, but only version 2");
  expect_error(ModelBytes(2, "WhisperSpec").bytes(), "kind \"WhisperSpec\"");
  expect_error(ModelBytes(2, "TransformerBase", 7).bytes(), "revision 7");
  expect_error(tiny_model().append("12345").bytes(), "5 bytes follow");
  expect_error(tiny_model().claim_variables(0xFFFFFFFF).bytes(), "truncated");
  expect_error(ModelBytes().bytes(), "\"encoder/embeddings/weight\" is missing");
  expect_error(ModelBytes().add("x", {2}).add("x", {2}).bytes(), "\"x\" appears twice");
  expect_error(tiny_model().add("decoder/layer_7/ffn/linear_0/bias", {2}).bytes(), "belongs to no part");
  expect_error(ModelBytes().add_raw("x", {2, 3}, 2, 6, {}).bytes(), "items of 2 bytes");
  expect_error(ModelBytes().add_raw("x", {2, 3}, 4, 5, {1, 2, 3, 4, 5}).bytes(), "5 items for the shape 2 x 3");
  expect_error(ModelBytes().add_raw("x", {1, 1, 1, 1, 1}, 4, 1, {1}).bytes(), "5 dimensions");
  expect_error(ModelBytes().add_raw("x", {2}, 4, 2, {1, kNaN}).bytes(), "not finite");
  expect_error(ModelBytes().add("encoder/embeddings/weight", {3}).bytes(), "2 dimensions are needed");
  expect_error(ModelBytes().add("encoder/embeddings/weight", {3, 12}).bytes(), "12 columns");
  expect_error(ModelBytes().add("encoder/embeddings/weight", {3, 8}).add("decoder/embeddings/weight", {3, 16}).bytes(),
               "3 x 16, but 3 x 8 is needed");
}

TEST(BrokenModel, ClaimsOfHugeArraysAllocateNothing) {
  // Sizes whose product wraps around 2^32 or 2^64 to a small number, and counts that the file cannot hold.
  const std::vector<std::vector<std::uint32_t>> shapes{{0xFFFFFFFF},
                                                       {0x40000000},
                                                       {0x10000, 0x10000},
                                                       {0x80000000, 2, 0x80000000, 4},
                                                       {0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0xFFFFFFFF}};
  for (const auto& shape : shapes)
    for (const std::uint32_t count : {0u, 1u, 0x40000000u, 0xFFFFFFFFu}) {
      const std::string bytes = ModelBytes().add_raw("x", shape, 4, count, {1}).bytes();
      EXPECT_TRUE(is_refused(bytes)) << count;
      expect_error(bytes, shape.size() == 1 && shape[0] == count ? "truncated" : "items for the shape");
    }
}

TEST(BrokenModel, TrainedModelTruncatedOrFlipped) {
  const fs::path path = fs::path(ATTN_SHARED_DIR) / "models" / "transliteration" / "v2-f32" / "model.bin";
  if (!fs::exists(path))
    GTEST_SKIP() << "the trained model is missing: " << path.string()
                 << "; set ATTN_SHARED_DIR to the folder of models/";
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  const std::string bytes = content.str();
  ASSERT_FALSE(is_refused(bytes));

  std::vector<std::size_t> sizes;
  for (std::size_t size = 0; size < 256; ++size) sizes.push_back(size);
  for (std::size_t i = 0; i < 400; ++i) sizes.push_back(256 + i * (bytes.size() - 256) / 400);
  sizes.push_back(bytes.size() - 1);
  for (const std::size_t size : sizes) EXPECT_TRUE(is_refused(bytes.substr(0, size))) << size;

  std::mt19937 random(11);
  for (int trial = 0; trial < 200 && !HasFailure(); ++trial) is_refused(with_bytes_flipped(bytes, random));
}

/// A folder with a tiny model that a test may damage, removed with the test.
class ModelFolder : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = fs::path(::testing::TempDir()) / (std::string("attn_transliterate_") + test->name());
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write("model.bin", tiny_model().bytes());
    write("source_vocabulary.txt", "<blank>\n<s>\n</s>\nا\nب\nت\n");
    write("target_vocabulary.txt", "<blank>\n<s>\n</s>\na\nb\n");
  }
  void TearDown() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name, std::ios::binary) << content;
  }

  /// Checks that loading fails with one line that names the file and contains `part`.
  void expect_error(const std::string& file, const std::string& part) const {
    try {
      Model::load(folder_);
      FAIL() << "nothing was thrown";
    } catch (const FileError& error) {
      const std::string message = error.what();
      EXPECT_EQ(message.rfind((folder_ / file).string() + ": ", 0), 0u) << message;
      EXPECT_NE(message.find(part), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }

  fs::path folder_;
};

TEST_F(ModelFolder, LoadsAndTransliterates) {
  const Model model = Model::load(folder_);
  EXPECT_EQ(model.source.id("ب"), 4);
  EXPECT_EQ(model.source.id("?"), 6);
  EXPECT_EQ(model.target.token(5), "<unk>");
  EXPECT_THROW(model.target.token(6), std::out_of_range);
}

TEST_F(ModelFolder, InvalidModelFiles) {
  fs::resize_file(folder_ / "model.bin", 1000);
  expect_error("model.bin", "truncated");
  write("model.bin", "");
  expect_error("model.bin", "empty");
  fs::remove(folder_ / "model.bin");
  expect_error("model.bin", "no such file");
  fs::create_directory(folder_ / "model.bin");
  expect_error("model.bin", "not a regular file");
}

TEST_F(ModelFolder, InvalidVocabularies) {
  const std::string file = "target_vocabulary.txt";
  write(file, "<blank>\n<s>\n</s>\na\n");
  expect_error(file, "4 tokens and <unk>, but the decoder");
  write(file, "a\nb\nc\nd\ne\n");
  expect_error(file, "lines 2 and 3");
  write(file, "<blank>\n<s>\n</s>\na\na\n");
  expect_error(file, "line 5 repeats the token a");
  write(file, "<blank>\n<s>\n</s>\na\n\xFF\n");
  expect_error(file, "line 5 is not valid UTF-8");
  write(file, "<blank>\n<s>\n</s>\n\nb\n");
  expect_error(file, "line 4 is empty");
  write(file, "");
  expect_error(file, "not a vocabulary");
  write(file, std::string(2 << 20, 'a'));
  expect_error(file, "too large");
  fs::remove(folder_ / file);
  expect_error(file, "no such file");
  fs::remove(folder_ / "source_vocabulary.txt");
  fs::create_directory(folder_ / "source_vocabulary.txt");
  expect_error("source_vocabulary.txt", "not a regular file");
}

TEST_F(ModelFolder, VocabularyWithCarriageReturns) {
  write("target_vocabulary.txt", "<blank>\r\n<s>\r\n</s>\r\na\r\nb\r\n");
  EXPECT_EQ(Model::load(folder_).target.id("b"), 4);
}

}  // namespace
