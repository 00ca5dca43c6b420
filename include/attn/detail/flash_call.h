// Layer 3: one pass of the flash path over the queries of a call: the tile loop.
#pragma once

#include <cmath>
#include <limits>

#include "attn/detail/choose_kernels.h"
#include "attn/detail/fetch_ahead.h"
#include "attn/detail/query_blocks.h"
#include "attn/explanation.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// Most tiles of queries in a block. Where keys and values are packed, eight tiles make the packing cheap and keep their
/// state in half a MiB; rows of a few heads read the memory of their keys once.
constexpr Index kMostTiles = 8, kMostRows = 4;

/// With up to so many queries each goes by itself: a tile computes whole vectors of them, however few there are.
constexpr Index kFewQueries = 4;

/// One pass over the queries of a call. `mods` is null where nothing is changed or dropped. One that resumes takes what
/// stands in out and lse for the result over other keys, and adds its own.
template <class T>
class FlashCall {
 public:
  FlashCall(const CallTensors<T>& tensors, const TileMods<T>* mods, const ChosenKernels<T>& kernels, bool resumes)
      : tensors_(tensors),
        problem_(tensors.problem),
        mods_(mods),
        amx_(kernels.amx),
        isa_(kernels.isa),
        resumes_(resumes),
        exact_(kernels.exact),
        family_(kernels.family),
        tiles_(family_, problem_.q_len, few_queries(kernels)),
        packs_(!in_place(family_.format, tensors.k) || !in_place(family_.format, tensors.v) || family_.arrange_values),
        whole_(problem_, tiles_, most_tiles()) {}

  void run(const Options& options) const {
    if (query_tiles() == 0) return;
    const Executor executor = executor_for(options.executor);
    const int workers = executor.concurrency();
    const Workspace workspace(bytes(), workers, options.workspace);
    const QueryBlocks<T> blocks = blocks_for(workers);
    const Index per_task = blocks_per_task(blocks, workers), last = blocks.count() - 1;
    executor.run((blocks.count() + per_task - 1) / per_task, [&](Index task, int worker) {
      const Range range{task * per_task, std::min((task + 1) * per_task, last + 1)};
      if (family_.begin) family_.begin();
      for (Index block = range.begin; block < range.end; ++block) {
        // Tasks are taken in turn: likely, this worker gets next the one after those that the others have.
        const Index following = block + 1 < range.end ? block + 1 : range.begin + workers * per_task;
        run_block(blocks, block, blocks.at(std::min(following, last), 0), workspace.of(worker));
      }
      if (family_.end) family_.end();
    });
  }

  Index workspace_bytes(const Executor& asked) const {
    return query_tiles() == 0 ? 0 : Workspace::needed(bytes(), executor_for(asked).concurrency());
  }

  /// Adds what this pass does to what those before it do.
  void explain(const Executor& asked, Explanation& e) const {
    const int workers = std::max(executor_for(asked).concurrency(), 1);
    const QueryBlocks<T> blocks = blocks_for(workers);
    const Index per_task = blocks_per_task(blocks, workers), tasks = (blocks.count() + per_task - 1) / per_task;
    ++e.passes;
    e.isa = isa_;
    e.amx = amx_;
    e.queries_per_tile = std::max(e.queries_per_tile, tiles_.most_queries());
    e.keys_per_tile = kKeyTile;
    e.query_tiles += query_tiles();
    e.tasks += tasks;
    e.threads = std::max(e.threads, static_cast<int>(std::min<Index>(workers, tasks)));
    e.packs_keys |= !in_place(family_.format, tensors_.k);
    e.packs_values |= !in_place(family_.format, tensors_.v) || family_.arrange_values;
    for (Index block = 0; query_tiles() > 0 && block < blocks.count(); ++block) {
      for (Index i = 0; i < blocks.size(block); ++i) {
        const Index all = (problem_.kv_len + kKeyTile - 1) / kKeyTile;
        Index full = 0, masked = 0;
        Active tile{};
        tile.queries = blocks.at(block, i);
        for_each_key_tile(std::span(&tile, 1), [&](const Range& keys) {
          const Coverage coverage = coverage_of(tile, keys);
          full += coverage == Coverage::all;
          masked += coverage == Coverage::some;
        });
        e.full_tiles += full;
        e.masked_tiles += masked;
        // The visited range need not begin where a tile would without it.
        e.skipped_tiles += std::max<Index>(all - full - masked, 0);
      }
    }
  }

