// The mods of a call, bound to its sizes, as the naive and flash paths see them.
#pragma once

#include <algorithm>
#include <array>
#include <concepts>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/base/unfused.h"
#include "attn/core/mods/grouping/grouped_mask.h"
#include "attn/core/mods/pair_grid.h"
#include "attn/core/simd/softmax_state.h"

namespace attn::detail {

// Returns a reference to the mod itself, or the mod that it makes for this call.
template <class M>
constexpr decltype(auto) bind_one(const M& mod, const Problem& problem) {
  if constexpr (is_late<M>) {
    auto made = mod.make(problem);
    using Made = decltype(made);
    static_assert(is_mask<Made> || is_score<Made> || is_sink<Made>,
                  "attn::bind_mod: the lambda must return a mask, a score mod or a sink; wrap a lambda in "
                  "attn::mask_mod(...) or attn::score_mod(...)");
    return made;
  } else {
    return (mod);
  }
}

/// The mods of one batch element as a path needs them. For each pair, they give the new score, whether the pair is
/// kept, the new weight, and the factor of that weight; for each head, the logit of its sinks; for each tile, the hints
/// and the positions of its pairs. Positions are absolute.
template <class M>
concept ModsOfElement = requires(const M& mods, const Position& p, const Tile& tile, Index head) {
  { mods.score(1.0f, p) } -> std::same_as<float>;
  { mods.keep(p) } -> std::same_as<bool>;
  { mods.weight(1.0f, p) } -> std::same_as<float>;
  { mods.weight_factor(p) } -> std::same_as<long double>;
  { mods.sink(head) } -> std::same_as<double>;
  { mods.coverage(tile) } -> std::same_as<Coverage>;
  { mods.kv_range(tile) } -> std::same_as<Range>;
  { mods.grid(tile) } -> std::same_as<PairGrid>;
};

/// 1 / x, or 0 for 0.
constexpr long double inverse_of(long double x) { return x == 0 ? 0 : 1 / x; }

/// Whether attention is the same with these mods as without mods.
template <class M>
constexpr bool changes_nothing = !(M::kHasScores || M::kHasMasks || M::kHasSinks || M::kHasWeights || M::kHasDropout);
/// Whether these mods only drop pairs before the softmax.
template <class M>
constexpr bool has_only_masks = !(M::kHasScores || M::kHasSinks || M::kHasWeights || M::kHasDropout);

/// All mods combined, as the naive and flash paths see them: one score mod, one predicate, one hint, one sink. Each M
/// is a value or a const reference.
template <class... M>
class BoundMods {
 public:
  static constexpr bool kHasScores = (is_score<M> || ...);
  static constexpr bool kHasMasks = (is_mask<M> || ...);
  /// Whether there are masks that evaluate many pairs at once.
  static constexpr bool kHasWords = (has_words<M> || ...);
  static constexpr bool kIsOpaque = (is_opaque<M> || ...);
  static constexpr bool kHasSinks = (is_sink<M> || ...);
  static constexpr bool kHasWeights = (is_weight<M> || ...);
  static constexpr bool kHasDropout = (is_dropout<M> || ...);
  static constexpr bool kIsGrouped = (is_grouped<M> || ...);
  /// Whether a mod has learned parameters.
  static constexpr bool kLearns = (is_learned<M> || ...);

  explicit BoundMods(M&&... mods) : mods_(std::forward<M>(mods)...) {}

  /// Returns the mods of a batch element, which are the same for all elements; see CallMods.
  const BoundMods& of(Index) const { return *this; }

  /// Applies the score mods, left to right. The result of one mod is not fused with an addition in the next, so that
  /// the loops over whole vectors and over single pairs give the same bits.
  template <class X>
  X score(X x, const Position& p) const {
    each_of<ModKind::score>([&](const auto& mod) { x = unfused(static_cast<X>(mod.score(x, p))); });
    return x;
  }

