// The loop over single queries, in small blocks that share keys (attention when tokens are decoded).
#pragma once

#include <algorithm>
#include <span>

#include "attn/core/base/fixed_vector.h"
#include "attn/core/flash/decode_state.h"
#include "attn/core/flash/kv_splits.h"
#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The direct loop over the keys of a head, for queries that do not share their keys, in calls that do nothing between
/// score, softmax and value: no mod changes scores or weights, no rows are copied, and nothing is prefetched. Its
/// results are bitwise equal to DecodeLoop's, so a sequence processed alone, with its keys in a near cache, has the
/// same result as among many others. On Zen 3 with AVX2, one token took 0.78 of DecodeLoop's time over 8 heads of 64
/// keys of 32 floats, 0.84 over 128 keys of 64 floats, and 0.9 over one head of 1000 keys.
template <class T>
class DirectDecode {
 public:
  DirectDecode(const PassContext<T>& pass, const DecodeTiles<T>& tiles, const KvSplits<T>& splits)
      : pass_(pass), are_served_(serves_pass(pass, tiles, splits)) {}

  /// Whether the pass has queries for this loop. A query that visits masked keys does not qualify; see serves().
  bool are_served() const { return are_served_; }

  /// Whether this loop takes a query, given are_served(): the query must visit keys, all of which are kept.
  bool serves(const QueryTile& query, const Range& visited) const {
    return !visited.empty() && (pass_.mods == nullptr || pass_.coverage(query, visited, visited) == Coverage::all);
  }

  /// Returns the state of a query after the keys `visited`, and stores its result if `stores`. `is_first`: whether
  /// `visited` are the query's first keys, so that the state begins with the sinks.
  TileMemory<T> run(const QueryTile& query, const Range& visited, bool is_first, bool stores, std::byte* memory) const {
    TileMemory<T> m = memory_in(memory);
    if (is_first)
      pass_.begin(query, 1, 1, m);
    else
      pass_.begin_later(1, m);
    pass_.load_query(query, m.query);
    std::fill_n(m.out, pass_.problem().v_dim, T(0));
    // Each query head has its own keys, in one piece; see serves_pass().
    visit(visited, pass_.tensors.k.rows_of_piece(query.batch, query.head, visited.begin),
          pass_.tensors.v.rows_of_piece(query.batch, query.head, visited.begin), m);
    add_rest(*m.sum, *m.sum_rest);
    if (stores) pass_.store_result(query, 0, m);
    return m;
  }

 private:
  /// The recurrence over the keys in steps of kLongStep: scores, softmax, then values tile by tile. Steps begin where
  /// those of DecodeTiles::first() do. Nothing is prefetched.
  void visit(const Range& visited, RowsToRead key, RowsToRead value, TileMemory<T>& m) const {
    const Problem& problem = pass_.problem();
    const DecodeKernelSet<T>& kernels = pass_.kernels.full_precision.decode;
    constexpr Index kSize = sizeof(T);
    Prefetcher nothing;
    T* const scores = m.scores;
    for (Index left = visited.size(), from = pass_.tensors.k.is_paged() ? visited.begin % kLongStep : 0; left > 0;
         from = 0) {
      const Index step = std::min(left, kLongStep - from);
      m.scores = scores;
      kernels.score_of(DType::native)(m, 1, key, step, problem.head_dim, nothing);
      kernels.softmax(m, 0, step, nothing);
      for (Index done = 0, count = kKeyTile - from % kKeyTile; done < step; done += count, count = kKeyTile) {
        count = std::min(count, step - done);
        kernels.value_of(DType::native)(m, 1, value, count, problem.v_dim, nothing);
        m.scores += count;
        value.data += count * value.stride * kSize;
        *m.rescale = 1;
      }
      key.data += step * key.stride * kSize;
      left -= step;
    }
  }

