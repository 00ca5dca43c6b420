// Kills a rank in the middle of a call: mpirun must end the others. Started by killed.cmake.
#include <csignal>
#include <iostream>

#include "attn/attn.h"
#include "attn/mpi.h"

int main(int argc, char** argv) {
  int support = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &support);
  attn::mpi::Ring ring(MPI_COMM_WORLD);
  const attn::Tensor<float, 4> x({1, 2, 400, 8});
  int calls = 0;
  const auto dies = attn::mask_mod([&](auto) {
    if (ring.rank() == 1 && ++calls > 500) std::raise(SIGKILL);
    return true;
  });
  ring.attention(x, x, x, dies, {.executor = attn::serial()});
  std::cout << "all ranks finished" << std::endl;
  MPI_Finalize();
}
