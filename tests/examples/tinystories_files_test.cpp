// Broken checkpoints and tokenizers in the tinystories example: an error that says what is wrong, or a network; never a
// crash, and never more memory than the file's size justifies.
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint.h"
#include "sampler.h"
#include "support/allocations.h"
#include "support/random.h"
#include "support/tiny_llama.h"
#include "tokenizer.h"
#include "transformer.h"

namespace {

namespace fs = std::filesystem;
using namespace tinystories;
using attn::test::allocations_of;
using attn::test::Random;
using attn::test::TinyLlama;
using attn::test::tokenizer_bytes;

constexpr const char* kName = "some/file.bin";
constexpr std::uint64_t kSeed = 20240229;

std::string checkpoint() { return TinyLlama({}, 1).bytes(); }
std::string tokenizer() { return tokenizer_bytes({"ab", "a", "b", " ", " a", "abab", "\u20AC"}); }
constexpr Index kVocabSize = Tokenizer::kFirstPiece + 7;

using Load = std::function<void(const std::string&)>;
void load_checkpoint(const std::string& bytes) { Checkpoint(BinaryFile(bytes, kName)); }
void load_tokenizer(const std::string& bytes) { Tokenizer(BinaryFile(bytes, kName), kVocabSize); }

/// Returns the error message, empty if the file is accepted. Checks that the peak memory is at most a few times the
/// file's size, which covers its bytes in a stream, the numbers or tokens read from it, and a tokenizer's tables.
std::string error_of(const Load& load, const std::string& bytes) {
  std::string message;
  const auto taken = allocations_of([&] {
    try {
      load(bytes);
    } catch (const FileError& error) {
      message = error.what();
    }
  });
  EXPECT_LE(taken.peak, static_cast<std::ptrdiff_t>(16 * bytes.size() + 65536));
  if (message.empty()) return message;
  EXPECT_EQ(message.rfind(std::string(kName) + ": ", 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  EXPECT_LT(message.size(), 300u) << message;
  return message;
}

void expect_error(const Load& load, const std::string& bytes, const std::string& part) {
  const std::string message = error_of(load, bytes);
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" should say: " << part;
}

std::string with_u32(std::string bytes, std::size_t at, std::uint32_t x) {
  for (std::size_t i = 0; i < 4; ++i) bytes[at + i] = static_cast<char>(x >> (8 * i) & 0xFF);
  return bytes;
}

/// Returns the bytes with random damage or forged sizes.
std::string damaged(std::string bytes, std::size_t header_words, Random& random) {
  const auto below = [&](std::size_t n) {
    return static_cast<std::size_t>(random.integer(0, static_cast<Index>(n) - 1));
  };
  const auto byte = [&] { return static_cast<char>(random.integer(0, 255)); };
  constexpr std::uint32_t kNumbers[] = {
      0, 1, 2, 3, 4, 7, 8, 16, 0xFFFF, 0x8000, 0x40000000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE, 0x10000};
  for (Index changes = random.integer(1, 3); changes > 0; --changes) {
    switch (random.integer(0, 5)) {
      case 0:
        bytes[below(bytes.size())] ^= static_cast<char>(1 << random.integer(0, 7));
        break;
      case 1:
        bytes[below(bytes.size())] = byte();
        break;
      case 2:
        bytes = with_u32(bytes, 4 * below(header_words), random.pick(kNumbers));
        break;
      case 3:
        bytes = with_u32(bytes, below(bytes.size() - 3), random.pick(kNumbers));
        break;
      case 4:
        bytes.erase(below(bytes.size()), below(9));
        break;
      case 5:
        bytes.insert(below(bytes.size()), 1 + below(8), byte());
        break;
    }
    if (bytes.size() < 4 * header_words) break;
  }
  return bytes;
}

/// Damages the file in many trials, and uses the files that are still accepted.
void fuzz(const std::string& bytes, std::size_t header_words, const Load& load, const Load& use) {
  std::cout << "seed " << kSeed << '\n';
  Random random(kSeed);
  int refused = 0, accepted = 0;
  for (int trial = 0; trial < 4000 && !::testing::Test::HasFailure(); ++trial) {
    SCOPED_TRACE("trial " + std::to_string(trial));
    const std::string file = damaged(bytes, header_words, random);
    const bool is_refused = !error_of(load, file).empty();
    ++(is_refused ? refused : accepted);
    if (!is_refused) use(file);
  }
  EXPECT_GT(refused, 1000) << "sizes and lengths are a large part of this file";
  EXPECT_GT(accepted, 200) << "most damaged values are still valid";
}

TEST(BrokenCheckpoint, TheTinyOneIsAccepted) {
  EXPECT_EQ(error_of(load_checkpoint, checkpoint()), "");
  EXPECT_EQ(error_of(load_checkpoint, TinyLlama({.tied = false}, 2).bytes()), "");
}

TEST(BrokenCheckpoint, TruncatedAnywhere) {
  const std::string bytes = checkpoint();
  for (std::size_t size = 0; size < bytes.size() && !HasFailure(); ++size) {
    const std::string part = size == 0 ? "the file is empty" : size < 28 ? "truncated: the header" : "the header needs";
    expect_error(load_checkpoint, bytes.substr(0, size), part);
  }
}

TEST(BrokenCheckpoint, Fuzzed) {
  fuzz(checkpoint(), 7, load_checkpoint, [](const std::string& bytes) {
    const Transformer network{Checkpoint(BinaryFile(bytes, kName))};
    if (network.config().vocab_size < 3 || network.config().seq_len < 2) return;
    const bool paged = bytes.size() % 2 == 0;
    Context context(network.config(), {.paged = paged, .capacity = 2, .page_size = 2});
    const Matrix logits = network.logits(network.forward(Tokens{1, 2}, context, {.executor = attn::serial()}));
    try {
      Sampler(SamplerOptions{})({logits.data(), static_cast<std::size_t>(logits.cols())});
    } catch (const std::runtime_error&) {  // weights so large that the network overflows
    }
  });
}

TEST(BrokenCheckpoint, ErrorsSayWhatIsWrong) {
  const auto expect = [](std::size_t word, std::int32_t value, const std::string& part) {
    expect_error(load_checkpoint, with_u32(checkpoint(), 4 * word, static_cast<std::uint32_t>(value)), part);
  };
  constexpr std::int32_t kMin = std::numeric_limits<std::int32_t>::min();
  expect(0, 0, "dim must be positive, but is 0");
  expect(1, -6, "hidden_dim must be positive, but is -6");
  expect(2, kMin, "n_layers must be positive, but is -2147483648");
  expect(3, 0, "n_heads must be positive, but is 0");
  expect(4, -1, "n_kv_heads must be positive, but is -1");
  expect(5, 0, "vocab_size must be positive, but is 0");
  expect(6, 0, "seq_len must be positive, but is 0");
  expect(0, 6, "dim 6 is not a multiple of n_heads 4");
  expect(4, 3, "n_heads 4 is not a multiple of n_kv_heads 3");
  expect(3, 8, "dim 8 and n_heads 8 give heads of 1 features");
  expect(5, -5, "the header needs 3244 bytes, but the file has 3084");
  expect(5, 6, "the header needs 3116 bytes, but the file has 3084");
  expect(5, kMin, "the header needs");
  expect_error(load_checkpoint, checkpoint() + "12345", "the header needs 3084 bytes, but the file has 3089");
  expect_error(load_checkpoint, "These are words, and no network at all.", "not a multiple");

  TinyLlama not_a_number({}, 1), infinite({}, 1);
  not_a_number.layers[1].wk[3][7] = std::numeric_limits<float>::quiet_NaN();
  expect_error(load_checkpoint, not_a_number.bytes(), "number 64 of 64 in wk is not finite");
  infinite.embedding[0][0] = -std::numeric_limits<float>::infinity();
  expect_error(load_checkpoint, infinite.bytes(), "number 1 of 40 in the embedding is not finite");
}

TEST(BrokenCheckpoint, SizesThatWrapAround) {
  const auto expect = [](const std::vector<std::uint32_t>& header) {
    std::string bytes = checkpoint();
    for (std::size_t i = 0; i < header.size(); ++i) bytes = with_u32(bytes, 4 * i, header[i]);
    expect_error(load_checkpoint, bytes, "the header needs more than");
  };
  constexpr std::uint32_t kLarge = 0x40000000, kMost = 0x7FFFFFFF;
  expect({1 << 24, 1, 1 << 16, 4, 4, 4, 4});  // dim * dim * n_layers is 2^64, all others are small
  expect({kLarge, 4, kLarge, 4, 4, 4, 4});
  expect({kLarge, kLarge, kLarge, 1, 1, kLarge, kLarge});
  expect({kMost - 1, kMost, kMost, 1, 1, kMost, kMost});
  expect({8, kLarge, kLarge, 4, 2, 5, 6});
  expect({kLarge, 4, 1, kLarge / 2, kLarge / 2, 4, 4});
}

TEST(BrokenTokenizer, TheTinyOneIsAccepted) { EXPECT_EQ(error_of(load_tokenizer, tokenizer()), ""); }

TEST(BrokenTokenizer, TruncatedAnywhere) {
  const std::string bytes = tokenizer();
  for (std::size_t size = 0; size < bytes.size() && !HasFailure(); ++size)
    expect_error(load_tokenizer, bytes.substr(0, size), size == 0 ? "the file is empty" : "truncated: ");
}

TEST(BrokenTokenizer, Fuzzed) {
  fuzz(tokenizer(), 1, load_tokenizer, [](const std::string& bytes) {
    const Tokenizer tokenizer(BinaryFile(bytes, kName), kVocabSize);
    const std::string text = "abab\xFF\u20AC";
    std::string again;
    const Tokens tokens = tokenizer.encode(text);
    for (std::size_t i = 1; i < tokens.size(); ++i) again += tokenizer.decode(tokens[i - 1], tokens[i]);
    EXPECT_EQ(again, text);
  });
}

TEST(BrokenTokenizer, ErrorsSayWhatIsWrong) {
  const std::size_t scores = 4;                          // of token 0, followed by its length
  const std::size_t byte_0 = 4 + 8 + 5 + 8 + 5 + 8 + 6;  // after the three special tokens
  const auto expect = [](const std::string& bytes, const std::string& part) {
    expect_error(load_tokenizer, bytes, part);
  };
  expect(with_u32(tokenizer(), scores, 0x7FC00000), "token 0 has a score that is not a number");
  expect(with_u32(tokenizer(), scores + 4, 0), "token 0 is empty");
  expect(with_u32(tokenizer(), scores + 4, 13), "token 0 has 13 bytes, but the file's maximum is 12");
  expect(with_u32(with_u32(tokenizer(), 0, 0xFFFFFFFF), scores + 4, 0xFFFFFFFF),
         "truncated: token 0 of 266 needs 4294967295 bytes at offset 12");
  expect(with_u32(tokenizer(), byte_0 + 8, 0), "token 3 is not the byte <0x00>");
  expect(tokenizer_bytes({"a", "b", "c", "a", "d", "e", "f"}), "token 262 repeats token 259");
  expect(tokenizer() + "123", "3 bytes follow the last of the network's 266 tokens");
  expect(tokenizer_bytes({"a"}), "truncated: ");
  const auto for_few = [](const std::string& bytes) { Tokenizer(BinaryFile(bytes, kName), 258); };
  expect_error(for_few, tokenizer(), "the network has 258 tokens, but 259 are needed");
  const auto for_many = [](const std::string& bytes) { Tokenizer(BinaryFile(bytes, kName), 0x7FFFFFFF); };
  expect_error(for_many, tokenizer(), "truncated: the network has 2147483647 tokens, which do not fit in ");
}

TEST(BrokenFile, IsNamed) {
  const fs::path folder = fs::path(::testing::TempDir()) / "attn_tinystories_files";
  fs::create_directories(folder);
  const auto error = [&](const fs::path& path) -> std::string {
    try {
      BinaryFile file(path);
    } catch (const FileError& e) {
      return e.what();
    }
    return "";
  };
  std::ofstream(folder / "empty");
  std::ofstream(folder / "short") << "abc";
  EXPECT_EQ(error(folder / "missing"), (folder / "missing").string() + ": there is no such file");
  EXPECT_EQ(error(folder / "short" / "below"), (folder / "short" / "below").string() + ": there is no such file");
  EXPECT_EQ(error(folder), folder.string() + ": not a regular file");
  EXPECT_EQ(error(folder / "empty"), (folder / "empty").string() + ": the file is empty");
  EXPECT_EQ(error(folder / "short"), "");
  BinaryFile shrunk(folder / "short");
  fs::resize_file(folder / "short", 1);
  EXPECT_THROW(shrunk.bytes(3, "it"), FileError);
  fs::remove_all(folder);
}

}  // namespace
