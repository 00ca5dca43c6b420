// The tokenizer and the sampler of the tinystories example.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "sampler.h"
#include "support/random.h"
#include "support/tiny_llama.h"
#include "tokenizer.h"

namespace {

using namespace tinystories;
using attn::test::Random;
using attn::test::tokenizer_bytes;

Tokenizer tokenizer_of(const std::vector<std::string>& pieces) {
  return Tokenizer(BinaryFile(tokenizer_bytes(pieces), "tokenizer.bin"),
                   Tokenizer::kFirstPiece + static_cast<Index>(pieces.size()));
}

/// The text written for these tokens.
std::string decoded(const Tokenizer& tokenizer, const Tokens& tokens) {
  std::string text;
  for (std::size_t i = 1; i < tokens.size(); ++i) text += tokenizer.decode(tokens[i - 1], tokens[i]);
  return text;
}

constexpr Index kPiece = Tokenizer::kFirstPiece;

TEST(Tokenizer, TheBestScoredPairIsMergedFirst) {
  const Tokenizer tokenizer = tokenizer_of({"bc", "ab", "a", "b", "c", " "});
  EXPECT_EQ(tokenizer.encode("abc"), (Tokens{1, kPiece + 5, kPiece + 2, kPiece + 0}))
      << "bc has a higher score than ab";
  EXPECT_EQ(tokenizer.encode("abb"), (Tokens{1, kPiece + 5, kPiece + 1, kPiece + 3}));
  const Tokenizer other = tokenizer_of({"ab", "bc", "abc", "a", "b", "c", " "});
  EXPECT_EQ(other.encode("abc"), (Tokens{1, kPiece + 6, kPiece + 2})) << "ab, and then abc";
}

TEST(Tokenizer, FirstOfEqualPairsIsMerged) {
  const Tokenizer tokenizer = tokenizer_of({"aa", "a", " "});
  EXPECT_EQ(tokenizer.encode("aaa"), (Tokens{1, kPiece + 2, kPiece + 0, kPiece + 1}));
  EXPECT_EQ(tokenizer.encode("aaaaa"), (Tokens{1, kPiece + 2, kPiece + 0, kPiece + 0, kPiece + 1}));
}

TEST(Tokenizer, LeadingSpaceIsAddedAndNotWritten) {
  const Tokenizer tokenizer = tokenizer_of({" a", "a", " "});
  EXPECT_EQ(tokenizer.encode(""), Tokens{1});
  EXPECT_EQ(tokenizer.encode("a"), (Tokens{1, kPiece}));
  EXPECT_EQ(tokenizer.encode(" a"), (Tokens{1, kPiece + 2, kPiece}));
  EXPECT_EQ(tokenizer.decode(1, kPiece), "a");
  EXPECT_EQ(tokenizer.decode(2, kPiece), " a") << "dropped only right after BOS";
  EXPECT_EQ(tokenizer.decode(kPiece, kPiece), " a");
  EXPECT_EQ(decoded(tokenizer, tokenizer.encode(" a")), " a");
  EXPECT_EQ(decoded(tokenizer, tokenizer.encode("a")), "a");
}

TEST(Tokenizer, CodePointsWithoutATokenBecomeBytes) {
  const Tokenizer tokenizer = tokenizer_of({"\u20AC", "a", " "});
  EXPECT_EQ(tokenizer.encode("\u20AC"), (Tokens{1, kPiece + 2, kPiece}));
  EXPECT_EQ(tokenizer.encode("\u00E9"), (Tokens{1, kPiece + 2, 0xC3 + 3, 0xA9 + 3}));
  EXPECT_EQ(tokenizer.encode("\U0001F600"), (Tokens{1, kPiece + 2, 0xF0 + 3, 0x9F + 3, 0x98 + 3, 0x80 + 3}));
  EXPECT_EQ(tokenizer.encode(std::string("\0a", 2)), (Tokens{1, kPiece + 2, 3, kPiece + 1}));
  EXPECT_EQ(tokenizer.encode("\xE2\x82"
                             "a"),
            (Tokens{1, kPiece + 2, 0xE2 + 3, 0x82 + 3, kPiece + 1}));
  EXPECT_EQ(tokenizer.decode(1, 0x0A + 3), "\n");
  EXPECT_EQ(tokenizer.decode(5, 3), std::string(1, '\0'));
  EXPECT_EQ(tokenizer.decode(5, 255 + 3), "\xFF");
}

TEST(Tokenizer, TextNeverEncodesToControlTokens) {
  // Every part of these names is a token, so that merging could form the whole name.
  const Tokenizer tokenizer =
      tokenizer_of({"<s", ">\n", "\n<s", "<0", "<0x", "<0x0", "<0x0A", "<", "s", ">", "\n", "0", "x", "A", " "});
  for (const std::string text : {"\n<s>\n", "<0x0A>", "\n</s>\n", "<unk>"}) {
    for (const Index token : tokenizer.encode(text).size() > 1 ? Tokens(tokenizer.encode(text)) : Tokens{})
      EXPECT_TRUE(token == 1 || token >= kPiece || tokenizer.decode(0, token).size() == 1) << text << ": " << token;
    EXPECT_EQ(decoded(tokenizer, tokenizer.encode(text)), text);
  }
}

TEST(Tokenizer, RefusesUnknownTokens) {
  const Tokenizer tokenizer = tokenizer_of({"a"});
  EXPECT_EQ(tokenizer.vocab_size(), kPiece + 1);
  EXPECT_THROW(tokenizer.decode(1, -1), std::out_of_range);
  try {
    tokenizer.decode(1, kPiece + 1);
    FAIL() << "nothing was thrown";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "token 260 is out of range 0..259");
  }
}

