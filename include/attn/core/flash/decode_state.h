// The state of a block of single queries, and the recurrence of the online softmax over their keys.
#pragma once

#include <span>
#include <utility>

#include "attn/core/flash/decode_tiles.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The state of up to kMost queries, one per row, and the kernels that update it. Shapes are those of DecodeKernels.
template <class T>
class DecodeState {
 public:
  /// The matrix unit takes 16 queries at a time. The other kernels take four at a time, but a tile of keys is fetched
  /// from memory only once for all 16. Results depend on the limit: it decides which queries form a block, and the
  /// first key of a block decides where its tiles begin. So the limit does not depend on the number of workers.
  static constexpr Index kMost = 16;
  using KvTile = typename DecodeTiles<T>::KvTile;
  using TileRows = typename DecodeTiles<T>::TileRows;

  struct Row {
    QueryTile queries;  ///< a single query
    Range visited;      ///< the keys worth visiting
    bool dropped_any;   ///< whether a key may have been dropped inside a visited tile
  };

  /// Begins the queries whose batch, head and row index are in `rows`; they visit the part of `keys` that they see.
  /// Sinks, and a result that the call adds to, are included only with the first keys (`is_first`). `m` has space for
  /// `most` queries.
  DecodeState(const PassContext<T>& pass, const DecodeTiles<T>& tiles, std::span<Row> rows, const Range& keys,
              bool is_first, const TileMemory<T>& m, Index most)
      : pass_(&pass),
        tiles_(&tiles),
        rows_(rows),
        m_(m),
        most_(most),
        tile_kernels_(&full_precision().decode),
        kept_factor_(pass.kept_factor()) {
    if (pass.tensors.score) m_.score_weight = m_.query + most_ * problem().head_dim;
    for (Index r = 0; Row & row : rows_) begin(row, keys, is_first, r++);
    visited_ = hull_of_visited(rows_);
  }

  std::span<const Row> rows() const { return rows_; }
  /// The keys that at least one row visits. This range is split into tiles, independently of the other blocks of the
  /// same task.
  const Range& visited() const { return visited_; }
  const TileMemory<T>& memory() const { return m_; }
  /// The first query; all queries of the block read the same keys.
  const QueryTile& any_query() const { return rows_.front().queries; }

  /// Uses the matrix unit for whole tiles of keys from now on. Its kernels read the queries, those of
  /// neighbouring heads, in a different format and unscaled.
  void use_matrix_unit() {
    const KernelFamily<T>& matrix = pass_->kernels.family;
    const CallTensors<T>& tensors = pass_->tensors;
    const Index count = size(), dim = problem().head_dim, width = matrix.by_vectors[0].queries;
    tile_kernels_ = &matrix.decode;
    RowsToRead heads = tensors.query(any_query());
    heads.stride = tensors.q.stride(1) * problem().head_step();
    // After the 16 rows of head_dim elements of the queries themselves: 16 arranged, 16 rotated and 8 packed rows.
    m_.arranged_query = m_.query + most_ * dim;
    T* packed = m_.arranged_query + width * matrix.format.row(dim);
    if (tensors.rotation) {
      heads =
          rotated_rows(full_precision(), heads, count, dim, *tensors.rotation, tensors.token(any_query()), 0, packed);
      packed += count * dim;
    }
    matrix.load_columns(m_.arranged_query, width, rows_of(matrix, heads, count, dim, 1, packed), count,
                        matrix.format.row(dim), T(1));
    m_.scale = static_cast<T>(problem().scale);
  }

  /// Multiplies values as integers from now on, and keys too if all queries can be converted to integers.
  void use(const DotKernels<T>& dots) {
    const Index dim = problem().head_dim;
    m_.arranged_query = m_.query + most_ * dim;  // after the queries themselves
    value_dots_ = score_dots_ = &dots;
    for (Index r = 0; r < size(); ++r)
      if (!dots.arrange_query(m_.query + r * dim, dim, m_.arranged_query + r * (dim + dots.query_header)))
        score_dots_ = nullptr;
  }

  /// One step of the recurrence: updates max, sum and out with some keys and values, unless all are dropped. It also
  /// prefetches `next`. `by_selection`, for a single row: dropped pairs are skipped, not multiplied by 0. Several tiles
  /// are processed together if all rows keep all of their keys, otherwise one by one, because some keys may be dropped.
  void add_keys(const Range& keys, const KvTile& next, bool by_selection) {
    const auto cover = [&](const Range& of, Array<Coverage, kMost>& coverage) {
      Coverage least = Coverage::all, most = Coverage::none;
      for (Index r = 0; const Row& row : rows_) {
        coverage[r] = pass_->coverage(row.queries, row.visited, of);
        least = std::min(least, coverage[r]), most = std::max(most, coverage[r++]);
      }
      return std::pair{least, most};
    };
    Array<Coverage, kMost> coverage;
    const auto [least, most] = cover(keys, coverage);
    if (most == Coverage::none) return;
    if (tiles_->first(keys) == keys || least == Coverage::all) return add_covered(coverage, keys, next, by_selection);
    for (Range tile = tiles_->first(keys), following; !tile.empty(); tile = following) {
      following = tiles_->next(tile, keys);
      if (cover(tile, coverage).second != Coverage::none)
        add_covered(coverage, tile, following.empty() ? next : tiles_->of(any_query(), following), by_selection);
    }
  }

