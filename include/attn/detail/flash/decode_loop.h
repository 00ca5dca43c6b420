// Single queries, a few at a time that see the same keys: attention when tokens are decoded.
#pragma once

#include "attn/detail/flash/decode_tiles.h"
#include "attn/detail/flash/kv_splits.h"
#include "attn/detail/flash/query_blocks.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Blocks of queries. The loop over keys is that of PrefillLoop, but keys and values are read where they lie, whatever
/// numbers they hold.
template <class T>
class DecodeLoop {
 public:
  /// Queries in a block: fixed, because tiles of keys begin where the first key of a block lies. As many as the matrix
  /// unit takes at a time; others take some of them in turn, to whom keys come from memory once.
  static constexpr Index kMost = 16;

  /// Blocks that are worked on together: where the keys of neighbouring heads lie side by side in a page, memory is
  /// read in one run, and not, of each page, the part of a head (64 tokens of 8 heads: 20 % slower).
  static constexpr Index kMostTogether = 8;

  DecodeLoop(const PassContext<T>& pass, const QueryTiles<T>& tiles)
      : pass_(pass),
        tensors_(pass.tensors),
        problem_(pass.problem()),
        family_(pass.kernels.full_precision),
        key_tiles_(pass.tensors),
        splits_(problem_, QueryBlocks<T>(problem_, tiles, kMost).count(), kMost) {}

  /// Does the matrix unit serve, for whole tiles of keys? A query that shares them with no other would leave it idle.
  bool on_matrix_unit() const {
    const KernelFamily<T>& matrix = pass_.kernels.family;
    return &matrix != &family_ && problem_.heads > problem_.kv_heads &&
           DecodeTiles<T>::are_whole(matrix.format, tensors_.k) && DecodeTiles<T>::are_whole(matrix.format, tensors_.v);
  }

  /// The most blocks that run() is given: 1, or some together.
  Index most_together() const { return tensors_.k.is_cut() ? kMostTogether : 1; }

  Index bytes(Index blocks) const { return layout(blocks).bytes(); }
  bool packs_keys() const { return DecodeTiles<T>::copies(tensors_.k); }
  bool packs_values() const { return DecodeTiles<T>::copies(tensors_.v); }

  /// How the keys are cut, each part a task of its own.
  const KvSplits<T>& parts() const { return splits_; }

  /// Some of the keys of some blocks: those of part number `part`.
  struct Part {
    Range blocks;
    Index part;
  };

  /// With several parts, each leaves its result in the room of its block in `partials`. `following` likely comes next.
  void run(const QueryBlocks<T>& blocks, const Part& now, const Part& following, std::byte* memory,
           std::byte* partials) const {
    Array<Row, kMost * kMostTogether> room;
    Array<BlockState, kMostTogether> together;
    const std::span active(together, static_cast<std::size_t>(now.blocks.size()));
    const Index part = now.part;
    Row* rows = room;
    const TileLayout<T> layout = this->layout(now.blocks.size());
    for (Index i = 0; BlockState & block : active) {
      const Index number = now.blocks.begin + i;
      block.m = layout.at(memory, i++);
      block.rows = {rows, static_cast<std::size_t>(blocks.size(number))};
      for (Index r = 0; Row & row : block.rows) row = begin(blocks.at(number, r), part, r, block.m), ++r;
      block.visited = hull_of_visited(block.rows);
      rows += block.rows.size();
    }
    const KvTile next = first_keys(blocks, following);
    if (on_matrix_unit()) {
      const InUse<T> in_use(pass_.kernels.family);
      for (BlockState& block : active) load_queries(block.rows, block.m);
      visit_keys(active, pass_.kernels.family.row, next, false);
    } else {
      visit_keys(active, family_.row, next, false);
    }
    for (Index number = now.blocks.begin; BlockState & block : active) {
      compute_again(block, part, next);
      if (splits_.count() == 1)
        store_results(blocks, number, block.m);
      else
        splits_.store_partial(block.m, static_cast<Index>(block.rows.size()), part,
                              partials + number * splits_.bytes());
      ++number;
    }
  }

