// Plans which keys and values each rank sends to each other rank.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "attn/core/base/ranges.h"
#include "attn/mpi/agreement.h"
#include "attn/mpi/placed_mods.h"

namespace attn::detail {

/// Some rows of a rank's keys and values that are sent to another rank, and processed there, together.
struct Parcel {
  int rank;    ///< rank of the keys, or of the queries
  int part;    ///< which part of that rank's tokens; see RankTokens
  Range rows;  ///< rows of that part
};

/// A request that each rank sends to every other rank before any keys are sent: the rows that the sender needs of each
/// part of the receiver's tokens, and samples of the sender's mods.
struct Need {
  std::array<std::int64_t, 4> bounds{};  ///< of two ranges
  std::int64_t masks = 0;                ///< a hash
  std::array<double, 4> scores{};
  std::int64_t failed = 0;  ///< Failure::code()

  void set(int part, const Range& rows) {
    bounds[static_cast<std::size_t>(2 * part)] = rows.empty() ? 0 : rows.begin;
    bounds[static_cast<std::size_t>(2 * part + 1)] = rows.empty() ? 0 : rows.end;
  }
  Range rows(int part) const {
    return {static_cast<Index>(bounds[static_cast<std::size_t>(2 * part)]),
            static_cast<Index>(bounds[static_cast<std::size_t>(2 * part + 1)])};
  }
};

/// Returns the number of parcels in which a rank's rows of one part are sent. A parcel has at most half of the rank's
/// rows, or 512 if that is more. So two parcels under way take no more memory than all keys of the rank, or 1024 keys.
/// 512 keys take a millisecond to process, during which the next ones arrive.
inline Index parcels_of(Index rows, Index rows_of_rank) {
  constexpr Index kShort = 512;
  const Index longest = std::max(ceil_div(rows_of_rank, 2), kShort);
  return ceil_div(rows, longest);
}

/// Adds the parcels of a rank's keys that `need` requests.
inline void add_parcels(std::vector<Parcel>& parcels, int rank, const Need& need, Index rows_of_rank) {
  for (int part = 0; part < 2; ++part) {
    const Range rows = need.rows(part);
    const Index count = parcels_of(rows.size(), rows_of_rank);
    for (Index i = 0; i < count; ++i)
      parcels.push_back(
          {rank, part, {rows.begin + rows.size() * i / count, rows.begin + rows.size() * (i + 1) / count}});
  }
}

/// Returns the rows of some keys that some queries may need, according to the hints of the mods: a hull over all heads.
template <class Mods>
Range needed_rows(const Mods& mods, const Problem& whole, const Place& place) {
  const Range all{0, place.kv.count};
  if (place.q.count == 0 || place.kv.count == 0) return {};
  if constexpr (!Mods::kHasMasks) return all;
  const PlacedMods placed(mods, whole, place);
  Range needed{};
  for (Index batch = 0; batch < whole.batch; ++batch)
    for (Index head = 0; head < whole.heads; ++head) {
      const auto own = placed.of(batch);
      Tile tile{batch, head, {0, place.q.count}, all};
      tile.kv = own.kv_range(tile);
      if (!tile.kv.empty() && own.coverage(tile) != Coverage::none) needed = hull(needed, tile.kv);
      if (needed == all) return all;
    }
  return needed;
}

/// Samples what the mods of a call return for some pairs, for ranks to compare. Masks and dropout must agree exactly;
/// scores may come from other mathematical functions on another machine, and are compared roughly.
template <class Mods>
void sample_mods(const Mods& mods, const Problem& whole, Need& need) {
  Hash hash;
  const bool any = whole.batch > 0 && whole.heads > 0 && whole.q_len > 0 && whole.kv_len > 0;
  if constexpr (Mods::kHasSinks || Mods::kHasDropout) {
    mods.of(0).each_dropout([&](const DropoutMod& mod) {
      hash.add(mod.rate);
      hash.add(mod.seed);
    });
    for (Index head = 0; head < whole.heads; ++head) hash.add(mods.of(0).sink(head));
  }
  std::uint64_t random = 0x9e3779b97f4a7c15u;  // any odd number; all ranks draw the same pairs
  const auto draw = [&](Index below) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    return static_cast<Index>((random >> 33) % static_cast<std::uint64_t>(below));
  };
  constexpr int kDrawn = 64;
  for (int i = 0; any && i < kDrawn; ++i) {
    const Index batch = draw(whole.batch), head = draw(whole.heads);
    const Position p{batch, head, whole.first_query(batch) + draw(whole.q_len), whole.kv_offset + draw(whole.kv_len)};
    const auto& own = mods.of(batch);
    if constexpr (Mods::kHasMasks) {
      hash.add(own.keep(p));
      // A query's range shows where a window ends, which a handful of pairs would not.
      const Range visited = own.kv_range({batch, head, {p.q, p.q + 1}, whole.keys()});
      hash.add(static_cast<std::int64_t>(visited.begin));
      hash.add(static_cast<std::int64_t>(visited.end));
    }
    if constexpr (Mods::kHasScores) {
      constexpr float kScores[] = {1, -9, 70, 600};  // many mods leave scores near 0 unchanged
      if (i < static_cast<int>(need.scores.size()))
        need.scores[static_cast<std::size_t>(i)] = static_cast<double>(own.score(kScores[i], p));
    }
  }
  need.masks = hash.value();
}

