// The backward pass over listed keys: its tasks and memory, and its loops, over the queries, each with its list, and
// then over the keys, each with the queries that list it.
#pragma once

#include <algorithm>
#include <cstring>
#include <span>

#include "attn/core/backward/backward_call.h"
#include "attn/core/backward/choose_backward_kernels.h"
#include "attn/core/base/arena.h"

namespace attn::detail::inline ATTN_BUILT_FOR {

/// The results that the loop over queries passes to the loop over keys: one per entry of a head's lists, and one per
/// query.
template <class T>
struct ListedPairs {
  /// Stored together, because the loop over keys visits pairs that are far apart.
  struct Numbers {
    T weight, grad;  // grad: of the score; a weight below 0 marks a pair that a mask drops
  };
  Numbers* numbers;                        // (heads, entries)
  T *lse, *lse_rest, *delta, *delta_rest;  // (heads, q_len), as in PreparedQueries
  Index entries, queries;

  ListedPairs of(Index head) const {
    const Index row = head * queries;
    return {numbers + head * entries, lse + row, lse_rest + row, delta + row, delta_rest + row, entries, queries};
  }
  ListedPairs from(Index entry) const { return {numbers + entry, lse, lse_rest, delta, delta_rest, entries, queries}; }
};

/// The memory of one worker. `heads` is the number of heads processed at a time.
template <class T>
struct ListedMemory {
  T *query, *grad_out, *grad_query;                 // (heads, head_dim or v_dim)
  T *scores, *grad_scores;                          // (heads, kKeyTile)
  RowSums<T> sums;                                  // (heads, kKeyTile): those of a query are over its lanes
  T *slopes, *lse, *lse_rest, *delta, *delta_rest;  // (kKeyTile)
  T* raw;                                           // (kKeyTile): scores before all mods; null if none learns
  T* ones;                                          // (heads)
  T *key, *value;                                   // (kKeyTile, head_dim) and (kKeyTile, v_dim)
  T *grad_key, *grad_value;                         // (head_dim), (v_dim)

  /// The memory of head `i`.
  ListedMemory of(Index i) const {
    ListedMemory m = *this;
    for (T** numbers : {&m.scores, &m.grad_scores, &m.sums.max, &m.sums.delta, &m.sums.sum, &m.sums.sum_rest,
                        &m.sums.grads, &m.sums.grad_rest})
      *numbers += i * kKeyTile;
    return m;
  }
};

/// The heads that share a key and value head form a group. Its queries are split into tasks, and then its keys; the
/// number of tasks follows from the sizes of a group alone, as in BackwardPlan.
template <class T>
class ListedPlan {
 public:
  ListedPlan(const Problem& problem, const LearnedSizes& learned, const ListGathering& gathering,
             const ChosenKernels<T>& chosen)
      : problem_(problem),
        learned_(learned),
        lists_(gathering.lists()),
        heads_of_list_(gathering.heads_of_list(problem)),
        chosen_(chosen),
        kernels_(backward_kernels_of(chosen_, problem)) {
    for (Index head = 0; head < lists_.batch * lists_.heads; ++head)
      entries_ = std::max(entries_, lists_.begin((head + 1) * lists_.rows) - lists_.begin(head * lists_.rows));
  }

  const Problem& problem() const { return problem_; }
  const LearnedSizes& learned() const { return learned_; }
  const KeyLists& lists() const { return lists_; }
  VectorSet vectors() const { return chosen_.vectors; }
  const KernelFamily<T>& full_precision() const { return chosen_.full_precision; }
  const BackwardKernelSet<T>& kernels() const { return kernels_; }

  Index groups() const { return problem_.batch * problem_.kv_heads; }
  Index group_heads() const { return problem_.heads / problem_.kv_heads; }
  /// Neighbouring heads that share a list are processed together: their keys are gathered once.
  Index heads_at_a_time() const {
    return problem_.interleaved_heads ? 1 : std::min({heads_of_list_, group_heads(), kMostHeads});
  }
  /// Index of the first list of a head.
  Index first_list(Index batch, Index head) const { return lists_.number(batch, head / heads_of_list_, 0); }

  /// Number of tasks of a group in the first loop, and in the second. Tasks of the first loop have no pair in common.
  Index tasks_of_group() const { return tasks(problem_.q_len); }
  Index key_tasks() const { return tasks(problem_.kv_len); }
  Range queries_of(Index task) const { return share(problem_.q_len, task, tasks_of_group()); }
  Range keys_of(Index task) const { return share(problem_.kv_len, task, key_tasks()); }

