#include "mpi_ranks.h"

#include <algorithm>
#include <cstddef>

#include "world.h"

namespace train_gpt {

namespace {

/// Number of elements that are summed at once: counts fit MPI's int, and memory is 16 MiB for any model.
constexpr std::size_t kPiece = std::size_t{1} << 22;

}  // namespace

MpiRanks::MpiRanks(MPI_Comm comm) : comm_(comm) {
  MPI_Comm_rank(comm, &rank_);
  MPI_Comm_size(comm, &count_);
}

void MpiRanks::add_up(std::span<float> numbers) {
  for (std::size_t begin = 0; begin < numbers.size(); begin += kPiece)
    add_up_piece(numbers.subspan(begin, std::min(kPiece, numbers.size() - begin)));
}

/// MPI_Allreduce is not used: the standard (5.9.1) leaves the order of a sum to the implementation, which may choose a
/// different tree for a different size or placement of ranks, and need not give all ranks the same bits; the models of
/// the ranks would drift apart. Here each rank receives one share of the elements from all ranks, sums them in the
/// order of ranks, and sends the sums back. The traffic equals that of the best reduction, twice the elements of a
/// rank.
void MpiRanks::add_up_piece(std::span<float> piece) {
  const auto ranks = static_cast<std::size_t>(count_), mine = static_cast<std::size_t>(rank_);
  std::vector<int> counts(ranks), firsts(ranks), own_counts(ranks), own_firsts(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    firsts[r] = static_cast<int>(piece.size() * r / ranks);
    counts[r] = static_cast<int>(piece.size() * (r + 1) / ranks) - firsts[r];
  }
  const auto share = static_cast<std::size_t>(counts[mine]);
  for (std::size_t r = 0; r < ranks; ++r) {
    own_counts[r] = counts[mine];
    own_firsts[r] = static_cast<int>(r * share);
  }
  shares_.resize(ranks * share);
  MPI_Alltoallv(piece.data(), counts.data(), firsts.data(), MPI_FLOAT, shares_.data(), own_counts.data(),
                own_firsts.data(), MPI_FLOAT, comm_);
  for (std::size_t r = 1; r < ranks; ++r)
    for (std::size_t i = 0; i < share; ++i) shares_[i] += shares_[r * share + i];
  MPI_Allgatherv(shares_.data(), counts[mine], MPI_FLOAT, piece.data(), counts.data(), firsts.data(), MPI_FLOAT, comm_);
}

double MpiRanks::add_up(double own) {
  std::vector<double> all(static_cast<std::size_t>(count_));
  MPI_Allgather(&own, 1, MPI_DOUBLE, all.data(), 1, MPI_DOUBLE, comm_);
  double sum = 0;
  for (const double x : all) sum += x;
  return sum;
}

bool MpiRanks::any(bool own) {
  int value = own ? 1 : 0;
  MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_INT, MPI_MAX, comm_);
  return value != 0;
}

int run_over_ranks(int& argc, char**& argv, const std::function<int(Ranks&)>& program) {
  const ranks::World world(argc, argv);
  return world.run("train_gpt", [&] {
    MpiRanks all(MPI_COMM_WORLD);
    return program(all);
  });
}

}  // namespace train_gpt
