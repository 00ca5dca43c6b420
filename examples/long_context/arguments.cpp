#include "arguments.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include "command_line.h"

namespace long_context {

namespace {

constexpr Index kCheckedTokens = 65'536;  // of a text that is checked unasked: rank 0 then has all of its keys
constexpr Index kCheckedRows = 64;

const std::map<std::string, attn::mpi::Layout> kLayouts{{"contiguous", attn::mpi::Layout::contiguous},
                                                        {"zigzag", attn::mpi::Layout::zigzag},
                                                        {"striped", attn::mpi::Layout::striped}};

}  // namespace

std::optional<Request> parse(int argc, char** argv, std::ostream& out) {
  CLI::App app{
      "The prefill of a text that is too long for one machine: random queries, keys and values of many tokens, spread "
      "over the ranks that mpirun starts, and exact causal attention over all of them. Then some tokens are generated "
      "over the keys where they lie.",
      "long_context"};
  Request request;
  const auto count = [&](const char* name, auto& value, const char* text, std::uint64_t lowest, std::uint64_t highest) {
    return app.add_option(name, value, text)
        ->check(training::whole_number(lowest, highest))
        ->capture_default_str()
        ->type_name("NUMBER");
  };
  constexpr std::uint64_t kMost = 1'000'000'000;
  std::string layout = "zigzag";
  count("--tokens", request.tokens, "Tokens of the text", 1, kMost);
  count("--heads", request.heads, "Heads of queries", 1, 1024);
  count("--kv-heads", request.kv_heads, "Heads of keys and values", 1, 1024);
  count("--dim", request.dim, "Features of a head", 1, 4096);
  app.add_option("--layout", layout,
                 "Which tokens a rank holds: one piece; zigzag, an early and a late piece, so that "
                 "all have as much to do; striped, each so many-th token")
      ->check(CLI::IsMember({"contiguous", "zigzag", "striped"}))
      ->capture_default_str()
      ->type_name("NAME");
  app.add_flag("--by-heads", request.by_heads, "Exchange tokens for heads, instead of sending keys around");
  count("--window", request.window, "Tokens that each one sees, itself included; 0: all before it", 0, kMost);
  count("--threads", request.threads, "Threads of each rank", 1, 1024);
  auto* check = count("--check", request.check,
                      "Rows of the result that rank 0 computes alone too, for which it draws all keys; 0: none. By "
                      "default 64 of up to 65,536 tokens, else none",
                      0, kMost);
  check->default_str("");
  count("--decode", request.decode, "Tokens to generate", 0, 1'000'000);
  count("--seed", request.seed, "Of the numbers", 0, std::numeric_limits<std::uint64_t>::max());
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help, out);
    return std::nullopt;
  }
  request.layout = kLayouts.at(layout);
  if (request.heads % request.kv_heads != 0)
    throw std::invalid_argument("--heads is " + std::to_string(request.heads) + ", no multiple of the " +
                                std::to_string(request.kv_heads) + " of --kv-heads");
  if (check->count() == 0 && request.tokens <= kCheckedTokens) request.check = kCheckedRows;
  request.check = std::min(request.check, request.tokens);
  return request;
}

}  // namespace long_context
