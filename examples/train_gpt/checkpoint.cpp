#include "checkpoint.h"

#include <array>
#include <charconv>
#include <stdexcept>

#include "memory.h"
#include "printable.h"
#include "safetensors.h"

namespace train_gpt {

namespace {

constexpr const char* kVersion = "1";
constexpr const char* kSample = "sample.";  // prefix of the number of steps

/// Visits all options except the number of tokens, which follows from the characters.
template <class O, class F>
void for_each_option(O& o, const F& f) {
  f("layers", o.model.layers);
  f("heads", o.model.heads);
  f("features", o.model.features);
  f("context", o.model.context);
  f("bias", o.model.bias);
  f("dropout", o.model.dropout);
  f("batch", o.batch);
  f("steps", o.steps);
  f("warm_up", o.warm_up);
  f("learning_rate", o.learning_rate);
  f("weight_decay", o.weight_decay);
  f("beta1", o.beta1);
  f("beta2", o.beta2);
  f("clip", o.clip);
  f("validation_every", o.validation_every);
  f("sample_every", o.sample_every);
  f("seed", o.seed);
}

/// Returns a number as text, in the fewest digits that convert back to the same number.
template <class T>
std::string text_of(T number) {
  std::array<char, 32> digits;
  const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), number);
  return {digits.data(), end};
}
std::string text_of(bool value) { return value ? "1" : "0"; }

/// The losses as parameters, so that the file stores them in binary.
struct Losses {
  std::vector<float> training, validation_steps, validation;

  void visit(const nn::Visitor<float>& visitor) {
    const auto one = [&](const char* name, std::vector<float>& v) {
      visitor({name, {static_cast<Index>(v.size())}, v, {}});
    };
    one("losses.training", training);
    one("losses.validation_steps", validation_steps);
    one("losses.validation", validation);
  }
};

std::vector<nn::Parameter<float>> all_tensors(State& state, Losses& losses) {
  std::vector<nn::Parameter<float>> all = nn::parameters_of<float>(state.model);
  const auto add = [&](const nn::Parameter<float>& p) { all.push_back(p); };
  state.optimizer.visit_moments(nn::parameters_of<float>(state.model), add);
  losses.visit(add);
  return all;
}

/// Reads a checkpoint's metadata, with errors that name the file.
class Reader {
 public:
  explicit Reader(const std::filesystem::path& file) : path_(file), file_(file) {
    if (!file_.metadata().contains("format") || file_.text("format") != kCheckpointFormat)
      fail("is not a checkpoint of train_gpt");
    if (file_.text("version") != kVersion)
      fail("has version " + nn::in_quotes(file_.text("version")) + " of the format, but this program reads " +
           kVersion);
  }

  State read() const {
    Options read_options = options();
    Vocabulary read_vocabulary = vocabulary();
    read_options.model.tokens = read_vocabulary.size();
    const Index step = file_.number("step", 0, read_options.steps);
    require_room(read_options.model, step);
    State state(read_options, std::move(read_vocabulary));
    state.step = step;
    state.optimizer.set_steps(step);
    state.model.visit_dropouts([&](auto& dropout) { dropout.set_calls(static_cast<std::uint64_t>(step)); });
    state.text_file = file_.text("text_file");
    number("text_checksum", state.text_checksum);
    std::uint64_t random = 0;
    number("random", random);
    state.random = nn::Random(random);
    read_tensors(state);
    read_samples(state);
    return state;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw nn::FileError(path_.string() + ": " + what); }

  template <class T>
  void number(const std::string& key, T& value) const {
    const std::string& digits = file_.text(key);
    const char* last = digits.data() + digits.size();
    const auto [end, error] = std::from_chars(digits.data(), last, value);
    if (error != std::errc() || end != last)
      fail("\"" + key + "\" is " + nn::in_quotes(digits) + ", which is not a valid number");
  }
  void number(const std::string& key, bool& value) const { value = file_.number(key, 0, 1) == 1; }

  Options options() const {
    Options options;
    for_each_option(options, [&](const char* key, auto& value) { number(key, value); });
    try {
      check(options, [](const std::string& key) { return '"' + key + '"'; });
    } catch (const std::invalid_argument& error) {
      fail(error.what());
    }
    return options;
  }

  Vocabulary vocabulary() const {
    try {
      Vocabulary vocabulary(file_.text("characters"));
      if (vocabulary.size() == 0) fail("its \"characters\" are empty");
      return vocabulary;
    } catch (const std::invalid_argument& error) {
      fail(std::string("its \"characters\": ") + error.what());
    }
  }

  /// Checks, before allocating a model, that the file is large enough for its values and AdamW's moments, three values
  /// per parameter.
  void require_room(const nn::GptConfig& model, Index step) const {
    const auto size = static_cast<double>(std::filesystem::file_size(path_));
    const double numbers = matrix_elements(model);
    if (3 * sizeof(float) * numbers > size) fail("is too small for the model that it describes");
    if (sizeof(float) * static_cast<double>(step) > size)
      fail("is too small for the losses of " + std::to_string(step) + " steps");
    try {
      training::require_memory(kBytesPerParameter * numbers);
    } catch (const std::invalid_argument& error) {  // a sparse file may be larger than the disk
      fail(error.what());
    }
  }

  void read_tensors(State& state) const {
    const auto validations = static_cast<std::size_t>(file_.number("validations", 0, state.step));
    Losses losses{std::vector<float>(static_cast<std::size_t>(state.step)), std::vector<float>(validations),
                  std::vector<float>(validations)};
    const auto tensors = all_tensors(state, losses);
    file_.load(tensors);
    for (const nn::Parameter<float>& p : tensors)
      if (p.name.starts_with("v."))
        for (const float v : p.values)
          if (v < 0) fail(p.name + " has a negative value, but is a mean of squares");
    state.losses = losses.training;
    for (std::size_t i = 0; i < validations; ++i) {
      const float step = losses.validation_steps[i];
      if (!(step >= 0 && step <= static_cast<float>(state.step)))
        fail("a validation loss belongs to a step that was not run");
      state.validation[static_cast<Index>(step)] = losses.validation[i];
    }
  }

  void read_samples(State& state) const {
    for (const auto& [key, text] : file_.metadata())
      if (key.starts_with(kSample)) {
        const std::string digits = key.substr(std::string(kSample).size());
        Index step = 0;
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
        if (error != std::errc() || end != digits.data() + digits.size() || step < 0 || step > state.step)
          fail(nn::in_quotes(key) + " belongs to a step that was not run");
        state.samples[step] = text;
      }
  }

  std::filesystem::path path_;
  nn::SafeTensors file_;
};

}  // namespace

void save(const std::filesystem::path& file, State& state) {
  nn::Metadata metadata{{"format", kCheckpointFormat},
                        {"version", kVersion},
                        {"characters", state.vocabulary.text()},
                        {"text_file", state.text_file},
                        {"text_checksum", text_of(state.text_checksum)},
                        {"step", text_of(state.step)},
                        {"random", text_of(state.random.state())},
                        {"validations", text_of(state.validation.size())}};
  for_each_option(state.options, [&](const char* key, const auto& value) { metadata[key] = text_of(value); });
  for (const auto& [step, text] : state.samples) metadata[kSample + text_of(step)] = text;
  Losses losses{state.losses, {}, {}};
  for (const auto& [step, loss] : state.validation) {
    losses.validation_steps.push_back(static_cast<float>(step));
    losses.validation.push_back(loss);
  }
  nn::save_safetensors<float>(file, all_tensors(state, losses), metadata);
}

State load(const std::filesystem::path& file) { return Reader(file).read(); }

}  // namespace train_gpt