  /// The memory of one row: some of the arrays that DecodeLoop has for a block.
  TileMemory<T> memory_in(std::byte* memory) const {
    TileMemory<T> m{};
    m.scores = reinterpret_cast<T*>(memory);
    m.query = m.scores + kLongStep;
    m.out = m.query + pass_.problem().head_dim;
    m.max = m.out + pass_.problem().v_dim;
    m.sum = m.max + 1;
    m.sum_rest = m.sum + 1;
    m.rescale = m.sum_rest + 1;
    return m;
  }

  static bool serves_pass(const PassContext<T>& pass, const DecodeTiles<T>& tiles, const KvSplits<T>& splits) {
    const Problem& problem = pass.problem();
    const bool have_own_keys = problem.q_len == 1 && problem.heads == problem.kv_heads,
               are_plain = !pass.resumes && !pass.tensors.score && !problem.sigmoid_bias &&
                           (pass.mods == nullptr || !(pass.mods->has_scores() || pass.kept_factor() != T(1)));
    const bool are_in_time =
        !tiles.are_far() || (pass.kernels.full_precision.decode.needs_no_prefetch && tiles.are_packed());
    const Index most_keys = splits.keys(splits.count() - 1).size();  // no split has more keys than the last one
    return have_own_keys && are_plain && are_in_time && !tiles.interleaves_heads() && !has_totals(most_keys) &&
           tiles.are_contiguous_rows();
  }

  const PassContext<T>& pass_;
  bool are_served_;
};

/// Processes blocks of single queries. The recurrence is that of PrefillLoop, but keys and values are read in place
/// where DecodeTiles allows it, regardless of their type.
template <class T>
class DecodeLoop {
 public:
  static constexpr Index kMostQueries = DecodeState<T>::kMost;

  /// Maximum number of blocks that take turns at each step of keys. They do so where DecodeTiles expects this order to
  /// read memory fastest. One head after the other was 20 % slower in pages of 64 tokens of 8 heads. In tensors stored
  /// as (batch, len, heads, dim), one head after the other took 1.2 to 1.5 times as long for 8 heads of 16384 to 65536
  /// tokens, and 1.4 times as long for 32 heads. Taking all heads of a page in turn, with steps split by pages, was 5 %
  /// faster for large caches at head_dim 128, but took 1.4 times as long for caches of 256 tokens.
  static constexpr Index kMostTogether = 8;

  /// `far`: see DecodeTiles.
  DecodeLoop(const PassContext<T>& pass, const QueryTiles<T>& tiles, bool far)
      : pass_(pass),
        tensors_(pass.tensors),
        problem_(pass.problem()),
        key_tiles_(pass.tensors, far),
        on_matrix_unit_(DecodeTiles<T>::suit_matrix_unit(pass)),
        dots_(key_tiles_.suit_dots(pass.kernels) ? pass.kernels.dots : nullptr),
        step_(on_matrix_unit_ ? kKeyTile : kLongStep),
        most_queries_(QueryBlocks<T>(problem_, tiles, kMostQueries).most_tiles()),
        splits_(problem_, QueryBlocks<T>(problem_, tiles, kMostQueries).count(), kMostQueries),
        direct_(pass, key_tiles_, splits_) {}

  bool on_matrix_unit() const { return on_matrix_unit_; }
  bool multiplies_integers() const { return dots_ != nullptr; }

  /// Maximum number of blocks that one run() takes: 1, or several that take turns.
  Index most_together() const { return key_tiles_.interleaves_heads() ? kMostTogether : 1; }

  /// Bytes of a worker's memory for this many blocks at a time.
  Index bytes(Index blocks) const { return layout(blocks).bytes(); }
  bool fetches_ahead() const { return key_tiles_.are_far(); }
  bool packs_keys() const { return packs(tensors_.k); }
  bool packs_values() const { return packs(tensors_.v); }

  /// How the keys are split; each split is a separate task.
  const KvSplits<T>& splits() const { return splits_; }

  /// Some blocks with the keys of one split.
  struct Task {
    Range blocks;
    Index split;
  };

