// Operators that do not combine mods. Each gives one sentence, where a compiler would spell out the types of lambdas.
#pragma once

#include "attn/mod.h"

namespace attn {

namespace detail {

template <class A, class B>
concept ModAndOther = AnyMod<A> || AnyMod<B>;

/// Says in one sentence how mods are combined. The result is a mod, so that the compiler finds no second error in the
/// call.
template <class A, class B>
constexpr auto check_operator() {
  constexpr bool kIsMod = sizeof(A) == 0;  // never true; has a name, which clang prints before the sentence
  static_assert(kIsMod,
                "attn: mods are combined by a single |, as in attn::causal() | attn::softcap(50); attn::any_of(a, b) "
                "keeps what one of two masks keeps");
  return Mods<>();
}
template <class M>
constexpr auto check_negation() {
  constexpr bool kIsMod = sizeof(M) == 0;  // likewise
  static_assert(kIsMod, "attn: the opposite of a mask is attn::not_(mask)");
  return Mods<>();
}

}  // namespace detail

/// Not to be called: does not compile, with the sentence of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator||(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: does not compile, with the sentence of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator&&(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: does not compile, with the sentence of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator&(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: does not compile, with the sentence of detail::check_operator().
template <class A, class B>
requires(detail::ModAndOther<A, B>) constexpr auto operator+(const A&, const B&) {
  return detail::check_operator<A, B>();
}
/// Not to be called: does not compile, with the sentence of detail::check_negation().
template <detail::AnyMod M>
constexpr auto operator!(const M&) {
  return detail::check_negation<M>();
}
/// Not to be called: does not compile, with the sentence of detail::check_negation().
template <detail::AnyMod M>
constexpr auto operator~(const M&) {
  return detail::check_negation<M>();
}

}  // namespace attn