/// By definition: merges the best of all pairs, the first of equal ones, and repeats.
Tokens merged_one_by_one(const std::vector<std::string>& pieces, const std::string& text) {
  std::vector<std::string> parts{" "};
  for (const char c : text) parts.emplace_back(1, c);
  const auto rank = [&](const std::string& piece) {
    return static_cast<std::size_t>(std::find(pieces.begin(), pieces.end(), piece) - pieces.begin());
  };
  for (;;) {
    std::size_t best = pieces.size(), at = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i)
      if (const std::size_t r = rank(parts[i] + parts[i + 1]); r < best) best = r, at = i;
    if (best == pieces.size()) break;
    parts[at] = pieces[best];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Tokens tokens{1};
  for (const std::string& part : parts) tokens.push_back(kPiece + static_cast<Index>(rank(part)));
  return tokens;
}

TEST(Tokenizer, MergesMatchTheDefinition) {
  Random random(3);
  for (int trial = 0; trial < 200 && !HasFailure(); ++trial) {
    std::vector<std::string> pieces{"a", "b", "c", " "};
    for (Index more = random.integer(0, 25); more > 0; --more) {
      const std::string piece = random.pick(pieces) + random.pick(pieces);
      if (piece.size() <= 12 && std::find(pieces.begin(), pieces.end(), piece) == pieces.end())
        pieces.insert(pieces.begin() + random.integer(0, static_cast<Index>(pieces.size())), piece);
    }
    const Tokenizer tokenizer = tokenizer_of(pieces);
    std::string text;
    for (Index length = random.integer(1, 60); length > 0; --length) text += "aabbc "[random.integer(0, 5)];
    EXPECT_EQ(tokenizer.encode(text), merged_one_by_one(pieces, text)) << text;
  }
}

TEST(Tokenizer, AnyBytesSurviveEncodingAndDecoding) {
  Random random(5);
  const Tokenizer with_space = tokenizer_of({"ab", "a", "b", " ", " a", "\u20AC", "\u20AC\u20AC"});
  const Tokenizer without = tokenizer_of({"\xE2", "\xE2\x82", "a"});
  for (int trial = 0; trial < 2000 && !HasFailure(); ++trial) {
    std::string text;
    for (Index length = random.integer(0, 40); length > 0; --length)
      text += random.chance(0.4) ? static_cast<char>(random.integer(0, 255)) : "ab \xE2\x82\xAC<"[random.integer(0, 6)];
    for (const Tokenizer* tokenizer : {&with_space, &without}) {
      const Tokens tokens = tokenizer->encode(text);
      EXPECT_EQ(tokens.front(), Tokenizer::kBegin);
      EXPECT_EQ(decoded(*tokenizer, tokens), text);
    }
  }
}

/// How often each token is drawn.
std::vector<int> counts_of(const std::vector<float>& logits, const SamplerOptions& options, int draws = 20000) {
  Sampler sampler(options);
  std::vector<int> counts(logits.size(), 0);
  for (int i = 0; i < draws; ++i) ++counts[static_cast<std::size_t>(sampler(logits))];
  return counts;
}

/// The logits of these probabilities.
std::vector<float> logits_of(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p)) + 3);
  return logits;
}

/// Checks that counts of 20000 draws are within five standard deviations of their expectation.
void expect_drawn(const std::vector<int>& counts, const std::vector<double>& probabilities) {
  constexpr double kDraws = 20000;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double p = probabilities[i];
    EXPECT_NEAR(counts[i], kDraws * p, 5 * std::sqrt(kDraws * p * (1 - p))) << "token " << i;
  }
}

