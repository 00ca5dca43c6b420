// Caches that are distributed over ranks, and which tokens each rank has.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "attn/core/base/check.h"
#include "attn/core/base/ranges.h"
#include "attn/core/mods/lengths.h"
#include "attn/mpi/token_layout.h"

namespace attn::mpi {

/// A cache that has grown since its prompts were distributed; see grown().
template <class Cache>
struct GrownCache {
  const Cache& cache;
  std::vector<Index> prompts;  ///< number of tokens of each sequence that are distributed by the layout

  /// Returns the view that Ring::decode() reads.
  decltype(auto) view() const { return cache.view(); }
};

/// Marks a rank's part of a cache that has grown since its prompts were distributed. The first `prompts` tokens of each
/// sequence, one number for all or one each, are distributed by the Ring's layout; later ones are distributed
/// round-robin: token t is on rank t mod P. So a sequence that was prefilled with Layout::zigzag can be continued. The
/// cache must outlive the returned object.
///
///     if (t % ring.ranks() == ring.rank()) cache.append(k, v);                       // token t, after the prompt
///     auto next = ring.decode(q, attn::mpi::grown(cache, {4096}), attn::causal());
template <class Cache>
GrownCache<Cache> grown(const Cache& cache, Indices prompts) {
  return {cache, std::move(prompts.values).to_vector()};
}

}  // namespace attn::mpi

namespace attn::detail {

/// Returns how many tokens of each sequence are distributed by the layout; empty if all are.
template <class Cache>
std::vector<Index> prompts_of(const Cache&, Index) {
  return {};
}
template <class Cache>
std::vector<Index> prompts_of(const mpi::GrownCache<Cache>& grown, Index sequences) {
  std::vector<Index> prompts = grown.prompts;
  const auto given = static_cast<Index>(prompts.size());
  require(given == sequences || given == 1, "grown: got ", given, " prompt lengths for ", sequences,
          " sequences; give one per sequence, or one for all");
  for (std::size_t i = 0; i < prompts.size(); ++i)
    require(prompts[i] >= 0, "grown: prompts[", i, "] must not be negative, but is ", prompts[i]);
  if (given == 1) prompts.assign(static_cast<std::size_t>(sequences), prompts[0]);
  return prompts;
}

/// Returns the tokens of a sequence that a rank has, in the order of its rows.
inline std::array<Progression, 3> cached_tokens(mpi::Layout layout, Index len, Index prompt, Index rank, Index ranks) {
  const RankTokens first(layout, prompt, rank, ranks);
  const Index behind = prompt + floor_mod(rank - prompt, ranks);
  return {first.parts[0], first.parts[1], {behind, ranks, behind < len ? (len - behind - 1) / ranks + 1 : 0}};
}

}  // namespace attn::detail
