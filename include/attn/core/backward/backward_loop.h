// The loop of the backward pass: for each tile of keys, all tiles of queries that see it.
#pragma once

#include <algorithm>
#include <limits>
#include <utility>

#include "attn/core/backward/backward_plan.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The outer loop is over keys, the inner one over queries: the gradients of a tile of keys and values stay in the
/// cache until all queries have added to them, while the gradients of queries are loaded and stored a tile at a time
/// (Dao 2023, algorithm 2). Scores are computed again from queries and keys. The log-sum-exp of the forward pass turns
/// them into weights, or sums that the loop computes itself: see sum_rows().
template <class T>
class BackwardLoop {
 public:
  BackwardLoop(const BackwardCall<T>& call, const BackwardPlan<T>& plan)
      : call_(call),
        plan_(plan),
        problem_(plan.problem()),
        family_(plan.family()),
        scale_(static_cast<T>(problem_.scale)),
        kept_factor_(call.kept_factor()) {}

  /// Prepares a tile of queries: copies the rows that the loop reads, and clears the tile's gradient.
  void prepare(std::byte* group_memory, Index group, Index i, std::byte* worker_memory) const {
    const WorkerMemory<T> m = plan_.memory_of_worker(worker_memory);
    PreparedQueries<T>& p = plan_.prepare(group_memory, group, i);
    const QueryTile& queries = p.queries;
    const Index count = queries.rows.size(), width = family_.set_for(count).queries;
    const Index head_dim = problem_.head_dim, v_dim = problem_.v_dim;
    const KernelFamily<T>& exact = plan_.full_precision();
    const KernelScope<T> in_use(family_);
    const auto rows_as = [&](const KernelFamily<T>& family, const DTypeView<const T>& t, T* packed) {
      return rows(family, t, queries, packed);
    };
    const auto in_full = [&](const Rows<T>& loaded, const DTypeView<const T>& t) {
      return plan_.in_bf16() ? rows_as(exact, t, m.rows) : loaded;
    };
    const Rows<T> query = rows_as(family_, call_.tensors.q, m.rows);
    family_.load_columns(p.query, width, query, count, family_.format.row(head_dim), before(scale_));
    plan_.kernels().pack_panels(query, count, head_dim, before(scale_), p.query_panels);
    p.finite = exact.all_finite(in_full(query, call_.tensors.q), count, head_dim);
    // Dropout multiplies the weights that it keeps by a factor. Here, that factor is applied to grad_out instead, once
    // for all products.
    const Rows<T> grad_out = rows_as(family_, call_.grad_out, m.rows);
    family_.load_columns(p.grad_out, width, grad_out, count, family_.format.row(v_dim), before(kept_factor_));
    plan_.kernels().pack_panels(grad_out, count, v_dim, before(kept_factor_), p.grad_out_panels);
    const Rows<T> numbers = in_full(grad_out, call_.grad_out);
    p.finite = p.finite && exact.all_finite(numbers, count, v_dim);
    if (!problem_.sigmoid_bias)
      plan_.kernels().dot_rows(numbers, rows_as(exact, call_.out, m.more_rows), count, v_dim, p.delta);
    p.visited = visited_keys(call_.tensors, call_.mods, queries);
    for (Index row = 0; row < width; ++row) {
      const Index r = queries.rows.begin + std::min(row, count - 1);
      if (problem_.sigmoid_bias) {  // weights are independent: see core/kernels/sigmoid_kernels.h
        p.lse[row] = static_cast<T>(-*problem_.sigmoid_bias);
        p.lse_rest[row] = p.delta[row] = p.delta_rest[row] = 0;
        continue;
      }
      p.delta_rest[row] = 0;
      // If no key is kept, any lse for which e^(-inf - lse) is 0 will do.
      const T& lse = call_.lse(queries.batch, queries.head, r);
      p.lse[row] = lse == -kInfinity ? T(0) : lse;
      p.lse_rest[row] = call_.lse_rests.of(&lse);
      if (row >= count) p.delta[row] = 0;
      if (!call_.sums_rows && call_.grad_lse.data() && row < count)
        p.delta[row] -= call_.grad_lse(queries.batch, queries.head, r);
    }
    if (call_.sums_rows) sum_rows(p, m);
  }

