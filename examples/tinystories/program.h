// What the programs tinystories, endless and speculative share: the network named on the command line, and the output.
#pragma once

#include <filesystem>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "tokenizer.h"
#include "transformer.h"

namespace tinystories {

inline constexpr char kDefaultModel[] = TINYSTORIES_MODEL_DIR "/stories260K.bin";

/// The files named on the command line.
struct ModelFiles {
  std::string model = kDefaultModel;
  std::string tokenizer = TINYSTORIES_MODEL_DIR "/tok512.bin";

  void add_options(CLI::App& app) {
    auto* option = app.add_option("MODEL", model, "Checkpoint of llama2.c, version 0")->capture_default_str();
    option->needs(app.add_option("TOKENIZER", tokenizer, "Its tokenizer")->capture_default_str());
  }

  /// @throws FileError
  Transformer read_network() const {
    if (model == kDefaultModel && !std::filesystem::exists(model))
      throw FileError(model,
                      "there is no such file; examples/README.md says where to get it, or pass MODEL and TOKENIZER");
    return Transformer{Checkpoint(BinaryFile(std::filesystem::path(model)))};
  }
  Tokenizer read_tokenizer(const Config& config) const {
    return Tokenizer(BinaryFile(std::filesystem::path(tokenizer)), config.vocab_size);
  }
};

/// The executor for --threads.
inline attn::Executor executor_of(const std::optional<int>& threads) {
  if (!threads) return {};
  return *threads == 1 ? attn::serial() : attn::threads(*threads);
}

/// Writes to standard output. @throws std::runtime_error
inline void write_out(std::string_view text) {
  if (!(std::cout << text << std::flush)) throw std::runtime_error("standard output cannot be written");
}

}  // namespace tinystories