 private:
  /// A tile of queries while it is worked on.
  struct Active {
    Queries queries;
    const KernelSet<T>* kernels;
    TileMemory<T> m;
    Range visited;     ///< the keys worth visiting
    Carry carry;       ///< of `out`, when the next weights are multiplied with values
    bool dropped_any;  ///< may a pair have been dropped inside a tile of keys that was added?
    Rows<T> value;     ///< those whose weights are not multiplied yet
    Index first;       ///< the first of these, in the chunk
    Index waiting;     ///< how many they are
  };

  /// A tile of keys and values, as the kernels read them once they are needed.
  struct KeyTile {
    Range range;
    Index first;  ///< in the chunk, where each tile has room for a multiple of what kernels read
    bool loaded;
    Rows<T> key, value;
  };

  static Index few_queries(const ChosenKernels<T>& kernels) { return kernels.amx == Amx::used ? 0 : kFewQueries; }

  Index query_tiles() const { return problem_.batch * problem_.heads * tiles_.count(); }

  Index most_tiles() const { return tiles_.are_rows() ? kMostRows : packs_ ? kMostTiles : 1; }

  /// Fewer tiles to a block where else there would be few blocks for each worker. That does not change the results: where
  /// blocks may be of different sizes, tiles of keys begin at the same ones for all.
  QueryBlocks<T> blocks_for(Index workers) const {
    constexpr Index kBlocksPerWorker = 4;
    if (!packs_ || tiles_.are_rows()) return whole_;
    return {problem_, tiles_, std::min(most_tiles(), query_tiles() / (kBlocksPerWorker * workers))};
  }

  /// A task is some neighbouring blocks, because they share keys: those of a window, or of a short head. They are few, so
  /// that no worker ends long after the others.
  Index blocks_per_task(const QueryBlocks<T>& blocks, Index workers) const {
    constexpr Index kTasksPerWorker = 64, kMost = 8;
    const Index wanted = std::clamp<Index>(blocks.count() / (kTasksPerWorker * workers), 1, kMost);
    const Index per_head = std::max<Index>(blocks.blocks_per_kv_head(), 1);
    return wanted < per_head ? wanted : wanted / per_head * per_head;  // short heads whole
  }

  TileLayout<T> layout_for(const KernelFamily<T>& family, Index queries, Index tiles) const {
    const Format& format = family.format;
    const Index row = format.row(problem_.head_dim), value_row = format.row(problem_.v_dim);
    const bool packs_keys = !in_place(format, tensors_.k) || !in_place(format, tensors_.q) || format.keys > 1,
               packs_values = !in_place(format, tensors_.v);
    return TileLayout<T>({.queries = queries,
                          .query = row,
                          .out = padded(problem_.v_dim, format.out),
                          .packed_key = packs_keys ? row : 0,
                          .packed_value = packs_values ? value_row : 0,
                          .arranged = family.arrange_values ? value_row : 0,
                          .weights = format.chunk > 1 ? queries / format.per_number() : 0,
                          .chunk = format.chunk},
                         tiles);
  }
  TileLayout<T> layout() const { return layout_for(family_, tiles_.most_queries(), whole_.most_tiles()); }
  TileLayout<T> exact_layout() const { return layout_for(exact_, tiles_.most_queries(), 1); }
  Index bytes() const { return std::max(layout().bytes(), &exact_ == &family_ ? 0 : exact_layout().bytes()); }

  Executor executor_for(const Executor& asked) const { return detail::executor_for(flops(), asked); }