  double flops() const {
    return 10 * static_cast<double>(groups() * group_heads()) * static_cast<double>(entries_) *
           static_cast<double>(problem_.head_dim + problem_.v_dim);
  }
  /// Number of groups processed together if tasks have separate sums: a few tasks per worker.
  Index groups_at_a_time(int workers) const {
    return std::min(groups(), ceil_div(Index(4) * workers, std::max<Index>(tasks_of_group(), 1)));
  }

  /// Bytes of memory, each in whole cache lines: per group, without the gradients of mods' parameters, and per worker.
  Index group_bytes() const {
    return Arena<T>::count([&](Arena<T>& arena) { lay_out_pairs(arena); });
  }
  Index worker_bytes() const {
    return Arena<T>::count([&](Arena<T>& arena) { lay_out_worker(arena); });
  }

  ListedMemory<T> memory_of_worker(std::byte* memory) const {
    Arena<T> arena(memory);
    const ListedMemory<T> m = lay_out_worker(arena);
    std::fill_n(m.ones, heads_at_a_time(), T(1));
    return m;
  }

  /// The pairs of a group's heads from `head` on.
  ListedPairs<T> pairs(std::byte* group_memory, Index head) const {
    Arena<T> arena(group_memory);
    return lay_out_pairs(arena).of(head);
  }

 private:
  static constexpr Index kMostHeads = 16;

  /// Sixteen tasks per group keep a few workers busy, even if some lists are much longer than others.
  static Index tasks(Index count) { return std::clamp<Index>(count / 16, std::min<Index>(count, 1), 16); }
  static Range share(Index count, Index task, Index tasks) {
    return {count * task / tasks, count * (task + 1) / tasks};
  }

  ListedMemory<T> lay_out_worker(Arena<T>& arena) const {
    const Index head_dim = problem_.head_dim, v_dim = problem_.v_dim, heads = heads_at_a_time();
    ListedMemory<T> m;
    for (T** numbers : {&m.scores, &m.grad_scores, &m.sums.max, &m.sums.delta, &m.sums.sum, &m.sums.sum_rest,
                        &m.sums.grads, &m.sums.grad_rest})
      *numbers = arena.take(heads * kKeyTile);
    for (T** numbers : {&m.slopes, &m.lse, &m.lse_rest, &m.delta, &m.delta_rest}) *numbers = arena.take(kKeyTile);
    m.raw = learned_.slots > 0 ? arena.take(kKeyTile) : nullptr;
    m.key = arena.take(kKeyTile * head_dim), m.value = arena.take(kKeyTile * v_dim);
    m.query = arena.take(heads * head_dim), m.grad_out = arena.take(heads * v_dim);
    m.grad_query = arena.take(heads * head_dim);
    m.grad_key = arena.take(head_dim), m.grad_value = arena.take(v_dim);
    m.ones = arena.take(heads);
    return m;
  }
  ListedPairs<T> lay_out_pairs(Arena<T>& arena) const {
    const Index queries = group_heads() * problem_.q_len;
    ListedPairs<T> p{};
    p.numbers = arena.template take_as<typename ListedPairs<T>::Numbers>(group_heads() * entries_);
    for (T** numbers : {&p.lse, &p.lse_rest, &p.delta, &p.delta_rest}) *numbers = arena.take(queries);
    p.entries = entries_, p.queries = problem_.q_len;
    return p;
  }

  const Problem& problem_;
  LearnedSizes learned_;
  const KeyLists& lists_;
  Index heads_of_list_;
  Index entries_ = 0;  ///< largest number of entries in the lists of one head
  ChosenKernels<T> chosen_;
  BackwardKernelSet<T> kernels_;
};

/// Each sum is computed by one task, in the order of a list, so results do not depend on threads. All products use the
/// kernels of single queries (see DecodeKernels): the gradient of a key is a weighted sum of queries, which are
/// gathered as keys are in the forward pass. For each listed pair, the first loop passes the weight and the gradient of
/// the score on to the second.
template <class T>
class ListedLoop {
 public:
  ListedLoop(const BackwardCall<T>& call, const ListedCall<T>& listed, const ListedPlan<T>& plan)
      : call_(call),
        listed_(listed),
        plan_(plan),
        problem_(plan.problem()),
        lists_(plan.lists()),
        family_(plan.full_precision()),
        scale_(static_cast<T>(problem_.scale)),
        kept_factor_(call.kept_factor()) {}

