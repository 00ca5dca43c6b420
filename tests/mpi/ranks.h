// Rings over some of the ranks that mpirun started, and test inputs for them.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "attn/attn.h"
#include "attn/mpi.h"
#include "meet.h"
#include "support/random.h"
#include "support/sample.h"

namespace attn::test {

constexpr int kRanks[] = {1, 2, 3, 4, 7};
constexpr mpi::Layout kRankLayouts[] = {mpi::Layout::contiguous, mpi::Layout::zigzag, mpi::Layout::striped};

inline const char* name_of(mpi::Layout layout) {
  switch (layout) {
    case mpi::Layout::contiguous:
      return "contiguous";
    case mpi::Layout::zigzag:
      return "zigzag";
    case mpi::Layout::striped:
      return "striped";
  }
  return "";
}

/// A communicator of the first `count` ranks; the others have none and must skip the calls.
class FirstRanks {
 public:
  explicit FirstRanks(int count) {
    int rank = 0, ranks = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    ::ranks::meet_asleep();
    if (count <= ranks) MPI_Comm_split(MPI_COMM_WORLD, rank < count ? 0 : MPI_UNDEFINED, 0, &comm_);
  }
  FirstRanks(const FirstRanks&) = delete;
  ~FirstRanks() {
    if (takes_part()) MPI_Comm_free(&comm_);
  }
  bool takes_part() const { return comm_ != MPI_COMM_NULL; }
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

/// Calls visit(ring) on the first `count` ranks.
template <class Visit>
void on_ranks(int count, mpi::Layout layout, const Visit& visit) {
  const FirstRanks ranks(count);
  if (!ranks.takes_part()) return;
  mpi::Ring ring(ranks.get(), layout);
  visit(ring);
}

/// Calls visit(ring, random, sample) on the ranks that take part, for all numbers of ranks and layouts. These ranks
/// draw the same random numbers.
template <class Visit>
void for_each_ring(std::uint64_t seed, const Visit& visit) {
  for (const int count : kRanks) {
    const FirstRanks ranks(count);
    for (const mpi::Layout layout : kRankLayouts) {
      if (!ranks.takes_part()) continue;
      SCOPED_TRACE(std::to_string(count) + " ranks, " + name_of(layout));
      mpi::Ring ring(ranks.get(), layout);
      const auto number = static_cast<std::uint64_t>(4 * count + static_cast<int>(layout));
      Random random(100 * seed + number);
      Sample sample;
      for (std::uint64_t i = 0; i < number; ++i) sample.takes_next();
      visit(ring, random, sample);
    }
  }
}

/// A rank's rows of query, key and value.
struct OwnRows {
  Tensor<float, 4> q, k, v;
};
/// A rank's rows of random sequences.
inline OwnRows own_rows(mpi::Ring& ring, Index len, Index heads = 2, Index kv_heads = 2, Index dim = 8) {
  return {ring.scatter(drawn<float>({1, heads, len, dim}, 1)), ring.scatter(drawn<float>({1, kv_heads, len, dim}, 2)),
          ring.scatter(drawn<float>({1, kv_heads, len, dim}, 3))};
}

/// All elements of a tensor in row-major order.
template <class T, int Rank>
std::vector<T> plain(const Tensor<T, Rank>& t) {
  return t.size() == 0 ? std::vector<T>() : std::vector<T>(t.data(), t.data() + t.size());
}

}  // namespace attn::test