  /// Runs one task: the pairs of a part of a group's keys and a part of its queries. `sums`: see LearnedMods.
  void run(std::byte* group_memory, Index group, Index task, GradientSum<T>* sums, std::byte* worker_memory) const {
    const Index key_part = task / plan_.query_parts(), query_part = task % plan_.query_parts();
    WorkerMemory<T> m = plan_.memory_of_worker(worker_memory);
    m.sums = sums;
    const KernelScope<T> in_use(family_);
    const Range key_tiles = plan_.key_tiles_of(key_part), query_tiles = plan_.query_tiles_of(query_part);
    const Index batch = group / problem_.kv_heads, kv_head = group % problem_.kv_heads;
    for (Index first = key_tiles.begin; first < key_tiles.end; first += plan_.chunk()) {
      Array<KvTile, BackwardPlan<T>::kMostTogether> room;
      const std::span chunk(room, static_cast<std::size_t>(std::min(plan_.chunk(), key_tiles.end - first)));
      for (Index i = 0; KvTile & keys : chunk) {
        load(keys, group_memory, batch, kv_head, first + i, query_part, i, m);
        ++i;
      }
      const Range all{chunk.front().range.begin, chunk.back().range.end};
      for (Index i = query_tiles.begin; i < query_tiles.end; ++i) {
        PreparedQueries<T>& p = plan_.prepared(group_memory, i);
        if (intersect(p.visited, all).empty()) continue;
        for (KvTile& keys : chunk) {
          if (intersect(p.visited, keys.range).empty()) continue;
          const Tile pairs = call_.tensors.pairs(p.queries, keys.range);
          const Coverage coverage = coverage_of(pairs);
          if (coverage != Coverage::none) one_tile(p, pairs, coverage == Coverage::some, keys, key_part, m);
        }
      }
      for (const KvTile& keys : chunk) {
        if (plan_.query_parts() > 1) continue;
        store(keys.grad_key, plan_.key_row(), keys.range.size(), problem_.head_dim, after(scale_),
              call_.grad_k.rows(batch, kv_head, keys.range.begin));
        store(keys.grad_value, plan_.value_row(), keys.range.size(), problem_.v_dim, after(kept_factor_),
              call_.grad_v.rows(batch, kv_head, keys.range.begin));
      }
    }
  }

  /// Stores the gradient of a tile of queries: the sum over the parts of the keys, in order.
  void store_queries(std::byte* group_memory, Index i, std::byte* worker_memory) const {
    const WorkerMemory<T> m = plan_.memory_of_worker(worker_memory);
    const PreparedQueries<T>& p = plan_.prepared(group_memory, i);
    const Index count = p.queries.rows.size(), width = family_.set_for(count).queries;
    const Index size = plan_.grad_query_dim() * width;
    T* sum = p.grad_query;
    bool any = false;
    for (Index part = 0; part < plan_.key_parts(); ++part) {
      if (!p.added[part]) continue;
      T* const added = p.grad_query + part * plan_.grad_query_size();
      if (!std::exchange(any, true)) {
        sum = added;
        continue;
      }
      plan_.kernels().add(sum, added, size);
    }
    if (any)
      family_.multiply(sum, sum, size, scale_);
    else
      std::fill_n(sum, size, T(0));
    TileMemory<T> tile{};
    tile.out = sum;
    tile.scores = m.scores;
    tile.sum = m.tile_max;
    std::fill_n(tile.sum, width, T(1));
    const auto store = [&](const DTypeView<T>& to) {
      const RowsToWrite rows = to.rows(p.queries.batch, p.queries.head, p.queries.rows.begin);
      if (call_.accumulates) add_rows_of(rows, count, problem_.head_dim, tile.out, 1, width);
      store_out(family_, tile, width, rows, count, problem_.head_dim);
      tile.out += problem_.head_dim * width;
    };
    store(call_.grad_q);
    if (call_.tensors.score) store(call_.grad_weights);
  }

  /// Adds the gradients of the sinks of a group's heads.
  void learn_sinks(std::byte* group_memory, Index, GradientSum<T>* sums) const {
    for (Index i = 0; i < plan_.tiles_of_group(); ++i) {
      const PreparedQueries<T>& p = plan_.prepared(group_memory, i);
      const Index count = p.queries.rows.size();
      for (Index row = 0; row < count; ++row) p.delta[row] += p.delta_rest[row];
      call_.learned->learn_sinks(p.queries.head, p.lse, p.lse_rest, p.delta, count, sums);
    }
  }