  /// Applies the weight mods, left to right, like score().
  template <class X>
  X weight(X w, const Position& p) const {
    each_of<ModKind::weight>([&](const auto& mod) { w = unfused(static_cast<X>(mod.weight(w, p))); });
    return w;
  }

  /// Returns the derivative of the modded score with respect to the score x. Calls add(slot, gradient) for each
  /// parameter that a mod used; `grad` is the gradient of the modded score.
  template <class T, class Add>
  T learn(T x, T grad, const Position& p, const Add& add) const {
    return learn_from<0>(x, grad, p, Index(0), add);
  }

  /// Calls visit(mod) for each mod with learned parameters: score mods in the order of their slots, and sinks.
  template <class Visit>
  void each_learned(const Visit& visit) const {
    each([&](const auto& mod) {
      if constexpr (is_learned<decltype(mod)>) visit(mod);
    });
  }

  bool keep(const Position& p) const {
    bool kept = true;
    each_of<ModKind::mask>([&](const auto& mask) { kept = kept & mask.keep(p); });
    return kept;
  }

  /// words() evaluates the masks with words, in the form of TensorPredicate::words(); keep_beside_words() evaluates the
  /// other masks for one pair.
  template <int kQueries, class Word>
  [[gnu::always_inline]] void words(const Position& first, Index keys, Word* all) const requires kHasWords {
    for (int i = 0; i < kQueries; ++i) all[i] = Word(0xffff);
    each_of<ModKind::mask>([&](const auto& mask) {
      if constexpr (has_words<decltype(mask)>) {
        Word own[static_cast<std::size_t>(kQueries)];
        mask.keep.template words<kQueries>(first, keys, own);
        for (int i = 0; i < kQueries; ++i) all[i] &= own[i];
      }
    });
  }
  bool keep_beside_words(const Position& p) const requires kHasWords {
    bool kept = true;
    each_of<ModKind::mask>([&](const auto& mask) {
      if constexpr (!has_words<decltype(mask)>) kept = kept & mask.keep(p);
    });
    return kept;
  }

  /// Returns the factor that dropout applies to the weight of a pair: 0, or the inverse of the share of weights that
  /// are kept.
  long double weight_factor(const Position& p) const {
    long double factor = 1;
    each_dropout([&](const DropoutMod& mod) { factor *= DroppedPairs(mod).keeps(p) ? kept_factor_of(mod) : 0; });
    return factor;
  }
  /// Returns the factor that dropout applies to the weights of the pairs that it keeps.
  long double kept_factor() const {
    long double factor = 1;
    each_dropout([&](const DropoutMod& mod) { factor *= kept_factor_of(mod); });
    return factor;
  }
  template <class Visit>
  void each_dropout(const Visit& visit) const {
    each_of<ModKind::dropout>(visit);
  }

  /// Returns the positions of a tile's pairs in the call.
  PairGrid grid(const Tile& tile) const { return {{tile.batch, tile.head, tile.q.begin, tile.kv.begin}}; }

  /// Returns the combined logit of all sinks of a head: the log of the sum of their e^logit, or -inf if there are none.
  double sink(Index head) const {
    using State = SoftmaxState<double>;
    double all = State().lse();
    each_of<ModKind::sink>([&](const auto& mod) { all = merged(State::of(all), State::of(mod.logit(head))).lse(); });
    return all;
  }

  Coverage coverage(const Tile& tile) const {
    Coverage sum = Coverage::all;
    each_of<ModKind::mask>([&](const auto& mask) {
      if (sum != Coverage::none) sum = std::min(sum, mask.coverage(tile));
    });
    return sum;
  }

  Range kv_range(const Tile& tile) const {
    Range range = tile.kv;
    each_of<ModKind::mask>([&](const auto& mask) { range = intersect(range, mask.kv_range(tile)); });
    return range;
  }

  /// Returns the first grouped mask.
  const auto& grouped() const requires kIsGrouped { return std::get<kFirstGrouped>(mods_); }

