// The JSON that benchmarks write for other programs, and their progress display.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "program.h"
#include "progress.h"
#include "results.h"
#include "timing.h"

namespace {

using namespace bench;
using nlohmann::json;

std::filesystem::path file(const std::string& name) { return std::filesystem::path(testing::TempDir()) / name; }

std::string text_of(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(BenchResults, HaveGoogleBenchmarksFormat) {
  Results results;
  results.about("instruction_set", "avx \"512\"");
  results.add("N=64 D=64/flash", {.seconds = 1.5e-3, .cpu_seconds = 2.5e-3, .calls = 30}, {{"of_fma_peak", 0.75}});
  results.add("√n, \"quoted\\\"", {.seconds = 2, .cpu_seconds = 2, .calls = 1},
              {{"none", std::nan("")}, {"endless", HUGE_VAL}, {"bytes", 1e9}});
  const auto path = file("bench_results.json");
  results.write_json(path.string());
  const json all = json::parse(text_of(path));

  const json& context = all.at("context");
  EXPECT_EQ(context.at("instruction_set"), "avx \"512\"");
  EXPECT_TRUE(context.at("date").is_string());
  EXPECT_GE(context.at("num_cpus").get<int>(), 1);

  // The keys that Google Benchmark's tools/compare.py reads from an entry.
  ASSERT_EQ(all.at("benchmarks").size(), 2u);
  const json& first = all["benchmarks"][0];
  EXPECT_EQ(first.at("name"), "N=64 D=64/flash");
  EXPECT_EQ(first.at("run_name"), first.at("name"));
  EXPECT_EQ(first.at("run_type"), "iteration");
  EXPECT_EQ(first.at("iterations"), 30);
  EXPECT_EQ(first.at("repetitions"), 1);
  EXPECT_EQ(first.at("repetition_index"), 0);
  EXPECT_EQ(first.at("time_unit"), "ns");
  EXPECT_NEAR(first.at("real_time").get<double>(), 1.5e6, 1e-3);
  EXPECT_NEAR(first.at("cpu_time").get<double>(), 2.5e6, 1e-3);
  EXPECT_DOUBLE_EQ(first.at("of_fma_peak").get<double>(), 0.75);
  const json& second = all["benchmarks"][1];
  EXPECT_EQ(second.at("name"), "√n, \"quoted\\\"");
  EXPECT_DOUBLE_EQ(second.at("bytes").get<double>(), 1e9);
  EXPECT_FALSE(second.contains("none")) << "JSON has no NaN";
  EXPECT_FALSE(second.contains("endless")) << "JSON has no infinity";
  EXPECT_THROW(results.write_json(file("no/such/folder.json").string()), std::runtime_error);
}

TEST(BenchTiming, CountsCallsAndCpuTime) {
  volatile double sink = 0;
  const std::vector<std::function<void()>> calls{[] { std::this_thread::sleep_for(std::chrono::milliseconds(4)); },
                                                 [&] {
                                                   for (int i = 0; i < 100'000; ++i) sink = sink + 1;
                                                 }};
  int rounds_seen = 0;
  const auto timings = interleaved(calls, {.seconds = 0.001, .rounds = 3}, [&](int round, int rounds) {
    EXPECT_EQ(round, rounds_seen++);
    EXPECT_EQ(rounds, 3);
  });
  ASSERT_EQ(timings.size(), 2u);
  EXPECT_EQ(rounds_seen, 3);
  EXPECT_EQ(timings[0].calls, 3);
  EXPECT_EQ(timings[1].calls % 3, 0);
  EXPECT_GE(timings[0].seconds, 4e-3);
  EXPECT_LT(timings[0].cpu_seconds, timings[0].seconds / 2) << "sleep takes no CPU time";
  EXPECT_GT(timings[1].cpu_seconds, 0);
}

/// Returns the output of a progress line.
std::string shown(bool terminal, const std::function<void(Progress&)>& run, std::vector<double> shares) {
  std::ostringstream out;
  {
    Progress progress(std::move(shares), out, terminal);
    run(progress);
  }
  return out.str();
}

TEST(BenchProgress, LogsHaveALinePerRowWithTheTimeLeft) {
  const std::string log = shown(false,
                                [](Progress& p) {
                                  p.begin_row("short");
                                  p.round(1, 2);
                                  std::this_thread::sleep_for(std::chrono::milliseconds(60));
                                  p.begin_row("long");
                                  p.say("checking");
                                },
                                {1, 60});
  // A sixty-first of the work took at least 60 ms, so at least 3.6 s are left, shown as 4 s (more on a busy machine).
  ASSERT_EQ(log.rfind("[1/2] short\n[2/2] long, ", 0), 0u) << log;
  EXPECT_GE(std::stoi(log.substr(std::string("[1/2] short\n[2/2] long, ").size())), 4);
  EXPECT_TRUE(log.ends_with(" left\n")) << log;
  EXPECT_EQ(log.find('\r'), std::string::npos);
}

TEST(BenchProgress, TerminalsHaveOneLineThatIsErasedAtTheEnd) {
  const std::string line = shown(true,
                                 [](Progress& p) {
                                   p.begin_row("row");
                                   p.round(1, 4);  // too soon after the previous one to be drawn
                                   std::this_thread::sleep_for(std::chrono::milliseconds(120));
                                   p.round(2, 4);
                                 },
                                 {1});
  EXPECT_EQ(line.find('\n'), std::string::npos);
  EXPECT_EQ(line.find("round 2 of 4"), std::string::npos);
  EXPECT_NE(line.find("[1/1] row: round 3 of 4, 1 s left"), std::string::npos) << line;
  EXPECT_TRUE(line.ends_with("\r\x1b[K"));
}

/// Runs a benchmark with a chart of one bar and an entry.
int run_program(
    std::vector<std::string> arguments, const std::function<void()>& also = [] {}) {
  Program program("some_bench", "A benchmark.");
  std::vector<char*> argv;
  arguments.insert(arguments.begin(), "some_bench");
  for (auto& argument : arguments) argv.push_back(argument.data());
  return program.main(static_cast<int>(argv.size()), argv.data(), [&] {
    also();
    program.results().add("work/variant", {.seconds = 1, .cpu_seconds = 1, .calls = 1});
    program.draw(BarChart{.title = "Some bench",
                          .notes = {},
                          .series = {},
                          .mark = "",
                          .axes = {{"Speed", "share"}},
                          .groups = {{"work", "", {{0, {{1, "one"}}}}}}});
  });
}

TEST(BenchProgram, WritesTheChartAndTheResultsNextToIt) {
  const auto svg = file("some_bench.svg"), beside = file("some_bench.json"), other = file("other.json");
  for (const auto& path : {svg, beside, other}) std::filesystem::remove(path);
  EXPECT_EQ(run_program({"--quick", "--svg", svg.string()}), 0);
  EXPECT_NE(text_of(svg).find("Some bench"), std::string::npos);
  EXPECT_EQ(json::parse(text_of(beside)).at("benchmarks").size(), 1u);

  std::filesystem::remove(beside);
  EXPECT_EQ(run_program({"--svg", svg.string(), "--json", other.string()}), 0);
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_FALSE(std::filesystem::exists(beside));

  std::filesystem::remove(svg);
  EXPECT_EQ(run_program({"--svg", "", "--json", other.string()}), 0);
  EXPECT_FALSE(std::filesystem::exists(svg));
}

TEST(BenchProgram, RefusesMissingFoldersBeforeRunning) {
  bool ran = false;
  const auto good = file("good").string(), bad = file("no/such/folder").string();
  EXPECT_EQ(run_program({"--svg", bad, "--json", good}, [&] { ran = true; }), 1);
  EXPECT_EQ(run_program({"--svg", good, "--json", bad}, [&] { ran = true; }), 1);
  EXPECT_FALSE(ran);
  EXPECT_EQ(run_program({"--svg", "", "--json", ""}, [] { throw std::runtime_error("wrong result"); }), 1);
}

}  // namespace
