// Layer 2: softcap(), scores squeezed smoothly into (-cap, cap).
#pragma once

#include "attn/detail/check.h"
#include "attn/detail/math.h"
#include "attn/mod.h"

namespace attn {

/// x -> cap * tanh(x / cap) (Gemma 2, Gemma Team 2024, section 2). @throws std::invalid_argument unless cap > 0.
inline auto softcap(double cap) {
  detail::require(cap > 0, "softcap(", cap, "): the cap must be positive");
  return score_mod([cap](auto x, const Position&) {
    const auto c = static_cast<decltype(x)>(cap);
    return c * detail::tanh(x / c);
  });
}

}  // namespace attn
