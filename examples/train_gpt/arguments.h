// The command line of train_gpt.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>

#include "generate.h"
#include "run.h"

namespace train_gpt {

/// The parsed command line.
struct Request {
  std::string preset;
  Options options;
  RunOptions run;
  bool over_ranks = false;
  bool no_save = false;
  bool save_is_new = false;  ///< the default name already existed
  std::filesystem::path data;
  std::filesystem::path resume, model;  ///< checkpoint to continue, or to generate with; at most one
  std::filesystem::path loss_curve, report;
  std::optional<int> threads;
  std::optional<std::uint64_t> seed;
  std::string prompt;
  Sampling sampling;   ///< its seed is the run's unless --seed is given
  Index length = 500;  ///< characters to generate
};

/// Whether the work is distributed over processes. Called before all else, because MPI starts before options are
/// parsed.
bool asks_for_ranks(int argc, char** argv);

/// Parses the command line. Returns nothing if only help was requested, which is printed on `out`.
/// @throws std::exception with a one-line message.
std::optional<Request> parse(int argc, char** argv, std::ostream& out);

}  // namespace train_gpt