/// Whether two scores are the same up to rounding.
inline bool is_same_score(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) == std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-3 * std::max(std::abs(a), std::abs(b)) + 1e-6;
}

/// Refuses a call on all ranks if one of them has failed so far, or if their mods differ. `each`: what each rank has
/// sent to this one.
inline void compare_needs(const Communicator& comm, const std::vector<Need>& each, const Failure& failure) {
  for (std::size_t r = 0; r < each.size(); ++r)
    if (each[r].failed != 0) fail_together(comm, static_cast<int>(r), each[r].failed == 1, failure);
  const Need& first = each[0];
  for (std::size_t r = 1; r < each.size(); ++r)
    require(each[r].masks == first.masks &&
                std::equal(first.scores.begin(), first.scores.end(), each[r].scores.begin(), is_same_score),
            "ranks disagree: the mods of rank ", r,
            " and rank 0 have the same type, but treat the same pairs differently");
}

/// Compares what sample(need) returns for the mods of each rank.
template <class Sample>
void compare_mods(const Communicator& comm, Failure& failure, const Sample& sample) {
  Need own;
  failure.guard([&] { sample(own); });
  own.failed = failure.code();
  compare_needs(comm, comm.all(own), failure);
}

/// The keys that this rank receives, and those that it sends, in the order in which they are processed: step s receives
/// keys from rank - s, and sends this rank's to rank + s. Each rank requests what it needs, and the others send exactly
/// that. So masks that differ in spite of all checks would give wrong results, but no rank would wait forever.
struct RingPlan {
  std::vector<Parcel> incoming, outgoing;
  Index most_rows = 0;  ///< of an incoming parcel

  /// `needs`: what this rank needs from each rank. @throws std::invalid_argument as compare_needs() does.
  RingPlan(const Communicator& comm, const std::vector<Need>& needs, const Failure& failure, mpi::Layout layout,
           Index kv_len) {
    const std::vector<Need> others = comm.exchanged(needs);
    compare_needs(comm, others, failure);
    const auto rows_of = [&](int rank) { return RankTokens(layout, kv_len, rank, comm.ranks()).rows(); };
    for (int step = 1; step < comm.ranks(); ++step) {
      const int from = (comm.rank() + comm.ranks() - step) % comm.ranks(), to = (comm.rank() + step) % comm.ranks();
      add_parcels(incoming, from, needs[static_cast<std::size_t>(from)], rows_of(from));
      add_parcels(outgoing, to, others[static_cast<std::size_t>(to)], rows_of(comm.rank()));
    }
    for (const Parcel& parcel : incoming) most_rows = std::max(most_rows, parcel.rows.size());
  }
};

}  // namespace attn::detail
