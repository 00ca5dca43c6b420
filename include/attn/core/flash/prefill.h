// The loop over tiles of queries and tiles of keys: attention of many queries at a time.
#pragma once

#include <algorithm>
#include <limits>
#include <span>
#include <utility>

#include "attn/core/base/fixed_vector.h"
#include "attn/core/base/ranges.h"
#include "attn/core/flash/kv_splits.h"
#include "attn/core/flash/pass.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

constexpr Index kNoStretch = std::numeric_limits<Index>::min();

/// Splits the keys of a pass into tiles, and loads them: kernels read a tile in the caller's memory if they can,
/// otherwise it is packed.
template <class T>
class PrefillTiles {
 public:
  /// Number of key tiles that a tile of queries visits before the next tile of queries takes its place in L1. With two
  /// or with eight, the matrix unit is 5 % slower; eight evict the weights from L1.
  static constexpr Index kChunk = 4;

  /// A tile of keys and values.
  struct KvTile {
    Range keys;
    Index first;  ///< row in the memory of a chunk, where tiles are padded to a multiple of what kernels read
    bool loaded;  ///< whether `key` and `value` are set
    Rows<T> key, value;
  };

  explicit PrefillTiles(const PassContext<T>& pass)
      : tensors_(pass.tensors),
        problem_(pass.problem()),
        format_(pass.kernels.family.format),
        first_position_(pass.first_position()),
        aligned_(packs() || tensors_.k.is_paged() || tensors_.k.is_gathered() || problem_.row_invariant),
        spans_stretches_(pass.spans_stretches()),
        merges_stretches_(pass.merges_stretches()) {}

  /// See PassContext.
  bool merges_stretches() const { return merges_stretches_; }

  bool packs_keys() const { return packs(format_, tensors_.k); }
  bool packs_values() const { return packs(format_, tensors_.v) || format_.arranges_values; }
  bool packs() const { return packs_keys() || packs_values(); }

  /// Calls visit(keys) for each tile of a range. If keys are packed, tiles begin at multiples of their length, because
  /// results must not depend on how many tiles of queries a block has. bf16 kernels always get whole tiles: they sum 32
  /// keys, or pairs of keys, before they round, and scale masked tiles in a separate step.
  template <class Visit>
  void for_each(Range all, const Visit& visit) const {
    if (format_.keys > 1 && !all.empty())
      all = {all.begin / kKeyTile * kKeyTile, std::min(padded(all.end, kKeyTile), problem_.kv_len)};
    for (Index j = all.begin, end; j < all.end; j = end) {
      end = std::min(j + kKeyTile - (aligned_ ? floor_mod(j + first_position_, kKeyTile) : 0), all.end);
      visit(Range{j, end});
    }
  }

  /// Calls visit(tiles) for each chunk of a range. The tiles are not loaded yet.
  template <class Visit>
  void for_each_chunk(const KernelFamily<T>& family, const Range& all, const Visit& visit) const {
    Array<KvTile, kChunk> room;
    Index count = 0, rows = 0;
    const auto visit_chunk = [&] {
      visit(std::span(room, static_cast<std::size_t>(count)));
      count = rows = 0;
    };
    for_each(all, [&](const Range& keys) {
      room[count++] = {keys, rows, false, {}, {}};
      rows += padded(keys.size(), family.format.keys);
      if (count == kChunk) visit_chunk();
    });
    if (count > 0) visit_chunk();
  }

  /// The part of a tile's keys that is processed with queries that visit the keys `visited`.
  static Range shown(const KernelFamily<T>& family, const Range& keys, const Range& visited) {
    return family.format.keys > 1 ? keys : intersect(keys, visited);
  }

  /// The part `keys` of a tile. Keys that only another tile of queries visits must not affect this tile of queries,
  /// even if these keys are NaN.
  static KvTile part_of(const KvTile& tile, const Range& keys) {
    KvTile part = tile;
    part.keys = keys;
    if (keys == tile.keys) return part;
    part.key.data += (keys.begin - tile.keys.begin) * part.key.stride;
    part.value.data += (keys.begin - tile.keys.begin) * part.value.stride;
    return part;
  }

