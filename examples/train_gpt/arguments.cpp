#include "arguments.h"

#include <algorithm>
#include <stdexcept>

#include "command_line.h"

namespace train_gpt {

using training::number_in;
using training::whole_number;

namespace {

constexpr const char* kPresets[] = {"small", "shakespeare"};

constexpr std::uint64_t kMost = 10'000'000;  // steps, characters

constexpr const char* kLearning = "Training";
constexpr const char* kFiles = "Files";
constexpr const char* kWriting = "Generated text";

/// Adds the options that determine a run's results. A checkpoint stores them all.
void add_learning_options(CLI::App& app, Request& request) {
  Options& o = request.options;
  const auto begins = [](CLI::Option* option) { return option->capture_default_str()->group(kLearning); };
  const auto count = [&](const char* name, Index& value, const char* text) {
    begins(app.add_option(name, value, text))->check(whole_number(0, kMost))->type_name("NUMBER");
  };
  const auto number = [&](const char* name, double& value, const char* text) {
    begins(app.add_option(name, value, text))->type_name("NUMBER");
  };
  begins(app.add_option("--preset", request.preset,
                        "Defaults of the options below: small, for a text of a few KiB and a few seconds; or "
                        "shakespeare, nanoGPT's CPU sizes for the text of that name"))
      ->check(CLI::IsMember({kPresets[0], kPresets[1]}))
      ->type_name("NAME");
  count("--layers", o.model.layers, "Layers");
  count("--heads", o.model.heads, "Heads per layer");
  count("--features", o.model.features, "Features per character");
  count("--context", o.model.context, "Number of preceding characters that the model sees");
  begins(app.add_flag("--bias", o.model.bias, "Biases in linear layers and norms"));
  number("--dropout", o.model.dropout, "Fraction of activations set to 0 in training");
  count("--batch", o.batch, "Sequences per step, each as long as the context");
  count("--steps", o.steps, "Steps");
  number("--learning-rate", o.learning_rate, "Maximum; it decays to a tenth along a cosine");
  count("--warm-up", o.warm_up, "Steps over which the learning rate rises");
  number("--weight-decay", o.weight_decay, "Of AdamW");
  number("--beta1", o.beta1, "Of AdamW");
  number("--beta2", o.beta2, "Of AdamW");
  number("--clip", o.clip, "Maximum norm of all gradients");
  count("--validation-every", o.validation_every,
        "Steps between validations, which also save the run; 0: only at its end");
  count("--sample-every", o.sample_every, "Steps between samples of generated text; 0: none");
}

void add_file_options(CLI::App& app, Request& request) {
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->type_name("FILE")->group(kFiles);
  };
  add("--data", request.data,
      "The text, in UTF-8: the first 90 % for training, the rest for validation. By default a text of this project; "
      "with --resume, that of the run");
  auto* save = add("--save", request.run.save,
                   "Where the model and the state of the run are saved. By default gpt.safetensors, or "
                   "gpt-2.safetensors and so on if that belongs to another run; with --resume, that file");
  app.add_flag("--no-save", request.no_save, "Save nothing")->excludes(save)->group(kFiles);
  add("--loss-curve", request.loss_curve, "A chart of the losses")->type_name("FILE.svg");
  add("--report", request.report, "A page: losses, samples, attention, speed")->type_name("FILE.html");
}

void add_writing_options(CLI::App& app, Request& request) {
  Sampling& sampling = request.sampling;
  const auto add = [&](const char* name, auto& value, const char* text) {
    return app.add_option(name, value, text)->capture_default_str()->type_name("NUMBER")->group(kWriting);
  };
  add("--prompt", request.prompt, "The text to continue")->type_name("TEXT");
  add("--length", request.length, "Characters to write")->check(whole_number(0, kMost));
  add("--temperature", sampling.temperature, "Sampling temperature: 0 always takes the likeliest character")
      ->check(number_in(0, 1e6));
  add("--top-k", sampling.top_k, "Sample only from this many of the likeliest characters; 0: from all")
      ->check(whole_number(0, kMost));
}

/// Chooses the file of a run without --save. An existing file is kept: the run gets another name.
void choose_save(Request& request) {
  request.run.save = "gpt.safetensors";
  std::error_code none;
  for (int i = 2; std::filesystem::exists(request.run.save, none); ++i) {
    request.run.save = "gpt-" + std::to_string(i) + ".safetensors";
    request.save_is_new = true;
  }
}

}  // namespace

bool asks_for_ranks(int argc, char** argv) { return std::find(argv, argv + argc, std::string("--mpi")) != argv + argc; }

std::optional<Request> parse(int argc, char** argv, std::ostream& out) {
  CLI::App app{
      "Trains a GPT on the characters of a text, then generates text with it. That text goes to standard output, "
      "everything else to standard error. The last line is the validation loss. Ctrl-C saves and ends.",
      "train_gpt"};
  Request request;
  request.preset = training::preset_of(argc, argv, kPresets[0]);
  for (const char* known : kPresets)
    if (request.preset == known) request.options = preset(known);
  auto* resume = app.add_option(
      "--resume", request.resume,
      "Continue the run that saved this file; results are bit-identical to those of an uninterrupted run");
  auto* over_ranks =
      app.add_flag("--mpi", request.over_ranks,
                   "Distribute each step's sequences over the processes that mpirun started; --threads is per process, "
                   "and only rank 0 writes. Results are bit-identical for the same number of processes");
  app.add_option("--model", request.model, "Do not train; only generate text, with the model of this file")
      ->excludes(resume->type_name("FILE"))
      ->excludes(over_ranks)
      ->type_name("FILE");
  app.add_option("--threads", request.threads, "By default one per core; results are bit-identical for any number")
      ->check(whole_number(1, 1024))
      ->type_name("NUMBER");
  app.add_option(
         "--seed", request.seed,
         "Seed of all random draws, by default 1. With --model, seed of the generated text, by default the seed "
         "of the run")
      ->check(whole_number(0))
      ->excludes(resume)
      ->type_name("NUMBER");
  app.add_option("--stop-after", request.run.stop_after, "Stop after this many steps; --resume continues")
      ->check(whole_number(0, kMost))
      ->type_name("NUMBER");
  add_learning_options(app, request);
  add_file_options(app, request);
  add_writing_options(app, request);
  try {
    training::parse(app, argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help, out);
    return std::nullopt;
  }
  training::refuse_beside(app, "--resume", {kLearning});
  training::refuse_beside(app, "--model", {kLearning, kFiles});
  if (request.seed) request.options.seed = *request.seed;
  check(request.options);
  if (!request.no_save && app.count("--save") == 0) {
    if (request.resume.empty())
      choose_save(request);
    else
      request.run.save = request.resume;
  }
  return request;
}

}  // namespace train_gpt
