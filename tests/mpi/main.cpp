// GoogleTest on all ranks of mpirun: rank 0 prints everything, the others only failures.
#include <mpi.h>

#include <gtest/gtest.h>

#include <iostream>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define LOOKS_FOR_LEAKS
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define LOOKS_FOR_LEAKS
#endif
#ifdef LOOKS_FOR_LEAKS
#include <sanitizer/lsan_interface.h>
#endif

namespace {

/// Initialises MPI with leak checks disabled. MPI loads libraries, unloads some of them at once and keeps their
/// allocations, which leaks.txt cannot match without the library's name.
void init(int* argc, char*** argv) {
  int support = 0;
#ifdef LOOKS_FOR_LEAKS
  const __lsan::ScopedDisabler none;
#endif
  MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &support);
}

/// MPI_Finalize unloads the other libraries, so this first runs the leak check that normally runs at exit, and exits if
/// there is a leak.
void finalize() {
#ifdef LOOKS_FOR_LEAKS
  __lsan_do_leak_check();
#endif
  MPI_Finalize();
}

class Failures : public ::testing::EmptyTestEventListener {
 public:
  explicit Failures(int rank) : rank_(rank) {}
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (result.failed())
      std::cerr << "rank " << rank_ << ": " << (result.file_name() ? result.file_name() : "") << ":"
                << result.line_number() << ": " << result.message() << std::endl;
  }

 private:
  int rank_;
};

}  // namespace

int main(int argc, char** argv) {
  init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  ::testing::InitGoogleTest(&argc, argv);
  auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures(rank));
  }
  const int failed = RUN_ALL_TESTS();
  finalize();
  return failed;
}