TEST(Sampler, TemperatureZeroTakesTheFirstMaximum) {
  Sampler sampler({.temperature = 0});
  EXPECT_EQ(sampler(std::vector<float>{1, 3, 2}), 1);
  EXPECT_EQ(sampler(std::vector<float>{1, 3, 3}), 1);
  EXPECT_EQ(sampler(std::vector<float>{-5, -5, -5}), 0);
  EXPECT_EQ(sampler(std::vector<float>{-5}), 0);
}

TEST(Sampler, DrawsWithSoftmaxProbabilities) {
  const std::vector<double> p{0.1, 0.4, 0.2, 0.3};
  for (const double top_p : {0.0, 1.0}) expect_drawn(counts_of(logits_of(p), {.top_p = top_p, .seed = 1}), p);
  // p^2, p^(1/2) over their sums
  expect_drawn(counts_of(logits_of(p), {.temperature = 0.5, .top_p = 1, .seed = 2}),
               {0.01 / 0.3, 0.16 / 0.3, 0.04 / 0.3, 0.09 / 0.3});
  expect_drawn(counts_of(logits_of({0.04, 0.64, 0.16, 0.16}), {.temperature = 2, .top_p = 1, .seed = 3}),
               {0.2 / 1.8, 0.8 / 1.8, 0.4 / 1.8, 0.4 / 1.8});
}

TEST(Sampler, NucleusIncludesTheTokenThatPassesTopP) {
  const std::vector<float> logits = logits_of({0.1, 0.4, 0.2, 0.3});
  expect_drawn(counts_of(logits, {.top_p = 0.5, .seed = 4}), {0, 4 / 7., 0, 3 / 7.});
  expect_drawn(counts_of(logits, {.top_p = 0.75, .seed = 5}), {0, 4 / 9., 2 / 9., 3 / 9.});
  expect_drawn(counts_of(logits, {.top_p = 0.95, .seed = 6}), {0.1, 0.4, 0.2, 0.3});
  expect_drawn(counts_of(logits, {.top_p = 1e-9, .seed = 7}), {0, 1, 0, 0});
  expect_drawn(counts_of({0, 0, 0}, {.top_p = 0.5, .seed = 8}), {0.5, 0.5, 0});
}

TEST(Sampler, ExtremeTemperatures) {
  const std::vector<float> logits{1, 2, 2.001f, -3};
  for (const double tiny : {1e-6, 1e-300, std::numeric_limits<double>::denorm_min()})
    expect_drawn(counts_of(logits, {.temperature = tiny, .top_p = 1}), {0, 0, 1, 0});
  for (const double huge : {1e9, std::numeric_limits<double>::max()})
    expect_drawn(counts_of(logits, {.temperature = huge, .top_p = 1, .seed = 9}), {0.25, 0.25, 0.25, 0.25});
  constexpr float kMax = std::numeric_limits<float>::max();
  expect_drawn(counts_of({kMax, -kMax, 0}, {.temperature = 0.1, .seed = 10}), {1, 0, 0});
}

TEST(Sampler, SeedDeterminesDrawsOnEveryPlatform) {
  const std::vector<float> logits(1000, 0);
  const auto drawn = [&](std::uint64_t seed) {
    Sampler sampler({.top_p = 1, .seed = seed});
    Tokens tokens;
    for (int i = 0; i < 6; ++i) tokens.push_back(sampler(logits));
    return tokens;
  };
  EXPECT_EQ(drawn(5489), drawn(5489));
  EXPECT_NE(drawn(5489), drawn(5490));
  // The first numbers of std::mt19937_64 with its default seed, whose sequence ISO C++ fixes, times 1000 / 2^64.
  std::mt19937_64 engine(5489);
  for (const Index token : drawn(5489))
    EXPECT_EQ(token, static_cast<Index>(static_cast<double>(engine()) * 0x1p-64 * 1000));
}

TEST(Sampler, RefusesInvalidOptionsAndLogits) {
  constexpr double kNaN = std::numeric_limits<double>::quiet_NaN(), kInf = std::numeric_limits<double>::infinity();
  for (const double temperature : {-1.0, kNaN, kInf})
    EXPECT_THROW(Sampler({.temperature = temperature}), std::invalid_argument) << temperature;
  for (const double top_p : {-0.1, 1.1, kNaN}) EXPECT_THROW(Sampler({.top_p = top_p}), std::invalid_argument) << top_p;
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({.temperature = temperature});
    EXPECT_THROW(sampler(std::vector<float>{1, static_cast<float>(kNaN)}), std::runtime_error);
    EXPECT_THROW(sampler(std::vector<float>{1, static_cast<float>(kInf)}), std::runtime_error);
    EXPECT_THROW(sampler(std::vector<float>{1, static_cast<float>(-kInf)}), std::runtime_error);
  }
}

}  // namespace
