// Operators that do not combine mods. Each fails to compile with a one-sentence message, where the compiler would list
// the types of lambdas.
#pragma once

#include "attn/mod.h"

namespace attn {

namespace detail {

template <class A, class B>
concept ModAndOther = AnyMod<A> || AnyMod<B>;

/// Fails to compile, with a message that says how mods are combined. The result is a mod, so that the call causes no
/// second error.
template <class A, class B>
constexpr auto check_operator() {
  constexpr bool kIsMod = sizeof(A) == 0;  // never true; named, because clang prints the name before the message
  static_assert(kIsMod,
                "attn: combine mods with a single |, as in attn::causal() | attn::softcap(50); for the union of two "
                "masks, use attn::any_of(a, b)");
  return Mods<>();
}
template <class M>
constexpr auto check_negation() {
  constexpr bool kIsMod = sizeof(M) == 0;  // never true; see check_operator()
  static_assert(kIsMod, "attn: to negate a mask, use attn::not_(mask)");
  return Mods<>();
}

}  // namespace detail

/// Not to be called: fails to compile with the message of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator||(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: fails to compile with the message of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator&&(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: fails to compile with the message of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator&(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: fails to compile with the message of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator+(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: fails to compile with the message of detail::check_negation().
template <detail::AnyMod M>
constexpr auto operator!(const M&) {
  return detail::check_negation<M>();
}
/// Not to be called: fails to compile with the message of detail::check_negation().
template <detail::AnyMod M>
constexpr auto operator~(const M&) {
  return detail::check_negation<M>();
}

}  // namespace attn
