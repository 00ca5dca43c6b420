// The loop over tiles of keys, for some tiles of queries that read the same ones.
#pragma once

#include "attn/detail/flash/pass_context.h"
#include "attn/detail/flash/prefetch_plan.h"
#include "attn/detail/flash/query_blocks.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Blocks of tiles of queries. Keys and values come by chunks of tiles, are packed where they must, and meet all tiles
/// of a block.
template <class T>
class PrefillLoop {
 public:
  /// Most tiles of queries in a block: sixteen make packing cheap (eight cost 2 to 5 % of the speed) and keep their
  /// state in the L2 cache, 0.4 to 0.8 MiB at head_dim 128. Without packing each is a block of its own, with its state
  /// in L1.
  static constexpr Index kMost = 16;

  /// Tiles of keys that are packed at a time: so many a tile of queries meets before the next takes its place in L1.
  /// Two make the matrix unit 5 % slower, and so do eight, which drive the weights out of L1.
  static constexpr Index kChunk = 4;

  PrefillLoop(const PassContext<T>& pass, const QueryTiles<T>& tiles)
      : pass_(pass),
        tensors_(pass.tensors),
        problem_(pass.problem()),
        tiles_(tiles),
        full_precision_(pass.kernels.full_precision),
        family_(pass.kernels.family),
        packs_(packs_keys() || packs_values()),
        aligned_(packs_ || tensors_.k.is_paged()) {}

  Index most_tiles() const { return packs_ ? kMost : 1; }
  Index chunk() const { return packs_ ? kChunk : 1; }
  bool packs_keys() const { return packs(family_.format, tensors_.k); }
  bool packs_values() const { return packs(family_.format, tensors_.v) || family_.arrange_values; }

  /// The memory of a worker for blocks of up to so many tiles.
  Index bytes(Index tiles) const {
    return std::max(layout(family_, tiles).bytes(),
                    &full_precision_ == &family_ ? 0 : layout(full_precision_, 1).bytes());
  }

  /// `following` are queries of the block that likely comes next.
  void run(const QueryBlocks<T>& blocks, Index block, const QueryTile& following, std::byte* memory) const {
    Array<TileState, kMost> room;
    const std::span tiles(room, static_cast<std::size_t>(blocks.size(block)));
    const TileLayout<T> layout = this->layout(family_, blocks.most_tiles());
    const InUse<T> in_use(family_);
    for (Index i = 0; TileState & tile : tiles) {
      tile = begin(family_, blocks.at(block, i), layout.at(memory, i));
      ++i;
    }
    visit_keys(family_, tiles, following, false);
    // A dropped pair weighs 0, and 0 times a value is 0, unless that value is not finite: then it must not be
    // multiplied. That is rare, so it is found out afterwards, from what became of the output. The matrix unit's
    // products and sums of large numbers may also be infinite where exact ones are not: those of scores are not scaled
    // yet, and weights are not below 1. Where all scores of a query are -inf, it looks as if no key were kept.
    const bool may_overflow = &family_ != &full_precision_;
    Array<bool, kMost> again = {};
    for (Index i = 0; const TileState& tile : tiles) {
      const bool lost =
          may_overflow && !std::all_of(tile.m.sum, tile.m.sum + tile.kernels->queries, PassContext<T>::is_sound);
      again[i] = lost || ((tile.dropped_any || may_overflow) &&
                          !full_precision_.all_finite({tile.m.out, 0}, 1, problem_.v_dim * tile.kernels->queries));
      if (!again[i++]) store_result(tile);
    }
    for (Index i = 0; const TileState& tile : tiles)
      if (again[i++]) select(tile.queries, following, memory);
  }

  /// Calls visit(tile of keys, coverage) for one tile of queries.
  template <class Visit>
  void for_each_key_tile(const QueryTile& queries, const Visit& visit) const {
    TileState tile{};
    tile.queries = queries;
    tile.visited = pass_.visited(queries);
    for_each_key_range(std::span(&tile, 1),
                       [&](const Range& keys) { visit(keys, pass_.coverage(tile.queries, tile.visited, keys)); });
  }

