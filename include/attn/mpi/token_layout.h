// Distribution of the tokens of a sequence over ranks.
#pragma once

#include <array>
#include <cstddef>

#include "attn/core/base/built_for.h"
#include "attn/types.h"

namespace attn::mpi {

/// Which tokens of a sequence each rank holds, in ascending order. Any length is allowed; ranks may have no tokens.
///
///     8 tokens, 2 ranks     contiguous  0 0 0 0 1 1 1 1
///                           zigzag      0 0 1 1 1 1 0 0
///                           striped     0 1 0 1 0 1 0 1
enum class Layout {
  /// Rank r of P holds the tokens from r/P to (r + 1)/P of the length. Windows need only neighbouring ranks. With a
  /// causal mask the last rank has 2P - 1 times the pairs of the first one, and all wait for the last one.
  contiguous,
  /// Of 2P pieces, rank r holds pieces r and 2P - 1 - r, so that a causal mask gives all ranks the same amount of work
  /// (Llama Team 2024, "The Llama 3 Herd of Models", section 3.3.2).
  zigzag,
  /// Token t is on rank t mod P (Brandon et al. 2023, "Striped Attention"): the work is even with any mask, including
  /// one that skips parts of the sequence, and stays even while a sequence grows. But every tile on a causal mask's
  /// diagonal is partly masked, and windows need keys of all ranks.
  striped,
};

}  // namespace attn::mpi

namespace attn::detail {

/// Equally spaced tokens: first, first + step, …
struct Progression {
  Index first = 0, step = 1, count = 0;

  constexpr Index operator[](Index i) const { return first + step * i; }
};

/// The tokens of one rank in a sequence of `len` tokens: one progression or two, either of which may be empty. The
/// rank's rows are those of the first progression, followed by those of the second.
struct RankTokens {
  std::array<Progression, 2> parts;

  RankTokens(mpi::Layout layout, Index len, Index rank, Index ranks) {
    // Piece c of n is [begin(c), begin(c + 1)). Quotient and remainder are multiplied separately, so that no product
    // overflows.
    const auto piece = [len](Index c, Index n) {
      const auto begin = [&](Index i) { return len / n * i + len % n * i / n; };
      return Progression{begin(c), 1, begin(c + 1) - begin(c)};
    };
    switch (layout) {
      case mpi::Layout::contiguous:
        parts[0] = piece(rank, ranks);
        break;
      case mpi::Layout::zigzag:
        // Neighbouring pieces of a rank stay separate: each has its own hull of the rows that other ranks need.
        parts = {piece(rank, 2 * ranks), piece(2 * ranks - 1 - rank, 2 * ranks)};
        break;
      case mpi::Layout::striped:
        parts[0] = {rank, ranks, rank < len ? (len - rank - 1) / ranks + 1 : 0};
        break;
    }
  }

  const Progression& part(int i) const { return parts[static_cast<std::size_t>(i)]; }
  Index rows() const { return parts[0].count + parts[1].count; }
  /// Returns the index of the first row of a part.
  Index first_row(int part) const { return part == 0 ? 0 : parts[0].count; }
  /// Returns the token of a row.
  Index token(Index row) const { return row < parts[0].count ? parts[0][row] : parts[1][row - parts[0].count]; }
};

inline namespace ATTN_BUILT_FOR {

/// Returns the rows of some tokens of a tensor (batch, heads, tokens, dim), which may have no memory.
template <class View>
View rows_at(const View& t, const Progression& tokens) {
  auto shape = t.shape(), strides = t.strides();
  shape[2] = tokens.count;
  if (tokens.count > 1) strides[2] *= tokens.step;
  return t.part(tokens.count == 0 || t.data() == nullptr ? 0 : tokens.first * t.stride(2), shape, strides);
}
/// Returns consecutive rows of a tensor.
template <class View>
View rows_of_tensor(const View& t, Index first, Index count) {
  return rows_at(t, {first, 1, count});
}
/// Returns the rows of one part of a rank's tokens, in the memory of that rank.
template <class View>
View rows_of_part(const View& own, const RankTokens& tokens, int part) {
  return rows_of_tensor(own, tokens.first_row(part), tokens.part(part).count);
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
