// Attention and its directional derivative tile by tile: forward-mode differentiation of the online softmax.
//
// A tile of queries and a tile of keys need six products, all computed by kernels of attention():
//
//     scores    (keys, queries) = key · query                                     TileKernels::score
//     tangents  (keys, queries) = key · tangent_query and tangent_key · query     TileKernels::score
//     out       (v_dim, queries) += valueᵀ · weights                              TileKernels::value
//     tangent   (v_dim, queries) += valueᵀ · (weights * tangents)                 TileKernels::value
//                                   and tangent_valueᵀ · weights
//
// TangentKernels are the kernels that only forward mode needs, one source for all instruction sets.
#pragma once

#include "attn/core/base/compiled_once.h"
#include "attn/core/flash/pass.h"
#include "attn/core/kernels/kernel_table.h"
#include "attn/core/kernels/sigmoid_kernels.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// A tile of queries and a tile of keys in forward mode.
template <class T>
struct TangentTile {
  T* weights;        ///< (keys, queries), relative to the maxima so far; for sigmoids, scores that become weights
  T* tangents;       ///< (keys, queries): one part of the tangents of scores; becomes weights times tangents
  const T* others;   ///< (keys, queries): the other part
  const T* slopes;   ///< (keys, queries), of the score mods; null if none
  const T* rescale;  ///< (queries): e^(old max - new max); null if no maximum moved
  T* sum;            ///< (queries): the sum of weights times tangents so far
  const T* less;     ///< (queries): for sigmoids, subtracted from scores before they become weights
};

template <class T, int Bytes>
struct TangentKernels {
  using V = Vec<T, Bytes>;
  static constexpr int kLanes = V::kLanes;

  /// Adds the two parts of the tangents of scores, and multiplies them by the slopes of the mods and by the weights. A
  /// pair of weight 0 gets 0, because tangents of dropped pairs may be anything.
  static ATTN_INLINE void weigh(const TangentTile<T>& t, Index queries, Index keys) {
    for (Index i = 0; i < queries; i += kLanes) {
      V sum = V::load(t.sum + i);
      if (t.rescale != nullptr) sum *= V::load(t.rescale + i);
      // Sums sixteen products at a time, then those sums, as for the weights: short chains, which run in parallel.
      for (Index j = 0; j < keys;) {
        V some{};
        for (const Index end = std::min<Index>(j + 16, keys); j < end; ++j) {
          const Index at = j * queries + i;
          const V weight = V::load(t.weights + at), tangent = select(weight == V{}, V{}, weight * load_tangent(t, at));
          some += tangent;
          tangent.store(t.tangents + at);
        }
        sum += some;
      }
      sum.store(t.sum + i);
    }
  }

  /// Like weigh(), for sigmoids; also turns scores into weights. The tangent of a weight is weight * (1 - weight) times
  /// that of its score, and 0 for a dropped pair.
  static ATTN_INLINE void weigh_sigmoids(const TangentTile<T>& t, Index queries, Index keys) {
    const V dropped = V::broadcast(-std::numeric_limits<T>::infinity());
    for (Index i = 0; i < queries; i += kLanes) {
      const V less = V::load(t.less + i);
      for (Index j = 0; j < keys; ++j) {
        const Index at = j * queries + i;
        const V score = V::load(t.weights + at);
        const auto [weight, rest] = sigmoid(score - less);
        const V tangent = weight * rest * load_tangent(t, at);
        weight.store(t.weights + at);
        select(score == dropped, V{}, tangent).store(t.tangents + at);
      }
    }
  }

 private:
  /// The sum of both parts of the tangents of a vector of scores, times the slopes of the mods.
  static ATTN_INLINE V load_tangent(const TangentTile<T>& t, Index at) {
    const V tangent = V::load(t.tangents + at) + V::load(t.others + at);
    return t.slopes == nullptr ? tangent : tangent * V::load(t.slopes + at);
  }
};

/// The kernel for this set of vectors, which must be available; see kernel_family().
template <class T>
auto weigh_tangents(VectorSet vectors, bool of_sigmoids) {
  using Kernel = void (*)(const TangentTile<T>&, Index queries, Index keys);
  return with_vectors<T>(vectors, [of_sigmoids]<VectorSet kSet>() -> Kernel {
    using Kernels = TangentKernels<T, kVectorBytes<kSet>>;
    return of_sigmoids ? compiled<kSet, Kernels::weigh_sigmoids> : compiled<kSet, Kernels::weigh>;
  });
}

