// A ring of one rank.
#include <attn/mpi.h>

#include <iostream>

int main(int argc, char** argv) {
  int support = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &support);
  bool is_right = false;
  {
    attn::mpi::Ring ring(MPI_COMM_WORLD, attn::mpi::Layout::zigzag);
    Eigen::MatrixXf x(3, 2);
    x << 1, 2, 3, 4, 5, 6;
    const attn::Tensor<float, 2> back = ring.gather(ring.scatter(x));
    is_right = ring.ranks() == 1 && ring.rows(3) == 3 && back(2, 1) == 6;
  }
  MPI_Finalize();
  std::cout << (is_right ? "one rank\n" : "something is wrong\n");
  return is_right ? 0 : 1;
}
