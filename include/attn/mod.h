// Mods: variations of plain attention. A mod changes scores or weights, or drops (query, key) pairs.
#pragma once

#include <concepts>
#include <cstdint>
#include <tuple>
#include <type_traits>
#include <utility>

#include "attn/core/tensor/viewable.h"
#include "attn/dual.h"
#include "attn/types.h"

namespace attn {

class Executor;
struct Options;

namespace detail {

/// The type of `condition ? a : b` for two mods of different types. Mods convert to this type only so that the call can
/// say what is wrong, instead of the compiler listing the types of lambdas. The type is a pointer to a member, because
/// of all types to which the built-in `?:` converts classes, pointers to members permit the fewest other uses.
struct ChosenByCondition;
using ModByCondition = int ChosenByCondition::*;

enum class ModKind { none, mask, score, sink, weight, dropout, late, several };

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
constexpr bool is_weight = kind_of<T> == ModKind::weight;
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
  } else if constexpr (std::is_same_v<M, Executor>) {
    static_assert(AnyMod<M>, "attn: an executor is an option: attention(q, k, v, {.executor = attn::threads(4)})");
  } else if constexpr (KvSource<M> || WholeResult<M>) {
    static_assert(check_tensor<M>());
  } else {
    static_assert(AnyMod<M>,
                  "attn: this argument must be a mod; wrap a lambda in attn::mask_mod(...) or attn::score_mod(...), "
                  "and combine mods with |");
  }
  return AnyMod<M>;
}

/// The hints of a mask that provides none.
struct NoHint {
  static constexpr bool kIsOpaque = true;
  constexpr Coverage operator()(const Tile&) const { return Coverage::some; }
};
struct AllKeys {
  constexpr Range operator()(const Tile& tile) const { return tile.kv; }
};

/// Stands for the result of a lambda that does not take the given arguments.
struct NotCallable {};
/// The type that a lambda returns for arguments of types Args; NotCallable if it does not take them.
template <class F, class... Args>
struct ResultOf {
  using type = NotCallable;
};
template <class F, class... Args>
requires std::invocable<const F&, Args...>
struct ResultOf<F, Args...> {
  using type = std::remove_cvref_t<std::invoke_result_t<const F&, Args...>>;
};
template <class R>
constexpr bool callable = !std::is_same_v<R, NotCallable>;

}  // namespace detail

/// A mask: a predicate that says which pairs are kept, and two optional hints that only save work. Made by mask_mod().
template <class Keep, class CoverageHint = detail::NoHint, class KvRangeHint = detail::AllKeys>
struct MaskMod : detail::ModBase<detail::ModKind::mask> {
  Keep keep;                   ///< `bool(const Position&)`: whether a pair is kept
  CoverageHint coverage_hint;  ///< `Coverage(const Tile&)`, or NoHint
  KvRangeHint kv_range_hint;   ///< `Range(const Tile&)`, or AllKeys

  /// Whether the mask has no coverage hint. The loop then evaluates the predicate for a whole tile before it computes
  /// the tile's products.
  static constexpr bool kIsOpaque = detail::is_opaque<CoverageHint>;

  /// Returns how much of the tile is kept: `none` if no pair is, `all` if every pair is. `some` is always a correct
  /// answer.
  Coverage coverage(const Tile& tile) const { return coverage_hint(tile); }

  /// Returns the keys worth visiting for the tile's queries: a range that contains every key of tile.kv that any of
  /// them keeps.
  Range kv_range(const Tile& tile) const { return intersect(tile.kv, kv_range_hint(tile)); }
};

/// A function of scores, applied after the scale and before all masks. Made by score_mod().
template <class Score>
struct ScoreMod : detail::ModBase<detail::ModKind::score> {
  Score score;  ///< `(x, const Position&)`: the new score; x is a Dual when gradients are computed
};

/// An attention sink: e^logit is added to the softmax denominator of every query of a head, so that part of the weight
/// goes to no key. Made by sinks().
template <class Logit>
struct SinkMod : detail::ModBase<detail::ModKind::sink> {
  Logit logit;  ///< `double(Index head)`; -inf for a head without a sink
};

/// A function of weights, applied after the softmax and before dropout. Made by weight_mod().
template <class Weight>
struct WeightMod : detail::ModBase<detail::ModKind::weight> {
  Weight weight;  ///< `(w, const Position&)`: the new weight; w is a Dual when gradients are computed
};

/// Dropout: sets random weights to 0 after the softmax. Made by dropout().
struct DropoutMod : detail::ModBase<detail::ModKind::dropout> {
  double rate;            ///< the fraction of weights that become 0
  std::uint64_t seed;     ///< determines which weights become 0
  Index first_batch = 0;  ///< the index of the call's first batch element among all
};

/// A mod that needs the sizes of the call and becomes a mask or a score mod when they are known. Made by bind_mod().
template <class Make>
struct BoundLate : detail::ModBase<detail::ModKind::late> {
  Make make;  ///< `(const Problem&)`: makes the mod
};

