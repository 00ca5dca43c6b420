// The tinystories example with the trained network, against a float64 run and the expected text of llama2.c's own test.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "attn/rope.h"
#include "generate.h"
#include "same_bits.h"

namespace {

namespace fs = std::filesystem;
using namespace tinystories;

constexpr Index kTokens = 200;  // in all references

struct Trained {
  Transformer network;
  Tokenizer tokenizer;
  Tokens tokens;                // BOS and its greedy continuation
  std::string text;             // of `tokens`
  std::vector<float> logits;    // (kTokens, vocab_size), after each token
  std::vector<float> attended;  // for each layer q, k, v, out, each (kTokens, heads, head_dim)
};

/// Paged or contiguous, the number of threads, token by token or all at once.
using RunMode = std::tuple<bool, int, bool>;

std::string name_of(const ::testing::TestParamInfo<RunMode>& info) {
  const auto [paged, threads, one_by_one] = info.param;
  return std::string(paged ? "paged_" : "contiguous_") + std::to_string(threads) + "_threads_" +
         (one_by_one ? "token_by_token" : "one_chunk");
}

class TrainedNetwork : public ::testing::TestWithParam<RunMode> {
 protected:
  static void SetUpTestSuite() {
    if (!fs::is_directory(folder())) return;
    Transformer network(Checkpoint(BinaryFile(folder() / "stories260K.bin")));
    Tokenizer tokenizer(BinaryFile(folder() / "tok512.bin"), network.config().vocab_size);
    std::ifstream json(folder() / "greedy_tokens.json");
    std::ostringstream text;
    text << std::ifstream(folder() / "expected200.txt", std::ios::binary).rdbuf();
    trained_.emplace(Trained{std::move(network), std::move(tokenizer),
                             nlohmann::json::parse(json).at("tokens_with_bos").get<Tokens>(), text.str(),
                             floats("ref_logits_f64_as_f32_200x512.bin"), floats("ref_qkvo_per_layer.bin")});
  }
  static void TearDownTestSuite() { trained_.reset(); }

  void SetUp() override {
    if (!trained_)
      GTEST_SKIP() << "the trained network is missing: " << folder().string() << "; set ATTN_SHARED_DIR to its folder";
    ASSERT_EQ(trained_->tokens.size(), static_cast<std::size_t>(kTokens) + 1);
  }

  static fs::path folder() { return fs::path(ATTN_SHARED_DIR) / "models" / "stories260K"; }

  static std::vector<float> floats(const char* name) {
    const fs::path path = folder() / name;
    std::vector<float> numbers(fs::file_size(path) / sizeof(float));
    BinaryFile(path).finite_floats(numbers, name);
    return numbers;
  }

  bool paged() const { return std::get<0>(GetParam()); }
  attn::Options options() const {
    const int threads = std::get<1>(GetParam());
    return {.executor = threads == 1 ? attn::serial() : attn::threads(threads)};
  }
  bool one_by_one() const { return std::get<2>(GetParam()); }
  CacheOptions cache() const { return {.paged = paged(), .capacity = kTokens, .page_size = 64}; }

  /// Feeds the first kTokens tokens as the parameters say; calls see(first, final states of the tokens from `first`
  /// on).
  template <class See>
  void feed(const Transformer::Observer& observer, const See& see) const {
    Context context(trained_->network.config(), cache());
    const auto tokens = std::span<const Index>(trained_->tokens).first(static_cast<std::size_t>(kTokens));
    const std::size_t chunk = one_by_one() ? 1 : tokens.size();
    for (std::size_t at = 0; at < tokens.size(); at += chunk)
      see(static_cast<Index>(at), trained_->network.forward(tokens.subspan(at, chunk), context, options(), observer));
  }

  Statistics generate_text(const std::string& prompt, std::string& text) const {
    Context context(trained_->network.config(), cache());
    Sampler greedy({.temperature = 0});
    return generate(trained_->network, trained_->tokenizer, greedy, trained_->tokenizer.encode(prompt), context,
                    {.steps = kTokens, .token_by_token = one_by_one(), .attention = options()},
                    [&](std::string_view piece) { text += piece; });
  }

