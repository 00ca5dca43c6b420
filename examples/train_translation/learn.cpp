#include "learn.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <iostream>

#include "chrf.h"
#include "decimals.h"
#include "files.h"
#include "interrupt.h"
#include "loss_curve.h"
#include "new_file.h"
#include "printable.h"
#include "progress.h"
#include "report.h"
#include "threads.h"
#include "use.h"

namespace translation {

namespace {

using Clock = std::chrono::steady_clock;
using training::fixed;
using training::grouped;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::vector<Pair> pairs_for(const Options& options) {
  if (options.data.empty()) return phrase_book();
  if (options.data == of_preset(options.preset).data && !std::filesystem::exists(options.data))
    throw nn::FileError(options.data +
                        ": there is no such file; pass one with --data (examples/README.md says where to get it)");
  return read_pairs(options.data);
}

Translator new_translator(const Split& split, const Options& options) {
  std::vector<std::string> english;
  for (const Pair& pair : split.training) english.push_back(pair.english);
  return {Characters(split.training), Pieces::learn(english, options.pieces), options.sizes, options.dropout,
          options.training.seed};
}

/// Scores of a model's translations.
struct Quality {
  double chrf, exact;
};

Quality quality_of(const Translator& translator, const std::vector<Pair>& pairs, const SearchConfig& search) {
  std::vector<std::string> chinese, english;
  for (const Pair& pair : pairs) chinese.push_back(pair.chinese), english.push_back(pair.english);
  const std::vector<std::string> translations = translate(translator, chinese, search);
  return {chrf(translations, english), exact_share(translations, english)};
}

/// Returns the pairs whose translations are shown during training: the user's sentences, which have no English, or some
/// of the pairs.
std::vector<Pair> watched_pairs(const Options& options, const std::vector<Pair>& pairs) {
  std::vector<Pair> watched;
  for (const std::string& sentence : options.translate) watched.push_back({"", sentence});
  if (!watched.empty()) return watched;
  constexpr std::size_t kWatched = 6;
  const std::size_t count = std::min(kWatched, pairs.size());
  for (std::size_t i = 0; i < count; ++i) watched.push_back(pairs[i * pairs.size() / count]);
  return watched;
}

std::vector<std::string> chinese_of(const std::vector<Pair>& pairs) {
  std::vector<std::string> chinese;
  for (const Pair& pair : pairs) chinese.push_back(pair.chinese);
  return chinese;
}

/// One training run.
class Run {
 public:
  explicit Run(const Options& options)
      : options_(options),
        split_(hold_back(pairs_for(options), options.held_back, options.training.seed)),
        translator_(new_translator(split_, options)),
        learned_(examples_of(split_.training, translator_.characters, translator_.pieces)),
        held_back_(examples_of(split_.held_back, translator_.characters, translator_.pieces)),
        trainer_(translator_, learned_, options.training),
        watched_(watched_pairs(options, pairs())) {
    // The two losses are measured differently; the legend says how, for readers who compare them.
    const bool smoothing = options.training.label_smoothing > 0, dropout = options.dropout > 0;
    if (smoothing || dropout)
      conditions_ = std::string(", with ") + (smoothing ? "label smoothing" : "") +
                    (smoothing && dropout ? " and " : "") + (dropout ? "dropout" : "");
    losses_.training_name = "each step" + conditions_;
    losses_.validation_name = std::string("held-back pairs") + (conditions_.empty() ? "" : ", without");
  }

  int run() {
    const training::Interrupt interrupt;
    say_what_is_learned();
    learn_until(interrupt);
    save();
    const Quality quality = quality_of(translator_, pairs(), options_.search);
    write_pictures(quality);
    if (!options_.translate.empty()) print_translations(translator_, options_);
    std::cout << summary(quality) << std::endl;
    if (!interrupt.requested()) return EXIT_SUCCESS;
    std::cerr << "train_translation: stopped after " << trainer_.steps_done() << " of " << options_.training.steps
              << " steps" << (options_.save.empty() ? "" : ", the model so far is in " + options_.save) << '\n';
    return interrupt.exit_code();
  }

 private:
  /// The pairs on which the model is tested.
  const std::vector<Pair>& pairs() const { return split_.held_back.empty() ? split_.training : split_.held_back; }

  void say_what_is_learned() {
    std::cout << split_.training.size() << " pairs to learn from, " << split_.held_back.size() << " held back, "
              << translator_.characters.size() << " characters, " << translator_.pieces.size() << " pieces, "
              << parameters() << " parameters, " << trainer_.steps_per_epoch() << " steps per epoch" << std::endl;
  }

  Index parameters() { return nn::count_parameters<float>(translator_.model); }