  /// Ends the recurrence after all keys.
  void finish() {
    if (has_totals_) end_stretch();
    full_precision().finish(m_, size(), problem().v_dim, has_totals_);
    full_precision().multiply(m_.out, m_.out, size() * problem().v_dim, kept_factor_);
  }

  bool must_compute_again(Index r) const {
    return detail::must_compute_again(pass_->kernels, tile_kernels_ != &full_precision().decode,
                                      rows_[at(r)].dropped_any, m_.sum + r, 1, m_.out + r * problem().v_dim,
                                      problem().v_dim);
  }
  /// Row r as a separate block in the same memory, restarted over `keys` in full precision.
  DecodeState restarted(Index r, const Range& keys, bool is_first) {
    return {*pass_, *tiles_, rows_.subspan(at(r), 1), keys, is_first, memory_of_row(r), most_};
  }

 private:
  const Problem& problem() const { return pass_->problem(); }
  const KernelFamily<T>& full_precision() const { return pass_->kernels.full_precision; }
  Index size() const { return static_cast<Index>(rows_.size()); }
  static std::size_t at(Index r) { return static_cast<std::size_t>(r); }

  TileMemory<T> memory_of_row(Index r) const {
    TileMemory<T> m = m_;
    m.query += r * problem().head_dim;
    m.out += r * problem().v_dim;
    m.max += r;
    m.sum += r;
    m.sum_rest += r;
    return m;
  }

  void begin(Row& row, const Range& keys, bool is_first, Index r) {
    const CallTensors<T>& tensors = pass_->tensors;
    const Index head_dim = problem().head_dim, v_dim = problem().v_dim;
    const TileMemory<T> m = memory_of_row(r);
    pass_->load_query(row.queries, m.query);
    // Rows may belong to several heads: the score weights of each are stored after the queries.
    if (tensors.score) std::copy_n(tensors.score->of(row.queries.head), head_dim, m.query + most_ * head_dim);
    if (is_first)
      pass_->begin(row.queries, 1, 1, m);
    else
      pass_->begin_later(1, m);
    if (is_first && pass_->resumes && *m.sum != T(0)) {
      full_precision().pack_rows(RowsToRead(tensors.output(row.queries)), 1, v_dim, m.out);
      full_precision().multiply(m.out, m.out, v_dim, *m.sum * static_cast<T>(inverse_of(kept_factor_)));
    } else {
      std::fill_n(m.out, v_dim, T(0));
    }
    row.visited = intersect(pass_->visited(row.queries), keys);
    row.dropped_any = false;
  }

  /// Keys that are processed together, and what follows them.
  struct Step {
    Range keys;
    KvTile first, coming;  ///< the first tile of this step and of the next one
    Index tiles;
    bool by_selection;
    const DecodeKernelSet<T>& kernels;
    Prefetcher fetching;
  };

  /// `coverage`: the coverage of `keys`, one per row.
  void add_covered(const Coverage* coverage, const Range& keys, const KvTile& next, bool by_selection) {
    const KvTile first = first_of(tiles_->of(any_query(), keys));
    Step step{keys,
              first,
              first_of(next),
              ceil_div(keys.end - first.keys.end, kKeyTile) + 1,
              by_selection,
              keys.size() == kKeyTile ? *tile_kernels_ : full_precision().decode,
              {}};
    if (added_ + step.tiles > kStretch) end_stretch();
    added_ += step.tiles;
    // A step of one tile prefetches the next step's first tile. A longer step prefetches, during each product, the rows
    // that are multiplied soon after.
    if (step.tiles == 1) tiles_->fetch(step.fetching, step.coming);
    score(step);
    for (Index r = 0; r < size(); ++r) weigh(r, coverage[r], step);
    add_values(step);
  }

  /// Turns queries into scores.
  void score(Step& step) {
    for_each_tile(step.keys, [&](const KvTile& tile, const KvTile& following) {
      const TileRows now = tiles_->keys_of(tile);
      for_each_piece(now, following.keys.empty() ? tiles_->values_of(step.first) : tiles_->keys_of(following),
                     m_.packed_key, step, [&](const RowsToRead& key, Index keys) {
                       const auto score = score_dots_ ? score_dots_->score : step.kernels.score_of(key.dtype);
                       score(m_, size(), key, keys, problem().head_dim, step.fetching);
                     });
      tiles_->multiply_by_scales(now, size(), m_, value_dots_);
    });
  }

