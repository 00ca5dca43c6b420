// The network of the tinystories example against the same network in double, and text generation, with tiny untrained
// networks.
#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "generate.h"
#include "support/tiny_llama.h"

namespace {

using namespace tinystories;
using attn::test::oracle_logits;
using attn::test::Random;
using attn::test::TinyLlama;
using attn::test::TinyLlamaSizes;
using attn::test::tokenizer_bytes;

Transformer network_of(const TinyLlama& llama) {
  return Transformer(Checkpoint(BinaryFile(llama.bytes(), "model.bin")));
}

/// Networks that differ in details that could be confused: heads with shared or separate keys, one or several pairs per
/// head, a separate classifier.
std::vector<TinyLlama> networks() {
  const TinyLlamaSizes sizes[] = {
      {.dim = 8, .hidden_dim = 6, .n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .vocab_size = 5},
      {.dim = 12, .hidden_dim = 20, .n_layers = 1, .n_heads = 2, .n_kv_heads = 2, .vocab_size = 9},
      {.dim = 24, .hidden_dim = 5, .n_layers = 3, .n_heads = 6, .n_kv_heads = 1, .vocab_size = 7},
      {.dim = 48, .hidden_dim = 32, .n_layers = 2, .n_heads = 6, .n_kv_heads = 2, .vocab_size = 30, .tied = false},
      {.dim = 16, .hidden_dim = 1, .n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .vocab_size = 3, .tied = false},
  };
  std::vector<TinyLlama> all;
  for (const TinyLlamaSizes& of : sizes) all.emplace_back(of, all.size() + 1);
  return all;
}

Tokens random_tokens(Index count, Index vocab_size, std::uint64_t seed) {
  Random random(seed);
  Tokens tokens;
  for (Index i = 0; i < count; ++i) tokens.push_back(random.integer(0, vocab_size - 1));
  return tokens;
}

/// The logits after each token, fed in chunks.
Matrix logits_in_chunks(const Transformer& network, const Tokens& tokens, std::size_t chunk, const CacheOptions& cache,
                        const attn::Options& options = {}) {
  Context context(network.config(), cache);
  Matrix logits(static_cast<Index>(tokens.size()), network.config().vocab_size);
  std::span<const Index> left = tokens;
  while (!left.empty()) {
    const auto next = left.first(std::min(chunk, left.size()));
    const Index first = context.length();
    logits.middleRows(first, static_cast<Index>(next.size())) = network.logits(network.forward(next, context, options));
    left = left.subspan(next.size());
  }
  return logits;
}

TEST(Network, MatchesItsDefinition) {
  for (const TinyLlama& llama : networks()) {
    const Transformer network = network_of(llama);
    const Tokens tokens = random_tokens(32, llama.sizes.vocab_size, 17);
    const auto expected = oracle_logits(llama, tokens);
    double largest = 0;
    for (const auto& row : expected)
      for (const double x : row) largest = std::max(largest, std::abs(x));
    for (const std::size_t chunk : {1u, 7u, 32u})
      for (const CacheOptions& cache :
           {CacheOptions{.capacity = 32}, CacheOptions{true, 32, 64}, CacheOptions{true, 32, 5}}) {
        const Matrix logits = logits_in_chunks(network, tokens, chunk, cache);
        // Several hundred roundings in sequence; a wrong head or angle moves logits by tenths.
        for (Index t = 0; t < logits.rows(); ++t)
          for (Index i = 0; i < logits.cols(); ++i)
            ASSERT_NEAR(logits(t, i), expected[static_cast<std::size_t>(t)][static_cast<std::size_t>(i)],
                        1e-5 * largest)
                << "dim " << llama.sizes.dim << ", token " << t << ", chunks of " << chunk << ", paged " << cache.paged;
      }
  }
}

TEST(Network, ThreadsDoNotChangeResults) {
  const TinyLlama llama = networks()[3];
  const Transformer network = network_of(llama);
  const Tokens tokens = random_tokens(32, llama.sizes.vocab_size, 18);
  for (const bool paged : {false, true})
    for (const std::size_t chunk : {1u, 32u}) {
      const CacheOptions cache{.paged = paged, .capacity = 32, .page_size = 8};
      EXPECT_EQ(logits_in_chunks(network, tokens, chunk, cache, {.executor = attn::serial()}),
                logits_in_chunks(network, tokens, chunk, cache, {.executor = attn::threads(2)}));
    }
}

TEST(Network, ShowsTheAttentionOfEachLayer) {
  const TinyLlama llama = networks()[0];
  const Transformer network = network_of(llama);
  Context context(network.config(), {.capacity = 5});
  network.forward(Tokens{0, 1}, context);
  std::vector<Index> layers;
  network.forward(Tokens{2, 3, 4}, context, {}, [&](const Attended& attended) {
    layers.push_back(attended.layer);
    EXPECT_EQ(attended.first, 2);
    EXPECT_EQ(attended.q.shape(), (attn::Shape<4>{1, 4, 3, 2}));
    EXPECT_EQ(attended.k.shape(), (attn::Shape<4>{1, 2, 3, 2}));
    EXPECT_EQ(attended.v.shape(), (attn::Shape<4>{1, 2, 3, 2}));
    EXPECT_EQ(attended.out.shape(), (attn::Shape<4>{1, 4, 3, 2}));
  });
  EXPECT_EQ(layers, (std::vector<Index>{0, 1}));
}

TEST(Network, FeedsNothingIfALayerThrows) {
  const Transformer network = network_of(networks()[0]);
  for (const bool paged : {false, true}) {
    const CacheOptions cache{.paged = paged, .capacity = 5, .page_size = 2};
    Context context(network.config(), cache), untroubled(network.config(), cache);
    for (Context* each : {&context, &untroubled}) network.forward(Tokens{0, 1, 2}, *each);
    const auto fail_in_layer_1 = [](const Attended& attended) {
      if (attended.layer == 1) throw std::runtime_error("layer 1");
    };
    EXPECT_THROW(network.forward(Tokens{3, 4}, context, {}, fail_in_layer_1), std::runtime_error);
    EXPECT_EQ(context.length(), 3);
    EXPECT_EQ(network.forward(Tokens{4, 3}, context), network.forward(Tokens{4, 3}, untroubled));
  }
}

TEST(Network, RefusesInvalidTokens) {
  const Transformer network = network_of(networks()[0]);
  for (const bool paged : {false, true}) {
    Context context(network.config(), {.paged = paged, .capacity = 3, .page_size = 2});
    EXPECT_THROW(network.forward(Tokens{1, 5}, context), std::out_of_range);
    EXPECT_THROW(network.forward(Tokens{-1}, context), std::out_of_range);
    EXPECT_THROW(network.forward(Tokens{}, context), std::invalid_argument);
    EXPECT_THROW(network.forward(Tokens{0, 1, 2, 3}, context), std::invalid_argument);
    EXPECT_EQ(context.length(), 0) << "refused tokens were fed";
    network.forward(Tokens{0, 1}, context);
    EXPECT_THROW(network.forward(Tokens{0, 1}, context), std::invalid_argument);
    network.forward(Tokens{0}, context);
    EXPECT_EQ(context.length(), 3);
  }
}

/// A network that reproduces one text: layers add nothing, and the classifier gives the next token for each token of
/// the text. All other tokens are followed by <unk>.
TinyLlama parrot(const Tokens& text) {
  TinyLlama llama({.n_layers = 1, .vocab_size = static_cast<std::int32_t>(Tokenizer::kFirstPiece) + 3, .tied = false},
                  1);
  for (auto* matrix : {&llama.layers[0].wo, &llama.layers[0].w2, &llama.embedding, &llama.classifier})
    for (auto& row : *matrix) row.assign(row.size(), 0);
  llama.rms_final.assign(llama.rms_final.size(), 1);
  for (std::size_t i = 0; i + 1 < text.size(); ++i) {
    llama.embedding[static_cast<std::size_t>(text[i])][i] = 1;
    llama.classifier[static_cast<std::size_t>(text[i + 1])][i] = 1;
  }
  return llama;
}

constexpr Index kPiece = Tokenizer::kFirstPiece;

/// Counts attention calls.
struct Counting : attn::Executor::Backend {
  int concurrency() const override { return 1; }
  void run(Index tasks, attn::TaskRef task) const override {
    ++runs;
    for (Index i = 0; i < tasks; ++i) task(i, 0);
  }
  mutable int runs = 0;
};

/// Generation with the parrot. Its tokenizer has " a", "b" and " "; the text is BOS " a" "b" <0x0A> and BOS again.
class Generate : public ::testing::Test {
 protected:
  Statistics run(const std::string& prompt, Index steps, bool token_by_token = false) {
    written_.clear();
    counting_->runs = 0;
    Context context(network_.config(), {.capacity = steps});
    const Statistics statistics = generate(
        network_, tokenizer_, greedy_, tokenizer_.encode(prompt), context,
        {.steps = steps, .token_by_token = token_by_token, .attention = {.executor = attn::Executor(counting_)}},
        [this](std::string_view text) { written_.emplace_back(text); });
    fed_ = context.length();
    return statistics;
  }

