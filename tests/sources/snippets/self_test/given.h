// What the self-tests' blocks are given.
#pragma once

namespace given::numbers {
constexpr int q = 1, k = 2;
}
