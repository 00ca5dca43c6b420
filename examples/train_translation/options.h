// The command line of train_translation.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "beam_search.h"
#include "trainer.h"

namespace translation {

struct Options {
  // Training. These defaults are the preset phrases.
  std::string preset = "phrases", data;  // data empty: the phrase book
  Index held_back = 0;
  Sizes sizes;
  double dropout = 0;
  Index pieces = 600;
  TrainingConfig training;
  int threads = 0;  // 0: all cores

  // Translation.
  std::string model;
  std::vector<std::string> translate;
  std::string translate_file;
  SearchConfig search{.beams = 4};

  // Output files.
  std::string save, map, loss_curve, report;
};

/// Returns the preset "phrases" or "tatoeba".
Options of_preset(const std::string& preset);

/// Parses the command line. Returns nothing if only help was requested, which is printed.
/// @throws std::exception with a one-line message.
std::optional<Options> options_of(int argc, char** argv);

}  // namespace translation
