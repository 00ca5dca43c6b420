#include "dropout.h"

#include <cmath>
#include <stdexcept>
#include <string>

#include "random.h"
#include "threads.h"

namespace nn {

template <class T>
Dropout<T>::Dropout(double rate, std::uint64_t seed) : rate_(rate), seed_(seed) {
  if (!(rate >= 0 && rate < 1))
    throw std::invalid_argument("dropout must be in [0, 1), but is " + std::to_string(rate));
}

template <class T>
void Dropout<T>::forward(States<T>& x) {
  ++calls_;
  apply(x);
}

template <class T>
void Dropout<T>::backward(States<T>& grad) const {
  apply(grad);
}

template <class T>
void Dropout<T>::apply(States<T>& x) const {
  if (rate_ == 0) return;
  constexpr Index kNumbers = 4096;  // per block, which has its own generator
  const auto dropped = static_cast<std::uint64_t>(std::ldexp(rate_, 16));
  const T kept = static_cast<T>(1 / (1 - std::ldexp(static_cast<double>(dropped), -16)));
  const std::uint64_t start = Random(seed_ + 0x632be59bd9b4e019 * calls_).bits();
  // Elements are counted in the whole batch; x may begin inside a block of it.
  const Index begin = first_ * x.dim(1) * x.dim(2), before = begin % kNumbers, block = begin - before;
  for_blocks(before + x.size(), kNumbers, 1, [&](Index first, Index last) {
    Random random(start ^ static_cast<std::uint64_t>(block + first));
    for (Index i = first; i < last;)
      for (std::uint64_t bits = random.bits(), k = 0; k < 4 && i < last; ++k, ++i, bits >>= 16)
        if (i >= before) x.data()[i - before] *= (bits & 0xffff) < dropped ? T(0) : kept;
  });
}

template class Dropout<NN_SCALAR>;

}  // namespace nn