 private:
  static bool packs(const Format& format, const KvRows<T>& t) {
    return !in_place(format, t) || t.cuts_tiles_of(kKeyTile);
  }

  /// A tile of queries while it is worked on.
  struct TileState {
    QueryTile queries;
    const KernelSet<T>* kernels;
    TileMemory<T> m;
    Range visited;     ///< the keys worth visiting
    OutUpdate update;  ///< of `out`, when the next weights are multiplied with values
    bool dropped_any;  ///< may a pair have been dropped inside a tile of keys that was added?
    Rows<T> value;     ///< those whose weights are not multiplied yet
    Index first;       ///< the first of these, in the chunk
    Index waiting;     ///< how many they are
    Index added;       ///< tiles of keys in the present stretch
    bool has_totals;   ///< of stretches before?
  };

  /// A tile of keys and values, as the kernels read them once they are needed.
  struct KvTile {
    Range range;
    Index first;  ///< in the chunk, where each tile has room for a multiple of what kernels read
    bool loaded;
    Rows<T> key, value;
  };

  TileLayout<T> layout(const KernelFamily<T>& family, Index tiles) const {
    const Format& format = family.format;
    const Index row = format.row(problem_.head_dim), value_row = format.row(problem_.v_dim);
    const bool packs_keys =
        packs(format, tensors_.k) || !in_place(format, tensors_.q) || format.keys > 1 || tensors_.rotation;
    return TileLayout<T>({.queries = tiles_.most_queries(),
                          .query = row,
                          .out = padded(problem_.v_dim, format.out),
                          .packed_key = packs_keys ? row : 0,
                          .packed_value = packs(format, tensors_.v) ? value_row : 0,
                          .arranged = family.arrange_values ? value_row : 0,
                          .weights = format.defers_value_product ? tiles_.most_queries() / format.per_number() : 0,
                          .chunk = chunk(),
                          .totals = has_totals(problem_.kv_len)},
                         tiles);
  }

  /// One tile of queries, with dropped pairs not even multiplied.
  void select(const QueryTile& queries, const QueryTile& following, std::byte* memory) const {
    TileState tile = begin(full_precision_, queries, layout(full_precision_, 1).at(memory));
    visit_keys(full_precision_, {&tile, 1}, following, true);
    store_result(tile);
  }

  /// The state of the recurrence before all keys.
  TileState begin(const KernelFamily<T>& family, const QueryTile& queries, TileMemory<T> m) const {
    const Index count = queries.rows.size();
    const KernelSet<T>& kernels = family.set_for(count);
    RowsToRead rows = tensors_.query(queries);
    T* packed = m.packed_key;
    // Rows that are turned, and then packed, fit in as well: a chunk has more keys than a tile has queries, by far.
    if (tensors_.rotation) {
      rows = turned_rows(full_precision_, rows, count, problem_.head_dim, *tensors_.rotation, queries.rows.begin, 1,
                         packed);
      packed += count * problem_.head_dim;
    }
    load_query(family, rows, count, problem_.head_dim, static_cast<T>(problem_.scale), kernels.queries, packed, m);
    pass_.begin(queries, count, kernels.queries, m);
    if (pass_.resumes) {
      const Index rest = padded(problem_.v_dim, family.format.out) - problem_.v_dim;
      load_out(full_precision_, m, kernels.queries, tensors_.output(queries), count, problem_.v_dim);
      std::fill_n(m.out + problem_.v_dim * kernels.queries, rest * kernels.queries, T(0));
    }
    return {queries,
            &kernels,
            m,
            pass_.visited(queries),
            pass_.resumes ? OutUpdate::add : OutUpdate::overwrite,
            false,
            {},
            0,
            0,
            0,
            false};
  }

