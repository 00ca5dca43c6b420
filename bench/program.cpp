#include "program.h"

#include <cerrno>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <type_traits>

#include <attn/isa.h>
#include <attn/types.h>
#include <attn/version.h>
#include <CLI/CLI.hpp>

namespace bench {

void expect_writable(const std::string& path) {
  if (!path.empty() && !std::ofstream(path, std::ios::app))
    throw std::runtime_error("cannot write " + path + ": " + std::strerror(errno));
}

Program::Program(std::string name, const std::string& description)
    : name_(std::move(name)), svg_(name_ + ".svg"), app_(std::make_unique<CLI::App>(description)) {
  flag("--quick", quick_, "short rows and few rounds, to check that it runs");
  app_->add_option("--svg", svg_, "file for the chart; empty: no chart")->capture_default_str();
  text("--json", json_,
       "file for the numbers, in Google Benchmark's format; by default next to the chart; empty: no file");
}

Program::~Program() = default;

template <class Number>
void Program::number(const std::string& option, Number& value, const std::string& what, double least, double most) {
  CLI::Option* const added = app_->add_option(option, value, what);
  bool has_default = true;
  if constexpr (std::is_arithmetic_v<Number>) has_default = static_cast<double>(value) >= least;
  if (has_default) added->capture_default_str();
  if constexpr (std::is_integral_v<Number>)
    added->check(CLI::Range(static_cast<Number>(least), static_cast<Number>(most)));
  else
    added->check(CLI::Range(least, most));
}
template void Program::number(const std::string&, int&, const std::string&, double, double);
template void Program::number(const std::string&, attn::Index&, const std::string&, double, double);
template void Program::number(const std::string&, double&, const std::string&, double, double);
template void Program::number(const std::string&, std::vector<double>&, const std::string&, double, double);

void Program::number_among(const std::string& option, double& value, const std::string& what,
                           std::vector<double> values) {
  app_->add_option(option, value, what)->check(CLI::IsMember(std::move(values)))->capture_default_str();
}
void Program::text(const std::string& option, std::string& value, const std::string& what) {
  app_->add_option(option, value, what);
}
void Program::flag(const std::string& option, bool& value, const std::string& what) {
  app_->add_flag(option, value, what);
}

int Program::main(int argc, char** argv, const std::function<void()>& run) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    return app_->exit(help);
  } catch (const CLI::ParseError& error) {
    std::cerr << name_ << ": " << error.what() << "; --help lists all options\n";
    return 1;
  }
  try {
    if (app_->count("--json") == 0 && !svg_.empty())
      json_ = std::filesystem::path(svg_).replace_extension(".json").string();
    if (is_silent_) svg_ = json_ = "";
    expect_writable(svg_);
    expect_writable(json_);
    results_.about("attn", std::to_string(ATTN_VERSION_MAJOR) + '.' + std::to_string(ATTN_VERSION_MINOR) + '.' +
                               std::to_string(ATTN_VERSION_PATCH));
    results_.about("program", name_);
    results_.about("instruction_set", std::string(to_string(attn::default_isa())));
    results_.about("flags", ATTN_BENCH_FLAGS);
    run();
    write();
    return 0;
  } catch (const std::exception& error) {
    std::cerr << name_ << ": " << error.what() << '\n';
    for (const std::string& file : {svg_, json_}) {  // created by expect_writable()
      std::error_code ignored;
      if (std::filesystem::is_regular_file(file, ignored) && std::filesystem::is_empty(file, ignored))
        std::filesystem::remove(file, ignored);
    }
    return 1;
  }
}

void Program::write() const {
  if (!svg_.empty()) {
    std::ofstream file(svg_);
    file << picture_;
    if (!file.flush()) throw std::runtime_error("cannot write " + svg_);
    std::cout << "Chart: " << svg_ << '\n';
  }
  if (!json_.empty()) {
    results_.write_json(json_);
    std::cout << "Numbers: " << json_ << '\n';
  }
}

}  // namespace bench