  /// Stores the gradients of a tile of keys and values of a group: the sums over the parts of the queries.
  void store_keys(std::byte* group_memory, Index group, Index tile) const {
    const Range keys{tile * kKeyTile, std::min((tile + 1) * kKeyTile, problem_.kv_len)};
    const Index batch = group / problem_.kv_heads, kv_head = group % problem_.kv_heads;
    const auto add_up = [&](auto&& part_of, Index row, Index dim, T factor, const RowsToWrite& to) {
      T* const sum = part_of(0) + keys.begin * row;
      for (Index part = 1; part < plan_.query_parts(); ++part) {
        const T* const added = part_of(part) + keys.begin * row;
        plan_.kernels().add(sum, added, keys.size() * row);
      }
      store(sum, row, keys.size(), dim, factor, to);
    };
    add_up([&](Index part) { return plan_.grad_key_of(group_memory, part); }, plan_.key_row(), problem_.head_dim,
           after(scale_), call_.grad_k.rows(batch, kv_head, keys.begin));
    add_up([&](Index part) { return plan_.grad_value_of(group_memory, part); }, plan_.value_row(), problem_.v_dim,
           after(kept_factor_), call_.grad_v.rows(batch, kv_head, keys.begin));
  }

 private:
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();

  /// A tile of keys and values as the kernels read it: in the caller's memory if they can, otherwise packed into the
  /// memory of a chunk.
  struct KvTile {
    Range range;
    Rows<T> key, value;
    Rows<T> arranged_key;      ///< as the value product reads it
    T *grad_key, *grad_value;  ///< (keys, key_row), (keys, value_row)
    bool checked = false;      ///< whether `finite` is known
    bool finite = true;        ///< whether all keys and values are finite
  };

  /// Loads tile number `tile` of a group's keys and values as tile `i` of a chunk.
  KvTile loaded(Index batch, Index kv_head, Index tile, Index i, const WorkerMemory<T>& m) const {
    KvTile keys{};
    keys.checked = plan_.in_bf16();  // tensors that suit the kernels for bf16 are finite
    keys.range = {tile * kKeyTile, std::min((tile + 1) * kKeyTile, problem_.kv_len)};
    const auto load_rows = [&](const KvRows<T>& t, Index dim, T* packed) {
      return kv_rows_of(family_, t, batch, kv_head, keys.range, family_.format.keys,
                        packed + i * kKeyTile * plan_.row(dim));
    };
    keys.key = load_rows(call_.tensors.k, problem_.head_dim, m.packed_key);
    keys.value = load_rows(call_.tensors.v, problem_.v_dim, m.packed_value);
    return keys;
  }
  /// The same, with zero gradients.
  void load(KvTile& keys, std::byte* group_memory, Index batch, Index kv_head, Index tile, Index query_part, Index i,
            const WorkerMemory<T>& m) const {
    const Index first = i * kKeyTile;
    keys = loaded(batch, kv_head, tile, i, m);
    keys.arranged_key = family_.arrange_values(keys.key, keys.range.size(), problem_.head_dim,
                                               m.arranged_key + first * plan_.arranged_row());
    keys.grad_key = m.grad_key + first * plan_.key_row();
    keys.grad_value = m.grad_value + first * plan_.value_row();
    if (plan_.query_parts() > 1) {
      keys.grad_key = plan_.grad_key_of(group_memory, query_part) + keys.range.begin * plan_.key_row();
      keys.grad_value = plan_.grad_value_of(group_memory, query_part) + keys.range.begin * plan_.value_row();
    }
    std::fill_n(keys.grad_key, keys.range.size() * plan_.key_row(), T(0));
    std::fill_n(keys.grad_value, keys.range.size() * plan_.value_row(), T(0));
  }

  /// Whether all keys and values of a tile are finite. They are checked once, on the first call.
  bool is_finite(KvTile& keys) const {
    if (!std::exchange(keys.checked, true))
      keys.finite = family_.all_finite(keys.key, keys.range.size(), problem_.head_dim) &&
                    family_.all_finite(keys.value, keys.range.size(), problem_.v_dim);
    return keys.finite;
  }

