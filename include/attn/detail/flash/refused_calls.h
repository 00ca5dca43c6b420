// Calls whose arguments stand in a wrong order, have no names, or are missing. Each gives one sentence, where compilers
// would list all overloads.
#pragma once

#include <type_traits>

#include "attn/mod.h"
#include "attn/options.h"

namespace attn {
namespace detail {

/// Says in one sentence what is wrong with the arguments after the value.
template <class... Given>
constexpr auto check_order() {
  constexpr int kMods = (int(AnyMod<Given>) + ...);
  constexpr bool kHasOptions = kMods > 0 && (std::is_same_v<Given, Options> || ...), kHasMods = kMods > 1;
  static_assert(!kHasOptions,
                "attn: mods stand before options, in one argument: attention(q, k, v, causal() | softcap(50), "
                "{.scale = 0.5})");
  static_assert(kHasOptions || !kHasMods,
                "attn: several mods are one argument, combined by |: attention(q, k, v, causal() | softcap(50))");
  static_assert(kHasOptions || kHasMods,
                "attn: behind query, key and value stand mods and then options, which have names: "
                "attention(q, k, v, causal(), {.scale = 0.5})");
}

/// Says that options have names.
template <class Q>
constexpr auto refuse_unnamed() {
  static_assert(sizeof(Q) == 0,
                "attn: options have names, as in {.scale = 0.5}; sequences of a PagedKvCache are chosen before the "
                "call, by cache.view({a, b})");
}

/// Whether this is not the options, or there are more arguments behind it.
template <class Options_, class... More>
constexpr bool is_wrong = sizeof...(More) > 0 || !std::is_convertible_v<const Options_&, const Options&>;

}  // namespace detail

inline namespace ATTN_BUILT_FOR {

// The int keeps overloads for unnamed options out of the way when an entry point is named by the types of its
// arguments, for example to take its address.

/// Not to be called: does not compile, with the sentence of detail::check_order().
template <class Q, class K, detail::Viewable V, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto attention(const Q&, const K&, const V&, const M&, const Wrong&,
                                                          const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: does not compile, with the sentence of detail::check_order().
template <class Q, class K, detail::Viewable V, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto naive_attention(const Q&, const K&, const V&, const M&, const Wrong&,
                                                                const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: does not compile, with the sentence of detail::check_order().
template <class Out, class Q, class K, detail::Viewable V, class M = Options, class Wrong, class... More>
requires(!detail::Viewable<M> && detail::is_wrong<Wrong, More...>) auto attention_into(Out&&, const Q&, const K&,
                                                                                       const V&, const M&, const Wrong&,
                                                                                       const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: does not compile, with the sentence of detail::check_order().
template <class Q, detail::KvSource Cache, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto attention(const Q&, const Cache&, const M&, const Wrong&,
                                                          const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: does not compile, with the sentence of detail::refuse_unnamed().
template <class Q, class K, detail::Viewable V, int = 0, class... More>
auto attention(const Q&, const K&, const V&, detail::Unnamed, const More&...) {
  detail::refuse_unnamed<Q>();
}
/// Not to be called: does not compile, with the sentence of detail::refuse_unnamed().
template <class Q, class K, detail::Viewable V, int = 0, class M = Options>
auto attention(const Q&, const K&, const V&, const M&, detail::Unnamed) {
  detail::refuse_unnamed<Q>();
}
/// Not to be called: does not compile, with the sentence of detail::refuse_unnamed().
template <class Q, detail::KvSource Cache, int = 0, class M = Options>
auto attention(const Q&, const Cache&, detail::Unnamed, const M& = {}, const Options& = {}) {
  detail::refuse_unnamed<Q>();
}
/// Not to be called: does not compile, with the sentence of detail::refuse_unnamed().
template <class Q, detail::KvSource Cache, int = 0, class M = Options>
auto attention(const Q&, const Cache&, const M&, detail::Unnamed) {
  detail::refuse_unnamed<Q>();
}

/// Not to be called: does not compile, and says what is missing.
template <class Q, detail::Viewable K>
auto attention(const Q&, const K&) {
  static_assert(sizeof(K) == 0,
                "attn: attention takes query, key and value; where one matrix is all three, attention(x, x, x)");
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