  /// Loads a tile for the kernels of `family`: in place, or packed into `m`, the memory of `queries`.
  void load(const KernelFamily<T>& family, const QueryTile& queries, const TileMemory<T>& m, KvTile& tile) const {
    const Format& format = family.format;
    const Index batch = queries.batch, kv_head = problem_.kv_head(queries.head), count = tile.keys.size();
    tile.key = kv_rows_of(family, tensors_.k, batch, kv_head, tile.keys, format.keys,
                          m.packed_key + tile.first * format.row(problem_.head_dim));
    tile.value = kv_rows_of(family, tensors_.v, batch, kv_head, tile.keys, 1,
                            m.packed_value + tile.first * format.row(problem_.v_dim));
    tile.value = family.arrange_values(tile.value, count, problem_.v_dim,
                                       m.arranged_value + tile.first * format.row(problem_.v_dim));
    tile.loaded = true;
  }

  /// The layout of a worker's memory for `tiles` tiles of up to `queries` queries.
  TileLayout<T> layout(const KernelFamily<T>& family, Index queries, Index tiles) const {
    const Format& format = family.format;
    const Index row = format.row(problem_.head_dim), value_row = format.row(problem_.v_dim);
    const bool has_queries = copies_queries(format, tensors_.q) || tensors_.rotation ||
                             tensors_.q_list.exists();  // queries are copied to the memory of packed keys
    const bool packs_keys = packs(format, tensors_.k) || format.keys > 1 || has_queries;
    const Index whole = (packs() ? kChunk : 1) * kKeyTile, keys = std::min(whole, padded(problem_.kv_len, format.keys));
    return TileLayout<T>({.queries = queries,
                          .query = row,
                          .out = padded(problem_.v_dim, format.out),
                          .packed_key = packs_keys ? row : 0,
                          .packed_value = packs(format, tensors_.v) ? value_row : 0,
                          .arranged_value = format.arranges_values ? value_row : 0,
                          .weights = format.defers_value_product ? queries / format.per_number() : 0,
                          .chunk = has_queries ? whole : keys,
                          .totals = merges_stretches_ || spans_stretches_,
                          .whole_sum = problem_.changes_weights},
                         tiles);
  }

 private:
  /// Whether kernels cannot read every tile in place.
  bool packs(const Format& format, const KvRows<T>& t) const {
    return !in_place(format, t) || t.splits_tiles_of(kKeyTile, first_position_);
  }

  const CallTensors<T>& tensors_;
  const Problem& problem_;
  const Format& format_;
  Index first_position_;                     ///< see PassContext
  bool aligned_;                             ///< whether tiles of keys begin at multiples of their length
  bool spans_stretches_, merges_stretches_;  ///< see PassContext
};

/// The state of a tile of queries, and the kernels that update it. Shapes are those of TileMemory.
template <class T>
class PrefillState {
 public:
  using KvTile = typename PrefillTiles<T>::KvTile;

  /// The state before the first of `keys`, of which the queries visit those that they see.
  PrefillState(const PassContext<T>& pass, const KernelFamily<T>& family, const QueryTile& of, const Range& keys,
               const TileMemory<T>& m, bool merges_stretches)
      : queries(of),
        visited(intersect(pass.visited(of), keys)),
        pass_(&pass),
        family_(&family),
        kernels_(&family.set_for(of.rows.size())),
        m_(m),
        update_(pass.resumes && !merges_stretches ? OutUpdate::add : OutUpdate::overwrite),
        kept_factor_(pass.kept_factor()),
        merges_(merges_stretches),
        sums_only_(problem().changes_weights && !problem().sigmoid_bias) {
    load_queries();
    std::fill_n(m_.excess, width(), T(0));
    if (pass.tensors.score) m_.score_weight = pass.tensors.score->of(of.head);
    if (merges_) {
      if (pass.resumes)
        load_out(full_precision(), m_, width(), pass.tensors.output(queries), queries.rows.size(), problem().v_dim);
      pass.load_totals(queries, queries.rows.size(), width(), m_);
      pass.begin_later(width(), m_);
    } else {
      pass.begin(queries, queries.rows.size(), width(), m_);
      if (pass.resumes) load_output();
    }
    if (sums_only_) std::fill_n(m_.out, problem().v_dim * width(), T(0));
    if (problem().changes_weights) std::fill_n(m_.whole_sum, width(), T(1));  // as it remains for sigmoids
  }

