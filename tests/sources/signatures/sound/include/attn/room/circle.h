// Circles.
#pragma once

namespace attn {

/// A circle with a radius.
inline auto circle(double radius) { return radius; }

}  // namespace attn
