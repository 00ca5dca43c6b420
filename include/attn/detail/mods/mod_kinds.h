// What kind of mod a type is, and what is said of a type that is none.
#pragma once

#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "attn/detail/tensor/viewable.h"
#include "attn/types.h"

namespace attn {

struct Options;

template <class Keep, class CoverageHint, class KvRangeHint>
struct MaskMod;
template <class Score>
struct ScoreMod;
template <class Logit>
struct SinkMod;
struct DropoutMod;
template <class Make>
struct BoundLate;
template <class... M>
struct Mods;

namespace detail {

/// What `condition ? a : b` gives for two mods of different types. Mods convert to it for that alone: then the call
/// says what is wrong, and not the compiler what types lambdas have. It is a pointer to a member, because compilers
/// look for nothing else behind a `?` that takes nothing else with it.
struct ChosenByCondition;
using ModByCondition = int ChosenByCondition::*;

template <class T>
constexpr bool is_mask = false;
template <class K, class C, class R>
constexpr bool is_mask<MaskMod<K, C, R>> = true;

/// Whether a mask says of many pairs at once whether they are kept; see TensorPredicate::words().
template <class T>
constexpr bool has_words = false;
template <class K, class C, class R>
requires requires(const K& keep, std::uint32_t* words) { keep.template words<4>(Position{}, Index(), words); }
constexpr bool has_words<MaskMod<K, C, R>> = true;

template <class T>
constexpr bool is_score = false;
template <class S>
constexpr bool is_score<ScoreMod<S>> = true;

template <class T>
constexpr bool is_sink = false;
template <class L>
constexpr bool is_sink<SinkMod<L>> = true;

template <class T>
constexpr bool is_dropout = std::is_same_v<T, DropoutMod>;

template <class T>
constexpr bool is_late = false;
template <class F>
constexpr bool is_late<BoundLate<F>> = true;

template <class T>
constexpr bool is_mods = false;
template <class... M>
constexpr bool is_mods<Mods<M...>> = true;

/// Whether a mod holds numbers that gradients are asked for.
template <class T>
constexpr bool is_learned = false;
template <class S>
requires(S::kIsLearned) constexpr bool is_learned<ScoreMod<S>> = true;
template <class L>
requires(L::kIsLearned) constexpr bool is_learned<SinkMod<L>> = true;

/// A std::vector or an array of what is no number, such as mods.
template <class X>
concept ListOfOthers = Shapeless<X> && !std::is_pointer_v<X> && requires(const X& x) {
  requires !std::is_arithmetic_v<std::remove_cvref_t<decltype(x[0])>>;
};

template <class T>
concept AnyMod = is_mask<T> || is_score<T> || is_sink<T> || is_dropout<T> || is_late<T> || is_mods<T>;

/// The parts of a mod, or of several in order, as a tuple of single mods.
template <class M>
constexpr auto parts(M mod) {
  if constexpr (is_mods<M>)
    return std::move(mod.parts);
  else
    return std::tuple<M>(std::move(mod));
}

/// Fails to compile, with one sentence that says what to write instead, if M is no mod.
template <class M>
constexpr auto check_mods() {
  if constexpr (Viewable<M>) {
    constexpr bool kIsBool = std::is_same_v<scalar_t<M>, bool>;
    static_assert(!kIsBool,
                  "attn: a tensor of bool stands in the place of mods: attn::keep(t) keeps the pairs where it is true, "
                  "attn::drop(t) the others");
    static_assert(
        kIsBool,
        "attn: a tensor of numbers stands in the place of mods: attn::bias(t) adds it to the scores; a mask must "
        "hold bool");
  } else if constexpr (std::is_function_v<std::remove_pointer_t<M>>) {
    static_assert(AnyMod<M>, "attn: this is the function that makes a mod; call it, as in attn::causal()");
  } else if constexpr (std::is_same_v<M, ModByCondition>) {
    static_assert(AnyMod<M>,
                  "attn: each mod is a type of its own, so that ?: cannot choose between two; write if and two calls, "
                  "or choose the numbers of one mod: attn::sliding_window(far, is_causal ? 0 : far)");
  } else if constexpr (ListOfOthers<M>) {
    static_assert(AnyMod<M>,
                  "attn: mods are combined by | when the program is compiled, and not listed when it runs: "
                  "attn::causal() | attn::softcap(50)");
  } else if constexpr (Shapeless<M>) {
    static_assert(check_tensor<M>());
  } else if constexpr (std::is_same_v<M, bool>) {
    static_assert(AnyMod<M>, "attn: causal attention is a mod: attention(q, k, v, attn::causal())");
  } else if constexpr (std::is_arithmetic_v<M>) {
    static_assert(AnyMod<M>, "attn: options have names: attention(q, k, v, {.scale = 0.5})");
  } else if constexpr (std::is_null_pointer_v<M>) {
    static_assert(AnyMod<M>, "attn: where there is no mask, nothing stands in its place: attention(q, k, v)");
  } else if constexpr (std::is_same_v<M, Options>) {
    static_assert(AnyMod<M>,
                  "attn: options are an argument behind the mods, not one of them: attention(q, k, v, mods, options)");
  } else if constexpr (KvSource<M> || WholeResult<M>) {
    static_assert(check_tensor<M>());
  } else {
    static_assert(AnyMod<M>,
                  "attn: this argument must be a mod; wrap a lambda in attn::mask_mod(...) or attn::score_mod(...), "
                  "combine mods with |");
  }
  return AnyMod<M>;
}

}  // namespace detail
}  // namespace attn
