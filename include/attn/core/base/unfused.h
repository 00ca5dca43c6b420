// A barrier against fused multiply-adds.
#pragma once

#include <type_traits>

namespace attn::detail {

/// Returns x. If x is a product, the compiler does not fuse it with an addition of which it is an operand. g++ may
/// otherwise fuse either of two products, and choose differently in two loops that must give the same bits. Emits no
/// instruction.
template <class X>
inline X unfused(X x) {
#if defined(__clang__)
  return x;  // clang fuses within one expression of the source only
#else
  if constexpr (std::is_floating_point_v<X>)
    return __builtin_assoc_barrier(x);
  else
    return x;
#endif
}

}  // namespace attn::detail
