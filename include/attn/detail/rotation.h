// Layer 2: pairs of features turned by an angle.
#pragma once

#include <cmath>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attn/detail/stored.h"

namespace attn {

/// Which features of a head are a pair.
enum class RopePairs {
  halves,  ///< i and rotary_dim / 2 + i, as in GPT-NeoX and in most of Hugging Face's checkpoints, Llama's among them
  interleaved,  ///< 2i and 2i + 1, as in the paper, in GPT-J, in Meta's own checkpoints, and in llama.cpp's files of Llama
};

namespace detail {
inline namespace ATTN_BUILT_FOR {

/// The angles of one token, and rows turned by them.
template <class T>
class Rotation {
 public:
  Rotation(RopePairs pairs, Index rotary_dim)
      : pairs_(pairs), cos_(static_cast<std::size_t>(rotary_dim / 2)), sin_(cos_.size()) {}

  /// Angle i is position * frequencies[i]; both parts are multiplied by `factor`.
  void set_angles(std::span<const double> frequencies, Index position, double factor) {
    using Real = std::common_type_t<T, double>;
    set([&](Index i) {
      const Real angle = static_cast<Real>(position) * static_cast<Real>(frequencies[static_cast<std::size_t>(i)]);
      return std::pair(static_cast<T>(std::cos(angle) * static_cast<Real>(factor)),
                       static_cast<T>(std::sin(angle) * static_cast<Real>(factor)));
    });
  }

  /// Pair i is turned by the angle whose cos and sin angle_of(i) returns.
  template <class AngleOf>
  void set(const AngleOf& angle_of) {
    for (std::size_t i = 0; i < cos_.size(); ++i) std::tie(cos_[i], sin_[i]) = angle_of(static_cast<Index>(i));
  }

  /// One row of `dim` numbers, of which those that are not turned are copied. `from` and `to` are the same or apart.
  void turn(const RowsToRead& from, const RowsToWrite& to, Index dim) const {
    const Index pairs = static_cast<Index>(cos_.size());
    const bool halves = pairs_ == RopePairs::halves;
    const Index step = halves ? 1 : 2, apart = halves ? pairs : 1;
    for (Index i = 0; i < pairs; ++i) {
      const T x = load_number<T>(from, 0, i * step), y = load_number<T>(from, 0, i * step + apart);
      const T cos = cos_[static_cast<std::size_t>(i)], sin = sin_[static_cast<std::size_t>(i)];
      store_number<T>(to, 0, i * step, cos * x - sin * y);
      store_number<T>(to, 0, i * step + apart, sin * x + cos * y);
    }
    for (Index i = 2 * pairs; i < dim; ++i) store_number<T>(to, 0, i, load_number<T>(from, 0, i));
  }

 private:
  RopePairs pairs_;
  std::vector<T> cos_, sin_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace detail
}  // namespace attn
