// Positional encodings: embeddings added to tokens, rotations of queries and keys, and biases added to scores.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "attn/lists.h"
#include "attn/mods/alibi.h"          // scores decrease with distance
#include "attn/mods/relative_bias.h"  // a bias for each distance, and T5's buckets
#include "attn/rope.h"                // rotations, with one position per token
#include "attn/rope_axes.h"           // rotations, with several positions per token
#include "attn/xpos.h"                // rotations and scaling

namespace attn {

/// The options of sinusoidal_positions().
struct SinusoidConfig {
  Index first = 0;      ///< position of row 0
  double base = 10000;  ///< the slowest sinusoid advances by base^(2 / dim - 1) radians per position
  /// interleaved: sines and cosines alternate, as in the paper; halves: all sines come first, as in tensor2tensor and
  /// fairseq.
  RopePairs pairs = RopePairs::interleaved;
};

/// Returns the sinusoidal position embedding of Vaswani et al. 2017, section 3.5, (len, dim), to be added to token
/// embeddings:
///
///     row p:  sin(p * f_0)  cos(p * f_0)  sin(p * f_1)  cos(p * f_1)  …      f_i = base^(-2i / dim)
///
/// Values are computed in double or more and rounded once. Row p + k is row p with each pair rotated by k * f_i.
/// @throws std::invalid_argument for a negative length, a dim that is odd or not positive, or a base that is not finite
/// and greater than 1.
template <class T = float>
Tensor<T, 2> sinusoidal_positions(Index len, Index dim, const SinusoidConfig& config = {}) {
  static_assert(std::is_floating_point_v<T>,
                "attn::sinusoidal_positions: the scalar type must be float, double or long double");
  detail::require(len >= 0 && dim > 0 && dim % 2 == 0, "sinusoidal_positions: len is ", len, " and dim is ", dim,
                  "; len must not be negative, and dim must be positive and even");
  detail::require(config.base > 1 && std::isfinite(config.base),
                  "sinusoidal_positions: base must be finite and greater than 1, but is ", config.base);
  using Real = std::common_type_t<T, double>;
  const bool interleaved = config.pairs == RopePairs::interleaved;
  const Index pairs = dim / 2;
  Tensor<T, 2> rows({len, dim});
  for (Index i = 0; i < pairs; ++i) {
    const Real frequency = std::pow(static_cast<Real>(config.base), -static_cast<Real>(2 * i) / static_cast<Real>(dim));
    for (Index p = 0; p < len; ++p) {
      const Real angle = static_cast<Real>(config.first + p) * frequency;
      rows(p, interleaved ? 2 * i : i) = static_cast<T>(std::sin(angle));
      rows(p, interleaved ? 2 * i + 1 : pairs + i) = static_cast<T>(std::cos(angle));
    }
  }
  return rows;
}

namespace detail::inline ATTN_BUILT_FOR {

/// The rank-4 view (batch, 1, len, dim) of tokens (len, dim) or (batch, len, dim).
template <class X>
auto tokens_as_rank4(X&& x) {
  const auto v = view(x);
  constexpr int kRank = std::remove_cvref_t<decltype(v)>::kRank;
  static_assert(kRank == 2 || kRank == 3, "attn: tokens must be (len, dim) or (batch, len, dim)");
  using Number = std::remove_pointer_t<decltype(v.data())>;
  if constexpr (kRank == 2)
    return as_rank4(v);
  else
    return TensorView<Number, 4>(v.data(), {v.dim(0), 1, v.dim(1), v.dim(2)},
                                 {v.stride(0), 0, v.stride(1), v.stride(2)});
}

/// Calls visit(batch element, token, position) for all tokens, after checking all positions. `positions` has `len`
/// elements, which apply to all batch elements, or batch * len elements; the table has `rows` rows.
template <class Visit>
void for_each_position(const char* name, Index batch, Index len, std::span<const Index> positions, Index rows,
                       const Visit& visit) {
  const Index given = static_cast<Index>(positions.size());
  require(given == len || given == batch * len, name, ": got ", given, " positions for ", batch, " batch elements of ",
          len, " tokens; give one per token, for one batch element or for all");
  for (const Index p : positions)
    require(p >= 0 && p < rows, name, ": position ", p, " is out of range; the table has ", rows, " rows");
  const Index step = given == len ? 0 : len;
  for (Index b = 0; b < batch; ++b)
    for (Index i = 0; i < len; ++i) visit(b, i, positions[static_cast<std::size_t>(b * step + i)]);
}

/// Adds a row to another: to[c] += from[c].
template <class To, class From>
void add_row(const DTypeView<To>& to, Index batch, Index row, const DTypeView<From>& from, Index from_batch,
             Index from_row) {
  using T = std::remove_const_t<To>;
  const RowsToWrite sum = to.rows(batch, 0, row);
  const RowsToRead added = from.rows(from_batch, 0, from_row);
  for (Index c = 0; c < to.dim(3); ++c)
    store_number<T>(sum, 0, c, load_number<T>(sum, 0, c) + load_number<T>(added, 0, c));
}

/// The positions of `len` consecutive tokens from `first` on.
inline std::vector<Index> positions_from(Index first, Index len) {
  std::vector<Index> positions;
  for (Index i = 0; i < len; ++i) positions.push_back(first + i);
  return positions;
}

/// Checks the scalar types of a table of positions and of tokens.
template <class X, class Table>
constexpr void check_position_types() {
  using T = computed_t<typename Traits<std::remove_cvref_t<X>>::Scalar>;
  static_assert(
      std::is_same_v<computed_t<typename Traits<std::remove_cvref_t<Table>>::Scalar>, T>,
      "attn: tokens and the table of positions must have the same scalar type (float and 16-bit floats may be mixed)");
}

}  // namespace detail::inline ATTN_BUILT_FOR

inline namespace ATTN_BUILT_FOR {

/// Adds learned positions to tokens: x += the rows of `table` at the positions of the tokens, as in BERT and GPT-2
/// (Gehring et al. 2017; Vaswani et al. 2017, section 3.5). The table may also come from sinusoidal_positions(). x is
/// (len, dim) or (batch, len, dim), and the table is (positions, dim). `positions` has `len` elements, which apply to
/// all batch elements, or batch * len elements in the order of batch elements.
/// @throws std::invalid_argument if sizes disagree or a position is not a row of the table, before anything is written.
template <class X, class Table>
void add_positions(X&& x, const Table& table, std::span<const Index> positions) {
  detail::check_position_types<X, Table>();
  using T = detail::computed_t<typename detail::Traits<std::remove_cvref_t<X>>::Scalar>;
  const detail::DTypeView<T> to = detail::tokens_as_rank4(x);
  const detail::DTypeView<const T> rows = detail::tokens_as_rank4(table);
  detail::require(to.dim(3) == rows.dim(3), "add_positions: tokens have ", to.dim(3), " features, but the table has ",
                  rows.dim(3));
  detail::for_each_position("add_positions", to.dim(0), to.dim(2), positions, rows.dim(2),
                            [&](Index b, Index i, Index p) { detail::add_row(to, b, i, rows, 0, p); });
}

/// As above, with token i at position first + i.
template <class X, class Table>
void add_positions(X&& x, const Table& table, Index first = 0) {
  const Index len = detail::tokens_as_rank4(x).dim(2);
  add_positions(x, table, detail::positions_from(first, len));
}

/// Adds to grad_table the gradients of the rows that add_positions() added, given `grad_x`, the gradient of its result.
/// Gradients are summed in the order of batch elements and, within each, of tokens, so the result is deterministic.
/// (The gradient of x itself is grad_x.) Arguments and errors are those of add_positions().
template <class GradTable, class GradX>
void add_position_gradients(GradTable&& grad_table, const GradX& grad_x, std::span<const Index> positions) {
  detail::check_position_types<GradX, GradTable>();
  using T = detail::computed_t<typename detail::Traits<std::remove_cvref_t<GradX>>::Scalar>;
  const detail::DTypeView<T> to = detail::tokens_as_rank4(grad_table);
  const detail::DTypeView<const T> from = detail::tokens_as_rank4(grad_x);
  detail::require(to.dim(3) == from.dim(3), "add_position_gradients: tokens have ", from.dim(3),
                  " features, but the table has ", to.dim(3));
  detail::for_each_position("add_position_gradients", from.dim(0), from.dim(2), positions, to.dim(2),
                            [&](Index b, Index i, Index p) { detail::add_row(to, 0, p, from, b, i); });
}
/// As above, with token i at position first + i.
template <class GradTable, class GradX>
void add_position_gradients(GradTable&& grad_table, const GradX& grad_x, Index first = 0) {
  const Index len = detail::tokens_as_rank4(grad_x).dim(2);
  add_position_gradients(grad_table, grad_x, detail::positions_from(first, len));
}

}  // namespace ATTN_BUILT_FOR

}  // namespace attn
