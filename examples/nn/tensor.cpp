#include "tensor.h"

#include "threads.h"

namespace nn {

template <class T>
void add_to(States<T>& x, const States<T>& y) {
  auto to = rows_of(x);
  const auto from = rows_of(y);
  for_blocks(to.rows(), 32, 0.25 * static_cast<double>(to.cols()), [&](Index first, Index last) {
    to.middleRows(first, last - first) += from.middleRows(first, last - first);
  });
}

template void add_to(States<NN_SCALAR>&, const States<NN_SCALAR>&);

}  // namespace nn
