// Scores of the tokens of a chunk with each other: query * key, times what the key has decayed by.
#pragma once

#include "attn/detail/linear_attention/chunk.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// The rows of scores that are formed at a time. Their columns end with the last token that one of them sees.
constexpr Index kScoreRows = 16;

/// The memory in which scores with feature gates are computed.
template <class T>
struct ScoreMemory {
  T* columns;           ///< (features, tokens): keys transposed
  Block<T> query, key;  ///< (tokens, features): decayed towards the middle of some tokens

  static ScoreMemory take(ChunkArena<T>& arena, const RecurrenceCall<T>& call) {
    const bool by_feature = call.gates == Gates::of_features;
    const Index row = call.row_of_features();
    return {arena.take(call.features() * kChunk), take_block(arena, by_feature ? kChunk / 2 : 0, row),
            take_block(arena, by_feature ? kChunk / 2 : 0, row)};
  }
};

/// scores(i, j) = a_i * b_j for j <= i < tokens; `columns` has b transposed, `width` apart. What stands at j > i is
/// indeterminate.
template <class T>
void lower_scores(const RecurrenceFamily<T>& kernels, std::type_identity_t<Rows<T>> a, const T* columns, Index width,
                  Index tokens, Index features, const Block<T>& scores) {
  for (Index i = 0; i < tokens; i += kScoreRows) {
    const Index rows = std::min(kScoreRows, tokens - i);
    kernels.product({scores.row(i), scores.stride, a.data + i * a.stride, a.stride, 1, columns, width, rows,
                     std::min(padded(i + rows, kRowUnit<T>), width), features});
  }
}

/// Scores with feature gates, whose decays are sums over features and cannot be taken out of the product. Tokens of
/// the two halves of a range decay towards its middle: the query from there, the key up to there, so that no exponent
/// is above 0, whatever the gates, and each half pair is a product of matrices. Halves of up to kNearTokens go pair by
/// pair. (Yang et al. 2024, "Gated linear attention transformers with hardware-efficient training", section 4.3, divide
/// by the decays within sub-chunks instead.)
template <class T>
void gated_scores(const ChunkLoader<T>& loader, Rows<T> query, Rows<T> key, const ChunkGates<T>& gates, Index features,
                  const ScoreMemory<T>& m, const Block<T>& scores) {
  const RecurrenceFamily<T>& kernels = loader.kernels();
  const auto at = [](Rows<T> rows, Index i) { return Rows<T>{rows.data + i * rows.stride, rows.stride}; };
  const Index n = gates.tokens;
  for (Index i = 0; i < n; i += kNearTokens)
    kernels.near_scores({at(query, i), at(key, i), at(gates.factor, i), std::min(kNearTokens, n - i), m.query.columns},
                        {scores.row(i) + i, scores.stride, kNearTokens, kNearTokens});
  for (Index half = kNearTokens; half < n; half *= 2)
    for (Index begin = 0; begin + half < n; begin += 2 * half) {
      const Index middle = begin + half, above = std::min(half, n - middle);
      const Block<T> q = m.query.from(0, above), k = m.key.from(0, half);
      kernels.decays_from(at(gates.gate, middle), q);
      kernels.multiply_by(q, at(query, middle));
      kernels.decays_to(at(gates.gate, begin), k);
      kernels.multiply_by(k, at(key, begin));
      loader.transpose(m.columns, half, k, half, features);
      kernels.product(
          {scores.row(middle) + begin, scores.stride, q.data, q.stride, 1, m.columns, half, above, half, features});
    }
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
