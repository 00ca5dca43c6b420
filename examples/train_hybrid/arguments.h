// The command line of train_hybrid.
#pragma once

#include <filesystem>
#include <iosfwd>
#include <optional>
#include <string>

#include "generate.h"
#include "hybrid_options.h"

namespace train_hybrid {

/// The parsed command line.
struct Request {
  Options options;
  std::filesystem::path data, save, loss_curve, report;
  std::filesystem::path model;  ///< to generate with, without training
  std::optional<int> threads;
  std::string prompt;
  train_gpt::Sampling sampling;
  Index length = 400;  ///< characters to generate
};

/// Parses the command line. Returns nothing if only help was requested, which is printed on `out`.
/// @throws std::exception with a one-line message.
std::optional<Request> parse(int argc, char** argv, std::ostream& out);

}  // namespace train_hybrid
