// Splits a backward pass into tasks, and lays out its memory.
#pragma once

#include <algorithm>

#include "attn/core/backward/choose_backward_kernels.h"
#include "attn/core/base/arena.h"
#include "attn/options.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tile of queries as the loops read it, and the memory of its gradient.
template <class T>
struct PreparedQueries {
  QueryTile queries;
  Range visited;       ///< the keys to visit
  bool finite;         ///< whether all queries and output gradients are finite
  T* query;            ///< (head_dim, queries), scaled if kernels expect that
  T* grad_out;         ///< (v_dim, queries)
  T* query_panels;     ///< query as panels, (queries, key_row)
  T* grad_out_panels;  ///< grad_out as panels, (queries, value_row)
  T* lse;
  T* lse_rest;            ///< the part of lse lost to rounding
  T *delta, *delta_rest;  ///< delta_rest: the part of delta lost to rounding
  T* grad_query;          ///< (key parts, grad_query_size)
  unsigned char* added;   ///< (key parts): whether the part has added to grad_query
};

/// The memory of one worker.
template <class T>
struct WorkerMemory {
  T *scores, *grad_scores, *slopes;  // (keys, queries)
  T* tile_max;
  T *sum_rest, *grad_rest;       // (queries): see RowSums
  T *lse, *lse_rest;             // (queries): of the forward pass, if mods change weights
  T *changed, *weight_slopes;    // (keys, queries): weights after the weight mods, and the slopes of these mods
  T *rows, *more_rows;           // (queries, head_dim or v_dim)
  T *packed_key, *packed_value;  // (keys of a chunk, head_dim), (…, v_dim)
  T *arranged_key, *weights;     // (keys of a chunk, head_dim) and (keys, queries), if kernels expect another order
  T *grad_key, *grad_value;      // (keys of a chunk, key_row), (…, value_row)
  T* raw;                        // (keys, queries): scores before all mods, if mods learn
  bool* dropped;                 // (keys, queries)
  GradientSum<T>* sums;
};

/// The heads that share a key and value head form a group. Its keys and its tiles of queries are each split into parts,
/// and each pair of parts is a task. The number of parts follows from the sizes of a group alone, so that results
/// depend neither on the number of threads nor on the batch.
template <class T>
class BackwardPlan {
 public:
  BackwardPlan(const Problem& problem, const LearnedSizes& learned, const ChosenKernels<T>& chosen)
      : problem_(problem),
        learned_(learned),
        chosen_(chosen),
        kernels_(backward_kernels_of(chosen, problem)),
        tiles_(chosen.family, problem.q_len, false) {
    // Eight tasks keep a few workers busy, even if causal masks make some longer than others. Each part of the keys has
    // its own gradient of all queries, and each part of the queries its own gradient of all keys. Summing these
    // gradients would take more than a few per cent of the time if parts were shorter than 256 tokens. Sixteen parts of
    // the keys would halve the time that one head of 4096 tokens takes on sixteen cores, but memory would grow fourfold
    // from 2048 tokens to 4096.
    constexpr Index kMost = 8, kLeast = 256;
    const Index rows = problem.heads / problem.kv_heads * problem.q_len;
    key_parts_ = std::clamp<Index>(problem.kv_len / kLeast, 1, kMost);
    query_parts_ = std::clamp<Index>(rows / kLeast, 1, kMost / key_parts_);
    // Different parts of the queries may belong to heads that share a learned parameter, so one task processes all
    // queries.
    if (learned.learning == Learning::by_pair) query_parts_ = 1;
    tile_bytes_ = Arena<T>::count([&](Arena<T>& arena) { lay_out_tile(arena); });
  }

  const Problem& problem() const { return problem_; }
  const LearnedSizes& learned() const { return learned_; }
  bool in_bf16() const { return chosen_.in_bf16(); }
  VectorSet vectors() const { return chosen_.vectors; }
  const KernelFamily<T>& family() const { return chosen_.family; }
  const KernelFamily<T>& full_precision() const { return chosen_.full_precision; }
  const BackwardKernelSet<T>& kernels() const { return kernels_; }