  /// Runs the first loop over some queries of a group. `sums`: see LearnedMods.
  void run(std::byte* group_memory, Index group, Index task, GradientSum<T>* sums, std::byte* worker_memory) const {
    const ListedMemory<T> m = plan_.memory_of_worker(worker_memory);
    const Range rows = plan_.queries_of(task);
    const Index heads = plan_.group_heads(), kv_head = group % problem_.kv_heads;
    const auto use = [&](const typename ListedCall<T>::Mods& mods) {
      for (Index row = rows.begin; row < rows.end; ++row)
        for (Index head = 0; head < heads; head += plan_.heads_at_a_time())
          one_list({group / problem_.kv_heads, problem_.head_of(kv_head, head), row,
                    std::min(plan_.heads_at_a_time(), heads - head)},
                   plan_.pairs(group_memory, head), mods, sums, m);
    };
    listed_.with_mods(group / problem_.kv_heads, std::cref(use));  // a reference: a copy would be allocated
  }

  /// Runs the second loop over some keys of a group.
  void run_keys(std::byte* group_memory, Index group, Index task, std::byte* worker_memory) const {
    const ListedMemory<T> m = plan_.memory_of_worker(worker_memory);
    const Range keys = plan_.keys_of(task);
    const QueriesByKey& listing = listed_.gathering().by_key();
    const Index batch = group / problem_.kv_heads, kv_head = group % problem_.kv_heads, heads = plan_.group_heads();
    for (Index key = keys.begin; key < keys.end; ++key) {
      std::fill_n(m.grad_key, problem_.head_dim, T(0));
      std::fill_n(m.grad_value, problem_.v_dim, T(0));
      Index count = 0;
      const auto add_up = [&] {
        add(m.grad_key, m.grad_scores, m.key, 1, count, problem_.head_dim, m);
        add(m.grad_value, m.scores, m.value, 1, count, problem_.v_dim, m);
        count = 0;
      };
      for (Index head = 0; head < heads; ++head) {
        const Index own = problem_.head_of(kv_head, head), list = plan_.first_list(batch, own);
        const ListedPairs<T> pairs = plan_.pairs(group_memory, head);
        const std::span<const QueriesByKey::Entry> all = listing.of(list / lists_.rows, key);
        const auto numbers_of = [&](std::size_t i) { return pairs.numbers + (all[i].entry - lists_.begin(list)); };
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (i + kAhead < all.size()) __builtin_prefetch(numbers_of(i + kAhead));  // they are far apart
          const Index row = all[i].row;
          const auto [weight, grad] = *numbers_of(i);
          if (weight == kDropped) continue;
          m.scores[count] = weight, m.grad_scores[count] = grad;
          load(call_.tensors.q, batch, own, row, m.key + count * problem_.head_dim);
          load(call_.grad_out, batch, own, row, m.value + count * problem_.v_dim);
          if (++count == kKeyTile) add_up();
        }
      }
      if (count > 0) add_up();
      store(m.grad_key, scale_, call_.grad_k.rows(batch, kv_head, key), problem_.head_dim);
      store(m.grad_value, kept_factor_, call_.grad_v.rows(batch, kv_head, key), problem_.v_dim);
    }
  }

  /// Adds the gradients of the sinks of a group's heads.
  void learn_sinks(std::byte* group_memory, Index group, GradientSum<T>* sums) const {
    for (Index head = 0; head < plan_.group_heads(); ++head) {
      const ListedPairs<T> pairs = plan_.pairs(group_memory, head);
      for (Index row = 0; row < problem_.q_len; ++row) pairs.delta[row] += pairs.delta_rest[row];
      call_.learned->learn_sinks(problem_.head_of(group % problem_.kv_heads, head), pairs.lse, pairs.lse_rest,
                                 pairs.delta, problem_.q_len, sums);
    }
  }

 private:
  static constexpr T kInfinity = std::numeric_limits<T>::infinity();
  static constexpr std::size_t kAhead = 16;
  static constexpr T kDropped = -1;  ///< stored as the weight of a dropped pair

  /// One query row of some neighbouring heads that share its list.
  struct Query {
    Index batch, head, row, heads;
  };