  /// The result of a block from what its parts have left.
  void join(const QueryBlocks<T>& blocks, Index block, std::byte* partials) const {
    store_results(blocks, block, splits_.merged(blocks.size(block), partials + block * splits_.bytes()));
  }

  /// Calls visit(tile of keys, coverage) for one query.
  template <class Visit>
  void for_each_key_tile(const QueryTile& query, const Visit& visit) const {
    const Range visited = pass_.visited(query);
    for (Index part = 0; part < splits_.count(); ++part) {
      const Range of_part = intersect(visited, splits_.keys(part));
      for (Range keys = key_tiles_.first(of_part); !keys.empty(); keys = key_tiles_.next(keys, of_part))
        visit(keys, pass_.coverage(query, visited, keys));
    }
  }

 private:
  using KvTile = typename DecodeTiles<T>::Tile;

  struct Row {
    QueryTile queries;  ///< one
    Range visited;      ///< the keys worth visiting
    bool dropped_any;   ///< may a key have been dropped inside a tile that was visited?
  };

  /// A block while it is worked on.
  struct BlockState {
    std::span<Row> rows;
    TileMemory<T> m;
    Range visited;    ///< by any of the rows: tiles are cut from it, whoever is worked on together with the block
    Index added = 0;  ///< tiles of keys in the present stretch
    bool has_totals = false;  ///< of stretches before?
  };

  /// The first keys that a part visits.
  KvTile first_keys(const QueryBlocks<T>& blocks, const Part& part) const {
    const QueryTile queries = blocks.at(part.blocks.begin, 0);
    const Index begin = intersect(pass_.visited(queries), splits_.keys(part.part)).begin;
    return key_tiles_.of(queries, {begin, begin + kKeyTile});
  }

  /// See PrefillLoop::run().
  void compute_again(BlockState& block, Index part, const KvTile& following) const {
    const bool may_overflow = on_matrix_unit();
    for (Index r = 0; Row & row : block.rows) {
      const bool again = (may_overflow && !PassContext<T>::is_sound(block.m.sum[r])) ||
                         ((row.dropped_any || may_overflow) && !is_finite(block.m, r));
      if (again) {
        BlockState alone{{&row, 1}, memory_of_row(block.m, r), {}};
        const bool by_selection = row.dropped_any;
        row = begin(row.queries, part, 0, alone.m);
        alone.visited = row.visited;
        visit_keys({&alone, 1}, family_.row, following, by_selection);
      }
      ++r;
    }
  }

  TileMemory<T> memory_of_row(TileMemory<T> m, Index r) const {
    m.query += r * problem_.head_dim;
    m.out += r * problem_.v_dim;
    m.max += r;
    m.sum += r;
    m.sum_rest += r;
    return m;
  }

  /// For so many blocks at a time. Queries are there once more as the matrix unit reads them; see load_queries().
  TileLayout<T> layout(Index blocks) const {
    return TileLayout<T>({.queries = kMost,
                          .query = problem_.head_dim * (on_matrix_unit() ? 4 : 1),
                          .out = problem_.v_dim,
                          .packed_key = packs_keys() ? problem_.head_dim : 0,
                          .packed_value = packs_values() ? problem_.v_dim : 0,
                          .totals = has_totals(problem_.kv_len)},
                         blocks);
  }

  bool is_finite(const TileMemory<T>& m, Index r) const {
    return family_.all_finite({m.out + r * problem_.v_dim, 0}, 1, problem_.v_dim);
  }

