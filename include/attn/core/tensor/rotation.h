// Rotation of pairs of features.
#pragma once

#include <cmath>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/core/base/unfused.h"
#include "attn/core/tensor/dtype_view.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// Rotates rows by the angles of their tokens. Pairs are features 2i and 2i + 1 if `interleaved`, otherwise i
/// and rotary_dim / 2 + i.
template <class T>
class Rotation {
 public:
  Rotation(bool interleaved, Index rotary_dim, Index tokens = 1)
      : interleaved_(interleaved),
        pairs_(rotary_dim / 2),
        cos_(static_cast<std::size_t>(tokens * pairs_)),
        sin_(cos_.size()) {}

  /// Sets angle i to position_of(i) * frequencies[i]; its cosine and sine are multiplied by `factor`.
  template <class PositionOf>
  void set_angles(std::span<const double> frequencies, const PositionOf& position_of, double factor, Index token = 0) {
    using Real = std::common_type_t<T, double>;
    set(
        [&](Index i) {
          const Real angle =
              static_cast<Real>(position_of(i)) * static_cast<Real>(frequencies[static_cast<std::size_t>(i)]);
          return std::pair(static_cast<T>(std::cos(angle) * static_cast<Real>(factor)),
                           static_cast<T>(std::sin(angle) * static_cast<Real>(factor)));
        },
        token);
  }

  /// Sets the angle of each pair i; angle_of(i) returns its cosine and sine.
  template <class AngleOf>
  void set(const AngleOf& angle_of, Index token = 0) {
    for (Index i = 0; i < pairs_; ++i) {
      const auto at = static_cast<std::size_t>(token * pairs_ + i);
      std::tie(cos_[at], sin_[at]) = angle_of(i);
    }
  }

  /// Rotates one row of `dim` elements; elements that belong to no pair are copied. `from` and `to` are the same row or
  /// do not overlap.
  void rotate(const RowsToRead& from, const RowsToWrite& to, Index dim, Index token = 0) const {
    each_pair(token, [&](Index a, Index b, T cos, T sin) {
      const T x = load_number<T>(from, 0, a), y = load_number<T>(from, 0, b);
      store_number<T>(to, 0, a, unfused(cos * x) - unfused(sin * y));
      store_number<T>(to, 0, b, unfused(sin * x) + unfused(cos * y));
    });
    for (Index i = 2 * pairs_; i < dim; ++i) store_number<T>(to, 0, i, load_number<T>(from, 0, i));
  }

  /// Rotates a row of contiguous elements in place.
  void rotate(T* row, Index token) const {
    each_pair(token, [&](Index a, Index b, T cos, T sin) {
      const T x = row[a], y = row[b];
      row[a] = unfused(cos * x) - unfused(sin * y);
      row[b] = unfused(sin * x) + unfused(cos * y);
    });
  }

 private:
  /// Calls visit(index, index of its partner, cos, sin) for all pairs.
  template <class Visit>
  void each_pair(Index token, const Visit& visit) const {
    const T* const cos = cos_.data() + token * pairs_;
    const T* const sin = sin_.data() + token * pairs_;
    if (interleaved_)
      for (Index i = 0; i < pairs_; ++i) visit(2 * i, 2 * i + 1, cos[i], sin[i]);
    else
      for (Index i = 0; i < pairs_; ++i) visit(i, pairs_ + i, cos[i], sin[i]);
  }

  bool interleaved_;
  Index pairs_;
  std::vector<T> cos_, sin_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