  /// Whether this sweep over the keys computes only the sums by which weights are divided, so that mods can change the
  /// weights in a second sweep.
  bool sums_only() const { return sums_only_; }

  /// Stores the log-sum-exps, and begins the second sweep, after finish(). Its maxima are those of all keys from the
  /// start. With row_invariant, weights are relative to the lse, which does not depend on whether stretches are merged.
  void begin_weights() {
    store_lse();
    for (Index i = 0; problem().row_invariant && i < width(); ++i) {
      const SoftmaxState<T> state{m_.max[i], m_.sum[i]};
      T lse = state.lse(), rest = KeptLseRests<T>::is_small(lse) ? T(0) : state.lse_rest();
      if (merges_) lse = m_.totals.max[i], rest = m_.totals.out_rest[i];
      const auto all = SoftmaxState<T>::of(lse, rest);
      m_.max[i] = all.max, m_.sum[i] = all.sum;
    }
    std::copy_n(m_.sum, width(), m_.whole_sum);
    std::fill_n(m_.sum_rest, width(), T(0));
    update_ = OutUpdate::overwrite;
    stretch_ = kNoStretch;
    has_totals_ = merges_ = sums_only_ = false;
  }

  QueryTile queries;
  Range visited;  ///< the keys worth visiting

  const KernelFamily<T>& family() const { return *family_; }
  const TileMemory<T>& memory() const { return m_; }

  /// One step of the recurrence: adds a tile of keys. max and sum are updated now; `out` is updated now, or later, when
  /// the weights of several tiles are multiplied together. `ahead` is prefetched during that product.
  void add_keys(const KvTile& tile, Coverage coverage, bool by_selection, const PrefetchPlan& ahead) {
    const Index count = tile.keys.size(), v_dim = problem().v_dim;
    const bool modded = pass_->changes_scores(coverage);
    const Index stretch = stretch_at(pass_->first_position() + tile.keys.begin);
    if (stretch_ != kNoStretch && stretch_ != stretch) end_stretch();
    stretch_ = stretch;
    TileMemory<T> m = m_;
    m.weights = weights_of(tile.first);
    kernels_->score(m, tile.key, count, problem().head_dim);
    if (modded) {
      family_->scale_scores(m, count);
      pass_->apply_mods(m.scores, width(), queries, tile.keys, coverage);
      family_->find_max(m, width(), count);
    }
    dropped_any_ |= modded;  // a changed score may be -inf
    const bool changes_weights = problem().changes_weights && !sums_only_;
    const bool select = modded && by_selection && !sums_only_ && !family_->all_finite(tile.value, count, v_dim);
    if (select || changes_weights) family_->find_dropped(m, width(), count);
    const bool moved = kernels_->softmax(m, count, tile.value, v_dim);
    if (changes_weights) pass_->change_weights(m, width(), queries, tile.keys);
    if (kept_factor_ != T(1) && !sums_only_)
      pass_->drop_weights(m.weights, order_of_weights(), width(), queries, tile.keys);
    if (moved) multiply(ahead);  // pending weights, if any (in bf16), are relative to the old maximum
    if (moved && update_ == OutUpdate::add) update_ = OutUpdate::rescale_and_add;
    if (select) {
      family_->value_by_selection(m, width(), tile.value, count, v_dim, update_);
      update_ = OutUpdate::add;
      return;
    }
    if (waiting_ == 0) {
      value_ = tile.value;
      first_ = tile.first;
    }
    waiting_ += padded(count, family_->format.keys);
    if (!family_->format.defers_value_product || update_ == OutUpdate::rescale_and_add) multiply(ahead);
  }

  /// Updates `out`: multiplies the pending weights by their values.
  void multiply(const PrefetchPlan& ahead) {
    if (sums_only_) waiting_ = 0;
    if (waiting_ == 0) return;
    TileMemory<T> m = m_;
    m.weights = weights_of(first_);
    kernels_->value(m, value_, waiting_, problem().v_dim, update_, ahead);
    update_ = OutUpdate::add;
    waiting_ = 0;
  }

