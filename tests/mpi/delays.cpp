// Delays and reorders MPI messages through MPI's profiling interface: sends wait briefly, and arrived messages are
// reported late. Loaded before MPI with LD_PRELOAD.
#include <mpi.h>

#include <chrono>
#include <random>
#include <thread>

namespace {

std::mt19937& random_bits() {
  static std::mt19937 engine{std::random_device()()};
  return engine;
}
void wait_a_little() {
  if (random_bits()() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random_bits()() % 2000));
}

}  // namespace

extern "C" {

int MPI_Isend(const void* data, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request* request) {
  wait_a_little();
  return PMPI_Isend(data, count, type, to, tag, comm, request);
}

int MPI_Irecv(void* data, int count, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request* request) {
  wait_a_little();
  return PMPI_Irecv(data, count, type, from, tag, comm, request);
}

int MPI_Test(MPI_Request* request, int* done, MPI_Status* status) {
  *done = 0;
  return random_bits()() % 8 != 0 ? MPI_SUCCESS : PMPI_Test(request, done, status);
}

int MPI_Iallreduce(const void* from, void* to, int count, MPI_Datatype type, MPI_Op op, MPI_Comm comm,
                   MPI_Request* request) {
  wait_a_little();
  return PMPI_Iallreduce(from, to, count, type, op, comm, request);
}
}