  /// Returns all mods, with the first grouped mask replaced by its `near` part.
  auto with_near_part() const requires kIsGrouped {
    return with_grouped_as([](const auto& mask) { return std::tie(mask.near); });
  }
  /// Returns all mods except the first grouped mask.
  auto without_grouped() const requires kIsGrouped {
    return with_grouped_as([](const auto&) { return std::tuple<>(); });
  }

 private:
  static constexpr std::size_t kFirstGrouped = [] {
    const std::array<bool, sizeof...(M) + 1> grouped{is_grouped<M>..., true};
    return static_cast<std::size_t>(std::find(grouped.begin(), grouped.end(), true) - grouped.begin());
  }();

  /// Returns the mods, with those that replacement(mask) returns in place of the first grouped mask.
  template <class Replacement>
  auto with_grouped_as(const Replacement& replacement) const {
    const auto part = [&]<std::size_t i>(std::index_sequence<i>) {
      if constexpr (i == kFirstGrouped)
        return replacement(std::get<i>(mods_));
      else
        return std::tie(std::get<i>(mods_));
    };
    const auto all = [&]<std::size_t... i>(std::index_sequence<i...>) {
      return std::tuple_cat(part(std::index_sequence<i>())...);
    };
    return std::apply([](const auto&... mod) { return BoundMods<decltype(mod)...>(mod...); },
                      all(std::index_sequence_for<M...>()));
  }

  /// learn() for the mods from index i on, whose slots begin at `first`.
  template <std::size_t i, class T, class Add>
  T learn_from([[maybe_unused]] T x, [[maybe_unused]] T grad, [[maybe_unused]] const Position& p,
               [[maybe_unused]] Index first, [[maybe_unused]] const Add& add) const {
    if constexpr (i == sizeof...(M)) {
      return T(1);
    } else {
      const auto& mod = std::get<i>(mods_);
      using Mod = std::remove_cvref_t<decltype(mod)>;
      if constexpr (is_score<Mod> && is_learned<Mod>) {
        const Dual<T> w(mod.score.number(p)), by_score = mod.score.of(Dual<T>(x, T(1)), w, p),
                                              by_number = mod.score.of(Dual<T>(x), Dual<T>(w.value, T(1)), p);
        const T after = learn_from<i + 1>(by_score.value, grad, p, first + mod.score.slots(), add);
        if (const Index slot = mod.score.slot(p); slot >= 0) add(first + slot, grad * after * by_number.slope);
        return after * by_score.slope;
      } else if constexpr (is_score<Mod>) {
        const Dual<T> y = mod.score(Dual<T>(x, T(1)), p);
        return learn_from<i + 1>(y.value, grad, p, first, add) * y.slope;
      } else {
        return learn_from<i + 1>(x, grad, p, first, add);
      }
    }
  }

  template <class F>
  void each(const F& f) const {
    std::apply([&](const auto&... mod) { (f(mod), ...); }, mods_);
  }
  template <ModKind kKind, class F>
  void each_of(const F& f) const {
    each([&](const auto& mod) {
      if constexpr (kind_of<decltype(mod)> == kKind) f(mod);
    });
  }