  void one_list(const Query& query, const ListedPairs<T>& pairs, const typename ListedCall<T>::Mods& mods,
                GradientSum<T>* sums, const ListedMemory<T>& m) const {
    const Index head_dim = problem_.head_dim;
    for (Index i = 0; i < query.heads; ++i) begin(query, i, pairs, m);
    if (call_.sums_rows) sum_rows(query, pairs, mods, m);
    const Index first = plan_.first_list(query.batch, query.head), number = number_of(query);
    for_each_tile(query, m, [&](const Range& entries) {
      const Index count = entries.size();
      bool dropped_any = false;
      const ListedPairs<T> to = pairs.from(lists_.begin(number) - lists_.begin(first) + entries.begin);
      for (Index i = 0; i < query.heads; ++i)
        dropped_any |= one_head({query.row, query.head + i, {0, 1}, entries}, to.of(i), mods, sums, m.of(i));
      if (!dropped_any || family_.all_finite({m.key, head_dim}, count, head_dim))
        add(m.grad_query, m.grad_scores, m.key, query.heads, count, head_dim, m);
      else
        add_kept(query, to, m, count);
    });
    for (Index i = 0; i < query.heads; ++i)
      store(m.grad_query + i * head_dim, scale_, call_.grad_q.rows(query.batch, query.head + i, query.row), head_dim);
  }

  /// The number of the list of a query and its neighbouring heads.
  Index number_of(const Query& query) const {
    return plan_.first_list(query.batch, query.head) + (lists_.rows == 1 ? 0 : query.row);
  }

  /// Calls visit(entries) for the list of a query, a tile at a time, with the products of its heads with the keys and
  /// values of these entries in m.scores and m.grad_scores.
  template <class Visit>
  void for_each_tile(const Query& query, const ListedMemory<T>& m, const Visit& visit) const {
    const Index kv_head = problem_.kv_head(query.head), size = lists_.size(number_of(query));
    const Index* const list = lists_.list(number_of(query)).data();
    for (Range entries{0, 0}; entries.end < size;) {
      entries = {entries.end, std::min(entries.end + kKeyTile, size)};
      const Index count = entries.size();
      load(call_.tensors.k, query.batch, kv_head, list + entries.begin, count, m.key);
      load(call_.tensors.v, query.batch, kv_head, list + entries.begin, count, m.value);
      multiply(m.scores, m.query, m.key, query.heads, count, problem_.head_dim);
      multiply(m.grad_scores, m.grad_out, m.value, query.heads, count, problem_.v_dim);
      visit(entries);
    }
  }

  /// See BackwardLoop::sum_rows(). Lane i sums the entries i, i + kKeyTile, …; the lanes are added up at the end.
  void sum_rows(const Query& query, const ListedPairs<T>& pairs, const typename ListedCall<T>::Mods& mods,
                const ListedMemory<T>& m) const {
    const RowSums<T>& s = m.sums;
    std::fill_n(s.max, query.heads * kKeyTile, -kInfinity);
    for (T* numbers : {s.sum, s.sum_rest, s.grads, s.grad_rest}) std::fill_n(numbers, query.heads * kKeyTile, T(0));
    for (Index i = 0; i < query.heads; ++i)
      if (T& delta = pairs.of(i).delta[query.row]; !std::isfinite(delta)) delta = 0;
    for_each_tile(query, m, [&](const Range& entries) {
      for (Index i = 0; i < query.heads; ++i) {
        const ListedMemory<T> own = m.of(i);
        apply_mods({query.row, query.head + i, {0, 1}, entries}, mods, own);
        std::fill_n(own.sums.delta, kKeyTile, pairs.of(i).delta[query.row]);
        plan_.kernels().add_to_sums(own.sums, own.scores, own.grad_scores,
                                    padded(entries.size(), plan_.kernels().columns), 1);
      }
    });
    for (Index i = 0; i < query.heads; ++i) {
      const RowSums<T> own = m.of(i).sums;
      const ListedPairs<T> to = pairs.of(i);
      T &lse = to.lse[query.row], &lse_rest = to.lse_rest[query.row], &delta = to.delta[query.row],
        &delta_rest = to.delta_rest[query.row];
      const T sink = mods.tile ? static_cast<T>(mods.tile->sink(query.head + i)) : -kInfinity;
      const T highest = std::max(sink, *std::max_element(own.max, own.max + kKeyTile));
      lse = lse_rest = delta_rest = 0;
      if (highest == -kInfinity) {  // no key is kept
        delta = 0;
        continue;
      }
      T sum = std::exp(sink - highest), grads = -sum * delta, sum_lost = 0, grads_lost = 0;
      for (Index lane = 0; lane < kKeyTile; ++lane) {
        const T factor = std::exp(own.max[lane] - highest);
        add_exactly(sum, sum_lost, factor * (own.sum[lane] + own.sum_rest[lane]));
        add_exactly(grads, grads_lost, factor * (own.grads[lane] + own.grad_rest[lane]));
      }
      add_rest(sum, sum_lost);
      add_rest(grads, grads_lost);
      lse = highest, lse_rest = std::log(sum), delta_rest = grads / sum;
      if (call_.grad_lse.data()) delta_rest -= call_.grad_lse(query.batch, query.head + i, query.row);
    }
  }