  /// Ends the recurrence after the last key.
  void finish() {
    if (update_ == OutUpdate::overwrite) std::fill_n(m_.out, problem().v_dim * width(), T(0));
    if (merges_) {
      merge_stretch();
      std::copy_n(m_.totals.out, problem().v_dim * width(), m_.out);
      for (Index i = 0; i < width(); ++i) m_.sum[i] = m_.totals.max[i] == -PassContext<T>::kInfinity ? T(0) : T(1);
      return;
    }
    if (has_totals_) end_stretch();
    full_precision().finish(m_, width(), problem().v_dim, has_totals_);
    multiply_out(kept_factor_);
    if (problem().changes_weights && !sums_only_)  // the weights were divided by the sums
      for (Index i = 0; i < width(); ++i) m_.sum[i] = m_.whole_sum[i] == T(0) ? T(0) : T(1);
  }

  bool must_compute_again() const {
    return detail::must_compute_again(pass_->kernels, family_ != &full_precision(), dropped_any_, m_.sum, width(),
                                      m_.out, problem().v_dim * width());
  }

  /// Stores out / sum, or 0 if no key was kept, and the log-sum-exps.
  void store_result() const {
    if (!problem().changes_weights) store_lse();  // otherwise, the first sweep has stored them
    // Divided by the sum of its own weights, `out` is an average, exact for what all values have in common: gradients
    // of parts of the keys need that.
    for (Index i = 0; i < width(); ++i) m_.sum[i] += m_.excess[i];
    store_out(full_precision(), m_, width(), pass_->tensors, queries);
  }
  /// Stores the state after a split of the keys; see KvSplits. `out` is scaled by sum / (sum + excess), because merge()
  /// divides it by sums without the excess.
  void store_partial(const KvSplits<T>& splits, Index split, std::byte* partials) const {
    for (Index i = 0; i < width(); ++i)
      for (Index c = 0; m_.excess[i] != T(0) && c < problem().v_dim; ++c)
        m_.out[c * width() + i] *= m_.sum[i] / (m_.sum[i] + m_.excess[i]);
    splits.store_partial(m_, width(), split, partials);
  }

 private:
  const Problem& problem() const { return pass_->problem(); }
  const KernelFamily<T>& full_precision() const { return pass_->kernels.full_precision; }
  Index width() const { return kernels_->queries; }

  /// The weights of the keys from row `first` of a chunk on.
  T* weights_of(Index first) const {
    const Format& format = family_->format;
    return format.defers_value_product ? m_.weights + first * width() / format.per_number() : m_.weights;
  }

  WeightOrder order_of_weights() const {
    return family_->format.dtype == DType::native ? WeightOrder::keys_by_queries : WeightOrder::bf16_pairs;
  }

  void load_queries() {
    const CallTensors<T>& tensors = pass_->tensors;
    const Index count = queries.rows.size(), dim = problem().head_dim;
    const T scale = static_cast<T>(problem().scale);
    if (tensors.q_list.exists())
      return load_query(*family_, gathered_queries(*family_, tensors, queries, m_.packed_key), count, dim, scale,
                        width(), m_);
    RowsToRead rows = tensors.query(queries);
    T* packed = m_.packed_key;
    // Rotated rows, followed by packed ones, also fit into the memory of packed keys: a chunk has far more keys than a
    // tile has queries.
    if (tensors.rotation) {
      rows = rotated_rows(full_precision(), rows, count, dim, *tensors.rotation, tensors.token(queries),
                          tensors.rows_are_heads ? 0 : 1, packed);
      packed += count * dim;
    }
    load_query(*family_, rows, count, dim, scale, width(), packed, m_);
  }

  /// Loads the result of the earlier passes. Padding, and queries for which those passes kept no key, get zeros.
  void load_output() {
    const Index v_dim = problem().v_dim, rest = padded(v_dim, family_->format.out) - v_dim;
    load_out(full_precision(), m_, width(), pass_->tensors.output(queries), queries.rows.size(), v_dim);
    std::fill_n(m_.out + v_dim * width(), rest * width(), T(0));
    for (Index i = 0; i < queries.rows.size(); ++i)
      for (Index c = 0; m_.sum[i] != T(1) && c < v_dim; ++c) {
        T& x = m_.out[c * width() + i];
        x = m_.sum[i] == T(0) ? T(0) : x * m_.sum[i];
      }
    multiply_out(static_cast<T>(inverse_of(kept_factor_)));
  }

  void store_lse() const {
    if (merges_)
      pass_->store_lse(queries, m_.totals);
    else
      pass_->store_lse(queries, m_.max, m_.sum);
  }

