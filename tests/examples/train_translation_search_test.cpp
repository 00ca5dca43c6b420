// train_translation's beam search against searches without caches.
#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include <gtest/gtest.h>

#include "beam_search.h"
#include "train_translation_trained.h"

namespace {

using namespace translation;
using namespace attn::test;

/// A model early in training, for which greedy choices are poor and beams reorder often. After 25 steps the end is as
/// likely as any piece.
struct EarlyModel {
  explicit EarlyModel(int steps) {
    Trainer trainer(translator, examples, {.steps = steps});
    for (int i = 0; i < steps; ++i) trainer.step();
  }

  Translator translator = new_translator(phrase_book(), {}, 0);
  std::vector<Example> examples = examples_of(phrase_book(), translator.characters, translator.pieces);
};

const EarlyModel& early_model() {
  static const EarlyModel model(60);
  return model;
}

/// Greedy decoding without caches.
Ids without_caches(const nn::Transformer<float>& model, const Ids& source) {
  Ids given{Pieces::kEnd};
  while (given.size() < 3 * source.size() + 20 + 1) {
    const auto logits = model(padded({source}, 0), {static_cast<Index>(source.size())}, padded({given}, 0));
    Index best = 0;
    nn::rows_of(logits).row(logits.dim(1) - 1).maxCoeff(&best);
    if (best == Pieces::kEnd) break;
    given.push_back(static_cast<std::int32_t>(best));
  }
  given.erase(given.begin());
  return given;
}

TEST(Search, OneBeamIsGreedy) {
  const auto expect = [](const nn::Transformer<float>& model, const Ids& source) {
    EXPECT_EQ(search(model, {source}, {.beams = 1}).front(), without_caches(model, source));
  };
  for (const Example& example : trained().examples) expect(trained().translator.model, example.source);
  for (std::size_t i = 0; i < early_model().examples.size(); i += 8)
    expect(early_model().translator.model, early_model().examples[i].source);
}

TEST(Search, BatchingDoesNotChangeTranslations) {
  std::vector<std::string> sentences = chinese_of(trained().pairs);
  for (const char* other : {"", "。", "我爱好久", "你的妹妹在桌子下面", "龘", "火车站在学校下面吗？"})
    sentences.push_back(other);
  for (const Index beams : {1, 3}) {
    const SearchConfig config{.beams = beams};
    const auto together = translate(trained().translator, sentences, config);
    for (std::size_t i = 0; i < sentences.size(); ++i)
      EXPECT_EQ(translate(trained().translator, {sentences[i]}, config).front(), together[i]) << sentences[i];
    EXPECT_EQ(together[trained().pairs.size()], "");
    EXPECT_EQ(together[trained().pairs.size() + 1], "");
    EXPECT_NE(together[trained().pairs.size() + 4], "");
  }
}

/// The log-probability of a target including its end.
double log_prob(const nn::Transformer<float>& model, const Ids& source, Ids target) {
  Ids given = target;
  given.insert(given.begin(), Pieces::kEnd);
  target.push_back(Pieces::kEnd);
  const nn::CrossEntropy<float> loss;
  return -loss(model(padded({source}, 0), {static_cast<Index>(source.size())}, padded({given}, 0)),
               padded({target}, 0)) *
         static_cast<double>(target.size());
}

TEST(Search, MoreBeamsFindLikelierTargets) {
  const Translator& translator = early_model().translator;
  const std::vector<Example>& examples = early_model().examples;
  double greedy = 0, beams = 0;
  int differ = 0;
  for (const Example& example : examples) {
    const Ids one = search(translator.model, {example.source}, {.beams = 1, .length_penalty = 0}).front();
    const Ids five = search(translator.model, {example.source}, {.beams = 5, .length_penalty = 0}).front();
    differ += one == five ? 0 : 1;
    greedy += log_prob(translator.model, example.source, one);
    beams += log_prob(translator.model, example.source, five);
  }
  EXPECT_GT(differ, 0);
  EXPECT_GT(beams, greedy);
}

/// Beam search without caches: every hypothesis is fed again for every piece.
class PlainSearch {
 public:
  PlainSearch(const nn::Transformer<float>& model, const Ids& source, std::size_t beams, double length_penalty)
      : model_(model), source_(source), beams_(beams), length_penalty_(length_penalty) {}

