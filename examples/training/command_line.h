// Command lines: checks that CLI11 lacks, and the main function of small programs.
#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace training {

/// Checks whole numbers. CLI11 itself accepts -1 as a large one, and clamps those that are too large.
inline auto whole_number(std::uint64_t lowest, std::uint64_t highest = std::numeric_limits<std::uint64_t>::max()) {
  return [=](const std::string& text) {
    std::uint64_t number = 0;
    const char* const last = text.data() + text.size();
    const auto [end, error] = std::from_chars(text.data(), last, number);
    if (error == std::errc() && end == last && number >= lowest && number <= highest) return std::string();
    return text + " is not a whole number in " + std::to_string(lowest) + ".." + std::to_string(highest);
  };
}

/// Checks numbers. CLI11's own range check accepts NaN.
inline auto number_in(double lowest, double highest) {
  return [=](const std::string& text) {
    double number = 0;
    if (CLI::detail::lexical_cast(text, number) && number >= lowest && number <= highest) return std::string();
    std::ostringstream message;
    message << text << " is not a number in " << lowest << ".." << highest;
    return message.str();
  };
}

/// Parses the command line. CLI11's message for an unknown option does not say where the options are listed.
/// @throws CLI::ParseError, and std::invalid_argument for an unknown option
inline void parse(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ExtrasError& error) {
    throw std::invalid_argument(std::string(error.what()) + "; --help lists all options");
  }
}

/// Parses the command line and runs a program. Returns its exit code: an exception becomes a message on standard error,
/// after the program's name, and exit code 1.
template <class F>
int parse_and_run(CLI::App& app, int argc, char** argv, const F& program) {
  try {
    parse(app, argc, argv);
    program();
  } catch (const CLI::CallForHelp& help) {
    return app.exit(help);
  } catch (const std::exception& error) {
    std::cerr << app.get_name() << ": " << error.what() << '\n';
    return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}

/// Reads --preset before all other options, because it determines their defaults, wherever it is on the command line.
/// Its name is checked when all options are parsed.
inline std::string preset_of(int argc, char** argv, std::string name) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_option("--preset", name);
  app.parse(argc, argv);
  return name;
}

/// Rejects options of these groups if the option `other`, which determines their values, is given.
/// @throws std::invalid_argument
inline void refuse_beside(const CLI::App& app, const std::string& other, const std::vector<std::string>& groups) {
  if (app.count(other) == 0) return;
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && std::find(groups.begin(), groups.end(), option->get_group()) != groups.end())
      throw std::invalid_argument(option->get_name() + " has no effect with " + other + ", omit it");
}

}  // namespace training