  /// Calls visit(keys) for all tiles of keys that any of the tiles of queries may see.
  template <class Visit>
  void for_each_key_range(std::span<const TileState> tiles, const Visit& visit) const {
    Range all = hull_of_visited(tiles);
    // Blocks that pack may be of any size (see FlashPass), and results must not depend on it: tiles begin at multiples
    // of their length, and end there unless nobody visits the rest. The matrix unit adds up 32 keys before it rounds,
    // and scales scores in another step where a mask is asked: its tiles are whole in any case.
    if (family_.format.keys > 1 && !all.empty())
      all = {all.begin / kKeyTile * kKeyTile, std::min(padded(all.end, kKeyTile), problem_.kv_len)};
    for (Index j = all.begin, end; j < all.end; j = end) {
      end = std::min((aligned_ ? j / kKeyTile * kKeyTile : j) + kKeyTile, all.end);
      visit(Range{j, end});
    }
  }

  /// The recurrence over all tiles of keys: for a chunk of these at a time, for some tiles of queries in turn.
  void visit_keys(const KernelFamily<T>& family, std::span<TileState> tiles, const QueryTile& following,
                  bool by_selection) const {
    Array<KvTile, kChunk> room;
    Index count = 0, rows = 0;
    const auto visit_chunk = [&] {
      for (TileState& tile : tiles) {
        for (KvTile& keys : std::span(room, static_cast<std::size_t>(count))) {
          const Range range = family.format.defers_value_product ? keys.range : intersect(keys.range, tile.visited);
          const Coverage coverage = pass_.coverage(tile.queries, tile.visited, range);
          if (coverage == Coverage::none) {
            multiply(tile, {});
            continue;
          }
          if (!std::exchange(keys.loaded, true)) load(family, tile, keys);
          add_keys(family, tile, part_of(keys, range), coverage == Coverage::some, by_selection,
                   family.format.defers_value_product ? PrefetchPlan{}
                                                      : plan_prefetch(tensors_, pass_.mods, tiles_.count(),
                                                                      tile.queries, following, range, tile.visited));
        }
        multiply(tile, {});
      }
      count = rows = 0;
    };
    for_each_key_range(tiles, [&](const Range& range) {
      room[count++] = {range, rows, false, {}, {}};
      rows += padded(range.size(), family.format.keys);
      if (count == chunk()) visit_chunk();
    });
    visit_chunk();
    for (TileState& tile : tiles) {
      if (tile.update == OutUpdate::overwrite) std::fill_n(tile.m.out, problem_.v_dim * tile.kernels->queries, T(0));
      if (tile.has_totals) end_stretch(tile);
      full_precision_.finish(tile.m, tile.kernels->queries, problem_.v_dim, tile.has_totals);
    }
  }

  /// The tile's output joins the totals, and another begins.
  void end_stretch(TileState& tile) const {
    multiply(tile, {});
    full_precision_.end_stretch(tile.m, tile.kernels->queries, problem_.v_dim, OutLayout::by_column,
                                !std::exchange(tile.has_totals, true));
    tile.update = OutUpdate::overwrite;
    tile.added = 0;
  }

  void load(const KernelFamily<T>& family, const TileState& tile, KvTile& keys) const {
    const Format& format = family.format;
    const TileMemory<T>& m = tile.m;
    const Index batch = tile.queries.batch, kv_head = problem_.kv_head(tile.queries.head);
    keys.key = kv_rows_of(family, tensors_.k, batch, kv_head, keys.range, format.keys,
                          m.packed_key + keys.first * format.row(problem_.head_dim));
    keys.value = kv_rows_of(family, tensors_.v, batch, kv_head, keys.range, 1,
                            m.packed_value + keys.first * format.row(problem_.v_dim));
    if (!family.arrange_values) return;
    T* const arranged = m.arranged + keys.first * format.row(problem_.v_dim);
    family.arrange_values(keys.value, keys.range.size(), problem_.v_dim, arranged);
    keys.value = {arranged, 0};
  }

