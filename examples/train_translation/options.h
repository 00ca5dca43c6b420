// What the user asked for.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "beam_search.h"
#include "trainer.h"

namespace translation {

struct Options {
  // To learn. These values are the preset phrases.
  std::string preset = "phrases", data;  // data empty: the phrase book
  Index held_back = 0;
  Sizes sizes;
  double dropout = 0;
  Index pieces = 600;
  TrainingConfig training;
  int threads = 0;  // 0: all cores

  // To use.
  std::string model;
  std::vector<std::string> translate;
  std::string translate_file;
  SearchConfig search{.beams = 4};

  // To write.
  std::string save, map, loss_curve, report;
};

/// The preset "phrases" or "tatoeba".
Options of_preset(const std::string& preset);

/// The options of a command line; none if only help was asked for, which is then printed.
/// @throws std::exception with one line that says what is wrong.
std::optional<Options> options_of(int argc, char** argv);

}  // namespace translation
