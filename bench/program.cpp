#include "program.h"

#include <exception>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>

#include <attn/isa.h>
#include <attn/version.h>

namespace bench {

void expect_writable(const std::string& path) {
  if (!path.empty() && !std::ofstream(path, std::ios::app)) throw std::runtime_error("cannot write " + path);
}

Program::Program(std::string name, const std::string& description)
    : name_(std::move(name)), svg_(name_ + ".svg"), app_(description) {
  app_.add_flag("--quick", quick_, "short rows, few rounds: does it run?");
  app_.add_option("--svg", svg_, "where the chart goes; empty: no chart")->capture_default_str();
  app_.add_option("--json", json_,
                  "where the numbers go, in Google Benchmark's format; beside the chart if not given, empty: nowhere");
}

int Program::main(int argc, char** argv, const std::function<void()>& run) {
  CLI11_PARSE(app_, argc, argv);
  try {
    if (app_.count("--json") == 0 && !svg_.empty())
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