  /// A tile of keys without those that a tile of queries does not visit. What another of the block sees there must not
  /// matter, not even whether it is finite.
  static KvTile part_of(const KvTile& keys, const Range& range) {
    KvTile part = keys;
    part.range = range;
    if (range == keys.range) return part;
    part.key.data += (range.begin - keys.range.begin) * part.key.stride;
    part.value.data += (range.begin - keys.range.begin) * part.value.stride;
    return part;
  }

  /// One step of the recurrence: brings max and sum up to date with the keys of the tile, and sooner or later out with
  /// its values.
  void add_keys(const KernelFamily<T>& family, TileState& tile, const KvTile& keys, bool masked, bool by_selection,
                const PrefetchPlan& ahead) const {
    const KernelSet<T>& kernels = *tile.kernels;
    const Index count = keys.range.size();
    const bool modded = masked || pass_.has_scores();
    if (tile.added == kStretch) end_stretch(tile);
    ++tile.added;
    TileMemory<T> m = tile.m;
    if (family.format.defers_value_product) m.weights += keys.first * kernels.queries / family.format.per_number();
    kernels.score(m, keys.key, count, problem_.head_dim);
    if (modded) {
      if (m.scale != T(1)) family.scale_scores(m, count);
      m.scale = 1;
      pass_.mods->apply(pass_.kernels.isa, m.scores, kernels.queries, pass_.pairs(tile.queries, keys.range), masked);
      if (family.find_max) family.find_max(m, kernels.queries, count);
    }
    tile.dropped_any |= modded;  // a changed score may be -inf
    const bool select = modded && by_selection && !family.all_finite(keys.value, count, problem_.v_dim);
    if (select) family.find_dropped(m, kernels.queries, count);
    const bool moved = kernels.softmax(m, count, keys.value, problem_.v_dim);
    if (moved) multiply(tile, ahead);  // weights that wait are relative to the old maximum
    if (moved && tile.update == OutUpdate::add) tile.update = OutUpdate::rescale_and_add;
    if (select) {
      family.value_by_selection(m, kernels.queries, keys.value, count, problem_.v_dim, tile.update);
      tile.update = OutUpdate::add;
      return;
    }
    if (tile.waiting == 0) {
      tile.value = keys.value;
      tile.first = keys.first;
    }
    tile.waiting += padded(count, family.format.keys);
    if (!family.format.defers_value_product || tile.update == OutUpdate::rescale_and_add) multiply(tile, ahead);
  }

  /// Brings `out` up to date with the weights that wait for it.
  void multiply(TileState& tile, const PrefetchPlan& ahead) const {
    if (tile.waiting == 0) return;
    TileMemory<T> m = tile.m;
    if (family_.format.defers_value_product)
      m.weights += tile.first * tile.kernels->queries / family_.format.per_number();
    tile.kernels->value(m, tile.value, tile.waiting, problem_.v_dim, tile.update, ahead);
    tile.update = OutUpdate::add;
    tile.waiting = 0;
  }

  /// out / sum, 0 where no key was kept, and the log-sum-exps.
  void store_result(const TileState& tile) const {
    const QueryTile& queries = tile.queries;
    store_out(full_precision_, tile.m, tile.kernels->queries, tensors_.output(queries), queries.rows.size(),
              problem_.v_dim);
    pass_.store_lse(queries, tile.m.max, tile.m.sum);
  }

  const PassContext<T>& pass_;
  const CallTensors<T>& tensors_;
  const Problem& problem_;
  const QueryTiles<T>& tiles_;
  const KernelFamily<T>& full_precision_;
  const KernelFamily<T>& family_;
  bool packs_;    ///< are keys or values copied?
  bool aligned_;  ///< do tiles of keys begin at multiples of their length?
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
