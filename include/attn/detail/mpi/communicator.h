// What the library asks of MPI: a communicator of its own, numbers that all ranks learn, and failures that all ranks
// hear of. Nothing else includes <mpi.h>.
#pragma once

// The bindings for C++ are gone from the standard since MPI 3, and would have to be linked.
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

#include "attn/detail/base/check.h"

namespace attn::detail {

/// Throws where a function of MPI returns an error, as it does where the caller's error handler does not end the
/// program.
inline void check_mpi(int code, const char* function) {
  if (code == MPI_SUCCESS) [[likely]]
    return;
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(
      joined({"attn: ", function, ": ", std::string_view(text, static_cast<std::size_t>(length))}));
}

/// A size or a count as MPI takes it.
inline int mpi_count(Index count, const char* what) {
  require(count <= INT_MAX, "MPI counts up to ", INT_MAX, ", and there are ", count, " ", what);
  return static_cast<int>(count);
}

/// Calls advance() until it returns true, and lets others have the core meanwhile. Returns the seconds that this took.
template <class Advance>
double wait_for(const Advance& advance) {
  if (advance()) return 0;
  const auto begin = std::chrono::steady_clock::now();
  // What comes within a few microseconds should not wait for a switch to others: with MPICH, two ranks that had a core
  // each learned small numbers from each other in 1.2 us, and in 4.8 us where they yielded from the first look on.
  constexpr int kLooks = 50;
  for (int looks = 0; !advance(); ++looks)
    if (looks >= kLooks) std::this_thread::yield();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// Starts a function of MPI that all ranks call, by start(&request), and waits until it has ended. The functions that
/// wait by themselves may keep the core: MPICH 4.0 yields it only with MPI_THREAD_MULTIPLE. Where ranks are more than
/// cores, the one that all wait for then gets none for some milliseconds, each time.
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

/// A duplicate of the caller's communicator, so that none of the caller's messages meets one of ours.
class Communicator {
 public:
  /// @throws std::invalid_argument unless MPI may be used, and by this thread.
  explicit Communicator(MPI_Comm comm) {
    int initialized = 0, finalized = 0, support = 0, is_main = 0, between = 0;
    check_mpi(MPI_Initialized(&initialized), "MPI_Initialized");
    require(initialized != 0, "MPI is not initialized: call MPI_Init_thread before making a Ring");
    check_mpi(MPI_Finalized(&finalized), "MPI_Finalized");
    require(finalized == 0, "MPI is finalized: a Ring must be made, used and destroyed before MPI_Finalize");
    require(comm != MPI_COMM_NULL, "a Ring needs a communicator; this one is MPI_COMM_NULL");
    check_mpi(MPI_Query_thread(&support), "MPI_Query_thread");
    check_mpi(MPI_Is_thread_main(&is_main), "MPI_Is_thread_main");
    require(is_main != 0 || support >= MPI_THREAD_SERIALIZED,
            "MPI was initialized for the main thread alone, and a Ring is made in another one; ask MPI_Init_thread for "
            "MPI_THREAD_SERIALIZED");
    check_mpi(MPI_Comm_test_inter(comm, &between), "MPI_Comm_test_inter");
    require(between == 0, "a Ring needs the ranks of one group; this communicator lies between two");
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

  /// What each rank has in `own`, in the order of ranks.
  template <class X>
  std::vector<X> all(const X& own) const {
    static_assert(std::is_trivially_copyable_v<X>);
    std::vector<X> each(static_cast<std::size_t>(ranks_));
    run_together("MPI_Iallgather", [&](MPI_Request* r) {
      return MPI_Iallgather(&own, sizeof(X), MPI_BYTE, each.data(), sizeof(X), MPI_BYTE, comm_, r);
    });
    return each;
  }

  /// As above, for a list that is as long on all ranks: the numbers of rank 0, then those of rank 1, …
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

  /// Sends to[r] to rank r, and returns what each rank has sent to this one.
  template <class X>
  std::vector<X> exchanged(const std::vector<X>& to) const {
    static_assert(std::is_trivially_copyable_v<X>);
    std::vector<X> from(to.size());
    run_together("MPI_Ialltoall", [&](MPI_Request* r) {
      return MPI_Ialltoall(to.data(), sizeof(X), MPI_BYTE, from.data(), sizeof(X), MPI_BYTE, comm_, r);
    });
    return from;
  }

  /// The lowest rank for which `failed` holds, or -1. It is the last step of each call: no rank returns a result while
  /// another could not make its own.
  int first_failed(bool failed) const {
    const int own = failed ? rank_ : INT_MAX;
    int lowest = INT_MAX;
    run_together("MPI_Iallreduce",
                 [&](MPI_Request* r) { return MPI_Iallreduce(&own, &lowest, 1, MPI_INT, MPI_MIN, comm_, r); });
    return lowest == INT_MAX ? -1 : lowest;
  }

  /// The text of rank `root` on all ranks, its first thousand bytes.
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