  /// Computes for each query the sums over its keys that weights and their gradients are relative to: the softmax's
  /// denominator and delta. The forward pass knows both, but only for the scores and weights that its kernels computed.
  /// bf16 kernels round weights, and kernels of single queries add up scores in another order. Where values or keys
  /// have a common part, gradients are differences of much larger numbers, and such deviations would remain; so the
  /// sums must come from the scores and weights that the gradients are computed from. Here, scores are computed as in
  /// one_tile(), bit for bit. Costs two products in addition to the five of one_tile().
  ///
  /// grad_out · out is close to delta. It only centres the gradients of weights, so it may be rounded; the sum of what
  /// is left becomes delta_rest. (With delta as one number, errors of learned biases were up to six times those of the
  /// naive path; with the same rounded weights in both passes, 234 times.)
  void sum_rows(PreparedQueries<T>& p, const WorkerMemory<T>& m) const {
    const QueryTile& queries = p.queries;
    const Index width = family_.set_for(queries.rows.size()).queries, kv_head = problem_.kv_head(queries.head);
    const RowSums<T> sums{p.lse, p.delta, p.lse_rest, m.sum_rest, p.delta_rest, m.grad_rest};
    if (problem_.changes_weights) std::copy_n(p.lse, width, m.lse), std::copy_n(p.lse_rest, width, m.lse_rest);
    const T sink = call_.mods ? static_cast<T>(call_.mods->sink(queries.head)) : -kInfinity;
    for (Index i = 0; i < width; ++i) {
      if (!std::isfinite(p.delta[i])) p.delta[i] = 0;
      // A sink has the weight e^0 relative to itself, and no value.
      sums.max[i] = sink;
      sums.sum[i] = sink == -kInfinity ? T(0) : T(1);
      sums.grads[i] = -sums.sum[i] * p.delta[i];
      sums.sum_rest[i] = sums.grad_rest[i] = 0;
    }
    const Range tiles =
        p.visited.empty() ? Range{0, 0} : Range{p.visited.begin / kKeyTile, ceil_div(p.visited.end, kKeyTile)};
    for (Index tile = tiles.begin; tile < tiles.end; ++tile) {
      const Range range{tile * kKeyTile, std::min((tile + 1) * kKeyTile, problem_.kv_len)};
      const Tile pairs = call_.tensors.pairs(queries, range);
      const Coverage coverage = coverage_of(pairs);
      if (coverage == Coverage::none) continue;
      const KvTile keys = loaded(queries.batch, kv_head, tile, 0, m);
      TileMemory<T> memory{};
      compute_scores(p, pairs, coverage == Coverage::some, keys, memory, m);
      if (problem_.changes_weights) change_weights(p, m.lse, m.lse_rest, pairs, memory, m);
      plan_.kernels().add_to_sums(sums, m.scores, m.grad_scores, width, range.size());
    }
    for (Index i = 0; i < width; ++i) {
      if (sums.max[i] == -kInfinity) {  // no key is kept
        p.lse[i] = p.lse_rest[i] = p.delta[i] = p.delta_rest[i] = 0;
        continue;
      }
      add_rest(sums.sum[i], sums.sum_rest[i]);
      add_rest(sums.grads[i], sums.grad_rest[i]);
      p.delta_rest[i] = sums.grads[i] / sums.sum[i];
      p.lse_rest[i] = std::log(sums.sum[i]);
      if (call_.grad_lse.data() && i < queries.rows.size())
        p.delta_rest[i] -= call_.grad_lse(queries.batch, queries.head, queries.rows.begin + i);
    }
  }

  Coverage coverage_of(const Tile& pairs) const {
    return call_.mods ? call_.mods->coverage(plan_.vectors(), pairs) : Coverage::all;
  }
  bool with_slopes(const WorkerMemory<T>& m) const { return call_.slopes && call_.has_scores() && !m.raw; }

  /// Computes the modded scores of a tile, in m.scores, and the gradients of its weights, in m.grad_scores.
  void compute_scores(const PreparedQueries<T>& p, const Tile& pairs, bool masked, const KvTile& keys,
                      TileMemory<T>& tile, const WorkerMemory<T>& m) const {
    const Index rows_of_tile = p.queries.rows.size(), count = keys.range.size();
    const KernelSet<T>& kernels = family_.set_for(rows_of_tile);
    const OtherScore<T>* const other = call_.tensors.score;
    tile.tile_max = m.tile_max;
    if (other) tile.score_weight = other->of(p.queries.head);
    const auto score = [&](const KernelSet<T>& by, T* query, T* scores, Rows<T> key, Index dim, T factor) {
      tile.query = query, tile.scores = scores, tile.scale = after(factor);
      by.score(tile, key, count, dim);
      family_.scale_scores(tile, count);
    };
    score(kernels, p.grad_out, m.grad_scores, keys.value, problem_.v_dim, kept_factor_);
    score(other ? other->family.set_for(rows_of_tile) : kernels, p.query, m.scores, keys.key, problem_.head_dim,
          scale_);
    // If mods learn, LearnedMods (in one_tile()) computes the derivatives of the scores along with the gradients of the
    // parameters.
    if (m.raw) std::copy_n(m.scores, count * kernels.queries, m.raw);
    if (with_slopes(m))
      call_.slopes->apply(plan_.vectors(), m.scores, m.slopes, kernels.queries, pairs, masked);
    else if (masked || call_.has_scores())
      call_.mods->apply(plan_.vectors(), m.scores, kernels.queries, pairs, masked);
    drop(m.grad_scores, kernels.queries, pairs);
  }

