// Splits a backward pass over listed keys into tasks, and lays out its memory.
#pragma once

#include <algorithm>

#include "attn/core/backward/choose_backward_kernels.h"
#include "attn/core/backward/listed_call.h"
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
  const KernelFamily<T>& family() const { return chosen_.full_precision; }
  const BackwardKernelSet<T>& kernels() const { return kernels_; }

  Index groups() const { return problem_.batch * problem_.kv_heads; }
  Index group_heads() const { return problem_.heads / problem_.kv_heads; }
  /// Heads that share a list are processed together: their keys are gathered once.
  Index heads_at_a_time() const { return std::min({heads_of_list_, group_heads(), kMostHeads}); }
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

}  // namespace attn::detail::inline ATTN_BUILT_FOR
