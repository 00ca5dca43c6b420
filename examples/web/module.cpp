// The module of the page: two models, whose parameters the page fills. The page provides write_text(), which receives
// what they write.
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "attention_map.h"
#include "generate.h"
#include "parameter.h"

#define EXPORTED(name) extern "C" __attribute__((export_name(#name)))

/// Hands UTF-8 to the page.
extern "C" __attribute__((import_module("page"), import_name("write"))) void write_text(const char*, std::size_t bytes);

namespace {

/// Continues a text.
struct Writer {
  train_gpt::Vocabulary vocabulary;
  nn::Gpt<float> model;
  std::optional<train_gpt::Continuation> continuation;

  Writer(std::string_view characters, nn::GptConfig config)
      : vocabulary(characters), model((config.tokens = vocabulary.size(), config), 0) {}
};

std::unique_ptr<Writer> writer;
std::unique_ptr<translation::Translator> translator;

std::vector<nn::Parameter<float>> parameters;  // of the model created last
std::string text;                              // written by the page

}  // namespace

/// Returns memory for a text of this many bytes, which the next call of another function reads.
EXPORTED(text_memory) char* text_memory(std::size_t bytes) {
  text.assign(bytes, ' ');
  return text.data();
}

/// Creates a GPT whose vocabulary is the text. Returns the number of its parameters.
EXPORTED(create_writer) std::size_t create_writer(int context, int layers, int heads, int features) {
  writer = std::make_unique<Writer>(
      text, nn::GptConfig{.context = context, .layers = layers, .heads = heads, .features = features});
  parameters = nn::parameters_of<float>(writer->model);
  return parameters.size();
}

/// Creates a translator. The text is its characters, a zero byte and its merges. Returns the number of its parameters.
EXPORTED(create_translator)
std::size_t create_translator(int encoder_layers, int decoder_layers, int features, int heads, int hidden) {
  const std::string_view all = text;
  const std::size_t end = all.find('\0');
  translator = std::make_unique<translation::Translator>(
      translation::Characters::from_text(all.substr(0, end)), translation::Pieces::from_merges(all.substr(end + 1)),
      translation::Sizes{encoder_layers, decoder_layers, features, heads, hidden}, 0, 0);
  parameters = nn::parameters_of<float>(translator->model);
  return parameters.size();
}

EXPORTED(parameter_name) const char* parameter_name(std::size_t i) { return parameters[i].name.c_str(); }
EXPORTED(parameter_values) float* parameter_values(std::size_t i) { return parameters[i].values.data(); }
EXPORTED(parameter_size) std::size_t parameter_size(std::size_t i) { return parameters[i].values.size(); }

/// Begins with the text as the prompt. Characters that the model does not know are omitted. The page writes UTF-8.
EXPORTED(begin) void begin(double temperature, unsigned seed) {
  std::string known;
  for (std::size_t i = 0, next = 0; i < text.size(); i = next) {
    next = i + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;
    const std::string_view character(text.data() + i, next - i);
    if (writer->vocabulary.contains(character)) known += character;
  }
  write_text(known.data(), known.size());
  writer->continuation.emplace(writer->model, writer->vocabulary, known,
                               train_gpt::Sampling{.temperature = temperature, .seed = seed});
}

/// Writes characters until `milliseconds` have passed, or `most` have been written. Returns their number.
EXPORTED(go_on) int go_on(double milliseconds, int most) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration<double, std::milli>(milliseconds);
  int count = 0;
  while (count < most && (count == 0 || Clock::now() < end)) {
    const std::string& character = writer->continuation->next();
    write_text(character.data(), character.size());
    ++count;
  }
  return count;
}

/// Translates the text: writes the translation and, after a zero byte, a picture (SVG) of the attention of each decoder
/// layer. Writes nothing for a text without characters.
EXPORTED(translate) void translate() {
  if (translation::characters_of(text).empty()) return;
  const translation::AttendedTranslation attended = translation::attended_translation(*translator, text, {.beams = 4});
  const std::string all = attended.translation + '\0' + translation::attention_map_svg(attended);
  write_text(all.data(), all.size());
}
