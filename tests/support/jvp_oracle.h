// A reference implementation of attention's directional derivative, in long double and plain loops. It shares no code
// with the library.
#pragma once

#include "gradient_oracle.h"

namespace attn::test {

struct TangentTruth {
  std::vector<Real> tangent;
  Real size = 0;  ///< largest sum of magnitudes, to which rounding errors are relative
};

/// The tangent of each query. For pairs with weights w, z * w after dropout, and score derivatives s, it is the sum of
/// z * w * (s - mean of s) * value and of z * w * the value's direction.
TangentTruth jvp_oracle(const Inputs& in, const Inputs& direction, const Meaning& mod = {},
                        const Numbers& numbers = {});

}  // namespace attn::test
