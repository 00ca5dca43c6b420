// What a call is going to do, as a struct that prints itself.
#pragma once

#include <cmath>
#include <ostream>
#include <string_view>

#include "attn/isa.h"
#include "attn/types.h"

namespace attn {

/// Whether the matrix unit for bf16 (AMX) forms the products of a call, and if not, why.
enum class Amx {
  /// No: query, key or value is not bf16 and Options::compute does not allow rounding, or the scale is not positive.
  not_for_these,
  /// No: single queries use it only if heads share their keys and values, and these are bf16 in rows of whole 64 bytes.
  not_for_single_queries,
  not_there,  ///< the processor has none, or another instruction set was asked for
  refused,    ///< the operating system does not let the process use it
  used,
};

/// The reason in words, as explain() prints it.
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
  Isa isa = Isa::generic;             ///< whose kernels run; of several sequences, those of the last one
  std::string_view ignored_isa = {};  ///< what the environment variable ATTN_ISA names, if that is not available here
  Amx amx = Amx::not_for_these;       ///< whether the matrix unit forms the products
  bool in_bf16 = false;               ///< whether some are formed in bf16, by the matrix unit or by vectors
  /// Passes over the output; more than one if a mask groups tokens. All numbers below are for all passes together.
  int passes = 0;
  Index queries_per_tile = 0;  ///< at most; 1 if each query is worked on by itself
  Index keys_per_tile = 0;     ///< except in the last tile of a row
  Index query_tiles = 0;       ///< over all batch elements and heads
  /// How many of query_tiles are single queries, because their sequence has at most few_queries. A tile computes whole
  /// vectors of queries, however few there are; a single query has its vectors along the features.
  Index single_queries = 0;
  /// Those of single_queries that a direct loop takes through their keys, with nothing between score, softmax and
  /// value: queries that share their keys with no other, over keys and values that lie in one piece, row by row, in the
  /// type that is computed in; a mask drops none of the keys that are visited, and no mod changes scores or weights. No
  /// task has more than 4096 keys. Where keys and values take more than 8 MiB, there are such queries only with AVX-512
  /// and rows one after the other, which it reads without prefetches.
  Index lone_queries = 0;
  Index few_queries = 0;  ///< the most queries of a sequence that are worked on one by one; more are tiles
  /// Whether keys and values of single queries are fetched before they are needed, because all together take more than
  /// what may be in the cache: 8 MiB, or 3 MiB where several queries share them. Those of lone_queries never are.
  bool fetches_ahead = false;
  Index tasks = 0;  ///< a task is some neighbouring tiles of queries, or single queries with some of their keys
  int threads = 0;  ///< how many run tasks at the same time, at most: as many as the work pays for
  /// About how long one thread would take if masks kept all pairs; see Executor::Backend::workers_for().
  double microseconds = 0;
  Index workspace_bytes = 0;  ///< what Options::workspace must have
  bool packs_keys = false;    ///< whether keys are copied tile by tile, as kernels cannot read them where they lie
  bool packs_values = false;  ///< whether values are

  // Tiles of (queries, keys) over all batch elements and heads.
  Index skipped_tiles = 0;  ///< no pair is kept; they cost nothing
  Index masked_tiles = 0;   ///< some pairs are kept; the mask is asked about each
  Index full_tiles = 0;     ///< all pairs are kept; they are as fast as without a mask

  /// How many tiles there are, whatever is kept of them.
  Index tiles() const { return skipped_tiles + masked_tiles + full_tiles; }
};

/// Prints a line for each number, as the guide shows it.
inline std::ostream& operator<<(std::ostream& out, const Explanation& e) {
  const auto share = [&](const char* what, Index tiles) {
    out << what << tiles << " of " << e.tiles() << " tiles";
    if (e.tiles() > 0) {
      const double percent = 100.0 * static_cast<double>(tiles) / static_cast<double>(e.tiles());
      out << " (" << std::round(percent * 10) / 10 << " %)";
    }
    out << '\n';
  };
  out << "instruction set  " << to_string(e.isa);
  if (!e.ignored_isa.empty()) out << " (ATTN_ISA=" << e.ignored_isa << " is not available here)";
  out << '\n'
      << "matrix unit      " << to_string(e.amx)
      << (e.in_bf16 && e.amx != Amx::used ? ", products of bf16 by vectors" : "") << '\n'
      << "tile             " << e.queries_per_tile << " x " << e.keys_per_tile << " (queries x keys)\n"
      << "loop             ";
  if (e.single_queries < e.query_tiles || e.query_tiles == 0) {
    out << "tiles of queries";
    if (e.single_queries > 0)
      out << ", and " << e.single_queries << (e.single_queries == 1 ? " single query" : " single queries");
    else if (e.query_tiles > 0)
      out << ", more than " << e.few_queries << " in a sequence";
  } else {
    out << "single queries, at most " << e.few_queries << " in a sequence";
  }
  if (e.lone_queries > 0 && e.lone_queries < e.single_queries) out << ", " << e.lone_queries << " of them";
  if (e.lone_queries > 0) out << ", in the direct loop";
  if (e.fetches_ahead) out << ", keys and values " << (e.lone_queries > 0 ? "of the others " : "") << "fetched ahead";
  out << '\n'
      << "passes           " << e.passes << '\n'
      << "query tiles      " << e.query_tiles << ", in " << e.tasks << (e.tasks == 1 ? " task" : " tasks") << " on "
      << e.threads << (e.threads == 1 ? " thread" : " threads") << ", about "
      << (e.microseconds < 10 ? std::round(10 * e.microseconds) / 10 : std::round(e.microseconds))
      << " microseconds of work\n"
      << "workspace        " << e.workspace_bytes << " bytes\n"
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
