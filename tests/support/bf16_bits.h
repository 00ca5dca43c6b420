// Rounding to bf16 as the processor's instructions do it.
#pragma once

#include <cstdint>

namespace attn::test {

/// VCVTNE2PS2BF16 for one element: to nearest, ties to even. Denormals become 0, NaNs quiet.
inline std::uint16_t to_bf16_bits(std::uint32_t x) {
  const std::uint32_t magnitude = x & 0x7fffffff;
  const auto upper = static_cast<std::uint16_t>(x >> 16);
  if (magnitude < 0x00800000) return upper & 0x8000;
  if (magnitude > 0x7f800000) return upper | 0x0040;
  return static_cast<std::uint16_t>((x + 0x7fff + (upper & 1)) >> 16);
}

}  // namespace attn::test