/// Keeps the pairs for which `keep(p)` is true. `p` is a Position: p.batch, p.head, p.q, p.kv.
///
///     auto parity = attn::mask_mod([](auto p) { return (p.q - p.kv) % 2 == 0; });
///
/// The lambda is compiled into the kernel and may be called from several threads at once, for any pair of the call, in
/// any order.
///
/// @param coverage  optional: `Coverage(const Tile&)`, whether a tile is kept wholly, partly or not at all. It must
/// agree with `keep`.
/// @param kv_range  optional: `Range(const Tile&)`, the keys worth visiting for the queries of a tile, so that tiles
/// outside this range cost nothing.
template <class Keep, class CoverageHint = detail::NoHint, class KvRangeHint = detail::AllKeys>
constexpr auto mask_mod(Keep keep, CoverageHint coverage = {}, KvRangeHint kv_range = {}) {
  using R = typename detail::ResultOf<Keep, Position>::type;
  static_assert(
      detail::callable<R>,
      "attn::mask_mod: the lambda must take one argument, a position with p.batch, p.head, p.q and p.kv: [](auto p) { "
      "return p.kv <= p.q; }");
  static_assert(!detail::callable<R> || std::is_same_v<R, bool>,
                "attn::mask_mod: the lambda must return bool (true = keep); to add to a score use attn::score_mod");
  static_assert(std::is_same_v<typename detail::ResultOf<CoverageHint, Tile>::type, Coverage>,
                "attn::mask_mod: the coverage hint must be callable as attn::Coverage(const attn::Tile&)");
  static_assert(std::is_same_v<typename detail::ResultOf<KvRangeHint, Tile>::type, Range>,
                "attn::mask_mod: the key-range hint must be callable as attn::Range(const attn::Tile&)");
  return MaskMod<Keep, CoverageHint, KvRangeHint>{{}, std::move(keep), std::move(coverage), std::move(kv_range)};
}

/// Replaces each score x = scale * query * key with `score(x, p)`. `x` has the type in which scores are computed (at
/// least float).
///
///     auto slope = attn::score_mod([s = 0.5f](auto x, auto p) { return x - s * float(p.q - p.kv); });
///
/// A result of -inf drops the pair as a mask would, unless a later mod turns it into a finite number. The lambda is
/// also called for pairs that a mask drops; x may then be NaN or +-inf if the key contains such values. To drop a pair,
/// return -inf whatever x is: `drops ? -inf : x`. Do not add -inf: an x of NaN or +inf would become NaN, and the pair
/// would be kept.
///
/// The lambda is compiled into the kernel and may be called from several threads at once, for any pair of the call, in
/// any order.
template <class Score>
constexpr auto score_mod(Score score) {
  using R = typename detail::ResultOf<Score, float, Position>::type;
  static_assert(
      detail::callable<R>,
      "attn::score_mod: the lambda must take a score and a position: [](auto x, auto p) { return x; }, with p.batch, "
      "p.head, p.q and p.kv");
  static_assert(!detail::callable<R> || std::is_floating_point_v<R>,
                "attn::score_mod: the lambda must return the new score, a floating-point number; to drop pairs use "
                "attn::mask_mod");
  return ScoreMod<Score>{{}, std::move(score)};
}

namespace detail {

/// The function of a score or weight mod with its derivative.
template <class F, class Slope>
struct WithSlope {
  F f;
  Slope slope;

  template <class X>
  auto operator()(X x, const Position& p) const {
    if constexpr (is_dual<X>)
      return X{static_cast<decltype(x.value)>(f(x.value, p)),
               static_cast<decltype(x.value)>(slope(x.value, p)) * x.slope};
    else
      return f(x, p);
  }
};

}  // namespace detail

/// Makes a score mod with a hand-written derivative for the backward pass: `slope(x, p)` is the derivative of `score`
/// with respect to x. Without `slope`, the backward pass calls `score` with a dual number (see Dual).
template <class Score, class Slope>
constexpr auto score_mod(Score score, Slope slope) {
  using R = typename detail::ResultOf<Slope, float, Position>::type;
  static_assert(detail::callable<R> && (std::is_floating_point_v<R> || !detail::callable<R>),
                "attn::score_mod: the derivative must take a score and a position and return a floating-point number: "
                "[](auto x, auto p) { return 2 * x; }");
  return score_mod(detail::WithSlope<Score, Slope>{std::move(score), std::move(slope)});
}

