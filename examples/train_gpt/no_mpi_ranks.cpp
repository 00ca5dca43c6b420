// Replaces mpi_ranks.cpp in builds without MPI.
#include <stdexcept>

#include "program.h"
#include "ranks.h"

namespace train_gpt {

int run_over_ranks(int&, char**&, const std::function<int(Ranks&)>&) {
  return training::run_program("train_gpt", []() -> int {
    throw std::invalid_argument("--mpi: this program was built without MPI (Debian: libopenmpi-dev)");
  });
}

}  // namespace train_gpt
