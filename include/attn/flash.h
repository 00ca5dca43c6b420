// Layer 3: attention tile by tile with an online softmax (Milakov & Gimelshein 2018; Dao et al. 2022, algorithm 1).
#pragma once

#include <cmath>
#include <limits>

#include "attn/detail/query_tiles.h"
#include "attn/detail/tile_mods.h"
#include "attn/options.h"
#include "attn/tensor.h"

namespace attn::detail {

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

  void run(const Executor& asked) const {
    const Index per_head = tiles_.count(), tasks = problem_.batch * problem_.heads * per_head;
    if (tasks == 0) return;
    const Executor executor = executor_for(flops(), asked);
    TileWorkspace<T> workspace(executor.concurrency(), tiles_.most_queries(), problem_.head_dim, problem_.v_dim,
                               is_packed(k_) ? 0 : problem_.head_dim, is_packed(v_) ? 0 : problem_.v_dim);
    executor.run(tasks, [&](Index task, int worker) {
      const Index head = task / per_head % problem_.heads, batch = task / per_head / problem_.heads;
      // Later queries first: under causal masks they see the most keys, and what is long should not be begun last.
      run_tile(batch, head, tiles_.rows(per_head - 1 - task % per_head), workspace.of(worker));
    });
  }

 private:
  double flops() const {
    const double pairs = static_cast<double>(problem_.batch * problem_.heads) * static_cast<double>(problem_.q_len) *
                         static_cast<double>(problem_.kv_len);
    return 2 * pairs * static_cast<double>(problem_.head_dim + problem_.v_dim);
  }

  /// Can the kernels read the rows in place?
  static bool is_packed(const TensorView<const T, 4>& t) { return t.stride(3) == 1 || t.dim(3) <= 1; }

  bool has_scores() const { return mods_ && mods_->has_scores(); }

  void run_tile(Index batch, Index head, Range rows, const TileMemory<T>& m) const {
    const KernelSet<T>& kernels = tiles_.kernels(rows.size());
    const Index kv_head = problem_.kv_head(head);
    Tile tile{batch, head, {problem_.q_offset + rows.begin, problem_.q_offset + rows.end}, {0, problem_.kv_len}};
    load_query(tile, rows, m, kernels);
    std::fill_n(m.out, padded_rows(problem_.v_dim) * kernels.queries, T(0));
    std::fill_n(m.max, kernels.queries, -std::numeric_limits<T>::infinity());
    std::fill_n(m.sum, kernels.queries, T(0));

    const auto rows_of = [&](const TensorView<const T, 4>& t, T* packed) {
      const T* first = t.data() + batch * t.stride(0) + kv_head * t.stride(1);
      return [&t, first, packed, this](Range keys) -> Rows<T> {
        const T* from = first + keys.begin * t.stride(2);
        if (is_packed(t)) return {from, t.stride(2)};
        family_.pack_rows(from, t.stride(2), t.stride(3), keys.size(), t.dim(3), packed);
        return {packed, t.dim(3)};
      };
    };
    const auto key = rows_of(k_, m.packed_key), value = rows_of(v_, m.packed_value);
    const Range visited = mods_ ? mods_->kv_range(tile) : tile.kv;
    for (Index j = visited.begin; j < visited.end; j += kKeyTile) {
      tile.kv = {j, std::min(j + kKeyTile, visited.end)};
      const Coverage coverage = mods_ ? mods_->coverage(tile) : Coverage::all;
      if (coverage == Coverage::none) continue;
      add_keys(tile, coverage == Coverage::some, key(tile.kv), value(tile.kv), m, kernels);
    }
    store_result(tile, rows, m, kernels);
  }

  /// One step of the recurrence: brings max, sum and out up to date with the keys and values of the tile.
  void add_keys(const Tile& tile, bool masked, Rows<T> key, Rows<T> value, const TileMemory<T>& m,
                const KernelSet<T>& kernels) const {
    const Index keys = tile.kv.size();
    kernels.score(m, key, keys, problem_.head_dim);
    bool multiply_all = true;
    if (masked || has_scores()) {
      mods_->apply(isa_, m.scores, kernels.queries, tile, masked);
      family_.find_max(m, kernels.queries, keys);
      // A dropped pair weighs 0, and 0 times a value is 0, unless that value is not finite: then it must not be
      // multiplied.
      multiply_all = family_.all_finite(value, keys, problem_.v_dim);
    }
    if (multiply_all) {
      const bool moved = kernels.softmax(m, keys);
      kernels.value(m, value, keys, problem_.v_dim, moved);
    } else {
      family_.find_dropped(m, kernels.queries, keys);
      kernels.softmax(m, keys);
      family_.value_by_selection(m, kernels.queries, value, keys, problem_.v_dim);
    }
  }

  /// The tile's queries, transposed and scaled.
  void load_query(const Tile& tile, Range rows, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    const T factor = static_cast<T>(problem_.scale);
    const T* from = q_.data() + tile.batch * q_.stride(0) + tile.head * q_.stride(1) + rows.begin * q_.stride(2);
    if (q_.stride(3) == 1) return kernels.load_query(m, {from, q_.stride(2)}, rows.size(), problem_.head_dim, factor);
    for (Index d = 0; d < problem_.head_dim; ++d)
      for (Index i = 0; i < kernels.queries; ++i)
        m.query[d * kernels.queries + i] =
            from[std::min(i, rows.size() - 1) * q_.stride(2) + d * q_.stride(3)] * factor;
  }

  /// out / sum and the log-sum-exp. A sum of 0 means that no key was kept: 0 and -inf.
  void store_result(const Tile& tile, Range rows, const TileMemory<T>& m, const KernelSet<T>& kernels) const {
    T* to = out_.data() + tile.batch * out_.stride(0) + tile.head * out_.stride(1) + rows.begin * out_.stride(2);
    if (out_.stride(3) == 1) {
      kernels.store_out(m, to, out_.stride(2), rows.size(), problem_.v_dim);
    } else {
      for (Index c = 0; c < problem_.v_dim; ++c)
        for (Index i = 0; i < rows.size(); ++i)
          to[i * out_.stride(2) + c * out_.stride(3)] =
              m.out[c * kernels.queries + i] * (m.sum[i] == T(0) ? T(0) : T(1) / m.sum[i]);
    }
    if (lse_.data() == nullptr) return;
    for (Index i = 0; i < rows.size(); ++i)
      lse_(tile.batch, tile.head, rows.begin + i) =
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

template <class T, class Mods>
void flash(TensorView<T, 4> out, TensorView<T, 3> lse, const TensorView<const T, 4>& q, const TensorView<const T, 4>& k,
           const TensorView<const T, 4>& v, const Mods& mods, const Problem& problem, const Options& options) {
  const TileModsOf<T, Mods> tile_mods(mods);
  const bool plain = !Mods::kHasScores && !Mods::kHasMasks;
  FlashCall<T>(out, lse, q, k, v, plain ? nullptr : &tile_mods, problem, isa_of(options)).run(options.executor);
}

}  // namespace attn::detail