  /// The queries of a block, neighbouring heads, once more: as the matrix unit reads them, not scaled.
  void load_queries(std::span<const Row> rows, TileMemory<T>& m) const {
    const KernelFamily<T>& matrix = pass_.kernels.family;
    const Index count = static_cast<Index>(rows.size()), dim = problem_.head_dim, width = matrix.by_vectors[0].queries;
    RowsToRead heads = tensors_.query(rows.front().queries);
    heads.stride = tensors_.q.stride(1);
    // Behind the 16 * head_dim numbers of the queries themselves: 16 arranged, 16 turned and 8 packed.
    m.arranged = m.query + kMost * dim;
    T* packed = m.arranged + width * matrix.format.row(dim);
    if (tensors_.rotation) {
      const Index token = rows.front().queries.rows.begin;
      heads = turned_rows(family_, heads, count, dim, *tensors_.rotation, token, 0, packed);
      packed += count * dim;
    }
    matrix.load_columns(m.arranged, width, rows_of(matrix, heads, count, dim, 1, packed), count, matrix.format.row(dim),
                        T(1));
    m.scale = static_cast<T>(problem_.scale);
  }

  /// The state of row `r` before the keys of a part. What comes before all keys, comes before those of the first.
  Row begin(const QueryTile& queries, Index part, Index r, const TileMemory<T>& m) const {
    T* const query = m.query + r * problem_.head_dim;
    family_.pack_rows(tensors_.query(queries), 1, problem_.head_dim, query);
    if (tensors_.rotation) tensors_.rotation->turn(query, queries.rows.begin);
    for (Index d = 0; d < problem_.head_dim; ++d) query[d] *= static_cast<T>(problem_.scale);
    T* const out = m.out + r * problem_.v_dim;
    if (part == 0) {
      pass_.begin(queries, 1, 1, memory_of_row(m, r));
    } else {
      m.max[r] = -PassContext<T>::kInfinity;
      m.sum[r] = m.sum_rest[r] = 0;
    }
    if (part == 0 && pass_.resumes)
      family_.pack_rows(RowsToRead(tensors_.output(queries)), 1, problem_.v_dim, out);
    else
      std::fill_n(out, problem_.v_dim, T(0));
    return {queries, intersect(pass_.visited(queries), splits_.keys(part)), false};
  }

