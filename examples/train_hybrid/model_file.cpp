#include "model_file.h"

#include <stdexcept>

#include "memory.h"
#include "safetensors.h"

namespace train_hybrid {

namespace {

constexpr double kBytesPerParameter = 4 * sizeof(float);  // value, gradient and two moments of AdamW

nn::HybridConfig fitted(nn::HybridConfig config, const train_gpt::Vocabulary& vocabulary) {
  config.tokens = vocabulary.size();
  check(config);
  training::require_memory(kBytesPerParameter * matrix_elements(config));
  return config;
}

[[noreturn]] void fail(const std::filesystem::path& file, const std::string& what) {
  throw nn::FileError(file.string() + ": " + what);
}

}  // namespace

LanguageModel::LanguageModel(nn::HybridConfig config, train_gpt::Vocabulary v, std::uint64_t seed)
    : vocabulary(std::move(v)), network(fitted(config, vocabulary), seed) {}

void save(const std::filesystem::path& file, LanguageModel& model) {
  nn::Metadata metadata{{"format", kFormat}, {"characters", model.vocabulary.text()}};
  for_each_size(model.network.config(), [&](const char* name, Index value, Index, Index, const char*) {
    metadata[name] = std::to_string(value);
  });
  nn::save_safetensors<float>(file, nn::parameters_of<float>(model.network), metadata);
}

LanguageModel load(const std::filesystem::path& file) {
  const nn::SafeTensors tensors(file);
  if (!tensors.metadata().contains("format") || tensors.text("format") != kFormat)
    fail(file, "is not a model of train_hybrid");
  nn::HybridConfig config;
  for_each_size(config, [&](const char* name, Index& value, Index least, Index most, const char*) {
    value = tensors.number(name, least, most);
  });
  try {
    train_gpt::Vocabulary vocabulary(tensors.text("characters"));
    if (vocabulary.size() == 0) fail(file, "its \"characters\" are empty");
    config.tokens = vocabulary.size();
    check(config, [](const std::string& key) { return '"' + key + '"'; });
    if (sizeof(float) * matrix_elements(config) > static_cast<double>(std::filesystem::file_size(file)))
      fail(file, "is too small for the model that it describes");
    LanguageModel model(config, std::move(vocabulary), 0);
    tensors.load(nn::parameters_of<float>(model.network));
    return model;
  } catch (const std::invalid_argument& error) {
    fail(file, error.what());
  }
}

}  // namespace train_hybrid