  void multiply_out(T factor) { full_precision().multiply(m_.out, m_.out, problem().v_dim * width(), factor); }

  /// Adds the output to the totals, and begins another stretch.
  void end_stretch() {
    multiply(kNoPlan);
    if (merges_) {
      merge_stretch();
      pass_->begin_later(width(), m_);
    } else {
      full_precision().end_stretch(m_, width(), problem().v_dim, OutLayout::by_column,
                                   !std::exchange(has_totals_, true));
    }
    update_ = OutUpdate::overwrite;
  }

  /// For PassContext::merges_stretches().
  void merge_stretch() {
    full_precision().finish(m_, width(), problem().v_dim, false);
    multiply_out(kept_factor_);
    full_precision().merge_stretch(m_, width(), problem().v_dim, problem().sigmoid_bias.has_value());
    std::fill_n(m_.excess, width(), T(0));
  }

  const PassContext<T>* pass_;
  const KernelFamily<T>* family_;
  const KernelSet<T>* kernels_;
  TileMemory<T> m_;
  OutUpdate update_;            ///< how the next product of weights and values updates `out`
  bool dropped_any_ = false;    ///< whether a pair may have been dropped inside a tile of keys that was added
  T kept_factor_;               ///< factor that the output must still be multiplied by; see PassContext
  Rows<T> value_{};             ///< values whose weights are pending
  Index first_ = 0;             ///< row of the first of these in the chunk
  Index waiting_ = 0;           ///< number of these values
  Index stretch_ = kNoStretch;  ///< number of the current stretch of keys
  bool has_totals_ = false;     ///< whether an earlier stretch has ended
  bool merges_;                 ///< see PassContext::merges_stretches()
  bool sums_only_;              ///< see sums_only()
};

/// Plans what to prefetch while `queries` visit `keys`: the rows that are needed next and are not in the cache yet.
/// `visited` are all keys that these queries visit, `following` the queries that come next, and `tiles` is the number
/// of query tiles per head.
///
/// Without prefetches, 16 to 48 queries over 8192 to 32768 keys took 1.2 to 1.5 times as long (Emerald Rapids, AVX-512;
/// with AVX2 1.07 to 1.14 times), and heads of 128 to 512 tokens, whose keys are in L2, 1.05 times.
template <class T>
PrefetchPlan plan_prefetch(const PassContext<T>& pass, Index tiles, const QueryTile& queries,
                           const QueryTile& following, const Range& keys, const Range& visited) {
  using Block = PrefetchPlan::Block;
  const CallTensors<T>& t = pass.tensors;
  const Problem& problem = t.problem;
  constexpr Index kHalf = kKeyTile / 2;
  const auto block = [](const RowsToRead& rows, Index columns) {
    const auto bytes = [&](Index elements) { return size_of_elements<T>(rows.dtype, elements); };
    return Block{rows.data, bytes(rows.stride), bytes(columns)};
  };
  const auto query = [&](Index row) { return block(t.query(following, row), problem.head_dim); };
  // Keys that span two pages, or follow the last page, are not prefetched. A PrefetchPlan has no empty blocks, so rows
  // of queries are prefetched instead.
  const auto key = [&](const QueryTile& of, Index j) {
    return t.k.in_one_piece({j, j + kHalf}) ? block(t.key(of, j), problem.head_dim) : query(0);
  };
  const auto value = [&](const QueryTile& of, Index j) {
    return t.v.in_one_piece({j, j + kHalf}) ? block(t.value(of, j), problem.v_dim) : query(0);
  };
  const auto output = [&](Index row) { return block(t.output(queries, row), problem.v_dim); };
  const auto whole_tile = [&](const QueryTile& of, Index j) {
    return PrefetchPlan{{key(of, j), value(of, j), key(of, j + kHalf), value(of, j + kHalf)}};
  };
  if (!t.stay_in_cache(visited.size()) && keys.end < visited.end) return whole_tile(queries, keys.end);
  if (t.stay_in_cache(problem.kv_len)) {
    // This head's keys were loaded into the cache by its first tile of queries. The prefetches of the next head's keys
    // are distributed over all tiles of queries of this one: if sequences are short, loading all of the next head's
    // keys takes longer than one tile.
    QueryTile neighbour = queries;
    if (++neighbour.head == problem.heads) neighbour = {std::min(queries.batch + 1, problem.batch - 1), 0, 0, {}};
    if (tiles == 1) return whole_tile(neighbour, keys.begin);
    const Index turn = (keys.begin / kKeyTile * 2 + queries.tile) % tiles;
    const Index j = keys.begin + turn * kHalf;
    if (turn < 2) return {{key(neighbour, j), value(neighbour, j), query(0), output(0)}};
  } else if (keys.begin == visited.begin && keys.end < visited.end) {
    // The next tile of queries comes before this one, so the first keys of its window are not in the cache yet.
    const Range next = pass.visited(following);
    if (next.begin < visited.begin) return whole_tile(following, next.begin);
  }
  return {{query(0), output(0), query(kHalf), output(kHalf)}};
}