/// One call. `tensors` has no lse. If `mods` is null, nothing is changed or dropped; if `slopes` is null, no score is
/// changed.
template <class T>
struct JvpCall {
  CallTensors<T> tensors;
  DTypeView<T> tangent;
  DTypeView<const T> tangent_q;
  KvRows<T> tangent_k, tangent_v;
  const TileMods<T>* mods;
  const ModSlopes<T>* slopes;
};

/// The online softmax of attention() with two more sums besides the output, relative to the same maxima: with weights w
/// and tangents t of the scores,
///
///     out      sum of w * value
///     tangent  sum of w * t * value + w * tangent_value
///     sum      sum of w * t
///
/// After all keys, when each of the three is divided by the sum of w, the tangent of the output is tangent - sum * out.
/// The three are contiguous, like one output with more rows, so stretches and their totals cover all of them. With
/// sigmoids, w * (1 - w) replaces w in products with t, and `sum` stays 0.
template <class T>
class JvpLoop {
 public:
  JvpLoop(const JvpCall<T>& call, const ChosenKernels<T>& kernels)
      : call_(call),
        pass_{{call.tensors, call.mods}, kernels},
        problem_(call.tensors.problem),
        family_(kernels.full_precision),
        of_sigmoids_(problem_.sigmoid_bias.has_value()),
        weigh_(weigh_tangents<T>(kernels.vectors, of_sigmoids_)),
        tiles_(family_, problem_.q_len, false),
        columns_(padded(problem_.v_dim, family_.format.out)) {}

  /// Six products, where attention() has two.
  double flops() const {
    return 6 * static_cast<double>(problem_.batch * problem_.heads * problem_.q_len) *
           static_cast<double>(problem_.kv_len) * static_cast<double>(problem_.head_dim + problem_.v_dim);
  }

  /// Four tiles of queries share keys, values and their directions, which are read, and packed if necessary, once for
  /// the four. The state of four tiles still fits the L2 cache.
  QueryBlocks<T> blocks(int workers) const {
    constexpr Index kBlocksPerWorker = 4;
    const Index tiles = problem_.batch * problem_.heads * tiles_.count();
    return {problem_, tiles_, std::min(kMostTiles, tiles / (kBlocksPerWorker * workers))};
  }

  /// Bytes of a worker's memory: that of the tiles, then the tangents of scores.
  Index bytes(const QueryBlocks<T>& blocks) const {
    return layout(blocks).bytes() + 3 * kKeyTile * tiles_.most_queries() * static_cast<Index>(sizeof(T));
  }

  void run(const QueryBlocks<T>& blocks, Index block, std::byte* memory) const {
    const TileLayout<T> layout = this->layout(blocks);
    Array<State, kMostTiles> room;
    const std::span states(room, static_cast<std::size_t>(blocks.size(block)));
    for (Index i = 0; State & s : states) {
      s.queries = blocks.at(block, i);
      s.m = layout.at(memory, i);
      s.tangents = reinterpret_cast<T*>(memory + layout.bytes());
      begin(s);
      ++i;
    }
    visit_keys(states, false);
    for (State& s : states) {
      // A dropped pair weighs 0, and 0 times a value is 0 unless the value is not finite; see must_compute_again().
      if (s.dropped_any && !is_finite(s)) {
        begin(s);
        visit_keys({&s, 1}, true);
      }
      store(s);
    }
  }

 private:
  static constexpr Index kMostTiles = 4;

  /// The state of a tile of queries.
  struct State {
    QueryTile queries;
    Range visited;  ///< keys
    TileMemory<T> m;
    T* tangents;       ///< (3, kKeyTile, queries): of the scores of a tile of keys; see add_keys()
    Index width;       ///< columns of queries
    Index added;       ///< tiles of keys in the current stretch
    bool has_totals;   ///< whether an earlier stretch has ended
    bool dropped_any;  ///< whether a pair may have been dropped inside a tile of keys that was added
  };

  /// A tile of keys as the kernels read it.
  struct KvTile {
    Range range;
    Rows<T> key, value, tangent_key, tangent_value;
  };

  Index rows() const { return 2 * columns_ + 1; }
  T* tangent_query(const State& s) const { return s.m.query + problem_.head_dim * s.width; }
  T* tangent(const State& s) const { return s.m.out + columns_ * s.width; }
  T* sum(const State& s) const { return s.m.out + 2 * columns_ * s.width; }

