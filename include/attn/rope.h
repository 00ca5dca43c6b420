// Rotary position embedding: queries and keys are rotated by angles that depend on their positions.
#pragma once

#include <cmath>
#include <optional>
#include <span>
#include <vector>

#include "attn/cache/rope_frequencies.h"
#include "attn/core/tensor/arguments.h"
#include "attn/core/tensor/rotation.h"
#include "attn/rope_config.h"

namespace attn {

namespace detail::inline ATTN_BUILT_FOR {

/// Fails to compile for types that Rope cannot rotate, with a message that says why.
template <class X, class Out>
constexpr void check_rotated() {
  using From = Traits<std::remove_cvref_t<X>>;
  using To = Traits<std::remove_cvref_t<Out>>;
  static_assert(is_scalar<typename From::Scalar>,
                "attn::Rope: x must hold float, double, long double or 16-bit floats");
  static_assert(std::is_same_v<computed_t<typename To::Scalar>, computed_t<typename From::Scalar>>,
                "attn::Rope: out must have the scalar type of x (float and 16-bit floats may be mixed)");
  static_assert(
      (From::kRank == 2 || From::kRank == 4) && From::kRank == To::kRank,
      "attn::Rope: x must be (len, head_dim) or (batch, heads, len, head_dim), and out must have the same rank");
  static_assert(!std::is_const_v<std::remove_pointer_t<decltype(view(std::declval<Out&>()).data())>>,
                "attn::Rope: the tensor to write (out, or x if rotated in place) must not be const");
}

}  // namespace detail::inline ATTN_BUILT_FOR

inline namespace ATTN_BUILT_FOR {

/// Rotary position embedding (Su et al. 2021, eq. 34). The features of a head form pairs, and pair i of a token is
/// rotated by the angle position * frequency(i). The dot product of a query and a key then depends on their positions
/// only through their distance. Queries and keys are rotated; values are not.
///
///     const attn::Rope rope({.head_dim = 64});
///     rope.rotate(q, position);  // in place; the rows of q are tokens at position, position + 1, ...
///     rope.rotate(k, position);
///
/// A Rope is immutable, and concurrent calls are safe. Each call allocates a few values per pair. Angles, cos and sin
/// are computed in double, and cos and sin are rounded once; results of frameworks that compute angles in float differ
/// by rounding.
class Rope {
 public:
  /// @throws std::invalid_argument for invalid sizes or numbers; the message gives them.
  explicit Rope(const RopeConfig& config) : config_(config) {
    detail::require(config.scaling != RopeScaling::longrope,
                    "Rope: longrope needs rotary_dim / 2 factors as the second argument");
    begin();
  }

  /// Creates a Rope from one number per pair, rotary_dim / 2 in total. With `longrope` they are the factors by which
  /// frequencies are divided: the model's factors for short or for long sequences, depending on the length. With `none`
  /// they are the frequencies themselves, for a scaling that RopeScaling lacks or a model that has its own frequencies.
  /// @throws std::invalid_argument as above, and if there are not rotary_dim / 2 numbers, one is not finite, a factor
  /// is not positive, or config.scaling is neither `longrope` nor `none`.
  Rope(const RopeConfig& config, std::span<const double> numbers) : config_(config) {
    const bool divides = config.scaling == RopeScaling::longrope;
    begin();
    detail::require(divides || config_.scaling == RopeScaling::none,
                    "Rope: explicit frequencies cannot be combined with a scaling");
    const char* const what = divides ? "factor" : "frequency";
    detail::require(numbers.size() == frequencies_.size(), "Rope: got ", numbers.size(),
                    divides ? " factors" : " frequencies", " for ", frequencies_.size(), " pairs");
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      detail::require(std::isfinite(numbers[i]), "Rope: ", what, " ", i, " must be finite, but is ", numbers[i]);
      detail::require(!divides || numbers[i] > 0, "Rope: factor ", i, " must be positive, but is ", numbers[i]);
      frequencies_[i] = divides ? frequencies_[i] / numbers[i] : numbers[i];
    }
  }

  /// Copies and moves. If an assignment throws, this rope is unchanged.
  /// @{
  Rope(const Rope&) = default;
  Rope(Rope&&) noexcept = default;
  Rope& operator=(const Rope& other) { return *this = Rope(other); }
  Rope& operator=(Rope&&) noexcept = default;
  /// @}

  /// The configuration, with the defaults filled in.
  const RopeConfig& config() const { return config_; }

  /// The frequencies of the pairs, in radians per position: rotary_dim / 2 values, which descend unless the constructor
  /// was given numbers.
  std::span<const double> frequencies() const { return frequencies_; }

  /// The number of positions of a token: 1, or the axes of the RopeAxes that this rope was made from.
  Index axes() const { return axes_; }
  /// The axis whose position rotates a pair.
  Index axis(Index pair) const { return axis_of_.empty() ? 0 : axis_of_[static_cast<std::size_t>(pair)]; }

  /// The factor by which cos and sin are multiplied: 1, except for yarn and longrope.
  double attention_factor() const {
    const bool is_yarn = config_.scaling == RopeScaling::yarn;
    if (!is_yarn && config_.scaling != RopeScaling::longrope) return 1;
    if (config_.attention_factor) return *config_.attention_factor;
    if (config_.factor <= 1) return 1;
    const double octaves = std::log(config_.factor);
    return is_yarn ? 0.1 * octaves + 1 : std::sqrt(1 + octaves / std::log(static_cast<double>(config_.trained_length)));
  }

  /// Whether both rotate by the same angles, bit for bit.
  friend bool operator==(const Rope& a, const Rope& b) {
    return a.config_.head_dim == b.config_.head_dim && a.config_.rotary_dim == b.config_.rotary_dim &&
           a.config_.pairs == b.config_.pairs && a.attention_factor() == b.attention_factor() &&
           a.frequencies_ == b.frequencies_ && a.axis_of_ == b.axis_of_;
  }

  /// Rotates x in place: a matrix (len, head_dim), or a tensor or view (batch, heads, len, head_dim), of any scalar
  /// type and strides. Token i is at position first + i, on all axes. Angles are computed in double or more. Cost:
  /// rotary_dim / 2 sines and cosines per token, and one pass over x.
  /// @throws std::invalid_argument if x has a different head_dim, before anything is written.
  template <class X>
  void rotate(X&& x, Index first = 0) const {
    rotate_into(x, x, first);
  }

  /// As above, with a position for each token: `len` positions that apply to all batch elements, or batch * len
  /// positions in the order of batch elements. With several axes, one such list for each axis, back to back; a single
  /// list of `len` positions applies to all axes.
  template <class X>
  void rotate(X&& x, std::span<const Index> positions) const {
    rotate_into(x, x, positions);
  }

  /// Converts the gradient with respect to rotate()'s result into the gradient with respect to its x: rotates it back,
  /// and multiplies it by attention_factor() as rotate() does.
  template <class X>
  void rotate_gradient(X&& x, Index first = 0) const {
    rotate_all(x, x, [first](Index, Index token, Index) { return -(first + token); });
  }

  /// Writes the result of rotate() to `out`, which has the shape and the scalar type of x; 32-bit and 16-bit floats may
  /// be mixed. `out` may be x itself, but must not overlap it otherwise.
  template <class Out, class X>
  void rotate_into(Out&& out, const X& x, Index first) const {
    rotate_all(out, x, [first](Index, Index token, Index) { return first + token; });
  }
  /// As above, with a position for each token.
  template <class Out, class X>
  void rotate_into(Out&& out, const X& x, std::span<const Index> positions) const {
    const auto shape = detail::as_rank4(view(x)).shape();
    const Index given = static_cast<Index>(positions.size()), len = shape[2],
                of_axis = given == len ? 0 : given / axes_, step = given == len || of_axis == len ? 0 : len;
    detail::require(given == len || given == axes_ * len || given == axes_ * shape[0] * len, "Rope: got ", given,
                    " positions for ", shape[0], " batch elements of ", len, " tokens; give ", axes_,
                    " per token, for one batch element or for all");
    rotate_all(out, x, [=](Index batch, Index token, Index axis) {
      return positions[static_cast<std::size_t>(axis * of_axis + batch * step + token)];
    });
  }

  /// Sets the angles of a token of a rotation; position_of(axis) is the position of the token on an axis.
  template <class T, class PositionOf>
  void set_angles(detail::Rotation<T>& rotation, const PositionOf& position_of, Index token = 0) const {
    rotation.set_angles(
        frequencies_, [&](Index pair) { return position_of(axis(pair)); }, attention_factor(), token);
  }

 private:
  friend class RopeAxes;

  /// position_of(batch element, token, axis) is the position of a token on an axis.
  template <class Out, class X, class PositionOf>
  void rotate_all(Out&& out, const X& x, const PositionOf& position_of) const {
    using T = detail::computed_t<typename detail::Traits<std::remove_cvref_t<X>>::Scalar>;
    detail::check_rotated<X, Out>();
    const detail::DTypeView<const T> from = detail::as_rank4(view(x));
    const detail::DTypeView<T> to = detail::as_rank4(view(out));
    detail::require(from.dim(3) == config_.head_dim, "Rope: head_dim is ", config_.head_dim, ", but x has shape ",
                    from.shape());
    detail::check_written<4>(to, from.shape(), "Rope: the output", "(batch, heads, len, head_dim)");
    detail::Rotation<T> rotation(config_.pairs == RopePairs::interleaved, config_.rotary_dim);
    std::vector<Index> known;  // the positions whose angles `rotation` holds
    for (Index token = 0; token < from.dim(2); ++token)
      for (Index batch = 0; batch < from.dim(0); ++batch) {
        bool same = !known.empty();
        known.resize(static_cast<std::size_t>(axes_));
        for (Index axis = 0; axis < axes_; ++axis) {
          const Index position = position_of(batch, token, axis);
          same &= std::exchange(known[static_cast<std::size_t>(axis)], position) == position;
        }
        if (!same) set_angles(rotation, [&](Index axis) { return known[static_cast<std::size_t>(axis)]; });
        for (Index head = 0; head < from.dim(1); ++head)
          rotation.rotate(from.rows(batch, head, token), to.rows(batch, head, token), config_.head_dim);
      }
  }

  void begin() {
    const detail::RopeFrequencies frequencies(config_);
    if (config_.rotary_dim == 0) config_.rotary_dim = config_.head_dim;
    for (Index i = 0; i < config_.rotary_dim / 2; ++i) frequencies_.push_back(frequencies.of(i));
  }

  std::vector<double> frequencies_;
  std::vector<Index> axis_of_;  // of each pair; empty if a token has one position
  Index axes_ = 1;
  RopeConfig config_;
};

/// Rotates x in place by given angles, one for each pair. cos and sin are (len, rotary_dim / 2), for all batch
/// elements, or (batch, len, rotary_dim / 2), in the type that x is computed in, which is float for 16-bit types.
/// (Hugging Face's tables have each angle twice: take the first half of a row.) Everything else is as for
/// Rope::rotate().
template <class X, class Cos, class Sin>
void rotate_by(X&& x, const Cos& cos, const Sin& sin, RopePairs pairs = RopePairs::halves) {
  constexpr int kRank = detail::Traits<Cos>::kRank;
  static_assert(kRank == 2 || kRank == 3, "attn::rotate_by: cos and sin must be (len, pairs) or (batch, len, pairs)");
  static_assert(detail::Traits<Sin>::kRank == kRank, "attn::rotate_by: cos and sin must have the same rank");
  detail::check_rotated<X, X>();
  using T = detail::computed_t<typename detail::Traits<std::remove_cvref_t<X>>::Scalar>;
  static_assert(std::is_same_v<typename detail::Traits<Cos>::Scalar, T> &&
                    std::is_same_v<typename detail::Traits<Sin>::Scalar, T>,
                "attn::rotate_by: cos and sin must have the scalar type of x (float for 16-bit x)");
  const auto cos_of = view(cos);
  const auto sin_of = view(sin);
  const detail::DTypeView<T> to = detail::as_rank4(view(x));
  const Index batch = to.dim(0), len = to.dim(2), dim = to.dim(3), rotary = 2 * cos_of.dim(kRank - 1);
  detail::require(sin_of.shape() == cos_of.shape(), "rotate_by: cos has shape ", cos_of.shape(), ", but sin has shape ",
                  sin_of.shape());
  detail::require(rotary <= dim, "rotate_by: cos has shape ", cos_of.shape(), ", angles for ", rotary,
                  " features, but x has ", dim, "; each pair of features takes one angle");
  detail::require(cos_of.dim(kRank - 2) == len && (kRank == 2 || cos_of.dim(0) == batch), "rotate_by: cos has shape ",
                  cos_of.shape(), ", which does not fit x of shape ", to.shape());
  detail::check_written<4>(to, to.shape(), "rotate_by: x", "(batch, heads, len, dim)");
  detail::Rotation<T> rotation(pairs == RopePairs::interleaved, rotary);
  for (Index b = 0; b < batch; ++b)
    for (Index token = 0; token < len; ++token) {
      rotation.set([&](Index i) {
        if constexpr (kRank == 2)
          return std::pair<T, T>(cos_of(token, i), sin_of(token, i));
        else
          return std::pair<T, T>(cos_of(b, token, i), sin_of(b, token, i));
      });
      for (Index head = 0; head < to.dim(1); ++head) {
        const detail::RowsToWrite row = to.rows(b, head, token);
        rotation.rotate(row, row, dim);
      }
    }
}

}  // namespace ATTN_BUILT_FOR

namespace detail::inline ATTN_BUILT_FOR {

/// Space for the angles of `tokens` tokens; empty without a rope.
template <class T>
Rotation<T> rotation_for(const Rope* rope, Index tokens) {
  if (rope == nullptr) return Rotation<T>(false, 0, 0);
  return Rotation<T>(rope->config().pairs == RopePairs::interleaved, rope->config().rotary_dim, tokens);
}
/// The rotation of `tokens` tokens, of which the first is at row `row`; empty without a rope.
template <class T>
Rotation<T> rotation_of(const Rope* rope, RowPositions positions, Index row, Index tokens) {
  auto rotation = rotation_for<T>(rope, tokens);
  for (Index i = 0; rope && i < tokens; ++i)
    rope->set_angles(
        rotation, [&](Index axis) { return positions(row + i, axis); }, i);
  return rotation;
}

}  // namespace detail::inline ATTN_BUILT_FOR
}  // namespace attn
