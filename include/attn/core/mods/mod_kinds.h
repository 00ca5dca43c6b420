// Traits of mod types, and compile-time messages for types that are not mods.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "attn/core/tensor/viewable.h"
#include "attn/types.h"

namespace attn {

struct Options;

namespace detail {

/// The type of `condition ? a : b` for two mods of different types. Mods convert to this type only so that the call can
/// say what is wrong, instead of the compiler listing the types of lambdas. The type is a pointer to a member, because
/// of all types to which the built-in `?:` converts classes, pointers to members permit the fewest other uses.
struct ChosenByCondition;
using ModByCondition = int ChosenByCondition::*;

enum class ModKind { none, mask, score, sink, dropout, late, several };

/// The base of all mods of a kind.
template <ModKind kOf>
struct ModBase {
  static constexpr ModKind kKind = kOf;

  /// Lets the call reject `condition ? a : b` with its own error message if a and b are mods of different types.
  constexpr operator ModByCondition() const { return nullptr; }
  /// A mod is not a condition.
  explicit operator bool() const = delete;
};

/// The kind of a mod, or of a reference to one; `none` for any other type.
template <class T>
constexpr ModKind kind_of = ModKind::none;
template <class T>
requires(std::remove_cvref_t<T>::kKind != ModKind::none) constexpr ModKind kind_of<T> = std::remove_cvref_t<T>::kKind;

template <class T>
concept AnyMod = kind_of<T>
!= ModKind::none;
template <class T>
constexpr bool is_mask = kind_of<T> == ModKind::mask;
template <class T>
constexpr bool is_score = kind_of<T> == ModKind::score;
template <class T>
constexpr bool is_sink = kind_of<T> == ModKind::sink;
template <class T>
constexpr bool is_dropout = kind_of<T> == ModKind::dropout;
template <class T>
constexpr bool is_late = kind_of<T> == ModKind::late;
template <class T>
constexpr bool is_mods = kind_of<T> == ModKind::several;

/// Whether a mask has no coverage hint.
template <class T>
constexpr bool is_opaque = requires {
  requires std::remove_cvref_t<T>::kIsOpaque;
};

/// Whether a mask evaluates many pairs at once; see TensorPredicate::words().
template <class T>
constexpr bool has_words = requires(const T& mask, std::uint32_t* words) {
  mask.keep.template words<4>(Position{}, Index(), words);
};

/// Whether a mod has learned parameters.
template <class T>
constexpr bool is_learned = requires(const T& mod) {
  requires decltype(mod.score)::kIsLearned;
}
|| requires(const T& mod) { requires decltype(mod.logit)::kIsLearned; };

/// A std::vector or an array whose elements are not numbers but, for example, mods.
template <class X>
concept ListOfOthers = Shapeless<X> && !std::is_pointer_v<X> && requires(const X& x) {
  requires !std::is_arithmetic_v<std::remove_cvref_t<decltype(x[0])>>;
};

/// Returns the parts of a mod, or of several in order, as a tuple of single mods.
template <class M>
constexpr auto parts(M mod) {
  if constexpr (is_mods<M>)
    return std::move(mod.parts);
  else
    return std::tuple<M>(std::move(mod));
}

/// Fails to compile, with a message that says what to write instead, if M is not a mod.
template <class M>
constexpr auto check_mods() {
  if constexpr (Viewable<M>) {
    constexpr bool kIsBool = std::is_same_v<scalar_t<M>, bool>;
    static_assert(!kIsBool,
                  "attn: a tensor of bool is not a mod; use attn::keep(t) to keep the pairs where it is true, or "
                  "attn::drop(t) to drop them");
    static_assert(kIsBool,
                  "attn: a tensor of numbers is not a mod; use attn::bias(t) to add it to the scores, or a tensor of "
                  "bool as a mask");
  } else if constexpr (std::is_function_v<std::remove_pointer_t<M>>) {
    static_assert(AnyMod<M>, "attn: this is a function that returns a mod; call it, as in attn::causal()");
  } else if constexpr (std::is_same_v<M, ModByCondition>) {
    static_assert(AnyMod<M>,
                  "attn: each mod has its own type, so ?: cannot choose between two; use if and two calls, or choose "
                  "the arguments of one mod: attn::sliding_window(far, is_causal ? 0 : far)");
  } else if constexpr (ListOfOthers<M>) {
    static_assert(AnyMod<M>,
                  "attn: mods cannot be stored in a list at run time; combine them with | at compile time: "
                  "attn::causal() | attn::softcap(50)");
  } else if constexpr (Shapeless<M>) {
    static_assert(check_tensor<M>());
  } else if constexpr (std::is_same_v<M, bool>) {
    static_assert(AnyMod<M>, "attn: causal attention is a mod: attention(q, k, v, attn::causal())");
  } else if constexpr (std::is_arithmetic_v<M>) {
    static_assert(AnyMod<M>, "attn: options are passed by name: attention(q, k, v, {.scale = 0.5})");
  } else if constexpr (std::is_null_pointer_v<M>) {
    static_assert(AnyMod<M>, "attn: for attention without a mask, omit the argument: attention(q, k, v)");
  } else if constexpr (std::is_same_v<M, Options>) {
    static_assert(AnyMod<M>,
                  "attn: options are not mods; pass them as a separate argument after the mods: attention(q, k, v, "
                  "mods, options)");
  } else if constexpr (KvSource<M> || WholeResult<M>) {
    static_assert(check_tensor<M>());
  } else {
    static_assert(AnyMod<M>,
                  "attn: this argument must be a mod; wrap a lambda in attn::mask_mod(...) or attn::score_mod(...), "
                  "and combine mods with |");
  }
  return AnyMod<M>;
}

}  // namespace detail
}  // namespace attn