  /// Packed keys are followed by their tangents, and packed values by theirs.
  TileLayout<T> layout(const QueryBlocks<T>& blocks) const {
    const Index queries = tiles_.most_queries();
    return TileLayout<T>({.queries = queries,
                          .query = 2 * problem_.head_dim,
                          .out = rows(),
                          .packed_key = 2 * problem_.head_dim,
                          .packed_value = 2 * problem_.v_dim,
                          .totals = has_totals(problem_.kv_len)},
                         blocks.most_tiles());
  }

  /// The state before the first key.
  void begin(State& s) const {
    const QueryTile& queries = s.queries;
    const Index count = queries.rows.size(), head_dim = problem_.head_dim;
    s.visited = pass_.visited(queries);
    s.width = family_.set_for(count).queries;
    s.added = 0;
    s.has_totals = s.dropped_any = false;
    const auto load = [&](T* to, const RowsToRead& rows) {  // packed_key has space: no tile has more queries than keys
      family_.load_columns(to, s.width, rows_of(family_, rows, count, head_dim, 1, s.m.packed_key), count, head_dim,
                           static_cast<T>(problem_.scale));
    };
    load(s.m.query, call_.tensors.query(queries));
    load(tangent_query(s), call_.tangent_q.rows(queries.batch, queries.head, queries.rows.begin));
    pass_.begin(queries, count, s.width, s.m);
    std::fill_n(s.m.out, rows() * s.width, T(0));
  }

  /// The recurrence over all keys. Tiles of keys begin at multiples of their length, so that results do not depend on
  /// how queries are split into blocks.
  void visit_keys(std::span<State> states, bool by_selection) const {
    const Range all = hull_of_visited(states);
    for (Index j = all.begin / kKeyTile * kKeyTile; j < all.end; j += kKeyTile) {
      KvTile keys{{j, std::min(j + kKeyTile, problem_.kv_len)}, {}, {}, {}, {}};
      bool loaded = false;
      for (State& s : states) {
        const Coverage coverage = pass_.coverage(s.queries, s.visited, keys.range);
        if (coverage == Coverage::none) continue;
        if (!std::exchange(loaded, true)) load(keys, s);
        add_keys(s, keys, coverage, by_selection);
      }
    }
    for (State& s : states) {
      if (s.has_totals) end_stretch(s);
      family_.finish(s.m, s.width, rows(), s.has_totals);
    }
  }

  void load(KvTile& keys, const State& s) const {
    const Index batch = s.queries.batch, kv_head = problem_.kv_head(s.queries.head);
    const auto rows = [&](const KvRows<T>& t, T* packed) {
      return kv_rows_of(family_, t, batch, kv_head, keys.range, 1, packed);
    };
    keys.key = rows(call_.tensors.k, s.m.packed_key);
    keys.tangent_key = rows(call_.tangent_k, s.m.packed_key + kKeyTile * problem_.head_dim);
    keys.value = rows(call_.tensors.v, s.m.packed_value);
    keys.tangent_value = rows(call_.tangent_v, s.m.packed_value + kKeyTile * problem_.v_dim);
  }

  /// One step of the recurrence.
  void add_keys(State& s, const KvTile& keys, Coverage coverage, bool by_selection) const {
    if (s.added == kStretch) end_stretch(s);
    ++s.added;
    const KernelSet<T>& kernels = family_.set_for(s.queries.rows.size());
    const Index count = keys.range.size(), v_dim = problem_.v_dim;
    T *const weights = s.m.scores, *const tangents = s.tangents, *const others = tangents + kKeyTile * s.width,
             *const slopes = call_.slopes ? others + kKeyTile * s.width : nullptr;
    const auto score = [&](T* to, T* query, Rows<T> key) {
      TileMemory<T> m = s.m;
      m.scores = to;
      m.query = query;
      kernels.score(m, key, count, problem_.head_dim);
    };
    score(tangents, tangent_query(s), keys.key);
    score(others, s.m.query, keys.tangent_key);
    score(weights, s.m.query, keys.key);  // last, because it sets the maxima
    const bool modded = pass_.changes_scores(coverage);
    if (modded) {
      apply_mods(s, keys.range, coverage, slopes);
      family_.find_max(s.m, s.width, count);
    }
    s.dropped_any |= modded;  // a changed score may be -inf
    const bool select =
        modded && by_selection &&
        !(family_.all_finite(keys.value, count, v_dim) && family_.all_finite(keys.tangent_value, count, v_dim));
    if (select) family_.find_dropped(s.m, s.width, count);
    const bool moved = !of_sigmoids_ && kernels.softmax(s.m, count, keys.value, v_dim);
    weigh_({weights, tangents, others, slopes, moved ? s.m.rescale : nullptr, sum(s), s.m.max}, s.width, count);
    if (pass_.kept_factor() != T(1))
      for (T* const dropped : {weights, tangents})
        pass_.drop_weights(dropped, WeightOrder::keys_by_queries, s.width, s.queries, keys.range);

    const OutUpdate update = moved ? OutUpdate::rescale_and_add : OutUpdate::add;
    const auto value = [&](T* to, T* of, Rows<T> values, OutUpdate how) {
      TileMemory<T> m = s.m;
      m.weights = of;
      m.out = to;
      if (select)
        family_.value_by_selection(m, s.width, values, count, v_dim, how);
      else
        kernels.value(m, values, count, v_dim, how, PrefetchPlan::nothing(s.m.max));
    };
    value(s.m.out, weights, keys.value, update);
    value(tangent(s), tangents, keys.value, update);
    value(tangent(s), weights, keys.tangent_value, OutUpdate::add);
  }

