// The directional derivative of attention written once more, in long double and plain loops. Shares nothing with the
// library.
#pragma once

#include "gradient_oracle.h"

namespace attn::test {

struct TangentTruth {
  std::vector<Real> tangent;
  Real size = 0;  ///< largest sum of magnitudes: what rounding errors are relative to
};

/// The tangent of each query. Where its pairs have weights w, z * w after dropout, and scores that grow by s, it is the
/// sum of z * w * (s - mean of s) * value and of z * w * direction of value.
TangentTruth jvp_oracle(const Inputs& in, const Inputs& direction, const Meaning& mod = {},
                        const Numbers& numbers = {});

}  // namespace attn::test
