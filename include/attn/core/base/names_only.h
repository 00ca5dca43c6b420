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

/// What belongs elsewhere than in options.
enum class Elsewhere { mask, dropout, shared_heads, threads };

/// The type of a decoy member of options: one that a user may try to set, but that is not an option. Setting it does
/// not compile, and the error says where the value belongs.
template <Elsewhere kWhat>
class NoOption {
 public:
  constexpr NoOption() = default;
  /// Not to be called. `kIs` is a parameter so that the assertions fail in a call only.
  template <class Value, Elsewhere kIs = kWhat>
  constexpr NoOption(const Value&) {
    static_assert(kIs != Elsewhere::mask,
                  "attn: a mask is a mod such as attn::causal() or attn::keep(mask), not an option; pass it before the "
                  "options: attention(q, k, v, attn::keep(mask), {.scale = 0.5})");
    static_assert(kIs != Elsewhere::dropout,
                  "attn: dropout is a mod, not an option: attention(q, k, v, attn::dropout(p, seed))");
    static_assert(
        kIs != Elsewhere::shared_heads,
        "attn: omit enable_gqa: query heads share key heads if key and value have fewer heads than the query");
    static_assert(kIs != Elsewhere::threads,
                  "attn: the number of threads belongs to an executor: {.executor = attn::threads(n)}; create it once "
                  "and reuse it");
  }
};
using MaskIsNoOption = NoOption<Elsewhere::mask>;

}  // namespace attn::detail
