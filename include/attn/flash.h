// Layer 3: attention tile by tile with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include <cmath>
#include <limits>

#include "attn/detail/fetch_ahead.h"
#include "attn/detail/passes.h"
#include "attn/explanation.h"
#include "attn/options.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// One pass over the queries of a call. `mods` is null where nothing is changed or dropped. One that resumes takes what
/// stands in out and lse for the result over other keys, and adds its own.
template <class T>
class FlashCall {
 public:
  FlashCall(const CallTensors<T>& tensors, const TileMods<T>* mods, Isa isa, bool resumes)
      : tensors_(tensors),
        problem_(tensors.problem),
        mods_(mods),
        isa_(isa),
        resumes_(resumes),
        family_(kernel_family<T>(isa)),
        tiles_(family_, problem_.q_len, tensors.few_queries()) {}

  void run(const Options& options) const {
    if (query_tiles() == 0) return;
    const Executor executor = executor_for(options.executor);
    const int workers = executor.concurrency();
    const TileWorkspace<T> workspace(layout(), workers, options.workspace);
    const Index per_task = tiles_per_task(workers), last = query_tiles() - 1;
    executor.run(tasks(workers), [&](Index task, int worker) {
      const Range tiles{task * per_task, std::min((task + 1) * per_task, last + 1)};
      for (Index tile = tiles.begin; tile < tiles.end; ++tile) {
        // Tasks are taken in turn: likely, this worker gets next the one after those that the others have.
        const Index following = tile + 1 < tiles.end ? tile + 1 : tiles.begin + workers * per_task;
        run_tile(queries(tile), queries(std::min(following, last)), workspace.of(worker));
      }
    });
  }

  Index workspace_bytes(const Executor& asked) const {
    return query_tiles() == 0 ? 0 : TileWorkspace<T>::bytes(layout(), executor_for(asked).concurrency());
  }

  /// Adds what this pass does to what those before it do.
  void explain(const Executor& asked, Explanation& e) const {
    const Index workers = std::max(executor_for(asked).concurrency(), 1);
    ++e.passes;
    e.isa = isa_;
    e.queries_per_tile = std::max(e.queries_per_tile, tiles_.most_queries());
    e.keys_per_tile = kKeyTile;
    e.query_tiles += query_tiles();
    e.tasks += tasks(workers);
    e.threads = std::max(e.threads, static_cast<int>(std::min(workers, tasks(workers))));
    e.packs_keys |= !is_packed(tensors_.k);
    e.packs_values |= !is_packed(tensors_.v);
    for (Index index = 0; index < query_tiles(); ++index) {
      Tile tile = tensors_.tile_of(queries(index));
      const Index all = (problem_.kv_len + kKeyTile - 1) / kKeyTile;
      Index full = 0, masked = 0;
      for_each_key_tile(mods_, isa_, tile, [&](bool is_masked, const Range&) { ++(is_masked ? masked : full); });
      e.full_tiles += full;
      e.masked_tiles += masked;
      // The visited range need not begin where a tile would without it.
      e.skipped_tiles += std::max<Index>(all - full - masked, 0);
    }
  }

 private:
  Queries queries(Index index) const {
    const Index per_head = tiles_.count(), head = index / per_head;
    // Later queries first: under causal masks they see the most keys, and what is long should not be begun last.
    const Index tile = per_head - 1 - index % per_head;
    return {head / problem_.heads, head % problem_.heads, tile, tiles_.rows(tile)};
  }

  Index query_tiles() const { return problem_.batch * problem_.heads * tiles_.count(); }

  /// A task is some neighbouring tiles, because they share keys: those of a window, or of a short head. They are few, so
  /// that no worker ends long after the others.
  Index tiles_per_task(Index workers) const {
    constexpr Index kTasksPerWorker = 64, kMost = 8;
    const Index wanted = std::clamp<Index>(query_tiles() / (kTasksPerWorker * workers), 1, kMost);
    const Index per_head = std::max<Index>(tiles_.count(), 1);
    return wanted < per_head ? wanted : wanted / per_head * per_head;  // short heads whole
  }
  Index tasks(Index workers) const {
    const Index per_task = tiles_per_task(workers);
    return (query_tiles() + per_task - 1) / per_task;
  }

  TileLayout<T> layout() const {
    return {tiles_.most_queries(), problem_.head_dim, problem_.v_dim, is_packed(tensors_.k) ? 0 : problem_.head_dim,
            is_packed(tensors_.v) ? 0 : problem_.v_dim};
  }

