// A barrier that sleeps, so that waiting ranks leave their cores to working ones.
#pragma once

#include <mpi.h>

#include <chrono>
#include <thread>

namespace ranks {

/// Sleeps until all ranks of `comm` have called it. Returns false if some have not done so by `until`.
inline bool meet_asleep(MPI_Comm comm = MPI_COMM_WORLD,
                        std::chrono::steady_clock::time_point until = std::chrono::steady_clock::time_point::max()) {
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Ibarrier(comm, &request);
  for (int all_are_here = 0;;) {
    MPI_Test(&request, &all_are_here, MPI_STATUS_IGNORE);
    if (all_are_here != 0 || std::chrono::steady_clock::now() >= until) return all_are_here != 0;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace ranks
