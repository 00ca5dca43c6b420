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

/// The type of a member of options that is no option. Whatever it is set to does not compile, with a sentence that says
/// where it belongs.
class MaskIsNoOption {
 public:
  constexpr MaskIsNoOption() = default;
  /// Not to be called.
  template <class Mask>
  constexpr MaskIsNoOption(const Mask&) {
    static_assert(sizeof(Mask) == 0,
                  "attn: a mask is no option but a mod, which stands before them: attention(q, k, v, attn::keep(mask), "
                  "{.scale = 0.5}), or attn::causal() and the like");
  }
};

}  // namespace attn::detail
