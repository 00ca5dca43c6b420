// Start and end of MPI programs: an error on any rank ends all ranks.
#pragma once

#include <mpi.h>

#include <chrono>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "meet.h"
#include "printable.h"

namespace ranks {

/// Initialises MPI, and finalises it when destroyed. Without mpirun there is one rank.
class World {
 public:
  World(int& argc, char**& argv) {
    int provided = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
    MPI_Comm_dup(MPI_COMM_WORLD, &for_failures_);
  }
  World(const World&) = delete;
  ~World() {
    MPI_Comm_free(&for_failures_);
    MPI_Finalize();
  }

  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  bool is_first() const { return rank_ == 0; }

  /// Runs a program and returns its exit code. An exception that all ranks throw becomes one line from rank 0, after
  /// the program's name, and exit code 1. A rank that throws alone writes the line itself and aborts all ranks, which
  /// would otherwise wait for it.
  template <class F>
  int run(const char* name, const F& program) const {
    std::string error;
    try {
      return program();
    } catch (const std::bad_alloc&) {
      error = "there is not enough memory for these sizes";
    } catch (const std::exception& e) {
      error = nn::as_line(e.what());
    }
    const bool together = all_come();
    if (is_first() || !together)
      std::cerr << (std::string(name) + ": " + (together ? "" : "rank " + std::to_string(rank_) + ": ") + error + "\n");
    if (!together) MPI_Abort(MPI_COMM_WORLD, EXIT_FAILURE);
    return EXIT_FAILURE;
  }

  /// Returns the values of all ranks, concatenated, on rank 0.
  std::vector<double> gathered(const std::vector<double>& own) const {
    std::vector<double> all(is_first() ? own.size() * static_cast<std::size_t>(ranks_) : 0);
    const int count = static_cast<int>(own.size());
    MPI_Gather(own.data(), count, MPI_DOUBLE, all.data(), count, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    return all;
  }

 private:
  /// Whether every rank fails. Errors in the arguments occur on all ranks at once, so three seconds are ample. Uses a
  /// separate communicator, because a rank that has not failed may be inside any other MPI call.
  bool all_come() const {
    return meet_asleep(for_failures_, std::chrono::steady_clock::now() + std::chrono::seconds(3));
  }

  MPI_Comm for_failures_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace ranks
