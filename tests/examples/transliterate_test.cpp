// The transliteration example against the published outputs of the trained model.
#include <filesystem>
#include <fstream>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "decode.h"
#include "transformer.h"
#include "vocabulary.h"

namespace {

namespace fs = std::filesystem;
using namespace transliterate;

constexpr float kTolerance = 1e-5f;  // the precision of the published values

struct Published {
  Model model;
  nlohmann::json cases;
};

/// A path, and whether all cases run as one padded batch or one by one.
struct RunMode {
  attn::Path path;
  bool batched;
};

std::ostream& operator<<(std::ostream& out, const RunMode& mode) {
  return out << (mode.path == attn::Path::flash ? "flash" : "naive")
             << (mode.batched ? "_one_padded_batch" : "_one_by_one");
}

class PublishedCases : public ::testing::TestWithParam<RunMode> {
 protected:
  static void SetUpTestSuite() {
    if (!fs::is_directory(folder())) return;
    std::ifstream in(folder() / "published_cases.json");
    published_.emplace(Published{Model::load(folder() / "v2-f32"), nlohmann::json::parse(in)});
  }
  static void TearDownTestSuite() { published_.reset(); }

  void SetUp() override {
    if (!published_)
      GTEST_SKIP() << "the trained model is missing: " << folder().string() << "; set ATTN_SHARED_DIR to its folder";
  }

  static fs::path folder() { return fs::path(ATTN_SHARED_DIR) / "models" / "transliteration"; }
  static const Model& model() { return published_->model; }
  static const nlohmann::json& cases(const char* kind) { return published_->cases.at(kind); }

  static Tokens ids(const nlohmann::json& text, const Vocabulary& vocabulary) {
    if (text.get<std::string>().empty()) return {};
    const std::vector<Word> words = words_of(text.get<std::string>());
    EXPECT_EQ(words.size(), 1u);
    std::vector<std::string> unknown;
    const Tokens result = ids_of(words.front(), vocabulary, unknown);
    EXPECT_TRUE(unknown.empty()) << text;
    return result;
  }

  /// Calls `run` with all indices below `count` at once, or one by one, and concatenates the results.
  template <class F>
  static std::vector<Scored> run_all(std::size_t count, F run) {
    std::vector<std::vector<std::size_t>> batches;
    for (std::size_t i = 0; i < count; ++i) {
      if (i == 0 || !GetParam().batched) batches.emplace_back();
      batches.back().push_back(i);
    }
    std::vector<Scored> results;
    for (const auto& batch : batches)
      for (Scored& result : run(batch)) results.push_back(std::move(result));
    return results;
  }

  static std::optional<Published> published_;
};

std::optional<Published> PublishedCases::published_;

TEST_P(PublishedCases, LettersHaveThePublishedIds) {
  for (const auto& c : cases("score_cases")) {
    EXPECT_EQ(ids(c.at("src"), model().source), c.at("src_ids").get<Tokens>());
    Tokens target{Vocabulary::kBegin};
    for (const attn::Index id : ids(c.at("tgt"), model().target)) target.push_back(id);
    target.push_back(Vocabulary::kEnd);
    EXPECT_EQ(target, c.at("tgt_ids").get<Tokens>());
  }
}

TEST_P(PublishedCases, ScoresMatchThePublishedOnes) {
  const auto& all = cases("score_cases");
  ASSERT_FALSE(all.empty());
  const auto results = run_all(all.size(), [&](const std::vector<std::size_t>& batch) {
    std::vector<Tokens> sources, targets;
    for (const std::size_t i : batch) {
      sources.push_back(ids(all[i].at("src"), model().source));
      targets.push_back(ids(all[i].at("tgt"), model().target));
    }
    return score(model().network, sources, targets, GetParam().path);
  });
  for (std::size_t i = 0; i < all.size(); ++i) {
    const auto expected = all[i].at("token_log_probs").get<std::vector<float>>();
    ASSERT_EQ(results[i].log_probs.size(), expected.size());
    for (std::size_t t = 0; t < expected.size(); ++t)
      EXPECT_NEAR(results[i].log_probs[t], expected[t], kTolerance) << all[i].at("src") << ", token " << t;
  }
}

TEST_P(PublishedCases, GreedySearchWritesThePublishedNames) {
  const auto& all = cases("greedy");
  ASSERT_FALSE(all.empty());
  for (const auto& c : all) {  // every prefix with all sources; only its own sources have published outputs
    const auto prefix = c.at("prefix");
    const auto results = run_all(all.size(), [&](const std::vector<std::size_t>& batch) {
      std::vector<Tokens> sources;
      for (const std::size_t i : batch) sources.push_back(ids(all[i].at("src"), model().source));
      return greedy(model().network, sources, ids(prefix, model().target), GetParam().path);
    });
    for (std::size_t i = 0; i < all.size(); ++i)
      if (all[i].at("prefix") == prefix) {
        EXPECT_EQ(text_of(results[i].tokens, model().target, " "), all[i].at("out").get<std::string>());
        EXPECT_EQ(results[i].log_probs.size(), results[i].tokens.size() + 1) << "the end is scored too";
      }
  }
}

TEST_P(PublishedCases, GreedyLogProbabilitiesMatchScoring) {
  for (const auto& c : cases("score_cases")) {
    const auto found = greedy(model().network, {ids(c.at("src"), model().source)}, {}, GetParam().path);
    ASSERT_EQ(text_of(found[0].tokens, model().target, " "), c.at("tgt").get<std::string>());
    const auto expected = c.at("token_log_probs").get<std::vector<float>>();
    ASSERT_EQ(found[0].log_probs.size(), expected.size());
    for (std::size_t t = 0; t < expected.size(); ++t) EXPECT_NEAR(found[0].log_probs[t], expected[t], kTolerance);
  }
}

TEST_P(PublishedCases, BlanksBetweenLettersAreOptional) {
  const Tokens spelled = ids("آ ت ز م و ن", model().source), plain = ids("آتزمون", model().source);
  EXPECT_EQ(spelled, plain);
  EXPECT_EQ(spelled.size(), 6u);
}

TEST_P(PublishedCases, WeightsOfEveryHeadSumToOne) {
  const Tokens source = ids("آتزمون", model().source), target = ids("atzmon", model().target);
  const auto map = attention_map(model().network, source, target, GetParam().path);
  ASSERT_EQ(map.shape(), (attn::Shape<3>{kHeads, 7, 6}));
  for (attn::Index h = 0; h < kHeads; ++h)
    for (attn::Index t = 0; t < 7; ++t) {
      EXPECT_NEAR(map.matrix(h).row(t).sum(), 1.0f, 1e-5f);
      EXPECT_GE(map.matrix(h).row(t).minCoeff(), 0.0f);
    }
  EXPECT_GT((map.matrix(0) - map.matrix(1)).cwiseAbs().maxCoeff(), 0.1f) << "heads differ";
}

INSTANTIATE_TEST_SUITE_P(BothPaths, PublishedCases,
                         ::testing::Values(RunMode{attn::Path::naive, true}, RunMode{attn::Path::naive, false},
                                           RunMode{attn::Path::flash, true}, RunMode{attn::Path::flash, false}),
                         ::testing::PrintToStringParamName());

}  // namespace
