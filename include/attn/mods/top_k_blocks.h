// top_k_blocks(): a mask of the blocks of keys whose means score highest.
#pragma once

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "attn/core/tensor/arguments.h"
#include "attn/mods/block_sparse.h"

namespace attn {

/// Options of top_k_blocks().
struct TopKBlocks {
  Index count = 8;      ///< blocks of keys that a block of queries keeps, including its own
  Index block_q = 1;    ///< queries per block; they choose together, by their mean
  Index block_kv = 64;  ///< keys per block
  /// Whether later blocks are excluded and the query's own block is always kept. The later keys of that block are left
  /// to causal().
  bool causal = true;
  /// Whether query heads that share a key head choose together, by the sum of their scores (as in Yuan et al. 2025), so
  /// that they read the same keys.
  bool heads_together = false;
  std::optional<Index> q_offset = std::nullopt;  ///< the call's; see Options::q_offset
  bool interleaved_heads = false;                ///< the call's; see Options::interleaved_heads
};

namespace detail::inline ATTN_BUILT_FOR {

/// Returns the mean of each block of `block` rows of a head: (blocks, dim).
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

/// Marks the blocks of keys that the queries at `positions` keep; see top_k_blocks(). `order` is scratch space.
template <class T>
void choose_blocks(const TopKBlocks& config, const Range& positions, const T* scores, Index blocks, bool* kept,
                   std::vector<Index>& order) {
  // Blocks before the block of the first query may be chosen. The blocks from that one to the block of the last query
  // are always kept.
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

}  // namespace detail::inline ATTN_BUILT_FOR

inline namespace ATTN_BUILT_FOR {

/// Returns a block_sparse() mask that keeps, for each block of queries, the `config.count` blocks of keys whose means
/// have the largest dot products with the mean of these queries (MoBA: Lu et al. 2025, "MoBA: Mixture of block
/// attention for long-context LLMs"; the choice of blocks in NSA: Yuan et al. 2025, "Native sparse attention"). With
/// `config.causal`, the query's own block is always kept and counts towards `count`, and later blocks are excluded.
/// Combine the mask with causal() to drop the later keys of that block.
///
///     auto out = attn::attention(q, k, v, attn::top_k_blocks(q, k, {.count = 8, .block_q = 48}) | attn::causal());
///
/// `query` and `key` are the arguments of the attention call: (len, head_dim) or (batch, heads, len, head_dim). If
/// scores are equal, the earlier block wins; NaN counts as larger than any number, so that it is not hidden. Gradients
/// flow through the kept blocks; the choice itself is not differentiated.
///
/// Cost: a pass over the keys (and queries), and, for each block of queries and block of keys of a head, 2 * head_dim
/// flops and a byte of memory. The work of the call itself is proportional to the kept pairs if blocks are multiples of
/// 64 keys and 48 queries; with block_q = 1, queries share tiles with neighbours that keep other blocks.
/// @throws std::invalid_argument for sizes that do not match, block sizes below 1 or a negative count.
template <class Q, class K>
auto top_k_blocks(const Q& query, const K& key, const TopKBlocks& config = {}) {
  using T = detail::computed_t<typename detail::Traits<Q>::Scalar>;
  constexpr int kRank = detail::Traits<Q>::kRank;
  static_assert((kRank == 2 || kRank == 4) && detail::Traits<K>::kRank == kRank,
                "attn::top_k_blocks: query and key must both be (len, dim) or both (batch, heads, len, dim)");
  static_assert(
      std::is_same_v<detail::computed_t<typename detail::Traits<K>::Scalar>, T>,
      "attn::top_k_blocks: query and key must have the same scalar type (float and 16-bit floats may be mixed)");
  const auto& held_q = detail::evaluated(query);
  const auto& held_k = detail::evaluated(key);
  const detail::DTypeView<const T> q = detail::as_rank4(view(held_q)), k = detail::as_rank4(view(held_k));
  detail::require(config.block_q > 0 && config.block_kv > 0, "top_k_blocks: block_q is ", config.block_q,
                  " and block_kv is ", config.block_kv, "; both must be positive");
  detail::require(config.count >= 0, "top_k_blocks: count must not be negative, but is ", config.count);
  Options options;
  options.q_offset = config.q_offset;
  options.interleaved_heads = config.interleaved_heads;
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
    for (Index i = 0; i < p.heads; ++i) {
      const Index group = p.heads / p.kv_heads, number = i % group, h = p.head_of(i / group, number);
      if (number == 0) means = detail::pooled_rows<T>(k, b, i / group, block_kv);
      scores.noalias() = detail::pooled_rows<T>(q, b, h, block_q) * means.transpose();
      if (config.heads_together && number > 0) scores += sum;
      sum = scores;
      if (config.heads_together && number + 1 < group) continue;
      for (Index r = 0; r < rows * blocks; r += std::max<Index>(blocks, 1)) {
        const Index row = r / blocks, first = p.q_offset + row * block_q;
        bool* const kept = map.data() + (b * p.heads + h) * rows * blocks + r;
        detail::choose_blocks<T>(fitting, {first, first + std::min(block_q, p.q_len - row * block_q)},
                                 scores.data() + r, blocks, kept, order);
        for (Index other = 1; config.heads_together && other < group; ++other)
          std::copy_n(kept, blocks, kept - other * p.head_step() * rows * blocks);
      }
    }
  return block_sparse(std::move(map), block_q, block_kv);
}

}  // namespace ATTN_BUILT_FOR

}  // namespace attn