  void learn_until(const training::Interrupt& interrupt) {
    constexpr Index kTimes = 10;  // validations per run
    const Index every = std::max<Index>(1, options_.training.steps / kTimes);
    training::Progress progress(options_.training.steps);
    while (trainer_.steps_done() < options_.training.steps && !interrupt.requested()) {
      const Trainer::Step step = trainer_.step();
      losses_.training.push_back(step.loss);
      progress.update(trainer_.steps_done(), step.loss, step.tokens);
      if (trainer_.steps_done() % every == 0) validate(progress);
    }
    speed_ = progress.tokens_per_second();
  }

  void save() {
    if (!options_.save.empty()) translator_.save(options_.save);
  }

  /// Reports how good the model is so far, and saves it: a run of many minutes may be killed.
  void validate(training::Progress& progress) {
    save();
    const Index step = trainer_.steps_done();
    std::string text = "step " + std::to_string(step);
    if (!held_back_.empty()) {
      losses_.validation.push_back({step, mean_loss(translator_, held_back_, options_.training.batch_tokens)});
      const Quality quality = quality_of(translator_, split_.held_back, {});
      text +=
          ": held-back loss " + fixed(losses_.validation.back().loss, 3) + ", chrF (greedy) " + fixed(quality.chrf, 1);
    }
    const std::vector<std::string> translations = translate(translator_, chinese_of(watched_), {});
    std::string sample;
    for (std::size_t i = 0; i < watched_.size(); ++i) {
      sample.append(i > 0 ? "\n" : "")
          .append(nn::as_line(watched_[i].chinese))
          .append(" \u2192 ")
          .append(translations[i]);
      if (!watched_[i].english.empty()) sample.append("   [").append(nn::as_line(watched_[i].english)).append("]");
    }
    samples_.push_back({step, sample});
    progress.say(text + '\n' + sample);
  }

  std::string summary(const Quality& quality) const {
    const std::string exact = fixed(100 * quality.exact, 1) + " % exact of " + std::to_string(pairs().size());
    const std::string after =
        " pairs after " + std::to_string(trainer_.steps_done()) + " steps in " + fixed(since(start_), 1) + " s";
    return split_.held_back.empty() ? exact + after
                                    : "chrF " + fixed(quality.chrf, 1) + ", " + exact + " held-back" + after;
  }

  void write_pictures(const Quality& quality) {
    if (!options_.loss_curve.empty())
      training::write_file(options_.loss_curve, training::loss_curve_svg(losses_, "Loss: Chinese to English"));
    if (!options_.report.empty()) training::write_file(options_.report, training::report_html(report(quality)));
  }

  training::Report report(const Quality& quality) {
    training::Report report;
    report.title = "A Transformer learns to translate";
    report.introduction =
        "An encoder\u2013decoder Transformer that learns to translate Chinese into English. Translations during "
        "training are greedy, with the reference in brackets; maps are of the decoder's attention to the Chinese "
        "characters.";
    report.summary = {{"result", summary(quality)},
                      {"pairs learned from", grouped(std::ssize(split_.training))},
                      {"parameters", grouped(parameters())},
                      {"characters", grouped(translator_.characters.size())},
                      {"pieces", grouped(translator_.pieces.size())},
                      {"speed", grouped(static_cast<std::ptrdiff_t>(speed_)) + " tokens/s"},
                      {"training loss", training::last_losses_text(losses_.training) + conditions_}};
    if (!losses_.validation.empty())
      report.summary.push_back({"held-back loss", fixed(losses_.validation.back().loss, 3)});
    report.losses = losses_;
    report.samples = samples_;
    for (const auto& [english, sentence] : watched_) {
      if (characters_of(sentence).empty()) continue;
      const AttendedTranslation attended = attended_translation(translator_, sentence, options_.search);
      report.maps.push_back({attended.sentence + " \u2192 " + attended.translation, attended.pieces,
                             attended.characters, attended.layers});
    }
    return report;
  }

  const Clock::time_point start_ = Clock::now();
  const Options& options_;
  Split split_;
  Translator translator_;
  std::vector<Example> learned_, held_back_;
  Trainer trainer_;
  std::vector<Pair> watched_;
  training::LossCurve losses_;
  std::string conditions_;  // suffix for the training losses only
  std::vector<training::Sample> samples_;
  double speed_ = 0;
};

}  // namespace

int learn(const Options& options) {
  training::require_writable({{"--save", options.save},
                              {"--map", options.map},
                              {"--loss-curve", options.loss_curve},
                              {"--report", options.report}},
                             {{"--data", options.data}}, kModelFormat);
  check_sentences(options);
  return Run(options).run();
}

}  // namespace translation
