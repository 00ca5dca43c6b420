// What a call is going to do, as a struct that prints.
#pragma once

#include <ostream>
#include <string_view>

#include "attn/isa.h"
#include "attn/types.h"

namespace attn {

/// Does the matrix unit for bf16 (AMX) form the products?
enum class Amx {
  not_for_these,           ///< more than bf16 that Options::compute does not let be rounded, or no positive scale
  not_for_single_queries,  ///< unless heads share their keys and values, and these are bf16 with rows of whole 64 bytes
  not_there,               ///< the processor has none, or another instruction set was asked for
  refused,                 ///< the operating system does not let the process use it
  used,
};

constexpr std::string_view to_string(Amx amx) {
  switch (amx) {
    case Amx::not_for_these:
      return "not for these numbers";
    case Amx::not_for_single_queries:
      return "not for single queries";
    case Amx::not_there:
      return "not there";
    case Amx::refused:
      return "refused by the operating system";
    case Amx::used:
      return "used";
  }
  return "unknown";
}

/// How the flash path carries out a call; made by explain().
struct Explanation {
  Isa isa = Isa::generic;             ///< whose kernels run
  std::string_view ignored_isa = {};  ///< what the environment variable ATTN_ISA names, if that is not available here
  Amx amx = Amx::not_for_these;
  int passes = 0;              ///< over the output: more than one where a mask groups tokens; what follows is of all
  Index queries_per_tile = 0;  ///< at most; 1 where each query goes by itself
  Index keys_per_tile = 0;
  Index query_tiles = 0;  ///< over all batches and heads
  Index tasks = 0;        ///< of some neighbouring tiles of queries each, or a part of the keys of single ones
  int threads = 0;        ///< that get a task at the same time
  Index workspace_bytes = 0;
  bool packs_keys = false;    ///< are they copied tile by tile, because kernels cannot read them where they lie?
  bool packs_values = false;  ///< likewise

  // Tiles of (queries, keys) over all batches and heads.
  Index skipped_tiles = 0;  ///< no pair is kept: they cost nothing
  Index masked_tiles = 0;   ///< the mask is asked for each pair
  Index full_tiles = 0;     ///< all pairs are kept: as fast as without a mask

  Index tiles() const { return skipped_tiles + masked_tiles + full_tiles; }
};

inline std::ostream& operator<<(std::ostream& out, const Explanation& e) {
  const auto share = [&](const char* what, Index tiles) {
    out << what << tiles << " of " << e.tiles() << " tiles";
    if (e.tiles() > 0) {
      const double percent = 100.0 * static_cast<double>(tiles) / static_cast<double>(e.tiles());
      out << " (" << static_cast<double>(static_cast<Index>(percent * 10 + 0.5)) / 10 << " %)";
    }
    out << '\n';
  };
  out << "instruction set  " << to_string(e.isa);
  if (!e.ignored_isa.empty()) out << " (ATTN_ISA=" << e.ignored_isa << " is not available here)";
  out << '\n'
      << "matrix unit      " << to_string(e.amx) << '\n'
      << "tile             " << e.queries_per_tile << " x " << e.keys_per_tile << " (queries x keys)\n"
      << "passes           " << e.passes << '\n'
      << "query tiles      " << e.query_tiles << ", in " << e.tasks << (e.tasks == 1 ? " task" : " tasks") << " on "
      << e.threads << (e.threads == 1 ? " thread\n" : " threads\n") << "workspace        " << e.workspace_bytes
      << " bytes\n"
      << "packed           "
      << (e.packs_keys     ? e.packs_values ? "keys and values" : "keys"
          : e.packs_values ? "values"
                           : "nothing")
      << '\n';
  share("skipped          ", e.skipped_tiles);
  share("masked           ", e.masked_tiles);
  share("full             ", e.full_tiles);
  return out;
}

}  // namespace attn
