// A Ring constructed before MPI_Init throws an error that says so.
#include <cstring>
#include <iostream>

#include "attn/mpi.h"

int main() {
  try {
    attn::mpi::Ring ring(MPI_COMM_WORLD);
  } catch (const std::invalid_argument& e) {
    std::cout << e.what() << '\n';
    return std::strstr(e.what(), "MPI is not initialized: call MPI_Init_thread") != nullptr ? 0 : 1;
  }
  std::cout << "nothing was thrown\n";
  return 1;
}
