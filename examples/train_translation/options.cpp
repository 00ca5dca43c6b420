#include "options.h"

#include <stdexcept>

#include "command_line.h"

namespace translation {

namespace {

constexpr const char* kLearning = "Training";
constexpr const char* kModel = "The model";
constexpr const char* kUse = "Translation";
constexpr const char* kFiles = "Files";
constexpr const char* kRun = "Running";

constexpr std::uint64_t kMost = 1'000'000'000;

/// Adds options to one group of the help, with their defaults.
class Group {
 public:
  Group(CLI::App& app, const char* name) : app_(app), name_(name) {}

  template <class X>
  CLI::Option* count(const char* option, X& value, std::uint64_t lowest, std::uint64_t highest, const char* text) {
    return added(app_.add_option(option, value, text))
        ->check(training::whole_number(lowest, highest))
        ->type_name("NUMBER");
  }
  CLI::Option* number(const char* option, double& value, double lowest, double highest, const char* text) {
    return added(app_.add_option(option, value, text))
        ->check(training::number_in(lowest, highest))
        ->type_name("NUMBER");
  }
  CLI::Option* text(const char* option, std::string& value, const char* what, const char* text) {
    return app_.add_option(option, value, text)->option_text(what)->group(name_);
  }

 private:
  CLI::Option* added(CLI::Option* option) { return option->capture_default_str()->group(name_); }

  CLI::App& app_;
  const char* name_;
};

void add_learning(CLI::App& app, Options& o) {
  Group learning(app, kLearning);
  learning
      .text("--preset", o.preset, "phrases|tatoeba",
            "Defaults of the options below: phrases (default), a phrase book in a few seconds; tatoeba, 28,655 "
            "sentence pairs from the folder data in nine minutes on two cores")
      ->check(CLI::IsMember({"phrases", "tatoeba"}));
  learning.count("--held-back", o.held_back, 0, kMost,
                 "Pairs, drawn by the seed, that are held back from training and translated at the end; 0: the "
                 "training pairs are translated");
  TrainingConfig& t = o.training;
  learning.count("--steps", t.steps, 1, kMost, "Steps");
  learning.count("--batch-tokens", t.batch_tokens, 1, kMost, "Tokens per step, of both languages, including padding");
  learning.number("--learning-rate", t.learning_rate, 0, 1, "Maximum; it decays to a hundredth along a cosine");
  learning.count("--warm-up", t.warm_up, 0, kMost, "Steps over which the learning rate rises");
  learning.number("--weight-decay", t.weight_decay, 0, 10, "Of AdamW");
  learning.number("--dropout", o.dropout, 0, 0.9, "Fraction of activations set to 0 in training");
  learning.number("--label-smoothing", t.label_smoothing, 0, 0.9, "Probability that is spread over all pieces");
  learning.number("--unknown-characters", t.unknown_characters, 0, 1e6,
                  "X: a character that occurs n times is hidden with probability X / (X + n)");
  learning.count("--seed", t.seed, 0, UINT64_MAX,
                 "Seed of all random draws; the same seed gives the same model, with any number of threads");
}

void add_sizes(CLI::App& app, Options& o) {
  Group sizes(app, kModel);
  sizes.count("--encoder-layers", o.sizes.encoder_layers, 1, 100, "Encoder layers");
  sizes.count("--decoder-layers", o.sizes.decoder_layers, 1, 100, "Decoder layers");
  sizes.count("--features", o.sizes.features, 1, 1 << 14, "Features per token, a multiple of the heads");
  sizes.count("--heads", o.sizes.heads, 1, 1 << 10, "Heads per attention");
  sizes.count("--hidden", o.sizes.hidden, 1, 1 << 16, "Features inside the feed-forward networks");
  sizes.count("--pieces", o.pieces, 0, 100'000, "Maximum number of word pieces that the tokenizer learns");
}

void add_rest(CLI::App& app, Options& o) {
  Group use(app, kUse), files(app, kFiles), run(app, kRun);
  auto* model = use.text("--model", o.model, "FILE", "Do not train: use this model, written by --save");
  auto* translate =
      app.add_option("--translate", o.translate,
                     "A sentence to translate, with a model or after training; may be given several times")
          ->option_text("SENTENCE")
          ->group(kUse)
          ->take_all()
          ->allow_extra_args(false);
  use.text("--translate-file", o.translate_file, "FILE",
           "Sentences, one per line; each translation is a line of standard output; - is standard input. Needs --model")
      ->needs(model)
      ->excludes(translate);
  use.count("--beam", o.search.beams, 1, 64, "Beam size; 1: greedy");
  use.number("--length-penalty", o.search.length_penalty, 0, 10,
             "Exponent of the length penalty, with several beams: 0 prefers short translations, 1 ranks by the mean "
             "over pieces, larger values prefer long ones");
  run.count("--threads", o.threads, 1, 4096, "Results are bit-identical for any number")->default_str("all cores");
  files.text("--data", o.data, "FILE.tsv",
             "Pairs to train on, one per line: English, tab, Chinese, and, after another tab, anything");
  files.text("--save", o.save, "FILE",
             "Where the model is saved: ten times during training, at the end, and after Ctrl-C");
  use.text("--map", o.map, "FILE.svg", "Draws the decoder's attention weights for the first sentence of --translate")
      ->needs(translate);
  files.text("--loss-curve", o.loss_curve, "FILE.svg", "Draws the losses");
  files.text("--report", o.report, "FILE.html",
             "Writes a page about the training: losses, translations over time, the attention of each head, speed");
}

}  // namespace

Options of_preset(const std::string& preset) {
  Options o;
  if (preset != "tatoeba") return o;
  o.data = TATOEBA_FILE;
  o.held_back = 500;
  o.sizes = {.encoder_layers = 3, .decoder_layers = 3, .features = 128, .heads = 4, .hidden = 512};
  o.dropout = 0.15;
  o.pieces = 3000;
  o.training.steps = 4000;
  o.training.warm_up = 200;
  o.training.batch_tokens = 2048;
  o.training.learning_rate = 2e-3;
  o.training.unknown_characters = 0.25;
  return o;
}

std::optional<Options> options_of(int argc, char** argv) {
  Options options = of_preset(training::preset_of(argc, argv, "phrases"));
  CLI::App app{
      "Learns to translate Chinese into English with an encoder-decoder Transformer, and translates. Without options "
      "it learns a phrase book by heart.",
      "train_translation"};
  add_learning(app, options);
  add_sizes(app, options);
  add_rest(app, options);
  try {
    training::parse(app, argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help);
    return std::nullopt;
  }
  training::refuse_beside(app, "--model", {kLearning, kModel, kFiles});
  if (!options.model.empty() && options.translate.empty() && options.translate_file.empty())
    throw std::invalid_argument("--model needs --translate or --translate-file");
  if (options.sizes.features % options.sizes.heads != 0)
    throw std::invalid_argument("--features is " + std::to_string(options.sizes.features) +
                                ", but must be a multiple of --heads, which is " + std::to_string(options.sizes.heads));
  options.training.lowest_rate = options.training.learning_rate / 100;
  return options;
}

}  // namespace translation