  /// Runs the task `now`; `following` likely comes next. With several splits, the task stores its result in its block's
  /// part of `partials`.
  void run(const QueryBlocks<T>& blocks, const Task& now, const Task& following, std::byte* memory,
           std::byte* partials) const {
    const Range keys = splits_.keys(now.split);
    const bool is_first = now.split == 0;
    if (direct_.are_served() && run_direct(blocks.at(now.blocks.begin, 0), now, keys, memory, partials)) return;
    FixedVector<Row, kMostQueries * kMostTogether> all_rows;
    FixedVector<DecodeState<T>, kMostTogether> states;
    const TileLayout<T> layout = this->layout(now.blocks.size());
    for (Index i = 0; i < now.blocks.size(); ++i) {
      const Index block = now.blocks.begin + i;
      const std::span rows = all_rows.add_all(blocks.size(block));
      for (Index r = 0; Row & row : rows) row.queries = blocks.at(block, r++);
      states.add(pass_, key_tiles_, rows, keys, is_first, layout.at(memory, i), queries_in_memory());
    }
    const std::span active = states.all();
    const KvTile next = first_keys(blocks, following);
    {
      const KernelScope<T> in_use(on_matrix_unit_ ? pass_.kernels.family : pass_.kernels.full_precision);
      for (DecodeState<T>& state : active)
        if (on_matrix_unit_)
          state.use_matrix_unit();
        else if (dots_)
          state.use(*dots_);
      visit_keys(active, next, false);
    }
    for (Index block = now.blocks.begin; DecodeState<T> & state : active) {
      for (Index r = 0; const Row& row : state.rows()) {
        if (state.must_compute_again(r)) {
          const bool by_selection = row.dropped_any;
          DecodeState<T> again = state.restarted(r, keys, is_first);
          visit_keys({&again, 1}, next, by_selection);
        }
        ++r;
      }
      if (splits_.count() == 1)
        for (Index r = 0; const Row& row : state.rows()) pass_.store_result(row.queries, r++, state.memory());
      else
        splits_.store_partial(state.memory(), blocks.size(block), now.split, partials + block * splits_.bytes());
      ++block;
    }
  }

  /// Merges the results of a block's splits, and stores the result.
  void merge(const QueryBlocks<T>& blocks, Index block, std::byte* partials) const {
    const TileMemory<T> m = splits_.merged(blocks.size(block), partials + block * splits_.bytes());
    for (Index r = 0; r < blocks.size(block); ++r) pass_.store_result(blocks.at(block, r), r, m);
  }

  /// Whether the direct loop processes all keys that a query visits.
  bool is_direct(const QueryTile& query) const {
    bool all = direct_.are_served(), any = false;
    for (Index split = 0; all && split < splits_.count(); ++split) {
      const Range visited = intersect(pass_.visited(query), splits_.keys(split));
      any |= !visited.empty();
      all = visited.empty() || direct_.serves(query, visited);
    }
    return all && any;
  }

  /// Calls visit(tile of keys, coverage) for one query.
  template <class Visit>
  void for_each_key_tile(const QueryTile& query, const Visit& visit) const {
    const Range visited = pass_.visited(query);
    for (Index split = 0; split < splits_.count(); ++split) {
      const Range of_split = intersect(visited, splits_.keys(split));
      for (Range keys = key_tiles_.first(of_split); !keys.empty(); keys = key_tiles_.next(keys, of_split))
        visit(keys, pass_.coverage(query, visited, keys));
    }
  }

 private:
  using KvTile = typename DecodeTiles<T>::KvTile;
  using Row = typename DecodeState<T>::Row;

  /// Whether keys or values are copied, for the largest blocks.
  bool packs(const KvRows<T>& t) const {
    const bool reads_runs = !on_matrix_unit_ && !dots_ && key_tiles_.reads_runs(t, most_queries_);
    return key_tiles_.copies(t) && !reads_runs;
  }

  /// run() for a block of one query, if the direct loop can take it. Returns whether it did.
  bool run_direct(const QueryTile& query, const Task& now, const Range& keys, std::byte* memory,
                  std::byte* partials) const {
    const Range visited = intersect(pass_.visited(query), keys);
    if (!direct_.serves(query, visited)) return false;
    const bool stores = splits_.count() == 1;
    const TileMemory<T> m = direct_.run(query, visited, now.split == 0, stores, memory);
    if (!stores) splits_.store_partial(m, 1, now.split, partials + now.blocks.begin * splits_.bytes());
    return true;
  }

