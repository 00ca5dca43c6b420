// The library's use of MPI: a private communicator, values that all ranks exchange, and failures that are reported to
// all ranks. No other header includes <mpi.h>.
#pragma once

// Leaves out the C++ bindings, which MPI 3 removed and which would have to be linked.
#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/base/check.h"

namespace attn::detail {

/// Throws if an MPI function returned an error. MPI functions return errors only if the caller's error handler does not
/// end the program.
inline void check_mpi(int code, const char* function) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(
      joined({"attn: ", function, ": ", std::string_view(text, static_cast<std::size_t>(length))}));
}

/// Converts a size or a count to the type that MPI takes.
inline int mpi_count(Index count, const char* what) {
  require(count <= INT_MAX, "MPI counts up to ", INT_MAX, ", but there are ", count, " ", what);
  return static_cast<int>(count);
}

/// Calls advance() until it returns true, and yields the core to other threads meanwhile. Returns the seconds that this
/// took.
template <class Advance>
double wait_for(const Advance& advance) {
  if (advance()) return 0;
  const auto begin = std::chrono::steady_clock::now();
  // Messages that arrive within a few microseconds should not wait for a context switch: with MPICH, two ranks with a
  // core each exchanged small values in 1.2 µs, and in 4.8 µs if they yielded at once.
  constexpr int kLooks = 50;
  for (int looks = 0; !advance(); ++looks)
    if (looks >= kLooks) std::this_thread::yield();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Starts an MPI collective by calling start(&request), and waits until it completes. MPI's blocking functions may spin
/// without yielding the core: MPICH 4.0 yields it only with MPI_THREAD_MULTIPLE. With more ranks than cores, the rank
/// that all others wait for then gets no core for several milliseconds in each call.
template <class Start>
void run_together(const char* function, const Start& start) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(start(&request), function);
  wait_for([&] {
    int done = 0;
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), function);
    return done != 0;
  });
}

/// A duplicate of the caller's communicator, so that the caller's messages never match ours.
class Communicator {
 public:
  /// @throws std::invalid_argument unless this thread may use MPI.
  explicit Communicator(MPI_Comm comm) {
    int initialized = 0, finalized = 0, support = 0, is_main = 0, between = 0;
    check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
    require(initialized != 0, "MPI is not initialized: call MPI_Init_thread before creating a Ring");
    check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
    require(finalized == 0, "MPI is finalized: a Ring must be created, used and destroyed before MPI_Finalize");
    require(comm != MPI_COMM_NULL, "the communicator of a Ring must not be MPI_COMM_NULL");
    check_mpi(MPI_Query_thread(&support), "MPI_Query_thread");
    check_mpi(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
    require(is_main != 0 || support >= MPI_THREAD_SERIALIZED,
            "MPI was initialized for the main thread only, but this Ring is created on another thread; request "
            "MPI_THREAD_SERIALIZED from MPI_Init_thread");
    check_mpi(MPI_Comm_test_inter(comm, &between), "MPI_Comm_test_inter");
    require(between == 0, "a Ring needs an intracommunicator, but this is an intercommunicator");
    run_together("MPI_Comm_idup", [&](MPI_Request* r) { return MPI_Comm_idup(comm, &comm_, r); });
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &ranks_), "MPI_Comm_size");
  }
  Communicator(Communicator&& other) noexcept
      : comm_(std::exchange(other.comm_, MPI_COMM_NULL)), rank_(other.rank_), ranks_(other.ranks_) {}
  Communicator& operator=(Communicator&& other) noexcept {
    std::swap(comm_, other.comm_);
    std::swap(rank_, other.rank_);
    std::swap(ranks_, other.ranks_);
    return *this;
  }
  ~Communicator() {
    int finalized = 0;
    if (comm_ != MPI_COMM_NULL && MPI_Finalized(&finalized) == MPI_SUCCESS && finalized == 0) MPI_Comm_free(&comm_);
  }

  MPI_Comm get() const { return comm_; }
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }

  /// Returns the value `own` of each rank, in the order of ranks.
  template <class X>
  std::vector<X> all(const X& own) const {
    return all_of(std::vector<X>{own});
  }
  /// Like all(), for lists of the same length on all ranks: returns the elements of rank 0, then those of rank 1, …
  template <class X>
  std::vector<X> all_of(const std::vector<X>& own) const {
    static_assert(std::is_trivially_copyable_v<X>);
    const int bytes = mpi_count(static_cast<Index>(own.size() * sizeof(X)), "bytes in a list");
    std::vector<X> each(own.size() * static_cast<std::size_t>(ranks_));
    run_together("MPI_Iallgather", [&](MPI_Request* r) {
      return MPI_Iallgather(own.data(), bytes, MPI_BYTE, each.data(), bytes, MPI_BYTE, comm_, r);
    });
    return each;
  }

  /// Sends to[r] to rank r, and returns the value that each rank has sent to this one.
  template <class X>
  std::vector<X> exchanged(const std::vector<X>& to) const {
    static_assert(std::is_trivially_copyable_v<X>);
    std::vector<X> from(to.size());
    run_together("MPI_Ialltoall", [&](MPI_Request* r) {
      return MPI_Ialltoall(to.data(), sizeof(X), MPI_BYTE, from.data(), sizeof(X), MPI_BYTE, comm_, r);
    });
    return from;
  }

  /// Returns the lowest rank for which `failed` holds, or -1. This is the last step of each call: no rank returns a
  /// result if another could not compute its own.
  int first_failed(bool failed) const {
    const int own = failed ? rank_ : INT_MAX;
    int lowest = INT_MAX;
    run_together("MPI_Iallreduce",
                 [&](MPI_Request* r) { return MPI_Iallreduce(&own, &lowest, 1, MPI_INT, MPI_MIN, comm_, r); });
    return lowest == INT_MAX ? -1 : lowest;
  }

  /// Returns the first 1023 bytes of the text of rank `root`, on all ranks.
  std::string text_of(int root, const std::string& own) const {
    char text[1024] = "";
    if (rank_ == root) own.copy(text, sizeof(text) - 1);
    run_together("MPI_Ibcast",
                 [&](MPI_Request* r) { return MPI_Ibcast(text, sizeof(text), MPI_BYTE, root, comm_, r); });
    return text;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_ = 0, ranks_ = 1;
};

}  // namespace attn::detail
