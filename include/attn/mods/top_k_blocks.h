// top_k_blocks(): blocks of keys chosen by scores of their means.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "attn/detail/tensor/arguments.h"
#include "attn/mods/block_sparse.h"

namespace attn {

/// How top_k_blocks() chooses.
struct TopKBlocks {
  Index count = 8;      ///< blocks of keys that a block of queries keeps, its own included
  Index block_q = 1;    ///< queries that choose together, by their mean
  Index block_kv = 64;  ///< keys of a block
  /// Whether later blocks are left out, and the query's own is always kept. Later keys of the own block are left to
  /// causal().
  bool causal = true;
  /// Whether query heads that share a key head choose together, by the sum of their scores (as in Yuan et al. 2025), so
  /// that they read the same keys.
  bool heads_together = false;
  std::optional<Index> q_offset = std::nullopt;  ///< that of the call; see Options::q_offset
};

namespace detail {
inline namespace ATTN_BUILT_FOR {

/// The means of rows of a head, `block` rows at a time: (blocks, dim).
template <class T>
Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> pooled_rows(const DTypeView<const T>& t, Index batch,
                                                                              Index head, Index block) {
  const Index len = t.dim(2), dim = t.dim(3);
  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> means(ceil_div(len, block), dim);
  means.setZero();
  const RowsToRead rows = t.rows(batch, head);
  for (Index i = 0; i < len; ++i) {
    auto mean = means.row(i / block);
    if (rows.dtype == DType::native && rows.column == 1)
      mean += Eigen::Map<const Eigen::Matrix<T, 1, Eigen::Dynamic>>(
          reinterpret_cast<const T*>(rows.data) + i * rows.stride, dim);
    else
      for (Index c = 0; c < dim; ++c) mean(c) += load_number<T>(rows, i, c);
  }
  for (Index b = 0; b < means.rows(); ++b) means.row(b) /= static_cast<T>(std::min(block, len - b * block));
  return means;
}

/// Marks the blocks of keys that the queries at `positions` keep; see top_k_blocks(). `order` is working memory.
template <class T>
void choose_blocks(const TopKBlocks& config, const Range& positions, const T* scores, Index blocks, bool* kept,
                   std::vector<Index>& order) {
  // Blocks before the first query may be chosen. The blocks from there to the last query are its own.
  Index candidates = blocks, own_end = blocks;
  if (config.causal) {
    candidates = std::clamp<Index>(floor_div(positions.begin, config.block_kv), 0, blocks);
    own_end = std::clamp<Index>(ceil_div(positions.end, config.block_kv), candidates, blocks);
  }
  std::fill(kept + candidates, kept + own_end, true);
  const Index count = std::clamp<Index>(config.count - (own_end - candidates), 0, candidates);
  order.resize(static_cast<std::size_t>(candidates));
  std::iota(order.begin(), order.end(), Index(0));
  const auto is_before = [scores](Index a, Index b) {
    const T x = scores[a], y = scores[b];
    if (std::isnan(x) || std::isnan(y)) return std::isnan(x) && (!std::isnan(y) || a < b);
    return x > y || (x == y && a < b);
  };
  std::nth_element(order.begin(), order.begin() + count, order.end(), is_before);
  for (Index i = 0; i < count; ++i) kept[order[static_cast<std::size_t>(i)]] = true;
}

}  // namespace ATTN_BUILT_FOR
}  // namespace detail

inline namespace ATTN_BUILT_FOR {

/// block_sparse() of the blocks of keys that promise most: those whose mean has the largest product with the query, or
/// with the mean of a block of queries (MoBA: Lu et al. 2025, "MoBA: Mixture of block attention for long-context LLMs";
/// the choice of blocks of NSA: Yuan et al. 2025, "Native sparse attention"). A causal choice always has the query's
/// own block, which counts, and none behind it; combine it with causal(), which drops the later keys of the own block.
///
///     auto out = attn::attention(q, k, v, attn::top_k_blocks(q, k, {.count = 8, .block_q = 48}) | attn::causal());
///
/// `query` and `key` are what the call will get: (len, head_dim) or (batch, heads, len, head_dim). Of equal scores that
/// of the earlier block wins; NaN counts as larger than any number, so that it is not hidden. Gradients go
/// through the blocks that are kept; the choice itself has none.
///
/// Cost: a pass over the keys (and queries), and 2 * head_dim flops for each block of queries and block of keys of a
/// head; a byte for each of these in memory. The call itself works in proportion to the kept pairs where blocks are
/// multiples of 64 keys and 48 queries: single queries, block_q = 1, share tiles with neighbours that keep other
/// blocks.
/// @throws std::invalid_argument for sizes that do not fit each other, block sizes below 1 and a negative count.
template <class Q, class K>
auto top_k_blocks(const Q& query, const K& key, const TopKBlocks& config = {}) {
  using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
  constexpr int kRank = detail::Traits<Q>::kRank;
  static_assert((kRank == 2 || kRank == 4) && detail::Traits<K>::kRank == kRank,
                "attn::top_k_blocks: query and key must both be (len, dim) or both (batch, heads, len, dim)");
  static_assert(std::is_same_v<detail::computed_t<typename detail::Traits<K>::Scalar>, T>,
                "attn::top_k_blocks: query and key must hold the same scalar type, or floats of 32 and 16 bits");
  const auto& held_q = detail::evaluated(query);
  const auto& held_k = detail::evaluated(key);
  const detail::DTypeView<const T> q = detail::as_rank4(view(held_q)), k = detail::as_rank4(view(held_k));
  detail::require(config.block_q > 0 && config.block_kv > 0, "top_k_blocks: blocks of ", config.block_q, " queries x ",
                  config.block_kv, " keys; both must be positive");
  detail::require(config.count >= 0, "top_k_blocks: the count is ", config.count, ", it may not be negative");
  Options options;
  options.q_offset = config.q_offset;
  const Problem p = detail::make_problem<T>(q, k, k, options);
  const Index block_q = std::min(config.block_q, detail::kUnbounded),
              block_kv = std::min(config.block_kv, detail::kUnbounded);
  const Index rows = detail::ceil_div(p.q_len, block_q), blocks = detail::ceil_div(p.kv_len, block_kv);
  TopKBlocks fitting = config;
  fitting.block_kv = block_kv;
  Tensor<bool, 4> map({p.batch, p.heads, rows, blocks});
  std::vector<Index> order;
  Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> means, scores, sum;
  for (Index b = 0; b < p.batch; ++b)
    for (Index h = 0; h < p.heads; ++h) {
      const Index group = p.heads / p.kv_heads;
      if (h % group == 0) means = detail::pooled_rows<T>(k, b, h / group, block_kv);
      scores.noalias() = detail::pooled_rows<T>(q, b, h, block_q) * means.transpose();
      if (config.heads_together && h % group > 0) scores += sum;
      sum = scores;
      if (config.heads_together && (h + 1) % group > 0) continue;
      for (Index r = 0; r < rows * blocks; r += std::max<Index>(blocks, 1)) {
        const Index row = r / blocks, first = p.q_offset + row * block_q;
        bool* const kept = map.data() + (b * p.heads + h) * rows * blocks + r;
        detail::choose_blocks<T>(fitting, {first, first + std::min(block_q, p.q_len - row * block_q)},
                                 scores.data() + r, blocks, kept, order);
        for (Index other = 1; config.heads_together && other < group; ++other)
          std::copy_n(kept, blocks, kept - other * rows * blocks);
      }
    }
  return block_sparse(std::move(map), block_q, block_kv);
}

}  // namespace ATTN_BUILT_FOR

}  // namespace attn
