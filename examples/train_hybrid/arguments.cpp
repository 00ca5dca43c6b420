#include "arguments.h"

#include "command_line.h"

namespace train_hybrid {

using training::number_in;
using training::whole_number;

namespace {

constexpr std::uint64_t kMostSteps = 10'000'000, kMostCharacters = 1 << 20;

constexpr const char* kTraining = "Training";
constexpr const char* kFiles = "Files";
constexpr const char* kWriting = "Generated text";

/// Adds an option for a number, which is shown with its default.
template <class Number, class Check>
void add_number(CLI::App& app, const char* group, const std::string& name, Number& value, const std::string& text,
                const Check& check) {
  app.add_option(name, value, text)->capture_default_str()->check(check)->type_name("NUMBER")->group(group);
}

void add_training_options(CLI::App& app, Options& o) {
  const auto add = [&](const char* name, auto& value, const char* text, const auto& check) {
    add_number(app, kTraining, name, value, text, check);
  };
  for_each_size(o.model,
                [&](const char* name, Index& value, std::uint64_t least, std::uint64_t most, const char* text) {
                  add_number(app, kTraining, train_gpt::flag_of(name), value, text, whole_number(least, most));
                });
  add("--context", o.context, "Characters per sequence in training", whole_number(2, kMostCharacters));
  add("--batch", o.batch, "Sequences per step", whole_number(1, 4096));
  add("--steps", o.steps, "Steps", whole_number(1, kMostSteps));
  add("--warm-up", o.warm_up, "Steps over which the learning rate rises", whole_number(0, kMostSteps));
  add("--learning-rate", o.learning_rate, "Maximum; it decays to a tenth along a cosine", number_in(0, 1));
  add("--weight-decay", o.weight_decay, "Of AdamW", number_in(0, 10));
  add("--validation-every", o.validation_every,
      "Steps between validations, which also write a sample; 0: only before and after the run",
      whole_number(0, kMostSteps));
}

void add_file_options(CLI::App& app, Request& request) {
  const auto add = [&](const char* name, auto& value, const char* text, const char* type = "FILE") {
    app.add_option(name, value, text)->type_name(type)->group(kFiles);
  };
  add("--data", request.data,
      "The text, in UTF-8: the first 90 % for training, the rest for validation. By default Shakespeare's plays, "
      "data/tinyshakespeare/input.txt in the clone");
  add("--save", request.save, "Save the model; by default it is discarded");
  add("--loss-curve", request.loss_curve, "A chart of the losses", "FILE.svg");
  add("--report", request.report, "A page: losses, samples, speed", "FILE.html");
}

void add_writing_options(CLI::App& app, Request& request) {
  train_gpt::Sampling& sampling = request.sampling;
  app.add_option("--prompt", request.prompt, "The text to continue")->type_name("TEXT")->group(kWriting);
  add_number(app, kWriting, "--length", request.length, "Characters to write", whole_number(0, kMostCharacters));
  add_number(app, kWriting, "--temperature", sampling.temperature,
             "Sampling temperature: 0 always takes the likeliest character", number_in(0, 1e6));
  add_number(app, kWriting, "--top-k", sampling.top_k,
             "Sample only from this many of the likeliest characters; 0: from all", whole_number(0, kMostCharacters));
}

}  // namespace

std::optional<Request> parse(int argc, char** argv, std::ostream& out) {
  CLI::App app{
      "Trains a hybrid of gated DeltaNets and gated attention, in the shape of Qwen3-Next, on the characters of a "
      "text, "
      "then generates text with it. That text goes to standard output, everything else to standard error. The last "
      "line is the validation loss. Ctrl-C ends the training; --save then saves the model as it is.",
      "train_hybrid"};
  Request request;
  app.add_option("--model", request.model, "Do not train; only generate text, with the model of this file")
      ->type_name("FILE");
  app.add_option("--threads", request.threads, "By default one per core; results are bit-identical for any number")
      ->check(whole_number(1, 1024))
      ->type_name("NUMBER");
  add_number(app, "Options", "--seed", request.options.seed, "Seed of all random draws", whole_number(0));
  add_training_options(app, request.options);
  add_file_options(app, request);
  add_writing_options(app, request);
  try {
    training::parse(app, argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help, out);
    return std::nullopt;
  }
  training::refuse_beside(app, "--model", {kTraining, kFiles});
  check(request.options.model);
  const Options& o = request.options;
  if (o.batch * o.context > static_cast<Index>(kMostCharacters))
    throw std::invalid_argument("--batch times --context is " + std::to_string(o.batch * o.context) +
                                ", but must be at most " + std::to_string(kMostCharacters));
  request.sampling.seed = o.seed;
  return request;
}

}  // namespace train_hybrid