  const Transformer network_ = network_of(parrot({1, kPiece, kPiece + 1, 0x0A + 3, 1}));
  const Tokenizer tokenizer_{BinaryFile(tokenizer_bytes({" a", "b", " "}), "tokenizer.bin"), kPiece + 3};
  Sampler greedy_{{.temperature = 0}};
  const std::shared_ptr<Counting> counting_ = std::make_shared<Counting>();
  std::vector<std::string> written_;
  Index fed_ = 0;
};

TEST_F(Generate, WritesEachTokenAndStopsAtBos) {
  const Statistics statistics = run("", 50);
  EXPECT_EQ(written_, (std::vector<std::string>{"a", "b", "\n"}));
  EXPECT_EQ(statistics.prompt_tokens, 1);
  EXPECT_EQ(statistics.new_tokens, 3);
  EXPECT_EQ(fed_, 4);
  EXPECT_GT(statistics.seconds_to_first_token, 0);
  EXPECT_GT(statistics.seconds_after_it, 0);
}

TEST_F(Generate, StepsCountFedTokens) {
  EXPECT_EQ(run("", 1).new_tokens, 1);
  EXPECT_EQ(fed_, 1);
  EXPECT_EQ(written_, (std::vector<std::string>{"a"}));
  EXPECT_EQ(run("", 3).new_tokens, 3);
  EXPECT_EQ(fed_, 3);
  EXPECT_EQ(run("", 4).new_tokens, 3) << "the fourth is BOS";
}

TEST_F(Generate, ContinuesAPrompt) {
  ASSERT_EQ(tokenizer_.encode("ab"), (Tokens{1, kPiece + 2, 'a' + 3, kPiece + 1}))
      << "the tokenizer has no \"a\" without a space";
  for (const bool token_by_token : {false, true}) {
    const Statistics statistics = run("ab", 50, token_by_token);
    EXPECT_EQ(written_, (std::vector<std::string>{"", "a", "b", "\n"}));
    EXPECT_EQ(statistics.prompt_tokens, 4);
    EXPECT_EQ(statistics.new_tokens, 1);
    EXPECT_EQ(fed_, 5);
    // A forward pass runs seven linear maps and the attention of its only layer, and logits are one more.
    EXPECT_EQ(counting_->runs, (token_by_token ? 5 : 2) * 8 + 2)
        << "the prompt's four tokens or one chunk, then one more token";
    EXPECT_EQ(run("ab", 4, token_by_token).new_tokens, 1) << "the prompt may take all steps";
  }
}

TEST_F(Generate, RefusesAPromptOfMoreTokensThanSteps) {
  try {
    run("ab", 3);
    FAIL() << "nothing was thrown";
  } catch (const std::invalid_argument& error) {
    EXPECT_STREQ(error.what(), "the prompt has 4 tokens, more than the 3 steps");
  }
  EXPECT_TRUE(written_.empty());
}

TEST_F(Generate, PassesOnExceptionsOfTheWriter) {
  Context context(network_.config(), {.capacity = 8});
  EXPECT_THROW(generate(network_, tokenizer_, greedy_, {1}, context, {.steps = 8},
                        [](std::string_view) { throw std::runtime_error("the disk is full"); }),
               std::runtime_error);
}

}  // namespace
