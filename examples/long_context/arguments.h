// The command line.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <optional>

#include <attn/mpi.h>

namespace long_context {

using attn::Index;

/// What the user asked for.
struct Request {
  Index tokens = 8192;
  Index heads = 8, kv_heads = 8, dim = 64;
  attn::mpi::Layout layout = attn::mpi::Layout::zigzag;
  bool by_heads = false;
  Index window = 0;  ///< tokens that each one sees, itself included; 0: all before it
  int threads = 1;
  Index check = 0;  ///< rows of the result that are compared with one rank's
  Index decode = 16;
  std::uint64_t seed = 1;
};

/// The request; nothing if only help was asked for, which is then printed on `out`.
/// @throws std::exception with one line that says what is wrong.
std::optional<Request> parse(int argc, char** argv, std::ostream& out);

}  // namespace long_context
