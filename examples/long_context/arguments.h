// The command line of long_context.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>

#include <attn/mpi.h>

namespace long_context {

using attn::Index;

/// The parsed command line.
struct Request {
  Index tokens = 8192;
  Index heads = 8, kv_heads = 8, dim = 64;
  attn::mpi::Layout layout = attn::mpi::Layout::zigzag;
  bool by_heads = false;
  Index window = 0;  ///< tokens that each token sees, including itself; 0: itself and all before it
  int threads = 1;
  Index check = 0;  ///< rows of the result that are compared with those of a single rank
  Index decode = 16;
  std::uint64_t seed = 1;
};

/// Parses the command line. Returns nothing if only help was requested, which is printed on `out`.
/// @throws std::exception with a one-line message.
std::optional<Request> parse(int argc, char** argv, std::ostream& out);

}  // namespace long_context