  /// `whole`: the kernels for whole tiles of keys.
  void visit_keys(std::span<BlockState> blocks, const DecodeKernelSet<T>& whole, const KvTile& following,
                  bool by_selection) const {
    Range all{0, 0};
    for (const BlockState& block : blocks) all = hull(all, block.visited);
    for (Range run{all.begin, 0}; run.begin < all.end; run.begin = run.end) {
      run.end = blocks.size() > 1
                    ? std::min((run.begin / key_tiles_.run_length() + 1) * key_tiles_.run_length(), all.end)
                    : all.end;
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const Range own = intersect(run, blocks[i].visited);
        for (Range keys = key_tiles_.first(own); !keys.empty(); keys = key_tiles_.next(keys, own))
          visit_tile(blocks[i], keys,
                     keys.end < own.end ? key_tiles_.of(blocks[i].rows.front().queries, key_tiles_.next(keys, own))
                                        : next_turn(blocks, i, run, all, following),
                     keys.size() == kKeyTile ? whole : family_.row, by_selection);
      }
    }
    for (BlockState& block : blocks) {
      if (block.has_totals) end_stretch(block);
      family_.finish(block.m, static_cast<Index>(block.rows.size()), problem_.v_dim, block.has_totals);
    }
  }

  /// The output of a block joins the totals, and another begins.
  void end_stretch(BlockState& block) const {
    const Index count = static_cast<Index>(block.rows.size());
    family_.end_stretch(block.m, count, problem_.v_dim, OutLayout::by_query, !std::exchange(block.has_totals, true));
    std::fill_n(block.m.out, count * problem_.v_dim, T(0));
    block.added = 0;
  }

  /// What block `i` is followed by when its keys of a run are done.
  KvTile next_turn(std::span<const BlockState> blocks, std::size_t i, const Range& run, const Range& all,
                   const KvTile& following) const {
    const bool same_run = i + 1 < blocks.size();
    if (!same_run && run.end == all.end) return following;
    const BlockState& next = blocks[same_run ? i + 1 : 0];
    const Range keys = same_run ? run : Range{run.end, all.end};
    return key_tiles_.of(next.rows.front().queries, key_tiles_.first(intersect(keys, next.visited)));
  }

  void visit_tile(BlockState& block, const Range& keys, const KvTile& next, const DecodeKernelSet<T>& kernels,
                  bool by_selection) const {
    Array<Coverage, kMost> coverage;
    bool any = false;
    for (Index r = 0; const Row& row : block.rows) {
      coverage[r] = pass_.coverage(row.queries, row.visited, keys);
      any |= coverage[r++] != Coverage::none;
    }
    if (!any) return;
    if (block.added == kStretch) end_stretch(block);
    ++block.added;
    add_keys(block.rows, coverage, keys, next, block.m, kernels, by_selection);
  }

  /// One step of the recurrence: brings max, sum and out up to date with some keys and values.
  void add_keys(std::span<Row> rows, const Coverage* coverage, const Range& keys, const KvTile& next,
                const TileMemory<T>& m, const DecodeKernelSet<T>& kernels, bool by_selection) const {
    const Index count = keys.size(), row_count = static_cast<Index>(rows.size());
    const KvTile tile = key_tiles_.of(rows.front().queries, keys);
    const RowsToRead key = key_tiles_.keys(family_, tile, m.packed_key),
                     value = key_tiles_.values(family_, tile, m.packed_value);
    Prefetcher fetching = key_tiles_.fetching(next);
    kernels.score(m, row_count, key, count, problem_.head_dim, fetching);
    key_tiles_.multiply_by_key_scales(tile, row_count, m.scores);
    for (Index r = 0; Row & row : rows) {
      T* const scores = m.scores + r * kKeyTile;
      if (coverage[r] == Coverage::none) {
        std::fill_n(scores, count, -PassContext<T>::kInfinity);
        row.dropped_any = true;
      } else if (coverage[r] == Coverage::some || pass_.has_scores()) {
        pass_.mods->apply(pass_.kernels.isa, scores, 1, pass_.pairs(row.queries, keys), coverage[r] == Coverage::some);
        row.dropped_any = true;  // a changed score may be -inf
      }
      if (by_selection)
        for (Index i = 0; i < count; ++i) m.dropped[i] = scores[i] == -PassContext<T>::kInfinity;
      kernels.softmax(m, r++, count, fetching);
    }
    key_tiles_.multiply_by_value_scales(tile, row_count, m.scores);
    if (by_selection)
      value_of_kept(m, value, count);
    else
      kernels.value(m, row_count, value, count, problem_.v_dim, fetching);
  }

  /// As the kernel value(), for one row, but a dropped pair is not even multiplied.
  void value_of_kept(const TileMemory<T>& m, const RowsToRead& value, Index keys) const {
    for (Index c = 0; c < problem_.v_dim; ++c) {
      T sum = 0;
      for (Index j = 0; j < keys; ++j)
        if (!m.dropped[j]) sum += m.scores[j] * load_number<T>(value, j, c);
      m.out[c] = m.out[c] * m.rescale[0] + sum;
    }
  }

  /// out / sum and the log-sum-exp of each query; 0 where no key was kept.
  void store_results(const QueryBlocks<T>& blocks, Index block, const TileMemory<T>& m) const {
    for (Index r = 0; r < blocks.size(block); ++r) {
      const QueryTile queries = blocks.at(block, r);
      T* const out = m.out + r * problem_.v_dim;
      const T inverse = m.sum[r] == T(0) ? T(0) : T(1) / m.sum[r];
      for (Index c = 0; c < problem_.v_dim; ++c) out[c] *= inverse;
      family_.unpack_rows(out, 1, problem_.v_dim, tensors_.output(queries));
      pass_.store_lse(queries, m.max + r, m.sum + r);
    }
  }

  const PassContext<T>& pass_;
  const CallTensors<T>& tensors_;
  const Problem& problem_;
  const KernelFamily<T>& family_;
  DecodeTiles<T> key_tiles_;
  KvSplits<T> splits_;
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