  Executor executor_for(const Executor& asked) const { return detail::executor_for(flops(), asked); }

  double flops() const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    return 2 * pairs * static_cast<double>(problem_.head_dim + problem_.v_dim);
  }

  bool has_scores() const { return mods_ && mods_->has_scores(); }

  void run_tile(const Queries& queries, const Queries& following, const TileMemory<T>& m) const {
    const KernelSet<T>& kernels = tiles_.kernels(queries.rows.size());
    load_query(family_, tensors_, queries, kernels.queries, m);
    // A dropped pair weighs 0, and 0 times a value is 0, unless that value is not finite: then it must not be
    // multiplied. That is rare, so it is found out afterwards, from what became of the output.
    const bool dropped_any = visit_keys(queries, following, m, kernels, false);
    if (dropped_any && !family_.all_finite({m.out, 0}, 1, problem_.v_dim * kernels.queries))
      visit_keys(queries, following, m, kernels, true);
    store_result(queries, m, kernels);
  }

  /// The recurrence over all tiles of keys. Returns whether any pair may have been dropped inside one.
  bool visit_keys(const Queries& queries, const Queries& following, const TileMemory<T>& m, const KernelSet<T>& kernels,
                  bool by_selection) const {
    constexpr T kInfinity = std::numeric_limits<T>::infinity();
    bool dropped_any = false, first = !resumes_;
    if (resumes_) {
      load_result(queries, m, kernels);
    } else {
      const T sink = mods_ ? static_cast<T>(mods_->sink(queries.head)) : -kInfinity;
      std::fill_n(m.max, kernels.queries, sink);
      std::fill_n(m.sum, kernels.queries, sink > -kInfinity ? T(1) : T(0));
    }
    Tile tile = tensors_.tile_of(queries);
    for_each_key_tile(mods_, isa_, tile, [&](bool masked, const Range& visited) {
      dropped_any |= masked || has_scores();  // a changed score may be -inf
      const Rows<T> key = rows_of(family_, tensors_.k, tensors_.key(queries, tile.kv.begin), tile.kv.size(),
                                  m.packed_key),
                    value = rows_of(family_, tensors_.v, tensors_.value(queries, tile.kv.begin), tile.kv.size(),
                                    m.packed_value);
      add_keys(tile, masked, by_selection, std::exchange(first, false), key, value,
               fetch_ahead(tensors_, mods_, tiles_.count(), queries, following, tile.kv, visited), m, kernels);
    });
    if (first) std::fill_n(m.out, problem_.v_dim * kernels.queries, T(0));
    return dropped_any;
  }

  /// One step of the recurrence: brings max, sum and out up to date with the keys and values of the tile.
  void add_keys(const Tile& tile, bool masked, bool by_selection, bool first, Rows<T> key, Rows<T> value,
                const FetchAhead<T>& ahead, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    const Index keys = tile.kv.size();
    kernels.score(m, key, keys, problem_.head_dim);
    if (masked || has_scores()) {
      mods_->apply(isa_, m.scores, kernels.queries, tile, masked);
      family_.find_max(m, kernels.queries, keys);
    }
    const bool select = (masked || has_scores()) && by_selection && !family_.all_finite(value, keys, problem_.v_dim);
    if (select) family_.find_dropped(m, kernels.queries, keys);
    const bool moved = kernels.softmax(m, keys, value, problem_.v_dim);
    const Carry carry = first ? Carry::zero : moved ? Carry::rescale : Carry::keep;
    if (select)
      family_.value_by_selection(m, kernels.queries, value, keys, problem_.v_dim, carry);
    else
      kernels.value(m, value, keys, problem_.v_dim, carry, ahead);
  }

  /// The state of the recurrence that has `out` and `lse` for its result: all keys so far weigh as much as one with the
  /// score lse and the value out (Dao et al. 2022, section 3.1).
  void load_result(const Queries& queries, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    const Index count = queries.rows.size(), width = kernels.queries, padded = padded_rows(problem_.v_dim);
    const TensorView<T, 4>& out = tensors_.out;
    load_columns<T>(family_, {tensors_.output_data(queries), out.stride(2)}, count, out.stride(3), problem_.v_dim, 1,
                    width, m.out);
    std::fill_n(m.out + problem_.v_dim * width, (padded - problem_.v_dim) * width, T(0));
    for (Index i = 0; i < width; ++i) {
      const T lse = tensors_.lse(queries.batch, queries.head, queries.rows.begin + std::min(i, count - 1));
      m.max[i] = lse;
      m.sum[i] = lse == -std::numeric_limits<T>::infinity() ? T(0) : T(1);
    }
  }

  /// out / sum and the log-sum-exp. A sum of 0 means that no key was kept and there is no sink: 0 and -inf.
  void store_result(const Queries& queries, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    const Index count = queries.rows.size(), row = tensors_.out.stride(2), column = tensors_.out.stride(3);
    T* const to = tensors_.output_data(queries);
    if (column == 1) {
      family_.store_out(m, kernels.queries, to, row, count, problem_.v_dim);
    } else {
      for (Index c = 0; c < problem_.v_dim; ++c)
        for (Index i = 0; i < count; ++i)
          to[i * row + c * column] = m.out[c * kernels.queries + i] * (m.sum[i] == T(0) ? T(0) : T(1) / m.sum[i]);
    }
    if (tensors_.lse.data() == nullptr) return;
    for (Index i = 0; i < count; ++i)
      tensors_.lse(queries.batch, queries.head, queries.rows.begin + i) =
          m.sum[i] == T(0) ? -std::numeric_limits<T>::infinity() : m.max[i] + std::log(m.sum[i]);
  }

  CallTensors<T> tensors_;
  const Problem& problem_;
  const TileMods<T>* mods_;
  Isa isa_;
  bool resumes_;
  const KernelFamily<T>& family_;
  QueryTiles<T> tiles_;
};

