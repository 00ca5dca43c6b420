// Values that are not finite.
#pragma once

#include <limits>

namespace attn::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity(), kNaN = std::numeric_limits<float>::quiet_NaN();

}  // namespace attn::test