  /// Loads head `i` of a query.
  void begin(const Query& query, Index i, const ListedPairs<T>& pairs, const ListedMemory<T>& m) const {
    const Index head_dim = problem_.head_dim, v_dim = problem_.v_dim, head = query.head + i;
    T *const q = m.query + i * head_dim, *const grad_out = m.grad_out + i * v_dim;
    T &lse = pairs.of(i).lse[query.row], &lse_rest = pairs.of(i).lse_rest[query.row],
      &delta = pairs.of(i).delta[query.row];
    pairs.of(i).delta_rest[query.row] = 0;
    load(call_.tensors.q, query.batch, head, query.row, q);
    family_.multiply(q, q, head_dim, scale_);
    load(call_.grad_out, query.batch, head, query.row, grad_out);
    std::fill_n(m.grad_query + i * head_dim, head_dim, T(0));
    if (problem_.sigmoid_bias) {  // weights are independent: see core/kernels/sigmoid_kernels.h
      lse = static_cast<T>(-*problem_.sigmoid_bias), lse_rest = delta = 0;
    } else {
      load(call_.out, query.batch, head, query.row, m.value);
      plan_.kernels().dot_rows({grad_out, v_dim}, {m.value, v_dim}, 1, v_dim, &delta);
      // If no key is kept, any lse for which e^(-inf - lse) is 0 will do.
      lse = call_.lse(query.batch, head, query.row);
      lse_rest = call_.lse_rests.of(&call_.lse(query.batch, head, query.row));
      if (lse == -kInfinity) lse = 0;
      if (!call_.sums_rows && call_.grad_lse.data()) delta -= call_.grad_lse(query.batch, head, query.row);
    }
    // Dropout multiplies the weights that it keeps by a factor. Here, that factor is applied to grad_out instead, once
    // for all products.
    family_.multiply(grad_out, grad_out, v_dim, kept_factor_);
  }

  /// Zeroes the weights, or their gradients, of pairs that dropout drops.
  void drop(T* weights, const Tile& tile, const typename ListedCall<T>::Mods& mods) const {
    if (kept_factor_ != T(1)) mods.tile->drop_weights(plan_.vectors(), weights, WeightOrder::one_query, 1, tile);
  }

  /// Applies the mods to the products of a head with some entries of its list, in m.scores and m.grad_scores, and pads
  /// both to whole vectors. Returns whether a pair may be dropped.
  bool apply_mods(const Tile& tile, const typename ListedCall<T>::Mods& mods, const ListedMemory<T>& m) const {
    const Index count = tile.kv.size();
    const Coverage coverage = mods.tile ? mods.tile->coverage(plan_.vectors(), tile) : Coverage::all;
    const bool modded = coverage != Coverage::all || (mods.tile && mods.tile->has_scores()), learns = m.raw != nullptr;
    if (learns) std::copy_n(m.scores, count, m.raw);
    // If mods learn, LearnedMods (in one_head()) computes the derivatives of the scores along with the gradients of the
    // parameters.
    if (mods.slopes && !learns)
      mods.slopes->apply(plan_.vectors(), m.scores, m.slopes, 1, tile, coverage != Coverage::all);
    else if (modded)
      mods.tile->apply(plan_.vectors(), m.scores, 1, tile, coverage != Coverage::all);
    drop(m.grad_scores, tile, mods);
    const Index width = padded(count, plan_.kernels().columns);
    std::fill(m.scores + count, m.scores + width, -kInfinity);
    std::fill(m.grad_scores + count, m.grad_scores + width, T(0));
    return modded;
  }