  static std::optional<Trained> trained_;
};

std::optional<Trained> TrainedNetwork::trained_;

TEST_P(TrainedNetwork, WritesTheExpectedText) {
  std::string text;
  EXPECT_EQ(generate_text("", text).new_tokens, kTokens);
  EXPECT_EQ(text, trained_->text);
}

TEST_P(TrainedNetwork, WritesTheRestOfTheExpectedText) {
  // The prompt encodes to the tokens that the network chose, so the rest must follow.
  const std::string prompt = trained_->text.substr(0, trained_->text.find('\n'));
  const Tokens encoded = trained_->tokenizer.encode(prompt);
  ASSERT_GT(encoded.size(), 50u);
  ASSERT_TRUE(std::equal(encoded.begin(), encoded.end(), trained_->tokens.begin()));
  std::string text;
  const Statistics statistics = generate_text(prompt, text);
  EXPECT_EQ(statistics.prompt_tokens + statistics.new_tokens, kTokens + 1);
  EXPECT_EQ(text, trained_->text);
}

TEST_P(TrainedNetwork, LogitsHaveTheSameBitsWithAllMethods) {
  const Tokens some(trained_->tokens.begin(), trained_->tokens.begin() + 120);
  attn::Options invariant = options();
  invariant.row_invariant = true;
  for (const LogitsOfMethod& method : logits_of_all_methods(trained_->network, some, invariant))
    EXPECT_EQ(method.differing, 0) << method.name;
  // The control: otherwise some differ.
  Index differing = 0;
  for (const LogitsOfMethod& method : logits_of_all_methods(trained_->network, some, options()))
    differing += method.differing;
  EXPECT_GT(differing, 0);
}

TEST_P(TrainedNetwork, LogitsMatchDoublePrecision) {
  // Logits are up to 22 in magnitude, and the error of this float run is at most 2.2e-5. 1e-4 leaves a margin for other
  // processors, and is a fortieth of the smallest gap between the two best logits, which decides a token.
  constexpr float kTolerance = 1e-4f;
  const Index vocab_size = trained_->network.config().vocab_size;
  ASSERT_EQ(trained_->logits.size(), static_cast<std::size_t>(kTokens * vocab_size));
  const Eigen::Map<const Matrix> expected(trained_->logits.data(), kTokens, vocab_size);
  float error = 0;
  feed({}, [&](Index first, const Matrix& states) {
    const Matrix logits = trained_->network.logits(states);
    error = std::max(error, (logits - expected.middleRows(first, states.rows())).cwiseAbs().maxCoeff());
    for (Index t = 0; t < states.rows(); ++t) {
      Index best = 0;
      logits.row(t).maxCoeff(&best);
      EXPECT_EQ(best, trained_->tokens[static_cast<std::size_t>(first + t + 1)]);
    }
  });
  EXPECT_LE(error, kTolerance);
}

TEST_P(TrainedNetwork, EveryLayerMatchesDoublePrecision) {
  // Queries and keys are up to 34 in magnitude, values and outputs 4.
  constexpr float kTolerance = 1e-5f, kRotatedTolerance = 4e-5f;
  const Config& c = trained_->network.config();
  const attn::Rope rope({.head_dim = c.head_dim(), .pairs = attn::RopePairs::interleaved, .base = 10000});
  ASSERT_EQ(trained_->attended.size(), static_cast<std::size_t>(c.n_layers * kTokens * 2 * (c.dim + c.kv_dim())));
  Index compared = 0;
  const auto compare = [&](const char* what, const Attended& attended, Attended::View got, Index before, bool rotated) {
    const Index heads = got.dim(1), n = got.dim(2), row = heads * c.head_dim();
    const float* expected = trained_->attended.data() + attended.layer * kTokens * 2 * (c.dim + c.kv_dim()) +
                            before * kTokens + attended.first * row;
    attn::Tensor<float, 4> copy(got);
    if (rotated) rope.rotate(copy, attended.first);
    for (Index h = 0; h < heads; ++h) {
      const attn::TensorView<const float, 4> of_head = attn::bshd(expected, 1, n, heads, c.head_dim());
      ASSERT_LE((copy.matrix(0, h) - of_head.matrix(0, h)).cwiseAbs().maxCoeff(),
                rotated ? kRotatedTolerance : kTolerance)
          << what << ", layer " << attended.layer << ", head " << h << ", tokens from " << attended.first;
    }
    compared += n * row;
  };
  feed(
      [&](const Attended& attended) {
        compare("q", attended, attended.q, 0, true);
        compare("k", attended, attended.k, c.dim, true);
        compare("v", attended, attended.v, c.dim + c.kv_dim(), false);
        compare("out", attended, attended.out, c.dim + 2 * c.kv_dim(), false);
      },
      [](Index, const Matrix&) {});
  EXPECT_EQ(compared, static_cast<Index>(trained_->attended.size()));
}

TEST_P(TrainedNetwork, SeedDeterminesTheText) {
  const auto write = [&](std::uint64_t seed) {
    Context context(trained_->network.config(), cache());
    Sampler sampler({.seed = seed});
    std::string text;
    generate(trained_->network, trained_->tokenizer, sampler, {Tokenizer::kBegin}, context,
             {.steps = 60, .token_by_token = one_by_one(), .attention = options()},
             [&](std::string_view piece) { text += piece; });
    return text;
  };
  EXPECT_EQ(write(1), write(1));
  EXPECT_NE(write(1), write(2));
}

INSTANTIATE_TEST_SUITE_P(EveryMode, TrainedNetwork,
                         ::testing::Combine(::testing::Bool(), ::testing::Values(1, 2), ::testing::Bool()), name_of);

}  // namespace
