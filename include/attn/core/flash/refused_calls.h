// Overloads for calls whose arguments are in the wrong order, unnamed or missing. They fail with one sentence, where
// compilers would otherwise list all overloads.
#pragma once

#include <type_traits>

#include "attn/mod.h"
#include "attn/options.h"

namespace attn {
namespace detail {

/// Explains, in a static_assert, what is wrong with the arguments after the value.
template <class... Given>
constexpr auto check_order() {
  constexpr int kMods = (int(AnyMod<Given>) + ...);
  constexpr bool kHasOptions = kMods > 0 && (std::is_same_v<Given, Options> || ...), kHasMods = kMods > 1;
  static_assert(!kHasOptions,
                "attn: pass the mods in one argument, before the options: attention(q, k, v, causal() | softcap(50), "
                "{.scale = 0.5})");
  static_assert(kHasOptions || !kHasMods,
                "attn: combine several mods into one argument with |: attention(q, k, v, causal() | softcap(50))");
  static_assert(kHasOptions || kHasMods,
                "attn: after query, key and value, pass mods, then options by name: attention(q, k, v, causal(), "
                "{.scale = 0.5})");
}

/// Explains, in a static_assert, that options have names.
template <class Q>
constexpr auto refuse_unnamed() {
  static_assert(sizeof(Q) == 0,
                "attn: options are passed by name, as in {.scale = 0.5}; sequences of a PagedKvCache are selected with "
                "cache.view({a, b})");
}

/// Explains, in a static_assert, what is wrong with the arguments after a cache.
template <class M, class... Given>
constexpr auto check_order_over_cache() {
  static_assert(!Viewable<M>,
                "attn: append keys and values to the cache before the call: cache.append(k, v), then attention(q, "
                "cache)");
  if constexpr (!Viewable<M>) check_order<M, Given...>();
}

/// Whether this argument is not the options, or more arguments follow.
template <class Options_, class... More>
constexpr bool is_wrong = sizeof...(More) > 0 || !std::is_convertible_v<const Options_&, const Options&>;

}  // namespace detail

inline namespace ATTN_BUILT_FOR {

// The int template parameter keeps the overloads for unnamed options from matching when an entry point is named by its
// argument types, for example to take its address.

/// Not to be called: fails to compile with the message of detail::check_order().
template <class Q, class K, detail::Viewable V, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto attention(const Q&, const K&, const V&, const M&, const Wrong&,
                                                          const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: fails to compile with the message of detail::check_order().
template <class Q, class K, detail::Viewable V, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto naive_attention(const Q&, const K&, const V&, const M&, const Wrong&,
                                                                const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: fails to compile with the message of detail::check_order().
template <class Out, class Q, class K, detail::Viewable V, class M = Options, class Wrong, class... More>
requires(!detail::Viewable<M> && detail::is_wrong<Wrong, More...>) auto attention_into(Out&&, const Q&, const K&,
                                                                                       const V&, const M&, const Wrong&,
                                                                                       const More&...) {
  detail::check_order<M, Wrong, More...>();
}

/// Not to be called: fails to compile with the message of detail::check_order().
template <class Q, detail::KvSource Cache, class M = Options, class Wrong, class... More>
requires(detail::is_wrong<Wrong, More...>) auto attention(const Q&, const Cache&, const M&, const Wrong&,
                                                          const More&...) {
  detail::check_order_over_cache<M, Wrong, More...>();
}

/// Not to be called: fails to compile with the message of detail::refuse_unnamed().
template <class Q, class K, detail::Viewable V, int = 0, class... More>
auto attention(const Q&, const K&, const V&, detail::Unnamed, const More&...) {
  detail::refuse_unnamed<Q>();
}
/// Not to be called: fails to compile with the message of detail::refuse_unnamed().
template <class Q, class K, detail::Viewable V, int = 0, class M = Options>
auto attention(const Q&, const K&, const V&, const M&, detail::Unnamed) {
  detail::refuse_unnamed<Q>();
}
/// Not to be called: fails to compile with the message of detail::refuse_unnamed().
template <class Q, detail::KvSource Cache, int = 0, class M = Options>
auto attention(const Q&, const Cache&, detail::Unnamed, const M& = {}, const Options& = {}) {
  detail::refuse_unnamed<Q>();
}
/// Not to be called: fails to compile with the message of detail::refuse_unnamed().
template <class Q, detail::KvSource Cache, int = 0, class M = Options>
auto attention(const Q&, const Cache&, const M&, detail::Unnamed) {
  detail::refuse_unnamed<Q>();
}

/// Not to be called: fails to compile, with a message that says what is missing.
template <class Q, detail::Viewable... K>
requires(sizeof...(K) <= 1) auto attention(const Q&, const K&...) {
  static_assert(sizeof(Q) == 0,
                "attn: attention takes query, key and value; if one matrix is all three, pass it three times: "
                "attention(x, x, x)");
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn
