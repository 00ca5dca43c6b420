// Rejects unnamed numbers passed as options.
#pragma once

#include <type_traits>

namespace attn::detail {

/// The first member of Options. No value in braces converts to it, so {.scale = 2} makes options and {2, 0} does not.
/// Without it, {2, 0} would set the first two options, although the author may have meant two sequences.
class NamesOnly {
 public:
  explicit constexpr NamesOnly() = default;
};

/// Numbers in braces where options are expected, for overloads that reject them.
struct Unnamed {
  template <class... Number>
  requires(sizeof...(Number) > 0 && (std::is_arithmetic_v<Number> && ...)) Unnamed(Number...) {}
};

/// The type of a decoy member of options: one that a user may try to set, but that is not an option. Setting it does
/// not compile, and the error says where the value belongs.
class MaskIsNoOption {
 public:
  constexpr MaskIsNoOption() = default;
  /// Not to be called.
  template <class Mask>
  constexpr MaskIsNoOption(const Mask&) {
    static_assert(sizeof(Mask) == 0,
                  "attn: a mask is a mod such as attn::causal() or attn::keep(mask), not an option; pass it before the "
                  "options: attention(q, k, v, attn::keep(mask), {.scale = 0.5})");
  }
};

}  // namespace attn::detail