  Index groups() const { return problem_.batch * problem_.kv_heads; }
  Index key_parts() const { return key_parts_; }
  Index query_parts() const { return query_parts_; }
  Index tasks_of_group() const { return key_parts_ * query_parts_; }

  /// The tiles of queries of a group: first those of its first head, then those of the next.
  Index tiles_of_group() const { return group_heads() * tiles_.count(); }
  QueryTile tile(Index group, Index i) const {
    const Index kv_head = group % problem_.kv_heads, tile = i % tiles_.count();
    return {group / problem_.kv_heads, problem_.head_of(kv_head, i / tiles_.count()), tile, tiles_.rows(tile)};
  }
  Index most_queries() const { return tiles_.most_queries(); }

  /// Number of key tiles that a tile of queries is multiplied with while it is in the L1 cache. Larger chunks load the
  /// queries less often; the keys and values of a chunk and their gradients must fit into 256 KiB of the L2 cache.
  Index chunk() const {
    constexpr Index kBytes = 256 * 1024;
    const Index tile = 2 * kKeyTile * (key_row() + value_row()) * static_cast<Index>(sizeof(T));
    return std::clamp<Index>(kBytes / std::max<Index>(tile, 1), 1, kMostTogether);
  }
  static constexpr Index kMostTogether = 4;

  /// The number of all key tiles, the key tiles of a part of the keys, and the query tiles of a part of the queries.
  Index key_tiles() const { return ceil_div(problem_.kv_len, kKeyTile); }
  Range key_tiles_of(Index part) const { return share(key_tiles(), part, key_parts_); }
  Range query_tiles_of(Index part) const { return share(tiles_of_group(), part, query_parts_); }

  /// Lengths of rows of head_dim and v_dim elements as the kernels expect them.
  Index key_row() const { return padded(problem_.head_dim, kernels_.columns); }
  Index value_row() const { return padded(problem_.v_dim, kernels_.columns); }
  /// Elements to allocate for a row: in the kernels' format or as T, whichever is larger. arranged_row() is the number
  /// for a copy of a key in the order in which the kernels read it, and arranged_weights() the number for such a copy
  /// of a tile of weights. Both are 0 if no copy is needed.
  Index row(Index dim) const { return std::max(dim, family().format.row(dim)); }
  Index arranged_row() const { return family().format.arranges_values ? row(problem_.head_dim) : 0; }
  Index arranged_weights() const { return family().format.arranges_values ? kKeyTile * most_queries() / 2 : 0; }
  /// Elements of the gradient of a tile's queries, (grad_query_dim(), queries), including rows of padding. If the score
  /// has weights, their gradient follows that of the queries.
  Index grad_query_size() const { return padded(grad_query_dim(), family().format.out) * most_queries(); }
  Index grad_query_dim() const { return problem_.head_dim * (learned_.score_weights ? 2 : 1); }

  double flops_of_group() const {
    return 4 * static_cast<double>(group_heads() * problem_.q_len) * static_cast<double>(problem_.kv_len) *
           (1.5 * static_cast<double>(problem_.head_dim) + static_cast<double>(problem_.v_dim));
  }

  double flops() const { return flops_of_group() * static_cast<double>(groups()); }

  /// Number of groups processed together if tasks have separate sums. Each worker gets several tasks of a millisecond
  /// or more, so that waiting for the last of them costs little. Memory is needed for this many groups, however large
  /// the batch is.
  Index groups_at_a_time(int workers) const {
    constexpr double kFlopsPerWorker = 1e8;
    const double wanted = kFlopsPerWorker * workers / std::max(flops_of_group(), 1.0);
    const Index for_tasks = ceil_div(Index(4) * workers, tasks_of_group());
    return std::min(groups(), std::max(for_tasks, static_cast<Index>(std::min(wanted, 1e6))));
  }

  /// Bytes of memory, each in whole cache lines: per group, without the gradients of mods' parameters, and per worker.
  Index group_bytes() const { return tiles_of_group() * tile_bytes_ + partials() * static_cast<Index>(sizeof(T)); }
  Index worker_bytes() const {
    return Arena<T>::count([&](Arena<T>& arena) { lay_out_worker(arena); });
  }
  WorkerMemory<T> memory_of_worker(std::byte* memory) const {
    Arena<T> arena(memory);
    return lay_out_worker(arena);
  }

