// Caches of which each rank has some tokens, and which tokens these are.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "attn/detail/base/check.h"
#include "attn/detail/base/ranges.h"
#include "attn/detail/mods/lengths.h"
#include "attn/detail/mpi/token_layout.h"

namespace attn::mpi {

/// A cache that has grown since its prompts were laid out; see grown().
template <class Cache>
struct GrownCache {
  const Cache& cache;
  std::vector<Index> prompts;  ///< how many tokens of each sequence lie as the layout says

  /// What Ring::decode() reads.
  decltype(auto) view() const { return cache.view(); }
};

/// A rank's part of a cache that has grown since its prompts were laid out. The first `prompts` tokens of each
/// sequence, one number for all or one each, lie as the Ring's layout says; those behind lie in turn: token t is on
/// rank t mod P. So a text that was prefilled with Layout::zigzag can be gone on with. The cache must outlive this.
///
///     if (t % ring.ranks() == ring.rank()) cache.append(k, v);                       // token t, behind the prompt
///     auto next = ring.decode(q, attn::mpi::grown(cache, {4096}), attn::causal());
template <class Cache>
GrownCache<Cache> grown(const Cache& cache, Indices prompts) {
  return {cache, std::move(prompts.values).to_vector()};
}

}  // namespace attn::mpi

namespace attn::detail {

/// How many tokens of each sequence lie as the layout says. Empty: all of them.
template <class Cache>
std::vector<Index> prompts_of(const Cache&, Index) {
  return {};
}
template <class Cache>
std::vector<Index> prompts_of(const mpi::GrownCache<Cache>& grown, Index sequences) {
  std::vector<Index> prompts = grown.prompts;
  const auto given = static_cast<Index>(prompts.size());
  require(given == sequences || given == 1, "grown: ", given, " lengths of prompts for ", sequences,
          " sequences; give one for each, or one for all");
  for (std::size_t i = 0; i < prompts.size(); ++i) require(prompts[i] >= 0, "grown: prompts[", i, "] is ", prompts[i]);
  if (given == 1) prompts.assign(static_cast<std::size_t>(sequences), prompts[0]);
  return prompts;
}

/// The tokens of a sequence that a rank has, in the order of its rows.
inline std::array<Progression, 3> cached_tokens(mpi::Layout layout, Index len, Index prompt, Index rank, Index ranks) {
  const RankTokens first(layout, prompt, rank, ranks);
  const Index behind = prompt + floor_mod(rank - prompt, ranks);
  return {first.parts[0], first.parts[1], {behind, ranks, behind < len ? (len - behind - 1) / ranks + 1 : 0}};
}

}  // namespace attn::detail
