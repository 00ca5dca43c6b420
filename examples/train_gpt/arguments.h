// The command line.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>

#include "generate.h"
#include "run.h"

namespace train_gpt {

/// What the user asked for.
struct Request {
  std::string preset;
  Options options;
  RunOptions run;
  bool over_ranks = false;
  bool no_save = false;
  bool save_is_new = false;  ///< the default name was taken by another run
  std::filesystem::path data;
  std::filesystem::path resume, model;  ///< checkpoints: to go on with, to only write with. One at most
  std::filesystem::path loss_curve, report;
  std::optional<int> threads;
  std::optional<std::uint64_t> seed;
  std::string prompt;
  Sampling sampling;   ///< its seed is that of the run unless one was given
  Index length = 500;  ///< characters to write
};

/// Whether the work is to be shared with other processes. This is asked ahead of everything else, because MPI begins
/// before options are read.
bool asks_for_ranks(int argc, char** argv);

/// The request; none if only help was asked for, which is then printed on `out`.
/// @throws std::exception with one line that says what is wrong.
std::optional<Request> parse(int argc, char** argv, std::ostream& out);

}  // namespace train_gpt
