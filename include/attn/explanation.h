// Explanation: a printable description of how a call will run.
#pragma once

#include <cmath>
#include <ostream>
#include <string_view>

#include "attn/isa.h"
#include "attn/types.h"

namespace attn {

/// Whether the matrix unit for bf16 (AMX) computes the products of a call, and if not, why not.
enum class Amx {
  /// No, for one of these reasons: query, key or value is not bf16 and Options::compute does not allow rounding; the
  /// scale is below 2^-64; scores are additive; weights are sigmoids, or changed by a mod; Options::row_invariant is
  /// set.
  unsupported,
  /// No: single queries use the matrix unit only if heads share their keys and values, and these are bf16 with a row
  /// size that is a multiple of 64 bytes.
  not_for_single_queries,
  unavailable,  ///< the processor has none, or a different instruction set was requested
  refused,      ///< the operating system does not let the process use it
  used,
};

/// Returns the value in words, as explain() prints it.
constexpr std::string_view to_string(Amx amx) {
  switch (amx) {
    case Amx::unsupported:
      return "not for this scalar type, scale or kind of score, or with row_invariant or weight_mod";
    case Amx::not_for_single_queries:
      return "not for single queries";
    case Amx::unavailable:
      return "not available";
    case Amx::refused:
      return "refused by the operating system";
    case Amx::used:
      return "used";
  }
  return "unknown";
}

/// How the flash path runs a call; returned by explain().
struct Explanation {
  Isa isa = Isa::generic;             ///< instruction set of the kernels (for the last sequence, if there are several)
  std::string_view ignored_isa = {};  ///< value of ATTN_ISA if it names no instruction set available here; else empty
  Amx amx = Amx::unsupported;         ///< whether the matrix unit computes the products
  bool in_bf16 = false;               ///< whether some products use bf16, in the matrix unit or by vector instructions
  /// Number of passes over the output; more than one if a mask groups tokens. All counts below cover all passes
  /// together.
  int passes = 0;
  Index queries_per_tile = 0;  ///< at most; 1 if queries are processed one by one
  Index keys_per_tile = 0;     ///< the last tile of keys may have fewer
  Index query_tiles = 0;       ///< over all batch elements and heads
  /// Number of query_tiles that are single queries, because their sequence has at most few_queries. A tile computes
  /// full vectors of queries, however few it holds; a single query is vectorised along the features.
  Index single_queries = 0;
  /// Number of single_queries that run in the direct loop, which goes from score to softmax to value without masks,
  /// mods or copies in between. Such a query shares its keys with no other query. Its keys and values are not gathered,
  /// are in a single tensor or page, and have contiguous rows of the type that attention is computed in. Masks drop
  /// none of the keys that it visits, no mod changes scores or weights, and no task has more than 4096 keys. If keys
  /// and values take more than 8 MiB, the direct loop also requires AVX-512 and rows packed back to back, which it
  /// reads without prefetching.
  Index direct_queries = 0;
  Index few_queries = 0;       ///< a sequence with at most this many queries is processed query by query, not in tiles
  bool row_invariant = false;  ///< whether Options::row_invariant was set; then few_queries is 0
  /// Whether tiles of queries visit their keys twice, because a mod changes the weights of a softmax. With weight mods,
  /// few_queries is 0.
  bool visits_keys_twice = false;
  /// Whether keys and values of single queries are prefetched, because together they exceed what is assumed to fit in
  /// the cache: 8 MiB, or 3 MiB if several queries share them. Keys and values of direct_queries are never prefetched.
  bool fetches_ahead = false;
  Index tasks = 0;  ///< a task is a few neighbouring tiles of queries, or single queries with some of their keys
  int threads = 0;  ///< maximum number of threads that run tasks at the same time; small if there is little work
  /// Approximate time that one thread would take if masks kept all pairs; see Executor::Backend::workers_for().
  double microseconds = 0;
  Index workspace_bytes = 0;  ///< size in bytes that Options::workspace must have
  bool packs_keys = false;    ///< whether keys are copied tile by tile because kernels cannot read them in place
  bool packs_values = false;  ///< whether values are copied for the same reason

  // Tiles of (queries, keys) over all batch elements and heads.
  Index skipped_tiles = 0;  ///< no pair is kept; they cost nothing
  Index masked_tiles = 0;   ///< some pairs are kept; the mask is evaluated for each pair
  Index full_tiles = 0;     ///< all pairs are kept; they are as fast as without a mask

  /// The total number of tiles.
  Index tiles() const { return skipped_tiles + masked_tiles + full_tiles; }
};

/// Prints one line per property, as shown in examples/README.md.
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
      << (e.in_bf16 && e.amx != Amx::used ? ", bf16 products by vector instructions" : "") << '\n'
      << "tile             " << e.queries_per_tile << " x " << e.keys_per_tile << " (queries x keys)\n"
      << "loop             ";
  if (e.single_queries < e.query_tiles || e.query_tiles == 0) {
    out << "tiles of queries";
    if (e.single_queries > 0)
      out << ", and " << e.single_queries << (e.single_queries == 1 ? " single query" : " single queries");
    else if (e.row_invariant)
      out << ", so that bits depend on the row alone";
    else if (e.visits_keys_twice)
      out << ", twice over the keys, because a mod changes weights";
    else if (e.query_tiles > 0 && e.few_queries > 0)
      out << ", more than " << e.few_queries << " per sequence";
  } else {
    out << "single queries, at most " << e.few_queries << " per sequence";
  }
  if (e.direct_queries > 0 && e.direct_queries < e.single_queries) out << ", " << e.direct_queries << " of them";
  if (e.direct_queries > 0) out << ", in the direct loop";
  if (e.fetches_ahead) out << ", keys and values " << (e.direct_queries > 0 ? "of the others " : "") << "fetched ahead";
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
