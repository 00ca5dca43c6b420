// Mods with learned parameters, and the gradients of these parameters.
#pragma once

#include <cmath>
#include <type_traits>
#include <utility>

#include "attn/core/mods/bound_mods.h"
#include "attn/core/mods/broadcast.h"
#include "attn/core/tensor/dtype.h"
#include "attn/isa.h"

namespace attn::detail {

/// The type in which gradients are accumulated during a call: more precise than T where that costs nothing.
template <class T>
using GradientSum = std::conditional_t<std::is_same_v<T, float>, double, T>;

/// The caller's tensor of rank 1 to 4, which is viewed and must outlive the mod. The slot of an element is its index in
/// row-major order.
template <class T>
class GradientTensor : public AlignedLayout {
 public:
  template <int Rank>
  GradientTensor(const TensorView<T, Rank>& view, const char* mod) : AlignedLayout(view), data_(view.data()) {
    static_assert(!std::is_const_v<T>,
                  "attn: the tensor that gradients are added to must be writable, but this one is const");
    static_assert(Rank <= 4, "attn: a tensor that gradients are added to must have at most 4 dimensions");
    for (int i = 0; i < Rank; ++i)
      require(
          view.dim(i) <= 1 || view.stride(i) != 0 || view.size() == 0, mod,
          ": the gradient tensor has a stride of 0, so its elements share memory and cannot hold different gradients");
  }

  Index slots() const { return shape[0] * shape[1] * shape[2] * shape[3]; }

  /// Returns the slots of the pairs of a call, over which the tensor is broadcast.
  PairOffsets slots_of_pairs(const Problem& problem) const {
    Index step = 1, strides[4];
    for (int i = 4; i-- > 0; step *= shape[i]) strides[i] = shape[i] == 1 ? 0 : step;
    return {strides[0], strides[1], strides[2], strides[3], problem.q_offset};
  }
  /// Whether no two pairs of a head share a slot.
  bool is_pairwise(const Problem& problem) const { return shape[2] == problem.q_len && fits_keys(shape[3], problem); }

  /// Adds the sum of each slot to its element.
  template <class Sum>
  void add(const Sum* sums) const {
    for_each_offset([&](Index offset) {
      T& x = data_[offset];
      x = static_cast<T>(static_cast<computed_t<T>>(static_cast<Sum>(static_cast<computed_t<T>>(x)) + *sums++));
    });
  }

 private:
  T* data_;
};

/// Makes a GradientTensor from a tensor of any type.
template <class X>
auto gradient_tensor(X&& tensor, const char* mod) {
  static_assert(check_tensor<std::remove_cvref_t<X>>());
  static_assert(!is_temporary<X>,
                "attn: the tensor that gradients are added to must outlive the mod, but this one is a temporary; store "
                "it in a variable");
  const auto view = pair_view(tensor);
  return GradientTensor<std::remove_pointer_t<decltype(view.data())>>(view, mod);
}

/// A score mod with a learned parameter, bound to a call: x -> score(x, number, p). The parameter is in slot `slot(p)`
/// of a table, and its gradient goes to the same slot of another table; a slot below 0 has no gradient.
template <class Score, class Slot, class Number, class Gradient>
struct LearnedScore {
  static constexpr bool kIsLearned = true;

  Score score;
  Slot slot;
  Number number_of;  ///< returns the parameter for a position
  Gradient gradient;
  bool is_pairwise;  ///< whether no two pairs of a head share a parameter

  Index slots() const { return gradient.slots(); }
  auto number(const Position& p) const {
    using N = std::remove_cvref_t<decltype(number_of(p))>;
    return static_cast<computed_t<N>>(number_of(p));
  }

  template <class X>
  X of(const X& x, const X& number, const Position& p) const {
    return static_cast<X>(score(x, number, p));
  }
  template <class X>
  X operator()(X x, const Position& p) const {
    return of(x, static_cast<X>(number(p)), p);
  }
};

template <class Score, class Slot, class Number, class Gradient>
auto learned_score(Score score, Slot slot, Number number, Gradient gradient, bool is_pairwise) {
  return ScoreMod<LearnedScore<Score, Slot, Number, Gradient>>{
      {}, {std::move(score), std::move(slot), std::move(number), std::move(gradient), is_pairwise}};
}

/// A sink with learned logits.
template <class Gradient>
struct LearnedLogit {
  static constexpr bool kIsLearned = true;

  const double* logits;
  Gradient gradient;