  /// Zeroes the weights, or their gradients, of pairs that dropout drops.
  void drop(T* weights, Index queries, const Tile& pairs) const {
    if (kept_factor_ != T(1))
      call_.mods->drop_weights(plan_.vectors(), weights, WeightOrder::keys_by_queries, queries, pairs);
  }

  /// Computes the weights of a tile after the weight mods, in m.changed, and multiplies the gradients of these weights,
  /// in m.grad_scores, by the slopes of the mods. m.scores keeps the scores.
  void change_weights(const PreparedQueries<T>& p, const T* lse, const T* lse_rest, const Tile& pairs,
                      TileMemory<T>& tile, const WorkerMemory<T>& m) const {
    const Index queries = family_.set_for(p.queries.rows.size()).queries, count = pairs.kv.size(),
                size = count * queries;
    tile.dropped = m.dropped;
    tile.scores = m.scores;
    family_.find_dropped(tile, queries, count);
    std::copy_n(m.scores, size, m.changed);
    std::fill_n(m.weight_slopes, size, T(0));  // as the gradients, of which softmax() makes some that are not needed
    plan_.kernels().softmax({m.changed, m.weight_slopes, nullptr, lse, lse_rest, p.delta, p.delta_rest}, queries,
                            count);
    call_.slopes->change_weights(plan_.vectors(), {m.changed, queries, nullptr, m.dropped, pairs, m.weight_slopes});
    for (Index i = 0; i < size; ++i) m.grad_scores[i] *= m.weight_slopes[i];
  }

  void one_tile(PreparedQueries<T>& p, const Tile& pairs, bool masked, KvTile& keys, Index key_part,
                const WorkerMemory<T>& m) const {
    const Index rows_of_tile = p.queries.rows.size(), count = keys.range.size();
    const KernelSet<T>& kernels = family_.set_for(rows_of_tile);
    const OtherScore<T>* const other = call_.tensors.score;
    TileMemory<T> tile{};
    compute_scores(p, pairs, masked, keys, tile, m);
    const bool modded = masked || call_.has_scores();
    const bool select = modded && !(p.finite && is_finite(keys));
    tile.dropped = m.dropped;
    if (select) family_.find_dropped(tile, kernels.queries, count);
    if (problem_.changes_weights) change_weights(p, p.lse, p.lse_rest, pairs, tile, m);
    plan_.kernels().softmax(
        {m.scores, m.grad_scores, with_slopes(m) ? m.slopes : nullptr, p.lse, p.lse_rest, p.delta, p.delta_rest},
        kernels.queries, count);
    T* const weights = problem_.changes_weights ? m.changed : m.scores;
    drop(weights, kernels.queries, pairs);
    if (m.raw) call_.learned->learn(m.raw, m.grad_scores, kernels.queries, pairs, m.sums);

    tile.weights = m.grad_scores;
    tile.out = p.grad_query + key_part * plan_.grad_query_size();
    const OutUpdate update = std::exchange(p.added[key_part], 1) ? OutUpdate::add : OutUpdate::overwrite;
    if (other) add_other_gradients(p, keys, tile.out, update, kernels.queries, m);
    if (select) {
      add_rows_by_selection(weights, m.dropped, kernels.queries, count,
                            rows(family_, call_.grad_out, p.queries, m.rows), kept_factor_, rows_of_tile,
                            problem_.v_dim, plan_.value_row(), keys.grad_value);
      if (other) return;
      family_.value_by_selection(tile, kernels.queries, keys.key, count, problem_.head_dim, update);
      add_rows_by_selection(m.grad_scores, m.dropped, kernels.queries, count,
                            rows(family_, call_.tensors.q, p.queries, m.rows), scale_, rows_of_tile, problem_.head_dim,
                            plan_.key_row(), keys.grad_key);
      return;
    }
    const BackwardKernelSet<T>& own = plan_.kernels();
    own.add_rows(weights, kernels.queries, count, p.grad_out_panels, rows_of_tile, plan_.value_row(), keys.grad_value);
    if (other) return;
    tile.weights = own.arrange_weights(m.grad_scores, kernels.queries, count, m.weights);
    kernels.value(tile, keys.arranged_key, count, problem_.head_dim, update, PrefetchPlan::nothing(p.lse));
    own.add_rows(m.grad_scores, kernels.queries, count, p.query_panels, rows_of_tile, plan_.key_row(), keys.grad_key);
    if (own.take_lost == nullptr) return;
    // The gradients of a query's scores sum to 0, so what all keys have in common adds nothing to its gradient. The
    // rounding errors of these gradients do not sum to 0: where keys had a common part of 30, the gradient was off by
    // 20 times the error of the naive path. So what rounding lost is multiplied by the keys as well. (Multiplying the
    // sums of the errors by a mean of the keys was faster, but let dropped keys through.)
    own.take_lost(m.grad_scores, count);
    tile.weights = own.arrange_weights(m.grad_scores, kernels.queries, count, m.weights);
    kernels.value(tile, keys.arranged_key, count, problem_.head_dim, OutUpdate::add, PrefetchPlan::nothing(p.lse));
  }

