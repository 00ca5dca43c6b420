// Rotary position embedding with several positions for each token: images, films, and texts with both.
#pragma once

#include <span>
#include <vector>

#include "attn/lists.h"
#include "attn/rope.h"

namespace attn {

/// Which pairs of features are turned by which position of a token.
struct RopeAxesConfig {
  Index head_dim = 0;     ///< features of a head
  Indices sections = {};  ///< pairs that each axis turns, 2 * their sum features; the others are left alone
  RopePairs pairs = RopePairs::halves;  ///< which features make a pair
  double base = 10000;                  ///< frequencies go from 1 down to 1 / base
  /// Whether each axis has frequencies of its own, base^(-i / section) for its pair i, as in vision transformers. If
  /// not, pair i of all pairs has base^(-i / sum of sections), whatever its axis, as in M-RoPE: a token whose positions
  /// are all the same is turned as by Rope.
  bool own_frequencies = true;
  /// Whether neighbouring pairs belong to different axes, in turn, as long as a section lasts. If not, each section is
  /// one piece.
  bool interleaved = false;
};

inline namespace ATTN_BUILT_FOR {

/// Rotary position embedding of tokens that have several positions. Axial, for images: the row of a token turns half of
/// the pairs, its column the other half (Heo et al. 2024, section 3.2; Fang et al. 2023). M-RoPE, for texts with
/// images: time, row and column (Wang et al. 2024, "Qwen2-VL", section 2.1), in sections or interleaved.
///
///     const attn::RopeAxes axial({.head_dim = 64, .sections = {16, 16}});
///     axial.rotate(q, attn::grid_positions({rows, columns}));
///     const attn::RopeAxes mrope({.head_dim = 128, .sections = {16, 24, 24}, .base = 1e6, .own_frequencies = false});
///
/// A RopeAxes is immutable, and concurrent calls are safe. Angles are computed in double or more.
class RopeAxes {
 public:
  /// @throws std::invalid_argument for sizes or numbers that make no sense; the message has them.
  explicit RopeAxes(const RopeAxesConfig& config) : config_(config) {
    const std::span<const Index> sections = config.sections.values;
    Index all = 0;
    for (std::size_t a = 0; a < sections.size(); ++a) {
      detail::require(sections[a] > 0 && sections[a] <= config.head_dim, "RopeAxes: section ", a, " has ", sections[a],
                      " pairs of ", config.head_dim, " features; it must have some, and no more than there are");
      all += sections[a];
    }
    detail::require(!sections.empty() && 2 * all <= config.head_dim, "RopeAxes: ", sections.size(), " sections have ",
                    all, " pairs, a head has ", config.head_dim,
                    " features; there must be one for each feature of them");
    detail::require(config.base > 1 && std::isfinite(config.base), "RopeAxes: base is ", config.base,
                    ", it must be more than 1");
    std::vector<Index> left(sections.begin(), sections.end());
    for (Index pair = 0, axis = 0; pair < all; ++pair) {
      // The next axis that has pairs left: in turn, or when a section is full.
      while (left[at(axis)] == 0) axis = (axis + 1) % axes();
      const Index of = config.own_frequencies ? sections[at(axis)] : all,
                  number = config.own_frequencies ? sections[at(axis)] - left[at(axis)] : pair;
      --left[at(axis)];
      pairs_.push_back({axis, std::pow(config.base, -static_cast<double>(number) / static_cast<double>(of))});
      if (config.interleaved) axis = (axis + 1) % axes();
    }
  }

  /// The configuration.
  const RopeAxesConfig& config() const { return config_; }
  /// How many positions a token has.
  Index axes() const { return static_cast<Index>(config_.sections.values.size()); }

  /// A pair of features: the axis whose position turns it, and by how many radians per position.
  struct Pair {
    Index axis;        ///< the axis whose position turns it
    double frequency;  ///< radians per position
  };
  /// All pairs that are turned, in the order of features.
  std::span<const Pair> pairs() const { return pairs_; }

  /// Turns x in place: (len, head_dim) or (batch, heads, len, head_dim), of any scalar and strides. `positions` is
  /// anything attn::view takes, of integers: (axes, len) for all batch elements, or (axes, batch, len). Takes memory
  /// for a cosine and a sine for each pair of each token.
  /// @throws std::invalid_argument if sizes disagree; nothing is written then.
  template <class X, class Positions>
  void rotate(X&& x, const Positions& positions) const {
    turn(x, positions, 1);
  }

  /// Turns the gradient with respect to rotate()'s result back: it becomes the gradient with respect to its x.
  template <class X, class Positions>
  void rotate_gradient(X&& x, const Positions& positions) const {
    turn(x, positions, -1);
  }

 private:
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  template <class X, class Positions>
  void turn(X&& x, const Positions& given, double direction) const {
    using T = detail::computed_t<typename detail::Traits<std::remove_cvref_t<X>>::Scalar>;
    using Real = std::common_type_t<T, double>;
    const auto positions = view(given);
    constexpr int kRank = std::remove_cvref_t<decltype(positions)>::kRank;
    using Number = std::remove_cvref_t<decltype(*positions.data())>;
    static_assert(std::is_integral_v<Number>, "attn::RopeAxes: positions must be integers");
    static_assert(kRank == 2 || kRank == 3, "attn::RopeAxes: positions must be (axes, len) or (axes, batch, len)");
    const auto shape = detail::as_rank4(view(x)).shape();
    const Index lists = kRank == 3 ? positions.dim(1) : 1, len = positions.dim(kRank - 1);
    detail::require(shape[3] == config_.head_dim, "RopeAxes: made for a head_dim of ", config_.head_dim,
                    ", x has shape ", shape);
    detail::require(positions.dim(0) == axes() && len == shape[2] && (kRank == 2 || lists == shape[0]),
                    "RopeAxes: positions have shape ", positions.shape(), ", x ", shape, "; there must be ", axes(),
                    " for each token");
    Shape<kRank> of_angles = positions.shape();
    std::rotate(of_angles.begin(), of_angles.begin() + 1, of_angles.end());
    of_angles[kRank - 1] = static_cast<Index>(pairs_.size());
    Tensor<T, kRank> cos(of_angles), sin(of_angles);
    T *next_cos = cos.data(), *next_sin = sin.data();
    for (Index b = 0; b < lists; ++b)
      for (Index i = 0; i < len; ++i)
        for (const Pair& pair : pairs_) {
          Real position;
          if constexpr (kRank == 2)
            position = static_cast<Real>(positions(pair.axis, i));
          else
            position = static_cast<Real>(positions(pair.axis, b, i));
          const Real angle = position * static_cast<Real>(pair.frequency);
          *next_cos++ = static_cast<T>(std::cos(angle));
          *next_sin++ = static_cast<T>(static_cast<Real>(direction) * std::sin(angle));
        }
    rotate_by(x, cos, sin, config_.pairs);
  }

  RopeAxesConfig config_;
  std::vector<Pair> pairs_;
};

/// The positions of the tokens of a grid in row-major order, (dimensions, tokens): for {rows, columns}, first the row
/// of each token and then its column.
/// @throws std::invalid_argument for a negative size, or more than 2^36 tokens.
inline Tensor<Index, 2> grid_positions(const Indices& shape) {
  const std::span<const Index> sizes = shape.values;
  constexpr Index kMost = Index(1) << 36;
  Index tokens = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    detail::require(sizes[d] >= 0 && (tokens == 0 || sizes[d] <= kMost / tokens), "grid_positions: dimension ", d,
                    " has size ", sizes[d], ", behind ", tokens, " tokens; none may be negative, nor all more than ",
                    kMost);
    tokens *= sizes[d];
  }
  const Index axes = static_cast<Index>(sizes.size());
  Tensor<Index, 2> positions({axes, tokens});
  for (Index t = 0; t < tokens; ++t)
    for (Index d = axes, left = t; d-- > 0; left /= sizes[static_cast<std::size_t>(d)])
      positions(d, t) = left % sizes[static_cast<std::size_t>(d)];
  return positions;
}

}  // namespace ATTN_BUILT_FOR

}  // namespace attn