  Ids best() {
    const std::size_t most = 3 * source_.size() + 20;
    std::vector<Hypothesis> hypotheses{{{}, 0}};
    for (std::size_t length = 1; length <= most; ++length) {
      hypotheses = longer(hypotheses);
      // Upper bound of the score of any continuation: no further loss, at the greatest length.
      const double hope = score(hypotheses.front().log_prob, most + 1);
      if (length < most && best_ && best_->second >= hope) return best_->first;
    }
    end(hypotheses.front().ids, hypotheses.front().log_prob);
    return best_->first;
  }

 private:
  struct Hypothesis {
    Ids ids;
    double log_prob;
  };

  double score(double log_prob, std::size_t length) const {
    return log_prob / std::pow(static_cast<double>(length), length_penalty_);
  }

  void end(const Ids& ids, double log_prob) {
    const double reached = score(log_prob, ids.size() + 1);
    if (!best_ || reached > best_->second) best_ = {ids, reached};
  }

  /// The best continuations that do not end, one per beam, among the 2 * beams likeliest continuations.
  std::vector<Hypothesis> longer(const std::vector<Hypothesis>& hypotheses) {
    std::vector<Hypothesis> all, next;
    for (const Hypothesis& hypothesis : hypotheses) {
      Ids given = hypothesis.ids;
      given.insert(given.begin(), Pieces::kEnd);
      const auto logits = model_(padded({source_}, 0), {static_cast<Index>(source_.size())}, padded({given}, 0));
      const auto row = nn::rows_of(logits).row(logits.dim(1) - 1);
      const double largest = static_cast<double>(row.maxCoeff());
      const double log_sum = largest + std::log(static_cast<double>((row.array() - row.maxCoeff()).exp().sum()));
      for (Index piece = 0; piece < row.size(); ++piece) {
        all.push_back({hypothesis.ids, hypothesis.log_prob + static_cast<double>(row[piece]) - log_sum});
        all.back().ids.push_back(static_cast<std::int32_t>(piece));
      }
    }
    std::stable_sort(all.begin(), all.end(),
                     [](const Hypothesis& a, const Hypothesis& b) { return a.log_prob > b.log_prob; });
    for (std::size_t i = 0; i < std::min(all.size(), 2 * beams_) && next.size() < beams_; ++i) {
      if (all[i].ids.back() != Pieces::kEnd)
        next.push_back(all[i]);
      else if (i < beams_)
        end({all[i].ids.begin(), all[i].ids.end() - 1}, all[i].log_prob);
    }
    return next;
  }

  const nn::Transformer<float>& model_;
  const Ids& source_;
  std::size_t beams_;
  double length_penalty_;
  std::optional<std::pair<Ids, double>> best_;
};

TEST(Search, BeamsMatchSearchWithoutCaches) {
  const EarlyModel earlier(25);
  for (const EarlyModel* model : {&early_model(), &earlier}) {
    std::vector<Ids> sources;
    for (std::size_t i = 0; i < model->examples.size(); i += 8) sources.push_back(model->examples[i].source);
    std::vector<std::vector<Ids>> found;
    for (const double penalty : {0.0, 1.0}) {
      found.push_back(search(model->translator.model, sources, {.beams = 4, .length_penalty = penalty}));
      for (std::size_t i = 0; i < sources.size(); ++i)
        EXPECT_EQ(found.back()[i], PlainSearch(model->translator.model, sources[i], 4, penalty).best())
            << "source " << i << ", penalty " << penalty;
    }
    EXPECT_NE(found[0], found[1]) << "the penalty must have an effect";
  }
}

}  // namespace
