// softcap(): scores squeezed smoothly into (-cap, cap).
#pragma once

#include <limits>

#include "attn/core/base/check.h"
#include "attn/core/simd/scalar_math.h"
#include "attn/mod.h"

namespace attn {

/// Squeezes scores into (-cap, cap): x -> cap * tanh(x / cap) (Gemma 2, Gemma Team 2024, section 2).
/// @throws std::invalid_argument unless the cap is positive and neither underflows nor overflows as a float.
inline auto softcap(double cap) {
  using Float = std::numeric_limits<float>;
  detail::require(cap >= Float::min() && cap <= Float::max(), "softcap(", cap,
                  "): cap must be positive, and a normal number as a float");
  return score_mod([cap](auto x, const Position&) {
    const auto c = static_cast<decltype(x)>(cap);
    return c * detail::tanh(x / c);
  });
}

}  // namespace attn