  double operator()(Index head) const { return logits[head]; }
};

/// @throws std::invalid_argument unless there is one parameter, and one gradient, per head.
template <class Gradient>
void check_by_head(const char* mod, Index given, const Gradient& gradient, const Problem& problem) {
  require(given == problem.heads, mod, " has ", given, " values for ", problem.heads, " heads");
  require(gradient.slots() == problem.heads, mod, ": the gradient tensor has shape ", gradient.given_shape(),
          ", but there are ", problem.heads, " heads");
}

/// Makes the score mod x -> score(x, numbers[head], p).
template <class Grad, class Score>
auto learned_by_head(const char* mod, Numbers given, Grad&& grad, Score score) {
  auto gradient = gradient_tensor(std::forward<Grad>(grad), mod);
  return bind_mod([mod, numbers = std::move(given.values), gradient, score](const Problem& problem) {
    check_by_head(mod, static_cast<Index>(numbers.size()), gradient, problem);
    const auto slot = [](const Position& p) { return p.head; };
    return learned_score(
        score, slot, [n = numbers.data()](const Position& p) { return n[p.head]; }, gradient, false);
  });
}

inline namespace ATTN_BUILT_FOR {

/// How tasks add to the gradients of parameters, so that results do not depend on the order of tasks.
enum class Learning {
  apart,    ///< used if sums are few: each task has its own, which are added in the order of tasks
  by_pair,  ///< heads take turns; the tasks of a head share no parameter
  in_turn   ///< all tasks take turns
};

/// Mods with learned parameters, as the backward paths see them. Slots are numbered consecutively across all score
/// mods; sinks have none.
template <class T>
class LearnedMods {
 public:
  using Sum = GradientSum<T>;

  virtual ~LearnedMods() = default;

  virtual Index slots() const = 0;
  virtual Learning learning() const = 0;

  /// Takes the gradients grads[key * stride + query] of a tile's modded scores, and `scores` as they were before all
  /// mods. Adds the gradients of the parameters that the pairs use to `sums`, and replaces `grads` with the gradients
  /// of `scores`. Pairs with a gradient of 0, such as dropped pairs, are unchanged.
  virtual void learn(const T* scores, T* grads, Index stride, const Tile& tile, Sum* sums) const = 0;

  /// Adds the gradients of the logits of a head's sinks, from some queries of that head: a logit has the weight
  /// e^(logit - lse) and no value (see sinks()).
  virtual void learn_sinks(Index head, const T* lse, const T* lse_rest, const T* delta, Index count,
                           Sum* sums) const = 0;
  virtual Index sinks() const = 0;  ///< number of sums that learn_sinks() adds to: one per head and learned sink

  /// Adds the sums to the caller's tensors.
  virtual void add(const Sum* sums, const Sum* sink_sums) const = 0;
};

/// The LearnedMods of `mods`, which must outlive it.
template <class T, ModsOfCall Mods>
class LearnedModsOf final : public LearnedMods<T> {
  using Sum = GradientSum<T>;

 public:
  LearnedModsOf(const Mods& mods, const Problem& problem) : mods_(mods), problem_(problem) {}

  Index slots() const override {
    Index all = 0;
    each_score([&](const auto& score) { all += score.slots(); });
    return all;
  }
  Learning learning() const override {
    // Each task may have its own sums if there are at most max(q_len + kv_len, 4096) of them.
    const Index most = std::max<Index>(problem_.q_len + problem_.kv_len, 4096);
    if (slots() <= most) return Learning::apart;
    bool is_pairwise = true;
    each_score([&](const auto& score) { is_pairwise = is_pairwise && score.is_pairwise; });
    return is_pairwise ? Learning::by_pair : Learning::in_turn;
  }

  void learn(const T* scores, T* grads, Index stride, const Tile& tile, Sum* sums) const override {
    const auto& own = mods_.of(tile.batch);
    Position p{tile.batch, tile.head, 0, 0};
    for (p.kv = tile.kv.begin; p.kv < tile.kv.end; ++p.kv, scores += stride, grads += stride)
      for (p.q = tile.q.begin; p.q < tile.q.end; ++p.q) {
        T& grad = grads[p.q - tile.q.begin];
        if (grad == T(0)) continue;
        grad *=
            own.learn(scores[p.q - tile.q.begin], grad, p, [&](Index slot, T x) { sums[slot] += static_cast<Sum>(x); });
      }
  }

  Index sinks() const override {
    Index count = 0;
    each_sink([&](const auto&) { count += problem_.heads; });
    return count;
  }
  void learn_sinks(Index head, const T* lse, const T* lse_rest, const T* delta, Index count, Sum* sums) const override {
    each_sink([&](const auto& logit) {
      Sum& sum = sums[head];
      for (Index i = 0; i < count; ++i)
        if (const T weight = std::exp(static_cast<T>(logit(head)) - lse[i] - lse_rest[i]); weight > T(0))
          sum -= static_cast<Sum>(weight) * static_cast<Sum>(delta[i]);
      sums += problem_.heads;
    });
  }

  void add(const Sum* sums, const Sum* sink_sums) const override {
    each_score([&](const auto& score) {
      score.gradient.add(sums);
      sums += score.slots();
    });
    each_sink([&](const auto& logit) {
      logit.gradient.add(sink_sums);
      sink_sums += problem_.heads;
    });
  }

 private:
  template <class Visit>
  void each_score(const Visit& visit) const {
    mods_.of(0).each_learned([&]<class Mod>(const Mod& mod) {
      if constexpr (is_score<Mod>) visit(mod.score);
    });
  }
  template <class Visit>
  void each_sink(const Visit& visit) const {
    mods_.of(0).each_learned([&]<class Mod>(const Mod& mod) {
      if constexpr (is_sink<Mod>) visit(mod.logit);
    });
  }

  const Mods& mods_;
  const Problem& problem_;
};

template <class T, class Mods>
using LearnedIfAny = MadeIfAny<LearnedMods<T>, LearnedModsOf<T, Mods>, Mods::kLearns>;

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