/// Processes blocks of query tiles. Keys and values are loaded in chunks of tiles, packed if necessary, and visited by
/// all tiles of the block.
template <class T>
class PrefillLoop {
 public:
  /// Maximum number of query tiles per block. Sixteen make packing cheap (eight cost 2 to 5 % of the speed) and keep
  /// their state, 0.4 to 0.8 MiB at head_dim 128, in the L2 cache. If nothing is packed, four read keys from L3 a
  /// quarter as often: 2048 x 2048 x 64 took 0.96 times as long (Zen 5, 1 MiB of L2), with eight it varied.
  static constexpr Index kMostTiles = 16, kMostInPlace = 4;

  PrefillLoop(const PassContext<T>& pass, const QueryTiles<T>& tiles) : pass_(pass), tiles_(tiles), key_tiles_(pass) {}

  Index most_tiles() const { return key_tiles_.packs() ? kMostTiles : kMostInPlace; }
  bool packs_keys() const { return key_tiles_.packs_keys(); }
  bool packs_values() const { return key_tiles_.packs_values(); }

  /// Bytes of a worker's memory for blocks of up to `tiles` tiles.
  Index bytes(Index tiles) const {
    const ChosenKernels<T>& kernels = pass_.kernels;
    return std::max(layout(kernels.family, tiles).bytes(), layout(kernels.full_precision, 1).bytes());
  }

  /// One split of the keys, and where its results are stored. Passes with several splits do not resume, and have no
  /// sinks, sigmoids or weight mods.
  struct Split {
    const KvSplits<T>* splits;  ///< null: there is one, with all keys
    Index number;
    std::byte* partials;  ///< of the block, those of one tile after another
  };

  /// Computes a block over the keys of a split. `following` are queries of the block that likely comes next.
  void run(const QueryBlocks<T>& blocks, Index block, const QueryTile& following, const Split& split,
           std::byte* memory) const {
    const Range keys = split.splits ? split.splits->keys(split.number) : Range{0, pass_.problem().kv_len};
    const auto store = [&](const PrefillState<T>& tile, Index i) {
      if (split.splits)
        tile.store_partial(*split.splits, split.number, split.partials + i * split.splits->bytes());
      else
        tile.store_result();
    };
    const KernelFamily<T>& family = pass_.kernels.family;
    FixedVector<PrefillState<T>, kMostTiles> states;
    const TileLayout<T> layout = this->layout(family, blocks.most_tiles());
    const KernelScope<T> in_use(family);
    for (Index i = 0; i < blocks.size(block); ++i)
      states.add(pass_, family, blocks.at(block, i), keys, layout.at(memory, i), key_tiles_.merges_stretches());
    const std::span tiles = states.all();
    visit_keys(tiles, following, false);
    // Computing a tile again overwrites the memory of all tiles, so the results of the valid ones are stored first.
    Array<bool, kMostTiles> again;
    for (Index i = 0; const PrefillState<T>& tile : tiles) {
      if (!(again[i] = tile.must_compute_again())) store(tile, i);
      ++i;
    }
    for (Index i = 0; const PrefillState<T>& tile : tiles) {
      if (again[i]) store(computed_again(tile.queries, keys, following, memory), i);
      ++i;
    }
  }