/// Replaces each weight w of the softmax (or sigmoid) with `weight(w, p)`, which multiplies the value in its place
/// (ONNX FlexAttention: prob_mod). `w` has the type in which weights are computed (at least float) and includes sinks.
///
///     auto sharper = attn::weight_mod([](auto w, auto p) { return w * w; });
///
/// The new weights are not normalised, and lse does not change. Several weight mods are applied from left to right,
/// then dropout. The weight of a pair that a mask drops stays 0; its value and key have no influence. The weights of
/// naive_attention(), for_each_weight_tile() and similar functions are the new ones. Gradients flow through `weight`,
/// which is then called with a dual number (see Dual); slopes at w = 0 must be finite. Where it jumps, gradients are
/// arbitrary.
///
/// The lambda is compiled into the kernel and may be called from several threads at once, for any pair of the call, in
/// any order.
///
/// Cost: a weight of the softmax is known only after its query has visited all keys, so the keys are visited twice.
/// Prompts take 1.6 times as long as without a weight mod, their backward pass twice as long. Few queries are processed
/// in tiles, and nothing in bf16; single queries over a long cache take 4 to 7 times as long. For the same reason,
/// results over parts of the keys cannot be merged: a call with Options::accumulate is refused. If `weight` only
/// multiplies by a number that does not depend on the key, scale `out` instead; to drop random weights, use dropout().
template <class Weight>
constexpr auto weight_mod(Weight weight) {
  using R = typename detail::ResultOf<Weight, float, Position>::type;
  static_assert(
      detail::callable<R>,
      "attn::weight_mod: the lambda must take a weight and a position: [](auto w, auto p) { return w; }, with p.batch, "
      "p.head, p.q and p.kv");
  static_assert(!detail::callable<R> || std::is_floating_point_v<R>,
                "attn::weight_mod: the lambda must return the new weight, a floating-point number; to drop pairs use "
                "attn::mask_mod");
  return WeightMod<Weight>{{}, std::move(weight)};
}

/// Makes a weight mod with a hand-written derivative for the backward pass: `slope(w, p)` is the derivative of `weight`
/// with respect to w.
template <class Weight, class Slope>
constexpr auto weight_mod(Weight weight, Slope slope) {
  using R = typename detail::ResultOf<Slope, float, Position>::type;
  static_assert(detail::callable<R> && (std::is_floating_point_v<R> || !detail::callable<R>),
                "attn::weight_mod: the derivative must take a weight and a position and return a floating-point "
                "number: [](auto w, auto p) { return 2 * w; }");
  return weight_mod(detail::WithSlope<Weight, Slope>{std::move(weight), std::move(slope)});
}

/// Defers making a mod until the sizes of the call are known: `make(problem)` checks the mod's arguments against the
/// sizes and returns a mask or a score mod.
///
///     auto not_last = attn::bind_mod([](const attn::Problem& c) {
///       return attn::mask_mod([n = c.kv_len](auto p) { return p.kv + 1 < n; });
///     });
template <class Make>
constexpr auto bind_mod(Make make) {
  using R = typename detail::ResultOf<Make, Problem>::type;
  static_assert(detail::callable<R>,
                "attn::bind_mod: the lambda must take the sizes of the call: [](const attn::Problem& c) { return "
                "attn::mask_mod(...); }");
  return BoundLate<Make>{{}, std::move(make)};
}

/// Several mods in order. Scores, and later weights, pass through them from left to right; all masks are intersected.
template <class... M>
struct Mods : detail::ModBase<detail::ModKind::several> {
  std::tuple<M...> parts;  ///< from left to right
};

namespace detail {

/// Whether one of the mods of a call changes weights.
template <class M>
constexpr bool has_weight_mods = is_weight<M>;
template <class... M>
constexpr bool has_weight_mods<Mods<M...>> = (is_weight<M> || ...);

template <class... M>
constexpr Mods<M...> mods_of(std::tuple<M...> parts) {
  return {{}, std::move(parts)};
}

}  // namespace detail

/// Combines two mods: scores pass through `a`, then through `b`; a pair is kept if both keep it.
template <class A, class B>
requires(detail::AnyMod<A>&& detail::AnyMod<B>) constexpr auto operator|(A a, B b) {
  return detail::mods_of(std::tuple_cat(detail::parts(std::move(a)), detail::parts(std::move(b))));
}

/// Not to be called, because one of the two is not a mod: fails to compile, with the message of check_mods().
template <class A, class B>
requires(detail::AnyMod<A> != detail::AnyMod<B>) constexpr auto operator|(const A& a, const B& b) {
  if constexpr (detail::AnyMod<A>) {
    static_assert(detail::check_mods<B>());
    return a;
  } else {
    static_assert(detail::check_mods<A>());
    return b;
  }
}

namespace detail {

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

/// Not to be called: these operators do not combine mods, and fail to compile with a message that says what does.
/// @{
template <class A, class B>
requires(detail::AnyMod<A> || detail::AnyMod<B>) constexpr auto operator||(const A&, const B&) {
  return detail::check_operator<A, B>();
}
template <class A, class B>
requires(detail::AnyMod<A> || detail::AnyMod<B>) constexpr auto operator&&(const A&, const B&) {
  return detail::check_operator<A, B>();
}
template <class A, class B>
requires(detail::AnyMod<A> || detail::AnyMod<B>) constexpr auto operator&(const A&, const B&) {
  return detail::check_operator<A, B>();
}
template <class A, class B>
requires(detail::AnyMod<A> || detail::AnyMod<B>) constexpr auto operator+(const A&, const B&) {
  return detail::check_operator<A, B>();
}
template <detail::AnyMod M>
constexpr auto operator!(const M&) {
  return detail::check_negation<M>();
}
template <detail::AnyMod M>
constexpr auto operator~(const M&) {
  return detail::check_negation<M>();
}
/// @}

}  // namespace attn