  /// Turns the scores of row r into weights: mods, softmax, dropout.
  void weigh(Index r, Coverage coverage, Step& step) {
    Row& row = rows_[at(r)];
    T* const scores = m_.scores + r * m_.row;
    const Index count = step.keys.size();
    if (coverage == Coverage::none) {
      std::fill_n(scores, count, -PassContext<T>::kInfinity);
      row.dropped_any = true;
    } else if (pass_->changes_scores(coverage)) {
      pass_->apply_mods(scores, 1, row.queries, step.keys, coverage);
      row.dropped_any = true;  // a changed score may be -inf
    }
    if (step.by_selection)
      for (Index i = 0; i < count; ++i) m_.dropped[i] = scores[i] == -PassContext<T>::kInfinity;
    step.kernels.softmax(m_, r, count, step.fetching);
    if (kept_factor_ != T(1)) pass_->drop_weights(scores, WeightOrder::one_query, 1, row.queries, step.keys);
  }

  /// Adds the weighted values tile by tile, so that small weights are not lost when they are added to a large sum.
  void add_values(Step& step) {
    for_each_tile(step.keys, [&](const KvTile& tile, const KvTile& following) {
      const TileRows now = tiles_->values_of(tile);
      tiles_->multiply_by_scales(now, size(), m_, value_dots_);
      for_each_piece(now, following.keys.empty() ? tiles_->keys_of(step.coming) : tiles_->values_of(following),
                     m_.packed_value, step, [&](const RowsToRead& value, Index keys) {
                       const Index dim = problem().v_dim;
                       if (step.by_selection)
                         add_values_of_kept(value, keys);
                       else if (!value_dots_ || !value_dots_->value(m_, size(), value, keys, dim, step.fetching))
                         step.kernels.value_of(value.dtype)(m_, size(), value, keys, dim, step.fetching);
                     });
      std::fill_n(m_.rescale, size(), T(1));
    });
  }

  /// Calls multiply(rows, their number) for the rows of a tile, which are in place, copied to `packed`, or in several
  /// runs, while those read next are prefetched. During each call, m_.scores are those of the rows, and m_.run is their
  /// position in the tile.
  template <class Multiply>
  void for_each_piece(TileRows now, TileRows after, T* packed, Step& step, const Multiply& multiply) {
    const Index count = now.tile->keys.size();
    const bool in_runs = tile_kernels_ == &full_precision().decode && !value_dots_ && !step.by_selection &&
                         tiles_->reads_runs(*now.of, size());
    if (step.tiles > 1) tiles_->fetch(step.fetching, now, after, in_runs);
    if (!in_runs) return multiply(tiles_->rows(full_precision(), now, after, packed, step.fetching), count);
    T* const scores = m_.scores;
    tiles_->for_each_run(now, [&](const RowsToRead& rows, const Range& run) {
      m_.scores = scores + run.begin;
      m_.run = {run.begin == 0, run.end == count};
      multiply(rows, run.size());
    });
    m_.scores = scores;
    m_.run = {};
  }

  /// Calls visit(tile, next tile) for the tiles of a step. During each visit, m_.scores and m_.dropped are those of the
  /// tile.
  template <class Visit>
  void for_each_tile(const Range& keys, const Visit& visit) {
    for (Range tile = tiles_->first(keys), next; !tile.empty(); tile = next) {
      next = tiles_->next(tile, keys);
      visit(tiles_->of(any_query(), tile), tiles_->of(any_query(), next));
      m_.scores += tile.size(), m_.dropped += tile.size();
    }
    m_.scores -= keys.size(), m_.dropped -= keys.size();
  }
  KvTile first_of(KvTile step) const {
    step.keys = tiles_->first(step.keys);
    return step;
  }

  /// Like the kernel value(), for one row, but skips dropped pairs instead of multiplying them by 0.
  void add_values_of_kept(const RowsToRead& value, Index keys) {
    for (Index c = 0; c < problem().v_dim; ++c) {
      T sum = 0;
      for (Index j = 0; j < keys; ++j)
        if (!m_.dropped[j]) sum += m_.scores[j] * load_number<T>(value, j, c);
      m_.out[c] = m_.out[c] * m_.rescale[0] + sum;
    }
  }

  /// Adds the output to the totals, and clears it.
  void end_stretch() {
    full_precision().end_stretch(m_, size(), problem().v_dim, OutLayout::by_query, !std::exchange(has_totals_, true));
    std::fill_n(m_.out, size() * problem().v_dim, T(0));
    added_ = 0;
  }

  const PassContext<T>* pass_;
  const DecodeTiles<T>* tiles_;
  std::span<Row> rows_;
  TileMemory<T> m_;
  Index most_;  ///< queries that the memory has space for
  Range visited_;
  const DecodeKernelSet<T>* tile_kernels_;     ///< the kernels for whole tiles of keys
  const DotKernels<T>* score_dots_ = nullptr;  ///< null: keys are multiplied as floats
  const DotKernels<T>* value_dots_ = nullptr;
  T kept_factor_;            ///< factor that the output must still be multiplied by; see PassContext
  Index added_ = 0;          ///< tiles of keys in the current stretch
  bool has_totals_ = false;  ///< whether an earlier stretch has ended
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