  /// Merges the results of a block's splits, and stores the result.
  void merge(const QueryBlocks<T>& blocks, Index block, const KvSplits<T>& splits, std::byte* partials) const {
    const KernelFamily<T>& family = pass_.kernels.full_precision;
    for (Index i = 0; i < blocks.size(block); ++i, partials += splits.bytes()) {
      const QueryTile queries = blocks.at(block, i);
      const Index width = family.set_for(queries.rows.size()).queries;
      const TileMemory<T> m = splits.merged(width, partials, OutLayout::by_column);
      pass_.store_lse(queries, m.max, m.sum);
      store_out(family, m, width, pass_.tensors, queries);
    }
  }

  /// Calls visit(tile of keys, coverage) for each tile of keys that some queries visit.
  template <class Visit>
  void for_each_key_tile(const QueryTile& queries, const Visit& visit) const {
    const Range visited = pass_.visited(queries);
    key_tiles_.for_each(visited, [&](const Range& keys) { visit(keys, pass_.coverage(queries, visited, keys)); });
  }

 private:
  using KvTile = typename PrefillTiles<T>::KvTile;

  TileLayout<T> layout(const KernelFamily<T>& family, Index tiles) const {
    return key_tiles_.layout(family, tiles_.most_queries(), tiles);
  }

  /// Computes one tile of queries again, in full precision and by selection: skips dropped pairs instead of multiplying
  /// them by 0.
  PrefillState<T> computed_again(const QueryTile& queries, const Range& keys, const QueryTile& following,
                                 std::byte* memory) const {
    const KernelFamily<T>& family = pass_.kernels.full_precision;
    PrefillState<T> tile(pass_, family, queries, keys, layout(family, 1).at(memory), key_tiles_.merges_stretches());
    visit_keys({&tile, 1}, following, true);
    return tile;
  }

  /// Runs tiles of queries, which share their kernels, over all keys that they visit; with weight mods, twice.
  void visit_keys(std::span<PrefillState<T>> tiles, const QueryTile& following, bool by_selection) const {
    if (tiles.front().sums_only()) {
      sweep(tiles, following, by_selection);
      for (PrefillState<T>& tile : tiles) tile.begin_weights();
    }
    sweep(tiles, following, by_selection);
  }

  /// All tiles of queries visit a chunk of keys before the next chunk is loaded. If keys are read in place, their tiles
  /// begin at the first key that the queries see; so tiles of queries then share chunks only if they see the same first
  /// key.
  void sweep(std::span<PrefillState<T>> tiles, const QueryTile& following, bool by_selection) const {
    const KernelFamily<T>& family = tiles.front().family();
    const Index first = tiles.front().visited.begin;
    if (!key_tiles_.packs() && !std::all_of(tiles.begin(), tiles.end(),
                                            [&](const PrefillState<T>& tile) { return tile.visited.begin == first; })) {
      for (std::size_t i = 0; i < tiles.size(); ++i)
        sweep(tiles.subspan(i, 1), i + 1 < tiles.size() ? tiles[i + 1].queries : following, by_selection);
      return;
    }
    key_tiles_.for_each_chunk(family, hull_of_visited(tiles), [&](std::span<KvTile> chunk) {
      for (PrefillState<T>& tile : tiles) {
        for (KvTile& kv : chunk) {
          const Range shown = PrefillTiles<T>::shown(family, kv.keys, tile.visited);
          const Coverage coverage = pass_.coverage(tile.queries, tile.visited, shown);
          if (coverage == Coverage::none) {
            tile.multiply(kNoPlan);
            continue;
          }
          if (!kv.loaded) key_tiles_.load(family, tile.queries, tile.memory(), kv);
          const KvTile part = PrefillTiles<T>::part_of(kv, shown);
          if (family.format.fetches)
            tile.add_keys(part, coverage, by_selection, to_fetch(tile, shown, following));
          else
            tile.add_keys(part, coverage, by_selection, kNoPlan);
        }
        tile.multiply(kNoPlan);
      }
    });
    for (PrefillState<T>& tile : tiles) tile.finish();
  }

  PrefetchPlan to_fetch(const PrefillState<T>& tile, const Range& keys, const QueryTile& following) const {
    if (pass_.tensors.k.is_gathered()) return PrefetchPlan::nothing(tile.memory().query);
    return plan_prefetch(pass_, tiles_.count(), tile.queries, following, keys, tile.visited);
  }

  const PassContext<T>& pass_;
  const QueryTiles<T>& tiles_;
  PrefillTiles<T> key_tiles_;
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