  double flops() const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    return 2 * pairs * static_cast<double>(problem_.head_dim + problem_.v_dim);
  }

  bool has_scores() const { return mods_ && mods_->has_scores(); }

  void run_block(const QueryBlocks<T>& blocks, Index block, const Queries& following, std::byte* memory) const {
    Array<Active, kMostTiles> room;
    const std::span tiles(room, static_cast<std::size_t>(blocks.size(block)));
    const TileLayout<T> layout = this->layout();
    for (Index i = 0; Active & tile : tiles) {
      tile.queries = blocks.at(block, i);
      tile.kernels = &tiles_.kernels(tile.queries.rows.size());
      tile.m = layout.at(memory, i++);
      begin(family_, tile);
    }
    visit_keys(family_, tiles, following, false);
    // A dropped pair weighs 0, and 0 times a value is 0, unless that value is not finite: then it must not be
    // multiplied. That is rare, so it is found out afterwards, from what became of the output.
    Array<bool, kMostTiles> again = {};
    for (Index i = 0; const Active& tile : tiles) {
      again[i] = tile.dropped_any && !exact_.all_finite({tile.m.out, 0}, 1, problem_.v_dim * tile.kernels->queries);
      if (!again[i++]) store_result(family_, tile);
    }
    for (Index i = 0; const Active& tile : tiles)
      if (again[i++]) select(tile.queries, following, memory);
  }

  /// One tile of queries, with dropped pairs not even multiplied.
  void select(const Queries& queries, const Queries& following, std::byte* memory) const {
    Active tile{};
    tile.queries = queries;
    tile.kernels = tiles_.are_rows() ? &exact_.row : &exact_.set_for(queries.rows.size());
    tile.m = (&exact_ == &family_ ? layout() : exact_layout()).at(memory);
    begin(exact_, tile);
    visit_keys(exact_, {&tile, 1}, following, true);
    store_result(exact_, tile);
  }

  /// The state of the recurrence before all keys.
  void begin(const KernelFamily<T>& family, Active& tile) const {
    const Queries& queries = tile.queries;
    load_query(family, tensors_.query(queries), queries.rows.size(), problem_.head_dim, static_cast<T>(problem_.scale),
               tile.kernels->queries, tile.m);
    tile.carry = resumes_ ? Carry::keep : Carry::zero;
    tile.waiting = 0;
    tile.dropped_any = false;
    if (resumes_) return load_result(family, tile);
    const T sink = mods_ ? static_cast<T>(mods_->sink(queries.head)) : -std::numeric_limits<T>::infinity();
    std::fill_n(tile.m.max, tile.kernels->queries, sink);
    std::fill_n(tile.m.sum, tile.kernels->queries, sink > -std::numeric_limits<T>::infinity() ? T(1) : T(0));
  }

  /// Calls visit(keys) for all tiles of keys that any of the tiles of queries may see, after setting what each of these
  /// sees.
  template <class Visit>
  void for_each_key_tile(std::span<Active> tiles, const Visit& visit) const {
    Range all{problem_.kv_len, 0};
    for (Active& tile : tiles) {
      tile.visited = visited_keys(mods_, tensors_.tile_of(tile.queries));
      if (tile.visited.empty()) continue;
      all = {std::min(all.begin, tile.visited.begin), std::max(all.end, tile.visited.end)};
    }
    // See blocks_for(): where tiles begin may then depend on nothing else. Where the hull of what is visited cuts one off,
    // only dropped pairs are missing, which add nothing; but those of bf16 numbers must stay pairs.
    if (packs_) all.begin -= all.begin % family_.format.per_number();
    for (Index j = all.begin, end; j < all.end; j = end) {
      end = std::min((packs_ ? j / kKeyTile * kKeyTile : j) + kKeyTile, all.end);
      visit(Range{j, end});
    }
  }

  Coverage coverage_of(const Active& tile, const Range& keys) const {
    if (intersect(tile.visited, keys).empty()) return Coverage::none;
    Tile pairs = tensors_.tile_of(tile.queries);
    pairs.kv = keys;
    return mods_ ? mods_->coverage(isa_, pairs) : Coverage::all;
  }

  /// The recurrence over all tiles of keys: for a chunk of these at a time, for some tiles of queries in turn.
  void visit_keys(const KernelFamily<T>& family, std::span<Active> tiles, const Queries& following,
                  bool by_selection) const {
    Array<KeyTile, kMostKeyTiles> chunk;
    Index count = 0, rows = 0;
    const auto visit_chunk = [&] {
      for (Active& tile : tiles) {
        for (KeyTile& keys : std::span(chunk, static_cast<std::size_t>(count))) {
          const Coverage coverage = coverage_of(tile, keys.range);
          if (coverage == Coverage::none) {
            multiply(tile, {});
            continue;
          }
          if (!std::exchange(keys.loaded, true)) load(family, tile, keys);
          add_keys(family, tile, keys, coverage == Coverage::some, by_selection,
                   fetch_ahead(tensors_, mods_, tiles_.count(), tile.queries, following, keys.range, tile.visited));
        }
        multiply(tile, {});
      }
      count = rows = 0;
    };
    for_each_key_tile(tiles, [&](const Range& range) {
      chunk[count++] = {range, rows, false, {}, {}};
      rows += padded(range.size(), family.format.keys);
      if (count == family.format.chunk) visit_chunk();
    });
    visit_chunk();
    for (Active& tile : tiles)
      if (tile.carry == Carry::zero) std::fill_n(tile.m.out, problem_.v_dim * tile.kernels->queries, T(0));
  }

  void load(const KernelFamily<T>& family, const Active& tile, KeyTile& keys) const {
    const Format& format = family.format;
    const TileMemory<T>& m = tile.m;
    const Index first = keys.range.begin, count = keys.range.size();
    keys.key = rows_of(family, tensors_.key(tile.queries, first), count, problem_.head_dim, format.keys,
                       m.packed_key + keys.first * format.row(problem_.head_dim));
    keys.value = rows_of(family, tensors_.value(tile.queries, first), count, problem_.v_dim, 1, m.packed_value);
    if (!family.arrange_values) return;
    T* const arranged = m.arranged + keys.first * format.row(problem_.v_dim);
    family.arrange_values(keys.value, count, problem_.v_dim, arranged);
    keys.value = {arranged, 0};
  }

  /// One step of the recurrence: brings max and sum up to date with the keys of the tile, and sooner or later out with its
  /// values.
  void add_keys(const KernelFamily<T>& family, Active& tile, const KeyTile& keys, bool masked, bool by_selection,
                const FetchAhead& ahead) const {
    const KernelSet<T>& kernels = *tile.kernels;
    const Index count = keys.range.size();
    const bool modded = masked || has_scores();
    TileMemory<T> m = tile.m;
    m.weights += keys.first * kernels.queries / family.format.per_number();
    kernels.score(m, keys.key, count, problem_.head_dim);
    if (modded) {
      Tile pairs = tensors_.tile_of(tile.queries);
      pairs.kv = keys.range;
      if (m.scale != T(1)) family.scale_scores(m, count);
      m.scale = 1;
      mods_->apply(isa_, m.scores, kernels.queries, pairs, masked);
      if (family.find_max) family.find_max(m, kernels.queries, count);
    }
    tile.dropped_any |= modded;  // a changed score may be -inf
    const bool select = modded && by_selection && !family.all_finite(keys.value, count, problem_.v_dim);
    if (select) family.find_dropped(m, kernels.queries, count);
    const bool moved = kernels.softmax(m, count, keys.value, problem_.v_dim);
    if (moved) multiply(tile, ahead);  // weights that wait are relative to the old maximum
    if (moved && tile.carry == Carry::keep) tile.carry = Carry::rescale;
    if (select) {
      family.value_by_selection(m, kernels.queries, keys.value, count, problem_.v_dim, tile.carry);
      tile.carry = Carry::keep;
      return;
    }
    if (tile.waiting == 0) {
      tile.value = keys.value;
      tile.first = keys.first;
    }
    tile.waiting += padded(count, family.format.keys);
    if (family.format.chunk == 1 || tile.carry == Carry::rescale) multiply(tile, ahead);
  }

  /// Brings `out` up to date with the weights that wait for it.
  void multiply(Active& tile, const FetchAhead& ahead) const {
    if (tile.waiting == 0) return;
    TileMemory<T> m = tile.m;
    m.weights += tile.first * tile.kernels->queries / family_.format.per_number();
    tile.kernels->value(m, tile.value, tile.waiting, problem_.v_dim, tile.carry, ahead);
    tile.carry = Carry::keep;
    tile.waiting = 0;
  }

  /// The state of the recurrence that has `out` and `lse` for its result: all keys so far weigh as much as one with the
  /// score lse and the value out (Dao et al. 2022, section 3.1).
  void load_result(const KernelFamily<T>& family, const Active& tile) const {
    const Queries& queries = tile.queries;
    const TileMemory<T>& m = tile.m;
    const Index count = queries.rows.size(), width = tile.kernels->queries;
    load_out(exact_, m, width, tensors_.output(queries), count, problem_.v_dim);
    std::fill_n(m.out + problem_.v_dim * width, (padded(problem_.v_dim, family.format.out) - problem_.v_dim) * width,
                T(0));
    for (Index i = 0; i < width; ++i) {
      const T lse = tensors_.lse(queries.batch, queries.head, queries.rows.begin + std::min(i, count - 1));
      m.max[i] = lse;
      m.sum[i] = lse == -std::numeric_limits<T>::infinity() ? T(0) : T(1);
    }
  }

  /// out / sum and the log-sum-exp. A sum of 0 means that no key was kept and there is no sink: 0 and -inf.
  void store_result(const KernelFamily<T>& family, const Active& tile) const {
    const Queries& queries = tile.queries;
    const TileMemory<T>& m = tile.m;
    store_out(family, m, tile.kernels->queries, tensors_.output(queries), queries.rows.size(), problem_.v_dim);
    if (tensors_.lse.data() == nullptr) return;
    for (Index i = 0; i < queries.rows.size(); ++i)
      tensors_.lse(queries.batch, queries.head, queries.rows.begin + i) =
          m.sum[i] == T(0) ? -std::numeric_limits<T>::infinity() : m.max[i] + std::log(m.sum[i]);
  }

  CallTensors<T> tensors_;
  const Problem& problem_;
  const TileMods<T>* mods_;
  Amx amx_;
  Isa isa_;
  bool resumes_;
  const KernelFamily<T>& exact_;
  const KernelFamily<T>& family_;
  QueryTiles<T> tiles_;
  bool packs_;            ///< are keys or values copied?
  QueryBlocks<T> whole_;  ///< of as many tiles as there may be
};

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