  /// Turns the products of a head with some entries of its list, in m.scores and m.grad_scores, into weights and
  /// gradients of scores. Returns whether a pair is dropped.
  bool one_head(const Tile& tile, const ListedPairs<T>& to, const typename ListedCall<T>::Mods& mods,
                GradientSum<T>* sums, const ListedMemory<T>& m) const {
    const Index count = tile.kv.size();
    const bool modded = apply_mods(tile, mods, m), learns = m.raw != nullptr;
    bool dropped_any = false;
    for (Index i = 0; i < count; ++i) {
      const bool dropped = modded && m.scores[i] == -kInfinity;
      to.numbers[i].weight = dropped ? kDropped : T(0);
      dropped_any |= dropped;
    }
    // For the softmax kernel, the entries are a tile of one key and many queries with the same lse.
    const Index width = padded(count, plan_.kernels().columns);
    std::fill_n(m.lse, width, to.lse[tile.batch]);
    std::fill_n(m.lse_rest, width, to.lse_rest[tile.batch]);
    std::fill_n(m.delta, width, to.delta[tile.batch]);
    std::fill_n(m.delta_rest, width, to.delta_rest[tile.batch]);
    const bool with_slopes = mods.slopes && !learns;
    plan_.kernels().softmax(
        {m.scores, m.grad_scores, with_slopes ? m.slopes : nullptr, m.lse, m.lse_rest, m.delta, m.delta_rest}, width,
        1);
    drop(m.scores, tile, mods);
    if (learns) mods.learned->learn(m.raw, m.grad_scores, 1, tile, sums);
    for (Index i = 0; i < count; ++i)
      to.numbers[i] = {to.numbers[i].weight == kDropped ? kDropped : m.scores[i], m.grad_scores[i]};
    return dropped_any;
  }

  /// Adds to the gradients of queries when some keys are not finite: skips dropped pairs instead of multiplying them by
  /// 0.
  void add_kept(const Query& query, const ListedPairs<T>& pairs, const ListedMemory<T>& m, Index count) const {
    for (Index i = 0; i < query.heads; ++i)
      for (Index j = 0; j < count; ++j)
        for (Index c = 0; pairs.of(i).numbers[j].weight != kDropped && c < problem_.head_dim; ++c)
          m.grad_query[i * problem_.head_dim + c] += m.of(i).grad_scores[j] * m.key[j * problem_.head_dim + c];
  }

  /// to (rows, kKeyTile) = of (rows, dim) * among (count, dim)ᵀ.
  void multiply(T* to, T* of, const T* among, Index rows, Index count, Index dim) const {
    TileMemory<T> tile{};
    tile.query = of, tile.scores = to, tile.row = kKeyTile;
    Prefetcher nothing;
    family_.decode.score_of(DType::native)(tile, rows, packed_rows(among, dim), count, dim, nothing);
  }
  /// to (rows, dim) += weights (rows, kKeyTile) * among (count, dim).
  void add(T* to, T* weights, const T* among, Index rows, Index count, Index dim, const ListedMemory<T>& m) const {
    TileMemory<T> tile{};
    tile.out = to, tile.scores = weights, tile.row = kKeyTile, tile.rescale = m.ones;
    Prefetcher nothing;
    family_.decode.value_of(DType::native)(tile, rows, packed_rows(among, dim), count, dim, nothing);
  }
  static RowsToRead packed_rows(const T* rows, Index dim) {
    return {reinterpret_cast<const std::byte*>(rows), DType::native, dim, 1};
  }

  void load(const DTypeView<const T>& t, Index batch, Index head, Index row, T* to) const {
    const RowsToRead from = t.rows(batch, head, row);
    // Most rows are short: calling the kernel takes longer than copying one.
    if (from.dtype == DType::native && from.column == 1)
      std::memcpy(to, from.data, static_cast<std::size_t>(t.dim(3)) * sizeof(T));
    else
      family_.pack_rows(from, 1, t.dim(3), to);
  }
  void load(const DTypeView<const T>& t, Index batch, Index head, const Index* list, Index count, T* to) const {
    for (Index i = 0; i < count; ++i) load(t, batch, head, list[i], to + i * t.dim(3));
  }
  void store(T* from, T factor, const RowsToWrite& to, Index dim) const {
    family_.multiply(from, from, dim, factor);
    for (Index c = 0; call_.accumulates && c < dim; ++c) from[c] += load_number<T>(RowsToRead(to), 0, c);
    family_.unpack_rows(from, 1, dim, to);
  }

  const BackwardCall<T>& call_;
  const ListedCall<T>& listed_;
  const ListedPlan<T>& plan_;
  const Problem& problem_;
  const KeyLists& lists_;
  const KernelFamily<T>& family_;
  T scale_, kept_factor_;  ///< kept_factor_: by which dropout multiplies the weights that it keeps
};

}  // namespace attn::detail::inline ATTN_BUILT_FOR