  /// Computes the gradients of queries, keys and weights from m.grad_scores, for scores that are not dot products.
  void add_other_gradients(const PreparedQueries<T>& p, const KvTile& keys, T* grad_query, OutUpdate update,
                           Index queries, const WorkerMemory<T>& m) const {
    const OtherScore<T>& other = *call_.tensors.score;
    const Index count = keys.range.size(), dim = problem_.head_dim;
    if (update == OutUpdate::overwrite) std::fill_n(grad_query, 2 * dim * queries, T(0));
    // The last vector is padded with copies of a query, which must not contribute.
    for (Index j = 0, rows_of_tile = p.queries.rows.size(); j < count; ++j)
      std::fill(m.grad_scores + j * queries + rows_of_tile, m.grad_scores + (j + 1) * queries, T(0));
    other.add_gradients({m.grad_scores, p.query, keys.key, other.of(p.queries.head), grad_query,
                         grad_query + dim * queries, keys.grad_key, plan_.key_row()},
                        queries, count, dim);
  }

  /// The rows of a tile of queries as the kernels read them, copied to `packed` if necessary.
  static Rows<T> rows(const KernelFamily<T>& family, const DTypeView<const T>& t, const QueryTile& queries, T* packed) {
    return rows_of(family, t.rows(queries.batch, queries.head, queries.rows.begin), queries.rows.size(), t.dim(3), 1,
                   packed);
  }

  /// A product's scale is applied either to an operand, by before(), or to the result, by after(). The other function
  /// then returns 1.
  T before(T factor) const { return family_.format.scales_queries ? factor : T(1); }
  T after(T factor) const { return family_.format.scales_queries ? T(1) : factor; }

  /// Stores the sums that add_rows() computed: copies their rows of `dim` elements, padded to `stride`, to the caller's
  /// tensor.
  void store(T* from, Index stride, Index count, Index dim, T factor, const RowsToWrite& rows) const {
    plan_.kernels().finish_rows(from, count, stride, factor);
    if (call_.accumulates) add_rows_of(rows, count, dim, from, stride, 1);
    if (stride == dim) return family_.unpack_rows(from, count, dim, rows);
    const Index size = size_of_element<T>(rows.dtype);
    for (Index i = 0; i < count; ++i) {
      RowsToWrite row = rows;
      row.data += i * rows.stride * size;
      family_.unpack_rows(from + i * stride, 1, dim, row);
    }
  }

  /// Adds rows of the caller's tensor to rows of the loop's own memory.
  static void add_rows_of(const RowsToRead& rows, Index count, Index dim, T* to, Index row, Index column) {
    for (Index i = 0; i < count; ++i)
      for (Index c = 0; c < dim; ++c) to[i * row + c * column] += load_number<T>(rows, i, c);
  }

  const BackwardCall<T>& call_;
  const BackwardPlan<T>& plan_;
  const Problem& problem_;
  const KernelFamily<T>& family_;
  T scale_, kept_factor_;  ///< kept_factor_: by which dropout multiplies the weights that it keeps
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
