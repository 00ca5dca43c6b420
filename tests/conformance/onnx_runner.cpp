// onnx_runner [FOLDER | generated] [AT_LEAST]
//
// Runs every case in FOLDER, attention through both the naive and the flash path. Prints a line per case, PASS or FAIL
// with the largest error of each output on each path, and a total. FOLDER contains cases/<name>/manifest.txt and
// INDEX.txt with one line per case; default: the environment variable ATTN_CONFORMANCE_DIR, else the folder configured
// at compile time.
//
// With `generated`, runs the cases of operators for which there are no files: LinearAttention, CausalConvWithState and
// FlexAttention, with random inputs and results computed in double by the specification. REFUSED lines name what attn
// cannot express, with the reason.
//
// Exit code 0: every case passed. 1: a case failed or is missing, a refused case ran, fewer than AT_LEAST passed, or
// ATTN_ISA names no instruction set. 77: nothing ran, because the folder does not exist or the instruction set named by
// ATTN_ISA is not available here.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string_view>

#include "onnx_attention.h"
#include "onnx_conv.h"
#include "onnx_flex.h"
#include "onnx_linear.h"
#include "onnx_rotary.h"

namespace {

namespace fs = std::filesystem;
using namespace attn::test;

/// Runs a case in double if it requests that, else with tensors of its inputs' type.
void run(const Case& c, Comparison& comparison) {
  constexpr double kDouble = 11;  // in ONNX's list of types
  if (c.op == "Softmax")
    run_softmax(c, comparison);
  else if (c.op == "RotaryEmbedding")
    run_rotary(c, comparison);
  else if (c.op == "LinearAttention")
    OnnxLinear(c).run(comparison);
  else if (c.op == "CausalConvWithState")
    run_conv(c, comparison);
  else if (c.op == "FlexAttention")
    run_flex(c, comparison);
  else if (c.op != "Attention")
    throw std::runtime_error("unknown operator '" + c.op + "'");
  else if (c.attr("softmax_precision", 1) == kDouble || c.input("Q").dtype == DType::f64)
    OnnxAttention<double>(c).run(comparison);
  else if (c.input("Q").dtype == DType::f16)
    OnnxAttention<Eigen::half>(c).run(comparison);
  else if (c.input("Q").dtype == DType::bf16)
    OnnxAttention<Eigen::bfloat16>(c).run(comparison);
  else
    OnnxAttention<float>(c).run(comparison);
}

struct Total {
  int passed = 0, failed = 0, refused = 0;
};

/// Runs the case that `read` returns and prints its line.
void report(Total& total, const std::string& name, const std::function<Case()>& read) {
  const auto line = [&](int& count, const char* verdict, const std::string& detail) {
    ++count;
    std::printf("%-7s %-75s %s\n", verdict, name.c_str(), detail.c_str());
  };
  std::string refused;
  try {
    const Case c = read();
    refused = refusal(c);
    Comparison comparison(c);
    run(c, comparison);
    if (!refused.empty())
      line(total.failed, "FAIL", "ran, but should be refused");
    else if (comparison.failure().empty())
      line(total.passed, "PASS", comparison.errors());
    else
      line(total.failed, "FAIL", comparison.failure() + "; " + comparison.errors());
  } catch (const std::exception& e) {
    if (!refused.empty() && std::string_view(e.what()).find(refused) != std::string_view::npos)
      line(total.refused, "REFUSED", e.what());
    else
      line(total.failed, "FAIL", e.what());
  }
}

void report_generated(Total& total) {
  std::vector<Case> cases;
  add_linear_cases(cases);
  add_conv_cases(cases);
  add_flex_cases(cases);
  for (const Case& c : cases) report(total, c.name, [&] { return c; });
}

/// Returns the first word of each line.
std::vector<std::string> names_in(const fs::path& index) {
  std::ifstream in(index);
  std::vector<std::string> names;
  for (std::string text; std::getline(in, text);) {
    std::istringstream words(text);
    if (std::string name; words >> name) names.push_back(name);
  }
  return names;
}

void report_folder(const fs::path& folder, Total& total) {
  std::set<fs::path> cases;
  for (const auto& entry : fs::directory_iterator(folder / "cases"))
    if (entry.is_directory()) cases.insert(entry.path());
  for (const std::string& name : names_in(folder / "INDEX.txt"))
    if (!cases.count(folder / "cases" / name)) {
      std::printf("FAIL    %-75s is in INDEX.txt, but the case does not exist\n", name.c_str());
      ++total.failed;
    }
  for (const fs::path& c : cases) report(total, c.filename().string(), [&] { return read_case(c); });
}

/// Whether ATTN_ISA names an instruction set that this processor or this program lacks. Calls would fall back to
/// another one, and the results would be reported under the wrong name.
bool lacks_named_isa() {
  const char* name = std::getenv("ATTN_ISA");
  for (attn::Isa isa : attn::kIsas)
    if (name != nullptr && attn::to_string(isa) == name) return !attn::available(isa);
  return false;
}

}  // namespace

int main(int argc, char** argv) {
  const char* from_environment = std::getenv("ATTN_CONFORMANCE_DIR");
  const fs::path folder = argc > 1           ? argv[1]
                          : from_environment ? from_environment
                                             : ATTN_SHARED_DIR "/conformance/onnx";
  const int at_least = argc > 2 ? std::atoi(argv[2]) : 1;
  const bool is_generated = argc > 1 && argv[1] == std::string_view("generated");
  if (!is_generated && !fs::is_directory(folder / "cases")) {
    std::printf("skipped: the folder '%s' does not exist; name one as the argument or in ATTN_CONFORMANCE_DIR\n",
                (folder / "cases").c_str());
    return 77;
  }

  if (lacks_named_isa()) {
    std::printf("skipped: ATTN_ISA=%s is not available here; available:", std::getenv("ATTN_ISA"));
    for (const attn::Isa isa : attn::kIsas)
      if (attn::available(isa)) std::printf(" %s", attn::to_string(isa).data());
    std::printf("\n");
    return 77;
  }
  try {
    attn::default_isa();
  } catch (const std::exception& e) {
    std::printf("%s\n", e.what());
    return 1;
  }

  Total total;
  if (is_generated)
    report_generated(total);
  else
    report_folder(folder, total);

  std::printf("%d passed (attention on both paths), %d failed, %d refused\n", total.passed, total.failed,
              total.refused);
  if (total.passed < at_least) std::printf("at least %d should have passed\n", at_least);
  return total.failed > 0 || total.passed < at_least ? 1 : 0;
}
