// Predicts the time of attention over MPI ranks from the speed of a rank and of its link.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string_view>
#include <vector>

namespace bench {

/// The speed of a rank and of its link. Each rank sends and receives at the same time, without contention between
/// ranks.
struct Cluster {
  double flops_per_second = 0;  ///< of attention on one rank
  double latency = 0;           ///< seconds from one rank to another
  double bandwidth = 0;         ///< bytes per second in each direction
  /// Bandwidth while the rank computes: MPI progresses messages only when polled, between tasks. 0: the full bandwidth.
  double bandwidth_computing = 0;
  /// Seconds of computing that a rank loses per byte sent while another arrives: cores copy and split messages, unless
  /// network hardware does.
  double lost = 0;
};

/// Self-attention of one sequence.
struct SelfAttention {
  double len;
  double heads, kv_heads, dim;
  double bytes_per_element = 4;
  bool causal = false;
  bool backward = false;  ///< the backward pass only
};

/// How tokens and work are distributed over ranks; see attn::mpi::Ring.
enum class Distribution { contiguous, zigzag, by_heads };
inline constexpr std::string_view kDistributionNames[] = {"contiguous", "zigzag", "by heads"};

struct Prediction {
  double seconds;     ///< of the slowest rank
  double exposed;     ///< of these, the seconds that the rank spends waiting or handling messages
  double bytes_sent;  ///< by all ranks
  double efficiency;  ///< work / (ranks * their speed * seconds)
};

namespace detail {

/// Returns the flops of the products over `pairs` pairs: two products forward, five backward.
inline double flops_of(const SelfAttention& a, double pairs) {
  return pairs * a.heads * a.dim * 2 * (a.backward ? 5 : 2);
}
inline double all_pairs(const SelfAttention& a) { return a.causal ? a.len * (a.len + 1) / 2 : a.len * a.len; }

/// Returns the time that ranks take to compare their arguments before any data is sent (see RingCall): four tree-shaped
/// exchanges of a few hundred bytes each.
inline double agreement(const Cluster& c, int ranks) { return 4 * std::ceil(std::log2(ranks)) * c.latency; }

/// Keys that are processed together, either all of a rank's own or half of another rank's: the number of pairs that
/// they form with this rank's queries, the number of keys received, and the rank that they come from.
struct Parcel {
  double pairs, keys;
  int from;
};

/// Returns the parcels of rank `rank` in the order of processing: its own keys first, then those of rank - 1, rank - 2,
/// …
inline std::vector<Parcel> parcels_of(const SelfAttention& a, Distribution distribution, int ranks, int rank) {
  const double half = a.len / ranks / 2;
  const double own_pairs = a.causal ? half * (2 * half + 1) : 4 * half * half;
  std::vector<Parcel> parcels{{own_pairs, 0, rank}};
  for (int step = 1; step < ranks; ++step) {
    const int of = (rank - step + ranks) % ranks;
    if (!a.causal || (distribution == Distribution::contiguous && of < rank)) {
      parcels.insert(parcels.end(), 2, {2 * half * half, half, of});
    } else if (distribution == Distribution::zigzag) {
      // The first half of the queries sees the first halves of the lower ranks. The second half of the queries sees the
      // first halves of all ranks, and the second halves of the higher ranks.
      if (of < rank)
        parcels.push_back({2 * half * half, half, of});
      else
        parcels.insert(parcels.end(), 2, {half * half, half, of});
    }
  }
  return parcels;
}

/// Returns the time of a step that computes for `computing` seconds while `bytes` bytes are sent and received. Bytes
/// that have not arrived by then follow at full bandwidth.
/// `share`: the share of Cluster::lost that applies; below 1 if more bytes arrive than leave.
inline double step_of(const Cluster& c, double computing, double bytes, double share) {
  if (bytes <= 0) return computing;
  const double beside = c.bandwidth_computing > 0 ? c.bandwidth_computing : c.bandwidth;
  const double lost = c.lost * share;
  double busy = computing + lost * bytes, moved = bytes;
  if (bytes > beside * busy) {
    busy = computing / std::max(0.01, 1 - lost * beside);
    moved = std::min(bytes, beside * busy);
  }
  return std::max(busy + (bytes - moved) / c.bandwidth, c.latency + bytes / c.bandwidth);
}

/// The ring: keys and values of the next parcel arrive while one is computed. In the backward pass, the gradients of
/// keys and values, which are floats, return while the next parcel is computed; those of the last parcel are not
/// overlapped.
inline Prediction predict_ring(const SelfAttention& a, Distribution distribution, int ranks, const Cluster& c) {
  const double elements_per_key = 2 * a.kv_heads * a.dim;
  const double setup = ranks > 1 ? agreement(c, ranks) : 0;
  Prediction p{0, 0, 0, 0};
  std::vector<double> sent(static_cast<std::size_t>(ranks)), received(sent);
  for (int rank = 0; rank < ranks; ++rank)
    for (const Parcel& parcel : parcels_of(a, distribution, ranks, rank)) {
      sent[static_cast<std::size_t>(parcel.from)] += parcel.keys;
      received[static_cast<std::size_t>(rank)] += parcel.keys;
    }
  for (int rank = 0; rank < ranks; ++rank) {
    const double in = received[static_cast<std::size_t>(rank)], out = sent[static_cast<std::size_t>(rank)];
    const double share = in > 0 && !a.backward ? (in + out) / (2 * in) : 1;  // in backward passes as many bytes return
    double seconds = setup, exposed = setup;
    double home = 0;  // bytes of gradients that leave while the next parcel is computed
    const std::vector<Parcel> parcels = parcels_of(a, distribution, ranks, rank);
    for (std::size_t i = 0; i <= parcels.size(); ++i) {
      const bool computes = i < parcels.size();
      const double computing = computes ? flops_of(a, parcels[i].pairs) / c.flops_per_second : 0;
      // The link carries both directions at once, and as many bytes leave this rank as arrive elsewhere.
      const double bytes =
          home + (i + 1 < parcels.size() ? parcels[i + 1].keys * elements_per_key * a.bytes_per_element : 0);
      const double step = step_of(c, computing, bytes, share);
      seconds += step;
      exposed += step - computing;
      p.bytes_sent += bytes;
      home = computes && a.backward ? parcels[i].keys * elements_per_key * 4 : 0;
    }
    if (seconds > p.seconds) p.seconds = seconds, p.exposed = exposed;
  }
  return p;
}

/// The exchange of heads: all-to-all exchanges turn rows of all heads into whole sequences of some heads, and back.
/// Nothing is computed meanwhile.
inline Prediction predict_by_heads(const SelfAttention& a, int ranks, const Cluster& c) {
  const double own = a.len / ranks, others = ranks > 1 ? (ranks - 1.0) / ranks : 0;
  const double row = a.dim * a.bytes_per_element;
  // Queries, outputs, keys and values are sent; ranks that share a key head each get a copy. In the backward pass, the
  // output's gradient is sent as well, and the gradients return.
  const double kv = std::max(a.kv_heads, static_cast<double>(ranks));
  const double numbers = (a.backward ? 2 : 1) * (2 * a.heads + 2 * kv);
  const double bytes = own * numbers * row * others;
  const double exchanges = ranks > 1 ? 2 * (ranks - 1) * c.latency + agreement(c, ranks) : 0;
  const double exposed = bytes / c.bandwidth + exchanges;
  const double heads = std::ceil(a.heads / ranks);
  return {flops_of(a, all_pairs(a)) * heads / a.heads / c.flops_per_second + exposed, exposed, bytes * ranks, 0};
}

}  // namespace detail

/// @pre distribution != by_heads, or there are at least as many heads as ranks.
inline Prediction predict(const SelfAttention& a, Distribution distribution, int ranks, const Cluster& c) {
  Prediction p = distribution == Distribution::by_heads ? detail::predict_by_heads(a, ranks, c)
                                                        : detail::predict_ring(a, distribution, ranks, c);
  p.efficiency = detail::flops_of(a, detail::all_pairs(a)) / (ranks * c.flops_per_second * p.seconds);
  return p;
}

}  // namespace bench
