// Rotary position embedding with several positions for each token, for images, video, and text that contains them.
#pragma once

#include <span>
#include <vector>

#include "attn/lists.h"
#include "attn/rope.h"

namespace attn {

/// The configuration of a RopeAxes: which position of a token rotates which pairs of features.
struct RopeAxesConfig {
  Index head_dim = 0;                   ///< features of a head
  Indices sections = {};                ///< pairs that each axis rotates; features after these pairs are unchanged
  RopePairs pairs = RopePairs::halves;  ///< which features make a pair
  double base = 10000;                  ///< frequencies fall from 1 towards 1 / base
  /// Whether each axis has its own frequencies, base^(-i / section) for its pair i, as in vision transformers. If not,
  /// pair i of all pairs has base^(-i / sum of sections), whatever its axis, as in M-RoPE; a token whose positions are
  /// all equal is then rotated as by Rope.
  bool own_frequencies = true;
  /// Whether successive pairs cycle through the axes, skipping those whose section is used up. If not, each section is
  /// contiguous.
  bool interleaved = false;
};

inline namespace ATTN_BUILT_FOR {

/// Rotary position embedding of tokens that have several positions. Axial RoPE, for images: the row of a token rotates
/// half of the pairs, and its column the other half (Heo et al. 2024, section 3.2; Fang et al. 2023). M-RoPE, for text
/// with images: time, row and column (Wang et al. 2024, "Qwen2-VL", section 2.1), in sections or interleaved.
///
///     const attn::RopeAxes axial({.head_dim = 64, .sections = {16, 16}});
///     axial.rotate(q, attn::grid_positions({rows, columns}));
///     const attn::RopeAxes mrope({.head_dim = 128, .sections = {16, 24, 24}, .base = 1e6, .own_frequencies = false});
///
/// A RopeAxes is immutable, and concurrent calls are safe. Angles are computed in double or more.
class RopeAxes {
 public:
  /// @throws std::invalid_argument for invalid sizes or numbers; the message gives them.
  explicit RopeAxes(const RopeAxesConfig& config)
      : config_(config), pairs_(pairs_of(config)), rope_(rope_of(config, pairs_)) {}

  /// The same rotation as a Rope, for caches and layers: `.rope = attn::RopeAxes({…})`.
  operator Rope() const { return rope_; }

  /// The configuration.
  const RopeAxesConfig& config() const { return config_; }
  /// The number of positions of a token.
  Index axes() const { return static_cast<Index>(config_.sections.values.size()); }

  /// A pair of features: the axis whose position rotates it, and its frequency.
  struct Pair {
    Index axis;        ///< the axis whose position rotates it
    double frequency;  ///< radians per position
  };
  /// All pairs that are rotated, in the order of features.
  std::span<const Pair> pairs() const { return pairs_; }

  /// Rotates x in place: (len, head_dim) or (batch, heads, len, head_dim), of any scalar type and strides. `positions`
  /// is anything attn::view accepts that holds integers, of shape (axes, len) for all batch elements, or (axes, batch,
  /// len).
  /// @throws std::invalid_argument if sizes disagree, before anything is written.
  template <class X, class Positions>
  void rotate(X&& x, const Positions& positions) const {
    apply(x, positions, 1);
  }

  /// Converts the gradient with respect to rotate()'s result into the gradient with respect to its x, by rotating it
  /// back.
  template <class X, class Positions>
  void rotate_gradient(X&& x, const Positions& positions) const {
    apply(x, positions, -1);
  }

 private:
  static std::vector<Pair> pairs_of(const RopeAxesConfig& config) {
    const std::span<const Index> sections = config.sections.values;
    const Index axes = static_cast<Index>(sections.size());
    Index all = 0;
    for (Index a = 0; a < axes; ++a) {
      detail::require(sections[at(a)] > 0 && sections[at(a)] <= config.head_dim / 2, "RopeAxes: sections[", a,
                      "] must be in 1..head_dim / 2, but is ", sections[at(a)], "; head_dim is ", config.head_dim);
      all += sections[at(a)];
    }
    detail::require(axes > 0 && 2 * all <= config.head_dim, "RopeAxes: ", axes, " sections have ", all,
                    " pairs, and head_dim is ", config.head_dim,
                    "; give at least one section, and at most head_dim / 2 pairs in all");
    detail::require(config.base > 1 && std::isfinite(config.base),
                    "RopeAxes: base must be finite and greater than 1, but is ", config.base);
    std::vector<Pair> pairs;
    std::vector<Index> left(sections.begin(), sections.end());
    for (Index pair = 0, axis = 0; pair < all; ++pair) {
      // Skips axes whose section is full. Sections are filled one after another, or in turn if `interleaved`.
      while (left[at(axis)] == 0) axis = (axis + 1) % axes;
      const Index of = config.own_frequencies ? sections[at(axis)] : all,
                  number = config.own_frequencies ? sections[at(axis)] - left[at(axis)] : pair;
      --left[at(axis)];
      pairs.push_back({axis, std::pow(config.base, -static_cast<double>(number) / static_cast<double>(of))});
      if (config.interleaved) axis = (axis + 1) % axes;
    }
    return pairs;
  }
  static Rope rope_of(const RopeAxesConfig& config, std::span<const Pair> pairs) {
    std::vector<double> frequencies;
    std::vector<Index> axis_of;
    for (const Pair& pair : pairs) frequencies.push_back(pair.frequency), axis_of.push_back(pair.axis);
    Rope rope({.head_dim = config.head_dim,
               .rotary_dim = 2 * static_cast<Index>(pairs.size()),
               .pairs = config.pairs,
               .base = config.base},
              frequencies);
    rope.axes_ = static_cast<Index>(config.sections.values.size());
    if (rope.axes_ > 1) rope.axis_of_ = std::move(axis_of);
    return rope;
  }
  static std::size_t at(Index i) { return static_cast<std::size_t>(i); }

  template <class X, class Positions>
  void apply(X&& x, const Positions& given, Index direction) const {
    const auto positions = view(given);
    constexpr int kRank = std::remove_cvref_t<decltype(positions)>::kRank;
    using Number = std::remove_cvref_t<decltype(*positions.data())>;
    static_assert(std::is_integral_v<Number>, "attn::RopeAxes: positions must be integers");
    static_assert(kRank == 2 || kRank == 3, "attn::RopeAxes: positions must be (axes, len) or (axes, batch, len)");
    const auto shape = detail::as_rank4(view(x)).shape();
    const Index lists = kRank == 3 ? positions.dim(1) : 1, len = positions.dim(kRank - 1);
    detail::require(shape[3] == config_.head_dim, "RopeAxes: head_dim is ", config_.head_dim, ", but x has shape ",
                    shape);
    detail::require(positions.dim(0) == axes() && len == shape[2] && (kRank == 2 || lists == shape[0]),
                    "RopeAxes: positions have shape ", positions.shape(), ", but x has shape ", shape,
                    "; each token needs ", axes(), " positions");
    rope_.rotate_all(x, x, [&]([[maybe_unused]] Index b, Index i, Index axis) {
      if constexpr (kRank == 2)
        return direction * static_cast<Index>(positions(axis, i));
      else
        return direction * static_cast<Index>(positions(axis, b, i));
    });
  }

  RopeAxesConfig config_;
  std::vector<Pair> pairs_;
  Rope rope_;
};

/// Returns the positions of the tokens of a grid in row-major order, (dimensions, tokens): for {rows, columns}, the row
/// of each token and then its column.
/// @throws std::invalid_argument for a negative size, or more than 2^36 tokens (32-bit targets: 2^24).
inline Tensor<Index, 2> grid_positions(const Indices& shape) {
  const std::span<const Index> sizes = shape.values;
  Index tokens = 1;
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    detail::require(sizes[d] >= 0 && (tokens == 0 || sizes[d] <= detail::kLargestTable / tokens),
                    "grid_positions: dimension ", d, " has size ", sizes[d], ", and those before it have ", tokens,
                    " tokens; sizes must not be negative, and their product must be at most ", detail::kLargestTable);
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
