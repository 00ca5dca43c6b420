#include "arguments.h"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>

#include "command_line.h"

namespace long_context {

namespace {

constexpr Index kCheckedTokens = 65'536;  // longest sequence that is checked by default: rank 0 holds all of its keys
constexpr Index kCheckedRows = 64;

const std::map<std::string, attn::mpi::Layout> kLayouts{{"contiguous", attn::mpi::Layout::contiguous},
                                                        {"zigzag", attn::mpi::Layout::zigzag},
                                                        {"striped", attn::mpi::Layout::striped}};

}  // namespace

std::optional<Request> parse(int argc, char** argv, std::ostream& out) {
  CLI::App app{
      "Prefills a sequence that is too long for one machine: random queries, keys and values of many tokens, spread "
      "over the ranks that mpirun starts, with exact causal attention over all of them. Then generates some tokens, "
      "with the keys left in place.",
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
  count("--tokens", request.tokens, "Tokens of the sequence", 1, kMost);
  count("--heads", request.heads, "Query heads", 1, 1024);
  count("--kv-heads", request.kv_heads, "Key/value heads", 1, 1024);
  count("--dim", request.dim, "Features per head", 1, 4096);
  app.add_option("--layout", layout,
                 "Which tokens each rank holds: contiguous, one piece; zigzag, an early and a late piece, which "
                 "balances causal work; striped, every n-th token, n being the number of ranks")
      ->check(CLI::IsMember({"contiguous", "zigzag", "striped"}))
      ->capture_default_str()
      ->type_name("NAME");
  app.add_flag("--by-heads", request.by_heads, "Exchange tokens for heads instead of sending keys around");
  count("--window", request.window, "Tokens that each token sees, including itself; 0: itself and all before it", 0,
        kMost);
  count("--threads", request.threads, "Threads per rank", 1, 1024);
  auto* check = count("--check", request.check,
                      "Rows of the result that rank 0 recomputes alone, drawing all keys; 0: none. By default 64 for "
                      "up to 65,536 tokens, else none",
                      0, kMost);
  check->default_str("");
  count("--decode", request.decode, "Tokens to generate", 0, 1'000'000);
  count("--seed", request.seed, "Seed of the random draws", 0, std::numeric_limits<std::uint64_t>::max());
  try {
    training::parse(app, argc, argv);
  } catch (const CLI::CallForHelp& help) {
    app.exit(help, out);
    return std::nullopt;
  }
  request.layout = kLayouts.at(layout);
  if (request.heads % request.kv_heads != 0)
    throw std::invalid_argument("--heads is " + std::to_string(request.heads) +
                                ", but must be a multiple of --kv-heads, which is " + std::to_string(request.kv_heads));
  if (check->count() == 0 && request.tokens <= kCheckedTokens) request.check = kCheckedRows;
  request.check = std::min(request.check, request.tokens);
  return request;
}

}  // namespace long_context
