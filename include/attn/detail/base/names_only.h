// What keeps numbers without names from being options.
#pragma once

#include <type_traits>

namespace attn::detail {

/// The first member of Options. Nothing in braces converts to it, so {.scale = 2} makes options and {2, 0} does not:
/// that would be scale and q_offset to the compiler, and may be two sequences to who wrote it.
class NamesOnly {
 public:
  explicit constexpr NamesOnly() = default;
};

/// Numbers in braces where options are wanted, for overloads that refuse them.
struct Unnamed {
  template <class... Number>
  requires(sizeof...(Number) > 0 && (std::is_arithmetic_v<Number> && ...)) Unnamed(Number...) {}
};

}  // namespace attn::detail