  void apply_mods(const State& s, const Range& keys, Coverage coverage, T* slopes) const {
    if (slopes == nullptr) return pass_.apply_mods(s.m.scores, s.width, s.queries, keys, coverage);
    call_.slopes->apply(pass_.kernels.vectors, s.m.scores, slopes, s.width, call_.tensors.pairs(s.queries, keys),
                        coverage == Coverage::some);
    // Padding columns belong to no pair, and nothing else writes them.
    const Index queries = s.queries.rows.size();
    for (Index j = 0; j < keys.size(); ++j) std::fill_n(slopes + j * s.width + queries, s.width - queries, T(0));
  }

  void end_stretch(State& s) const {
    family_.end_stretch(s.m, s.width, rows(), OutLayout::by_column, !std::exchange(s.has_totals, true));
    std::fill_n(s.m.out, rows() * s.width, T(0));
    s.added = 0;
  }

  bool is_finite(const State& s) const {
    const Index size = problem_.v_dim * s.width;
    return family_.all_finite({s.m.out, 0}, 1, size) && family_.all_finite({tangent(s), 0}, 1, size);
  }

  /// Stores the output and its tangent.
  void store(const State& s) const {
    T *const out = s.m.out, *const change = tangent(s), *const mean = sum(s);
    for (Index i = 0; i < s.width; ++i) mean[i] = s.m.sum[i] == T(0) ? T(0) : mean[i] / s.m.sum[i];
    for (Index c = 0; c < problem_.v_dim; ++c)
      for (Index i = 0; i < s.width; ++i) change[c * s.width + i] -= mean[i] * out[c * s.width + i];
    if (const T factor = pass_.kept_factor(); factor != T(1))
      for (T* const numbers : {out, change})
        for (Index i = 0; i < problem_.v_dim * s.width; ++i) numbers[i] *= factor;
    const Index count = s.queries.rows.size();
    store_out(family_, s.m, s.width, call_.tensors.output(s.queries), count, problem_.v_dim);
    TileMemory<T> m = s.m;
    m.out = change;
    store_out(family_, m, s.width, call_.tangent.rows(s.queries.batch, s.queries.head, s.queries.rows.begin), count,
              problem_.v_dim);
  }

  const JvpCall<T>& call_;
  PassContext<T> pass_;
  const Problem& problem_;
  const KernelFamily<T>& family_;
  bool of_sigmoids_;
  void (*weigh_)(const TangentTile<T>&, Index queries, Index keys);
  QueryTiles<T> tiles_;
  Index columns_;  ///< v_dim with the padding that kernels write
};

/// Computes a call.
template <class T, class = include_attn_instantiate_h_in_one_unit>
void jvp(const JvpCall<T>& call, const Options& options) {
  const auto chosen = [&]() -> ChosenKernels<T> {
    if (!call.tensors.problem.sigmoid_bias) return choose_kernels<T>(options, Bf16Products::none);
    const VectorSet vectors = vectors_of(isa_of(options));
    return {sigmoid_family<T>(vectors), sigmoid_family<T>(vectors), vectors, Amx::unsupported};
  };
  const ChosenKernels<T> kernels = chosen();
  const JvpLoop<T> loop(call, kernels);
  const Workers workers({loop.flops()}, options.executor);
  const QueryBlocks<T> blocks = loop.blocks(workers.count());
  if (blocks.count() == 0) return;
  const Workspace workspace(loop.bytes(blocks), workers.count());
  workers.run(blocks.count(), [&](Index block, int worker) { loop.run(blocks, block, workspace.of(worker)); });
}
ATTN_COMPILED_ONCE(jvp)

}  // namespace attn::detail::inline ATTN_BUILT_FOR