  /// A tile in its group's memory, which also holds the PreparedQueries itself.
  PreparedQueries<T>& prepared(std::byte* group_memory, Index i) const {
    return *reinterpret_cast<PreparedQueries<T>*>(group_memory + i * tile_bytes_);
  }
  PreparedQueries<T>& prepare(std::byte* group_memory, Index group, Index i) const {
    PreparedQueries<T>& p = prepared(group_memory, i);
    Arena<T> arena(group_memory + i * tile_bytes_);
    p = lay_out_tile(arena);
    p.queries = tile(group, i);
    std::fill_n(p.added, key_parts_, static_cast<unsigned char>(0));
    return p;
  }

  /// A part's gradients of all keys and values, (kv_len, key_row) and (kv_len, value_row), if a group's queries are
  /// split into several parts.
  T* grad_key_of(std::byte* group_memory, Index query_part) const {
    T* const first = reinterpret_cast<T*>(group_memory + tiles_of_group() * tile_bytes_);
    return first + query_part * problem_.kv_len * (key_row() + value_row());
  }
  T* grad_value_of(std::byte* group_memory, Index query_part) const {
    return grad_key_of(group_memory, query_part) + problem_.kv_len * key_row();
  }

 private:
  static Range share(Index count, Index part, Index parts) {
    return {count * part / parts, count * (part + 1) / parts};
  }

  WorkerMemory<T> lay_out_worker(Arena<T>& arena) const {
    const Index q = most_queries(), keys = chunk() * kKeyTile, key = row(problem_.head_dim),
                value = row(problem_.v_dim), widest = std::max(key, value);
    WorkerMemory<T> m;
    m.scores = arena.take(kKeyTile * q), m.grad_scores = arena.take(kKeyTile * q), m.slopes = arena.take(kKeyTile * q);
    m.tile_max = arena.take(q), m.sum_rest = arena.take(q), m.grad_rest = arena.take(q);
    m.grad_key = arena.take(keys * key_row()), m.grad_value = arena.take(keys * value_row());
    m.packed_key = arena.take(keys * key), m.packed_value = arena.take(keys * value);
    m.arranged_key = arena.take(keys * arranged_row()), m.weights = arena.take(arranged_weights());
    m.rows = arena.take(widest * q), m.more_rows = arena.take(widest * q);
    const Index changed = problem_.changes_weights ? kKeyTile * q : 0;
    m.changed = arena.take(changed), m.weight_slopes = arena.take(changed);
    m.lse = arena.take(changed / kKeyTile), m.lse_rest = arena.take(changed / kKeyTile);
    m.raw = learned_.slots > 0 ? arena.take(kKeyTile * q) : nullptr;
    m.dropped = arena.template take_as<bool>(kKeyTile * q);
    m.sums = nullptr;
    return m;
  }
  /// The PreparedQueries itself comes first.
  PreparedQueries<T> lay_out_tile(Arena<T>& arena) const {
    const Index q = most_queries();
    PreparedQueries<T> p{};
    arena.template take_as<PreparedQueries<T>>(1);
    p.added = arena.template take_as<unsigned char>(key_parts_);
    arena.align();
    p.query = arena.take(row(problem_.head_dim) * q);
    p.grad_out = arena.take(row(problem_.v_dim) * q);
    p.query_panels = arena.take(key_row() * q);
    p.grad_out_panels = arena.take(value_row() * q);
    for (T** numbers : {&p.lse, &p.lse_rest, &p.delta, &p.delta_rest}) *numbers = arena.take(q);
    p.grad_query = arena.take(key_parts_ * grad_query_size());
    return p;
  }
  Index group_heads() const { return problem_.heads / problem_.kv_heads; }
  Index partials() const {
    return query_parts_ == 1 ? 0 : query_parts_ * padded(problem_.kv_len * (key_row() + value_row()), kAlignment);
  }

  const Problem& problem_;
  LearnedSizes learned_;
  ChosenKernels<T> chosen_;
  BackwardKernelSet<T> kernels_;
  QueryTiles<T> tiles_;
  Index key_parts_, query_parts_, tile_bytes_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
