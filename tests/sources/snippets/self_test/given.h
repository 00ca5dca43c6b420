// Declarations for the self-tests' blocks.
#pragma once

namespace given::numbers {
constexpr int q = 1, k = 2;
}
