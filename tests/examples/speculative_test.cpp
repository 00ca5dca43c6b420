// Drafts of n-grams, and text that a network verifies in trees of them.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "speculate.h"
#include "support/tiny_llama.h"

namespace {

using namespace speculative;
using attn::test::TinyLlama;
using tinystories::BinaryFile;
using tinystories::Checkpoint;
using tinystories::SamplerOptions;

Tokens tokens(std::initializer_list<Index> list) { return list; }

TEST(Drafter, DraftsWhatFollowedTheSameContext) {
  Drafter drafter;
  const Tokens text = tokens({5, 6, 7, 8, 5, 6, 7, 9, 5, 6, 7, 8, 5, 6});
  for (std::size_t i = 1; i < text.size(); ++i) drafter.learn(std::span(text).first(i), text[i]);
  const Draft draft = drafter.draft(text, 4);
  ASSERT_EQ(draft.tokens.size(), 4u);
  EXPECT_EQ(draft.tokens[0], 6);
  EXPECT_EQ(draft.parents[0], -1);
  EXPECT_EQ(draft.tokens[1], 7);  // always follows 5, 6
  EXPECT_EQ(draft.parents[1], 0);
  EXPECT_EQ(draft.tokens[2], 8);  // follows 6, 7 twice, 9 once
  EXPECT_EQ(draft.parents[2], 1);
  for (std::size_t i = 1; i < draft.parents.size(); ++i) EXPECT_LT(draft.parents[i], static_cast<Index>(i));
}

TEST(Drafter, StopsAtTheLeastProbabilityAndWithoutNGrams) {
  Drafter drafter;
  const Tokens text = tokens({1, 2, 1, 3, 1});
  EXPECT_EQ(drafter.draft(text, 8).tokens, tokens({1}));
  for (std::size_t i = 1; i < text.size(); ++i) drafter.learn(std::span(text).first(i), text[i]);
  EXPECT_GT(drafter.draft(text, 8).tokens.size(), 3u);
  EXPECT_EQ(drafter.draft(text, 8, 0.99).tokens, tokens({1}));
  EXPECT_EQ(drafter.draft(text, 1).tokens, tokens({1}));
  EXPECT_EQ(drafter.draft(tokens({9}), 8).tokens[0], 9);  // a token that was never seen
}

class Speculating : public ::testing::Test {
 protected:
  static constexpr Index kVocab = 259 + 6, kSteps = 60, kNodes = 7;

  const TinyLlama llama_{
      {.dim = 16, .hidden_dim = 12, .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .vocab_size = kVocab}, 4};
  const Transformer network_{Checkpoint(BinaryFile(llama_.bytes(), "model.bin"))};
  const Tokenizer tokenizer_{BinaryFile(attn::test::tokenizer_bytes({"a", "b", "c", "d", "e", "f"}), "tok.bin"),
                             kVocab};

  Statistics speculate(const SamplerOptions& options, const Tokens& prompt, Index steps, std::string& text,
                       Drafter drafter = {}) const {
    Sampler sampler(options);
    Context context(network_.config(), {.capacity = steps + kNodes});
    text.clear();
    return speculative::speculate(network_, tokenizer_, sampler, prompt, context, drafter,
                                  {.steps = steps, .nodes = kNodes, .attention = {.row_invariant = true}},
                                  [&](std::string_view part) { text += part; });
  }
  tinystories::Statistics plain(const SamplerOptions& options, const Tokens& prompt, Index steps,
                                std::string& text) const {
    Sampler sampler(options);
    Context context(network_.config(), {.capacity = steps});
    text.clear();
    return tinystories::generate(network_, tokenizer_, sampler, prompt, context,
                                 {.steps = steps, .attention = {.row_invariant = true}},
                                 [&](std::string_view part) { text += part; });
  }
};

TEST_F(Speculating, WritesTheSameText) {
  Index saved = 0;
  for (const double temperature : {0.0, 0.3, 1.0})
    for (std::uint64_t seed = 0; seed < 8; ++seed)
      for (const Tokens& prompt : {tokens({1}), tokens({1, 260, 262, 261})}) {
        SCOPED_TRACE(::testing::Message() << "temperature " << temperature << ", seed " << seed);
        const SamplerOptions options{.temperature = temperature, .seed = seed};
        std::string want, got;
        const auto alone = plain(options, prompt, kSteps, want);
        const auto statistics = speculate(options, prompt, kSteps, got);
        EXPECT_EQ(got, want);
        EXPECT_EQ(statistics.tokens, alone.tokens);
        EXPECT_EQ(statistics.new_tokens, alone.new_tokens);
        EXPECT_LE(statistics.calls, std::max<Index>(alone.new_tokens, 1));
        saved += alone.new_tokens - 1 - statistics.calls;
      }
  EXPECT_GT(saved, 100);  // greedy text of such a network repeats itself
}

TEST_F(Speculating, SavesCallsIfTheDrafterKnowsTheText) {
  std::string want, got;
  const SamplerOptions options{.temperature = 1, .seed = 3};
  const Tokens text = plain(options, {1}, kSteps, want).tokens;
  ASSERT_GT(text.size(), 20u);
  Drafter drafter;
  for (int times = 0; times < 3; ++times)
    for (std::size_t i = 1; i < text.size(); ++i) drafter.learn(std::span(text).first(i), text[i]);
  const Statistics statistics = speculate(options, {1}, kSteps, got, drafter);
  EXPECT_EQ(got, want);
  EXPECT_LT(3 * statistics.calls, statistics.new_tokens);
}

TEST_F(Speculating, StopsWhereTheStepsEnd) {
  for (const Index steps : {1, 2, 3, 5}) {
    std::string want, got;
    const auto alone = plain({.temperature = 0}, {1}, steps, want);
    const auto statistics = speculate({.temperature = 0}, {1}, steps, got);
    EXPECT_EQ(got, want);
    EXPECT_EQ(statistics.tokens, alone.tokens);
  }
  std::string text;
  EXPECT_THROW(speculate({.temperature = 0}, {1, 260, 261}, 2, text), std::invalid_argument);
}

}  // namespace