  /// Queries of a block that its memory has space for. Small calls then need so little that it is on the stack.
  Index queries_in_memory() const { return on_matrix_unit_ ? kMostQueries : most_queries_; }
  /// The layout for this many blocks at a time. Queries are stored a second time as the matrix unit reads them or as
  /// integers, or are followed by the weights of their scores; see DecodeState.
  TileLayout<T> layout(Index blocks) const {
    return TileLayout<T>({.queries = queries_in_memory(),
                          .query = problem_.head_dim * (on_matrix_unit_           ? 4
                                                        : tensors_.score || dots_ ? 2
                                                                                  : 1) +
                                   (dots_ ? dots_->query_header : 0),
                          .out = problem_.v_dim,
                          .packed_key = key_tiles_.size_of_copied(tensors_.k),
                          .packed_value = key_tiles_.size_of_copied(tensors_.v),
                          .keys = step_,
                          .value_sums = key_tiles_.reads_runs(tensors_.v, most_queries_) ? problem_.v_dim : 0,
                          .totals = has_totals(problem_.kv_len)},
                         blocks);
  }

  /// The first keys that a task visits.
  KvTile first_keys(const QueryBlocks<T>& blocks, const Task& task) const {
    const QueryTile queries = blocks.at(task.blocks.begin, 0);
    const Index begin = intersect(pass_.visited(queries), splits_.keys(task.split)).begin;
    return key_tiles_.of(queries, {begin, begin + kKeyTile});
  }

  /// The recurrence over all keys. The blocks take turns, a run of keys at a time.
  void visit_keys(std::span<DecodeState<T>> blocks, const KvTile& following, bool by_selection) const {
    Range all{0, 0};
    for (const DecodeState<T>& block : blocks) all = hull(all, block.visited());
    // A block must take the same steps as it would alone. Without pages, a block's steps are counted from its first
    // key, so blocks take turns only if they begin with the same key.
    const bool in_turn =
        blocks.size() > 1 &&
        (tensors_.k.is_paged() || std::all_of(blocks.begin(), blocks.end(), [&](const DecodeState<T>& block) {
           return block.visited().begin == all.begin || block.visited().empty();
         }));
    for (Range run{all.begin, 0}; run.begin < all.end; run.begin = run.end) {
      run.end = in_turn ? std::min(key_tiles_.end_of_run(run.begin, step_), all.end) : all.end;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Range own = intersect(run, blocks[i].visited());
        for (Range keys = key_tiles_.first(own, step_); !keys.empty(); keys = key_tiles_.next(keys, own, step_))
          blocks[i].add_keys(keys,
                             keys.end < own.end
                                 ? key_tiles_.of(blocks[i].any_query(), key_tiles_.next(keys, own, step_))
                                 : next_turn(blocks, i, run, all, following),
                             by_selection);
      }
    }
    for (DecodeState<T>& block : blocks) block.finish();
  }

  /// The keys that are read after block `i` has processed its keys of a run.
  KvTile next_turn(std::span<const DecodeState<T>> blocks, std::size_t i, const Range& run, const Range& all,
                   const KvTile& following) const {
    const bool same_run = i + 1 < blocks.size();
    if (!same_run && run.end == all.end) return following;
    const DecodeState<T>& next = blocks[same_run ? i + 1 : 0];
    const Range keys = same_run ? run : Range{run.end, all.end};
    return key_tiles_.of(next.any_query(), key_tiles_.first(intersect(keys, next.visited())));
  }

  const PassContext<T>& pass_;
  const CallTensors<T>& tensors_;
  const Problem& problem_;
  DecodeTiles<T> key_tiles_;
  bool on_matrix_unit_;
  const DotKernels<T>* dots_;  ///< null: keys are multiplied as floats
  Index step_;                 ///< keys per step of the recurrence
  Index most_queries_;         ///< per block
  KvSplits<T> splits_;
  DirectDecode<T> direct_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