/// Calls use(FlashCall) for each pass of a call.
template <class T, class Mods, class Use>
void for_each_flash_call(const CallTensors<T>& tensors, const Mods& mods, const Options& options, const Use& use) {
  for_each_pass(tensors, mods, [&](const CallTensors<T>& t, const auto& pass_mods, bool resumes) {
    using PassMods = std::remove_cvref_t<decltype(pass_mods)>;
    const TileModsOf<T, PassMods> tile_mods(pass_mods);
    constexpr bool kPlain = !PassMods::kHasScores && !PassMods::kHasMasks && !PassMods::kHasSinks;
    use(FlashCall<T>(t, kPlain ? nullptr : &tile_mods, isa_of(options), resumes));
  });
}

/// What the log-sum-exps take of the workspace where passes leave them for each other: whole cache lines.
template <class T>
Index lse_bytes(const Problem& p) {
  return (p.batch * p.heads * p.q_len * static_cast<Index>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
}

template <class T, class Mods>
Index flash_workspace_bytes(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  Index most = 0;
  for_each_flash_call(tensors, mods, options,
                      [&](const FlashCall<T>& call) { most = std::max(most, call.workspace_bytes(options.executor)); });
  return needs_lse(mods, tensors.problem) ? lse_bytes<T>(tensors.problem) + most + kAlignment - 1 : most;
}

template <class T, class Mods>
Explanation flash_explanation(const CallTensors<T>& tensors, const Mods& mods, const Options& options) {
  Explanation e;
  for_each_flash_call(tensors, mods, options, [&](const FlashCall<T>& call) { call.explain(options.executor, e); });
  e.workspace_bytes = flash_workspace_bytes(tensors, mods, options);
  return e;
}

template <class T, class Mods>
void flash(CallTensors<T> tensors, const Mods& mods, Options options) {
  Tensor<T, 3> allocated;
  const Problem& p = tensors.problem;
  if (needs_lse(mods, p)) {
    const Shape<3> shape{p.batch, p.heads, p.q_len};
    T* own = nullptr;
    if (options.workspace.data() != nullptr) {
      options.workspace = checked_workspace(options.workspace, flash_workspace_bytes(tensors, mods, options));
      own = reinterpret_cast<T*>(options.workspace.data());
      options.workspace = options.workspace.subspan(static_cast<std::size_t>(lse_bytes<T>(p)));
    } else if (tensors.lse.data() == nullptr) {
      allocated = Tensor<T, 3>::uninitialized(shape);
      own = allocated.data();
    }
    if (tensors.lse.data() == nullptr) tensors.lse = TensorView<T, 3>(own, shape);
  }
  for_each_flash_call(tensors, mods, options, [&](const FlashCall<T>& call) { call.run(options); });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
