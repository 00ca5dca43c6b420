#include <attn/attn.h>

#include "one_scalar/units.h"

namespace {

// Attention with two equal scores.
template <class T>
float mean_of_values() {
  using Column = Eigen::Matrix<T, Eigen::Dynamic, 1>;
  const Column ones = Column::Ones(2);
  Column values(2);
  values << T(1), T(3);
  return static_cast<float>(attn::attention(ones, ones, values).out(0, 0));
}

}  // namespace

float mean_of_floats() { return mean_of_values<float>(); }
float mean_of_halves() { return mean_of_values<Eigen::half>(); }