  std::tuple<M...> mods_;
};

/// Binds each of `mods` to one call. @throws std::invalid_argument if one does not fit the call's sizes.
template <class M>
auto bind(const M& mods, const Problem& problem) {
  static_assert(check_mods<M>());
  const auto each = [&](const auto&... m) {
    return BoundMods<decltype(bind_one(m, problem))...>(bind_one(m, problem)...);
  };
  if constexpr (is_mods<M>)
    return std::apply(each, mods.parts);
  else
    return each(mods);
}

/// The bound mods of a call, or a type that replaces them: the mods of each batch element and their common properties.
template <class M>
concept ModsOfCall = requires(const M& mods, Index batch) {
  requires std::same_as<const bool, decltype(M::kHasScores)> && std::same_as<const bool, decltype(M::kHasMasks)>;
  requires std::same_as<const bool, decltype(M::kIsOpaque)> && std::same_as<const bool, decltype(M::kHasSinks)>;
  requires std::same_as<const bool, decltype(M::kHasWeights)> && std::same_as<const bool, decltype(M::kHasDropout)>;
  { mods.of(batch) } -> ModsOfElement;
};

/// The type of the mods of one batch element.
template <ModsOfCall M>
using ModsOfOne = std::remove_cvref_t<decltype(std::declval<const M&>().of(0))>;

/// The mods of a call: bound once for all batch elements, or once per element if elements have different positions.
template <class One>
class CallMods {
 public:
  static constexpr bool kHasScores = One::kHasScores;
  static constexpr bool kHasMasks = One::kHasMasks;
  static constexpr bool kIsOpaque = One::kIsOpaque;
  static constexpr bool kHasSinks = One::kHasSinks;
  static constexpr bool kHasWeights = One::kHasWeights;
  static constexpr bool kHasDropout = One::kHasDropout;
  static constexpr bool kIsGrouped = One::kIsGrouped;
  static constexpr bool kLearns = One::kLearns;

  /// `make(i)` returns the mods of batch element i.
  template <class Make>
  CallMods(Index count, const Make& make) : first_(make(0)) {
    others_.reserve(static_cast<std::size_t>(count - 1));
    for (Index i = 1; i < count; ++i) others_.push_back(make(i));
  }

  const One& of(Index batch) const {
    return batch == 0 || others_.empty() ? first_ : others_[static_cast<std::size_t>(batch - 1)];
  }

  /// Returns the grouped mask; see BoundMods. Its grouping of tokens does not depend on their positions.
  const auto& grouped() const requires kIsGrouped { return first_.grouped(); }
  auto with_near_part() const requires kIsGrouped {
    const auto near = [&](Index i) { return of(i).with_near_part(); };
    return CallMods<decltype(near(0))>(static_cast<Index>(others_.size()) + 1, near);
  }

 private:
  One first_;  // stored inline, because most calls have no others
  std::vector<One> others_;
};

/// bind() for all batch elements of a call.
/// @throws std::invalid_argument as bind() does, and for sinks with a sigmoid, which has no denominator.
template <class M>
auto bind_call(const M& mods, const Problem& problem) {
  const auto of = [&](Index batch) {
    if (problem.q_offsets.empty()) return detail::bind(mods, problem);
    Problem own = problem;
    own.q_offset = problem.first_query(batch);
    own.q_offsets = {};
    own.sequence = batch;
    return detail::bind(mods, own);
  };
  CallMods<decltype(of(0))> bound(std::max<Index>(static_cast<Index>(problem.q_offsets.size()), 1), of);
  if constexpr (decltype(bound)::kHasSinks)
    for (Index head = 0; problem.sigmoid_bias && head < problem.heads; ++head)
      require(bound.of(0).sink(head) == -std::numeric_limits<double>::infinity(),
              "sinks() join the denominator of a softmax, which a sigmoid does not have, but head ", head,
              " has a sink of ", bound.of(0).sink(head));
  return bound;
}

/// The type that bind_call() returns.
template <class M>
using Bound = decltype(bind_call(std::declval<const M&>(), std::declval<const Problem&>()));

/// Holds a Made, which implements Interface, if kAny; otherwise holds nothing, and get() returns null.
template <class Interface, class Made, bool kAny>
class MadeIfAny {
 public:
  template <class... From>
  explicit MadeIfAny(const From&... from) : made_(from...) {}

  const Interface* get() const {
    if constexpr (kAny) return &made_;
    return nullptr;
  }

 private:
  struct Nothing {
    template <class... From>
    explicit Nothing(const From&...) {}
  };
  std::conditional_t<kAny, Made, Nothing> made_;
};

}  // namespace attn::detail
