// Rotates cached keys when their positions change.
#pragma once

#include <cmath>
#include <type_traits>
#include <vector>

#include "attn/core/simd/vec.h"
#include "attn/rope.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rotates contiguous rows. All rows are rotated by the same angles, one per pair of features. Rows are processed in
/// order, so a result may overwrite earlier input rows.
template <class T, int Bytes>
struct RotationKernels {
  using V = Vec<T, Bytes>;
  static constexpr Index kLanes = V::kLanes;

  /// Pairs of features i and pairs + i. Elements that belong to no pair are copied.
  static ATTN_INLINE void halves(const T* from, T* to, Index rows, Index dim, const T* cos, const T* sin, Index pairs) {
    for (Index row = 0; row < rows; ++row, from += dim, to += dim) {
      Index i = 0;
      for (; i + kLanes <= pairs; i += kLanes) {
        const V x = V::load(from + i), y = V::load(from + pairs + i), c = V::load(cos + i), s = V::load(sin + i);
        (c * x + s * -y).store(to + i);
        (s * x + c * y).store(to + pairs + i);
      }
      for (; i < pairs; ++i) {
        const T x = from[i], y = from[pairs + i];
        to[i] = cos[i] * x - sin[i] * y;
        to[pairs + i] = sin[i] * x + cos[i] * y;
      }
      for (i = 2 * pairs; i < dim; ++i) to[i] = from[i];
    }
  }

  /// Pairs of features 2i and 2i + 1. Each angle is given twice; the first sine of the two is negated.
  static ATTN_INLINE void interleaved(const T* from, T* to, Index rows, Index dim, const T* cos, const T* sin,
                                      Index pairs) {
    for (Index row = 0; row < rows; ++row, from += dim, to += dim) {
      Index i = 0;
      if constexpr (V::kIsVector)
        for (; i + kLanes <= 2 * pairs; i += kLanes) {
          const V x = V::load(from + i);
          (V::load(cos + i) * x + V::load(sin + i) * x.neighbours_exchanged()).store(to + i);
        }
      for (; i < 2 * pairs; i += 2) {
        const T x = from[i], y = from[i + 1];
        to[i] = cos[i] * x + sin[i] * y;
        to[i + 1] = cos[i + 1] * y + sin[i + 1] * x;
      }
      for (; i < dim; ++i) to[i] = from[i];
    }
  }
};

/// The rotation of stored keys by a number of positions, or from the angles of one rope to those of another. Keys were
/// multiplied by the rope's attention_factor() when they were appended; only a change of that factor is applied.
template <class T>
class KeyRotation {
 public:
  /// Allocates what set() needs. Without a rope, only set(0) is allowed.
  explicit KeyRotation(const Rope* rope) : rope_(rope) {
    if (rope == nullptr) return;
    pairs_ = rope->config().rotary_dim / 2;
    interleaved_ = rope->config().pairs == RopePairs::interleaved;
    cos_.resize(static_cast<std::size_t>(interleaved_ ? 2 * pairs_ : pairs_));
    sin_.resize(cos_.size());
    rows_ = with_vectors<T>(vectors_of(default_isa()), [&]<VectorSet kSet>() -> Rows* {
      using Kernels = RotationKernels<T, kVectorBytes<kSet>>;
      return interleaved_ ? compiled<kSet, Kernels::interleaved> : compiled<kSet, Kernels::halves>;
    });
  }

  void set(Index positions) {
    if (positions == positions_) return;
    positions_ = positions;
    set([&](Index) { return positions; }, [&](std::size_t i) { return rope_->frequencies()[i]; }, 1);
  }
  /// For a key that gets the angles of `to`, a rope with the same pairs; position_of(axis) is its position on an axis.
  template <class PositionOf>
  void set_change(const Rope& to, const PositionOf& position_of) {
    set([&](Index pair) { return position_of(to.axis(pair)); },
        [&](std::size_t i) { return to.frequencies()[i] - rope_->frequencies()[i]; },
        to.attention_factor() / rope_->attention_factor());
  }

  /// Rotates contiguous rows; see RotationKernels.
  void rotate(const T* from, T* to, Index rows, Index dim) const {
    rows_(from, to, rows, dim, cos_.data(), sin_.data(), pairs_);
  }

 private:
  using Rows = void(const T*, T*, Index, Index, const T*, const T*, Index);

  /// Sets angle i to position_of(i) * frequency(i); its cosine and sine are multiplied by `factor`.
  template <class PositionOf, class Frequency>
  void set(const PositionOf& position_of, const Frequency& frequency, double factor) {
    using Real = std::common_type_t<T, double>;
    for (Index i = 0; i < pairs_; ++i) {
      const Real angle = static_cast<Real>(position_of(i)) * static_cast<Real>(frequency(static_cast<std::size_t>(i)));
      const T cos = static_cast<T>(std::cos(angle) * static_cast<Real>(factor)),
              sin = static_cast<T>(std::sin(angle) * static_cast<Real>(factor));
      const auto at = static_cast<std::size_t>(interleaved_ ? 2 * i : i);
      cos_[at] = cos;
      sin_[at] = interleaved_ ? -sin : sin;
      if (interleaved_) cos_[at + 1] = cos, sin_[at + 1] = sin;
    }
  }

  const Rope* rope_;
  Rows* rows_ = nullptr;
  Index positions_ = 0, pairs_ = 0;
  bool interleaved_ = false;
  std::vector<T> cos_, sin_;
};

/// Checks that the keys that `from` rotated can be given the angles of `to`.
inline void check_rope_change(const Rope* from, const Rope& to) {
  require(from != nullptr, "change_rope: the cache has no rope, so its keys are not rotated; construct it with .rope");
  const RopeConfig &a = from->config(), &b = to.config();
  require(a.head_dim == b.head_dim && a.rotary_dim == b.rotary_dim && a.pairs == b.pairs,
          "change_rope: the rope of the cache rotates ", a.rotary_dim, " of ", a.head_dim, " features in ",
          a.pairs == RopePairs::halves ? "halves" : "interleaved pairs", ", the new one ", b.rotary_dim, " of ",
          b.head_dim, " in ", b.pairs == RopePairs::halves ? "halves" : "interleaved pairs",
          "; stored keys can only be rotated further, in the same pairs");
  for (Index pair = 0; pair < a.rotary_dim / 2; ++pair)
    require(from->axis(pair) == to.axis(pair), "change_rope: pair ", pair,
            " of features is rotated by the position on axis ", from->axis(pair), ", and the new rope takes axis ",
            to.axis(pair), "; stored keys can only be rotated further by the same positions");
}

}  // namespace attn::detail::inline ATTN_BUILT_FOR
