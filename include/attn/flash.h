// Layer 3: attention tile by tile with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include <cmath>
#include <limits>

#include "attn/detail/query_tiles.h"
#include "attn/detail/tile_mods.h"
#include "attn/explanation.h"
#include "attn/options.h"
#include "attn/tensor.h"

namespace attn::detail {
inline namespace ATTN_BUILT_FOR {

/// One call. `mods` is null where nothing is changed or dropped.
template <class T>
class FlashCall {
 public:
  FlashCall(TensorView<T, 4> out, TensorView<T, 3> lse, const TensorView<const T, 4>& q,
            const TensorView<const T, 4>& k, const TensorView<const T, 4>& v, const TileMods<T>* mods,
            const Problem& problem, Isa isa)
      : out_(out),
        lse_(lse),
        q_(q),
        k_(k),
        v_(v),
        mods_(mods),
        problem_(problem),
        isa_(isa),
        family_(kernel_family<T>(isa)),
        tiles_(family_, problem.q_len) {}

  void run(const Options& options) const {
    if (tasks() == 0) return;
    const Executor executor = executor_for(options.executor);
    const TileWorkspace<T> workspace(layout(), executor.concurrency(), options.workspace);
    const Index workers = executor.concurrency();
    executor.run(tasks(), [&](Index task, int worker) {
      // What this worker is likely to get next, as all take tasks in turn.
      run_tile(queries(task), queries(std::min(task + workers, tasks() - 1)), workspace.of(worker));
    });
  }

  Index workspace_bytes(const Executor& asked) const {
    return tasks() == 0 ? 0 : TileWorkspace<T>::bytes(layout(), executor_for(asked).concurrency());
  }

  Explanation explain(const Executor& asked) const {
    Explanation e;
    e.isa = isa_;
    e.queries_per_tile = tiles_.most_queries();
    e.keys_per_tile = kKeyTile;
    e.tasks = tasks();
    e.threads = static_cast<int>(std::min<Index>(executor_for(asked).concurrency(), tasks()));
    e.workspace_bytes = workspace_bytes(asked);
    e.packs_keys = !is_packed(k_);
    e.packs_values = !is_packed(v_);
    for (Index task = 0; task < tasks(); ++task) {
      Tile tile = tile_of(queries(task));
      const Index all = (problem_.kv_len + kKeyTile - 1) / kKeyTile;
      Index full = 0, masked = 0;
      for_each_tile(tile, [&](bool is_masked, const Range&) { ++(is_masked ? masked : full); });
      e.full_tiles += full;
      e.masked_tiles += masked;
      // The visited range need not begin where a tile would without it.
      e.skipped_tiles += std::max<Index>(all - full - masked, 0);
    }
    return e;
  }

 private:
  /// The queries of one task.
  struct Queries {
    Index batch;
    Index head;
    Index tile;
    Range rows;
  };

  Queries queries(Index task) const {
    const Index per_head = tiles_.count(), head = task / per_head;
    // Later queries first: under causal masks they see the most keys, and what is long should not be begun last.
    const Index tile = per_head - 1 - task % per_head;
    return {head / problem_.heads, head % problem_.heads, tile, tiles_.rows(tile)};
  }

  Index tasks() const { return problem_.batch * problem_.heads * tiles_.count(); }

  TileLayout<T> layout() const {
    return {tiles_.most_queries(), problem_.head_dim, problem_.v_dim, is_packed(k_) ? 0 : problem_.head_dim,
            is_packed(v_) ? 0 : problem_.v_dim};
  }

  Executor executor_for(const Executor& asked) const { return detail::executor_for(flops(), asked); }

  double flops() const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    return 2 * pairs * static_cast<double>(problem_.head_dim + problem_.v_dim);
  }

  /// Can the kernels read the rows in place?
  static bool is_packed(const TensorView<const T, 4>& t) { return t.stride(3) == 1 || t.dim(3) <= 1; }

  bool has_scores() const { return mods_ && mods_->has_scores(); }

  void run_tile(const Queries& queries, const Queries& following, const TileMemory<T>& m) const {
    const KernelSet<T>& kernels = tiles_.kernels(queries.rows.size());
    load_query(queries, m, kernels);
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
    std::fill_n(m.max, kernels.queries, -std::numeric_limits<T>::infinity());
    std::fill_n(m.sum, kernels.queries, T(0));
    Tile tile = tile_of(queries);
    bool dropped_any = false, first = true;
    for_each_tile(tile, [&](bool masked, const Range& visited) {
      dropped_any |= masked || has_scores();  // a changed score may be -inf
      const Rows<T> key = rows_of(k_, queries, tile.kv, m.packed_key),
                    value = rows_of(v_, queries, tile.kv, m.packed_value);
      add_keys(tile, masked, by_selection, std::exchange(first, false), key, value,
               ahead(queries, following, tile.kv, visited), m, kernels);
    });
    if (first) std::fill_n(m.out, problem_.v_dim * kernels.queries, T(0));
    return dropped_any;
  }

  /// All pairs of these queries.
  Tile tile_of(const Queries& queries) const {
    return {queries.batch,
            queries.head,
            {problem_.q_offset + queries.rows.begin, problem_.q_offset + queries.rows.end},
            {0, problem_.kv_len}};
  }

  /// Calls visit(masked, all keys to visit) for each tile of keys in which a pair may be kept, with `tile.kv` set
  /// to them.
  template <class Visit>
  void for_each_tile(Tile& tile, const Visit& visit) const {
    const Range visited = mods_ ? mods_->kv_range(tile) : tile.kv;
    for (Index j = visited.begin; j < visited.end; j += kKeyTile) {
      tile.kv = {j, std::min(j + kKeyTile, visited.end)};
      const Coverage coverage = mods_ ? mods_->coverage(tile) : Coverage::all;
      if (coverage != Coverage::none) visit(coverage == Coverage::some, visited);
    }
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

  /// What to fetch while these keys, of those visited, are worked on: what is needed next and not in the cache yet.
  FetchAhead<T> ahead(const Queries& queries, const Queries& following, const Range& keys, const Range& visited) const {
    using Block = typename FetchAhead<T>::Block;
    const auto key = [&](const Queries& of, Index j) { return Block{in_memory(k_, of, j), problem_.head_dim}; };
    const auto value = [&](const Queries& of, Index j) { return Block{in_memory(v_, of, j), problem_.v_dim}; };
    const auto query = [&](const Queries& of, Index i) {
      return Block{{in_memory(q_, of) + i * q_.stride(2), q_.stride(2)}, problem_.head_dim};
    };
    const auto output = [&](Index i) {
      return Block{{in_memory(out_, queries) + i * out_.stride(2), out_.stride(2)}, problem_.v_dim};
    };
    constexpr Index kHalf = kKeyTile / 2;
    const auto whole_tile = [&](const Queries& of, Index j) {
      return FetchAhead<T>{{key(of, j), value(of, j), key(of, j + kHalf), value(of, j + kHalf)}};
    };
    if (!stays_in_cache(visited) && keys.end < visited.end) return whole_tile(queries, keys.end);
    if (stays_in_cache({0, problem_.kv_len})) {
      // The head has been read with its first tile of queries. Those of the next head are shared out among this head's
      // tiles of queries, because memory has no time for them all at once where sequences are short.
      Queries neighbour = queries;
      if (++neighbour.head == problem_.heads) neighbour = {std::min(queries.batch + 1, problem_.batch - 1), 0, 0, {}};
      if (tiles_.count() == 1) return whole_tile(neighbour, keys.begin);
      const Index turn = (keys.begin / kKeyTile * 2 + queries.tile) % tiles_.count();
      const Index j = keys.begin + turn * kHalf;
      if (turn < 2) return {{key(neighbour, j), value(neighbour, j), query(following, 0), output(0)}};
    } else if (keys.begin == visited.begin && keys.end < visited.end) {
      // A window that moves on by a tile of queries: of the keys that it reaches next, the first are new.
      const Range next = mods_->kv_range(tile_of(following));
      if (next.begin < visited.begin) return whole_tile(following, next.begin);
    }
    return {{query(following, 0), output(0), query(following, kHalf), output(kHalf)}};
  }

  /// Do these keys and values of a head stay in the L2 cache from one tile of queries to the next? They may have a
  /// quarter of the 2 MiB that today's server cores have, half of what others do.
  bool stays_in_cache(const Range& keys) const {
    constexpr Index kBytes = 512 * 1024;
    return keys.size() * (problem_.head_dim + problem_.v_dim) * static_cast<Index>(sizeof(T)) <= kBytes;
  }

  /// The row of key `j` for these queries.
  Rows<T> in_memory(const TensorView<const T, 4>& t, const Queries& queries, Index j) const {
    return {t.data() + queries.batch * t.stride(0) + problem_.kv_head(queries.head) * t.stride(1) + j * t.stride(2),
            t.stride(2)};
  }

  /// The first row of these queries in the query or output tensor.
  template <class U>
  static U* in_memory(const TensorView<U, 4>& t, const Queries& queries) {
    return t.data() + queries.batch * t.stride(0) + queries.head * t.stride(1) + queries.rows.begin * t.stride(2);
  }

  /// The rows of some keys as the kernels read them, copied to `packed` if they must.
  Rows<T> rows_of(const TensorView<const T, 4>& t, const Queries& queries, Range keys, T* packed) const {
    const Rows<T> rows = in_memory(t, queries, keys.begin);
    if (is_packed(t)) return rows;
    family_.pack_rows(rows.data, rows.stride, t.stride(3), keys.size(), t.dim(3), packed);
    return {packed, t.dim(3)};
  }

  /// The tile's queries, transposed and scaled.
  void load_query(const Queries& queries, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    const Range& rows = queries.rows;
    const T factor = static_cast<T>(problem_.scale);
    const T* from = in_memory(q_, queries);
    if (q_.stride(3) == 1)
      return family_.load_query(m, kernels.queries, {from, q_.stride(2)}, rows.size(), problem_.head_dim, factor);
    for (Index d = 0; d < problem_.head_dim; ++d)
      for (Index i = 0; i < kernels.queries; ++i)
        m.query[d * kernels.queries + i] =
            from[std::min(i, rows.size() - 1) * q_.stride(2) + d * q_.stride(3)] * factor;
  }

  /// out / sum and the log-sum-exp. A sum of 0 means that no key was kept: 0 and -inf.
  void store_result(const Queries& queries, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    const Range& rows = queries.rows;
    T* to = in_memory(out_, queries);
    if (out_.stride(3) == 1) {
      family_.store_out(m, kernels.queries, to, out_.stride(2), rows.size(), problem_.v_dim);
    } else {
      for (Index c = 0; c < problem_.v_dim; ++c)
        for (Index i = 0; i < rows.size(); ++i)
          to[i * out_.stride(2) + c * out_.stride(3)] =
              m.out[c * kernels.queries + i] * (m.sum[i] == T(0) ? T(0) : T(1) / m.sum[i]);
    }
    if (lse_.data() == nullptr) return;
    for (Index i = 0; i < rows.size(); ++i)
      lse_(queries.batch, queries.head, rows.begin + i) =
          m.sum[i] == T(0) ? -std::numeric_limits<T>::infinity() : m.max[i] + std::log(m.sum[i]);
  }

  TensorView<T, 4> out_;
  TensorView<T, 3> lse_;
  TensorView<const T, 4> q_, k_, v_;
  const TileMods<T>* mods_;
  const Problem& problem_;
  Isa isa_;
  const KernelFamily<T>& family_;
  QueryTiles<T> tiles_;
};

/// Makes the FlashCall of some arguments and hands it to `use`.
template <class T, class Mods, class Use>
auto with_flash_call(TensorView<T, 4> out, TensorView<T, 3> lse, const TensorView<const T, 4>& q,
                     const TensorView<const T, 4>& k, const TensorView<const T, 4>& v, const Mods& mods,
                     const Problem& problem, const Options& options, const Use& use) {
  const TileModsOf<T, Mods> tile_mods(mods);
  const bool plain = !Mods::kHasScores && !Mods::kHasMasks;
  return use(FlashCall<T>(out, lse, q, k, v, plain ? nullptr : &tile_mods, problem, isa_of(options)));
}

template <class T, class Mods>
void flash(TensorView<T, 4> out, TensorView<T, 3> lse, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
           const TensorView<const T, 4>& v, const Mods& mods, const Problem& problem, const Options& options) {
  with_flash_call<T>(out, lse, q, k, v, mods, problem, options, [&](const auto& call) { call.run(options); });
}

}  // namespace ATTN_BUILT_FOR
}  // namespace attn::detail
