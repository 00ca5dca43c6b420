// edge_bias(): a bias for each edge of a graph, added to the scores.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "attn/core/mods/grouping/given_lists.h"
#include "attn/core/mods/learned_mods.h"
#include "attn/core/simd/scalar_math.h"

namespace attn {

namespace detail {

/// Lists whose entries are sorted by key within each list.
struct EdgeTable : CompressedLists {
  struct Repeated {
    Index entry, first;  ///< an entry, and the first entry of the same pair
  };
  std::vector<Index> entries;  ///< for each sorted index, its position in the user's indices
  std::vector<Repeated> repeated;

  explicit EdgeTable(CompressedLists given) : CompressedLists(std::move(given)), entries(indices.size()) {
    const std::vector<Index> keys = indices;
    for (std::size_t i = 0; i < entries.size(); ++i) entries[i] = static_cast<Index>(i);
    for (Index number = 0; number < count(); ++number) {
      const auto from = entries.begin() + begin(number), to = from + size(number);
      const auto key = [&](Index entry) { return keys[static_cast<std::size_t>(entry)]; };
      std::stable_sort(from, to, [&](Index a, Index b) { return key(a) < key(b); });
      Index first = 0;
      for (auto at = from; at != to; ++at) {
        indices[static_cast<std::size_t>(at - entries.begin())] = key(*at);
        if (at == from || key(*at) != key(first))
          first = *at;
        else
          repeated.push_back({*at, first});
      }
    }
  }
};

/// An EdgeTable bound to a call.
struct EdgesOfCall {
  const EdgeTable* table;
  Index heads_of_list, q_offset;

  EdgesOfCall(const EdgeTable& edges, const Problem& p)
      : table(&edges), heads_of_list(detail::heads_of_list(edges.heads, p)), q_offset(p.q_offset) {
    check_lists("edge_bias", edges, -1, p);
  }

  /// Returns the entries of a pair, usually one or none.
  std::span<const Index> entries(const Position& p) const {
    const Index number = table->number(p.batch, p.head / heads_of_list, p.q - q_offset);
    const auto list = table->list(number);
    const auto [begin, end] = std::equal_range(list.begin(), list.end(), p.kv);
    return std::span(table->entries)
        .subspan(static_cast<std::size_t>(table->begin(number) + (begin - list.begin())),
                 static_cast<std::size_t>(end - begin));
  }
};

/// Returns the sizes for checking and indexing `values` (1, batch, heads, entries). Batch elements take the place of
/// heads, heads that of queries, and entries that of keys.
inline Problem sizes_of_edges(const Problem& problem, const EdgeTable& edges) {
  return {.heads = problem.batch, .q_len = problem.heads, .kv_len = static_cast<Index>(edges.entries.size())};
}

/// The bias of a pair: the sum of the values of its entries, accumulated in a GradientSum.
template <class T>
struct EdgeNumbers {
  EdgesOfCall edges;
  PairTensor<T> values;

  EdgeNumbers(const BroadcastTensor<T>& given, const EdgesOfCall& of, const Problem& p)
      : edges(of), values(given.over(sizes_of_edges(p, *of.table), "edge_bias", "(1, batch, heads, edges)")) {}

  auto operator()(const Position& p) const {
    using Number = computed_t<T>;
    GradientSum<Number> sum(0);
    for (const Index entry : edges.entries(p)) sum += static_cast<Number>(values({0, p.batch, p.head, entry}));
    return sum;
  }
};

/// A GradientTensor in which the entries of a pair share the slot of the first entry.
template <class Gradient>
struct EdgeGradient {
  Gradient gradient;
  const EdgeTable* table;

  Index slots() const { return gradient.slots(); }
  template <class Sum>
  void add(const Sum* sums) const {
    if (table->repeated.empty()) return gradient.add(sums);
    const Index size = static_cast<Index>(table->entries.size());
    std::vector<Sum> of_each(sums, sums + slots());
    for (Index i = 0; i < slots(); i += size)
      for (const EdgeTable::Repeated& pair : table->repeated)
        of_each[static_cast<std::size_t>(i + pair.entry)] = sums[i + pair.first];
    gradient.add(of_each.data());
  }
};

}  // namespace detail

/// Adds a bias to the score of each edge of a graph: x -> x + values(batch, head, entry). Entry e of `indices` is the
/// edge from the query whose list contains it to the key indices[e]. Other pairs are unchanged; select() drops them:
///
///     attn::select(offsets, indices) | attn::edge_bias(offsets, indices, values)
///
/// `offsets` and `indices` are as in select(). `values` may be anything attn::view accepts, of shape (edges), (heads,
/// edges) or (batch, heads, edges), with one element per index; leading dimensions of size 1 are broadcast. Values are
/// not multiplied by `scale`; -inf drops the pair, as in bias(). If a pair is listed several times, its values are
/// summed. The mod keeps temporary values alive; any other tensor is only viewed and must outlive the mod. Cost: O(log
/// n) per pair, for a list of n entries.
/// @throws std::invalid_argument as select() does, and from the attention call if the values do not fit.
template <class O, class I, class X>
auto edge_bias(const O& offsets, const I& indices, X&& values) {
  const auto table = std::make_shared<const detail::EdgeTable>(
      detail::lists_of("edge_bias", detail::GivenIntegers::of(offsets), detail::GivenIntegers::of(indices)));
  return bind_mod([table, held = detail::broadcast_tensor(std::forward<X>(values))](const Problem& problem) {
    const detail::EdgeNumbers numbers(held, detail::EdgesOfCall(*table, problem), problem);
    return score_mod(
        [numbers](auto x, const Position& p) { return detail::biased(x, static_cast<decltype(x)>(numbers(p))); });
  });
}

/// edge_bias() of learned values: the backward pass adds their gradient to `grad`, a tensor of the same shape. Both
/// tensors must outlive the mod.
template <class O, class I, class X, class G>
auto edge_bias(const O& offsets, const I& indices, const X& values, G&& grad) {
  const auto table = std::make_shared<const detail::EdgeTable>(
      detail::lists_of("edge_bias", detail::GivenIntegers::of(offsets), detail::GivenIntegers::of(indices)));
  const auto gradient = detail::gradient_tensor(std::forward<G>(grad), "edge_bias");
  return bind_mod([table, gradient, held = detail::broadcast_tensor(values)](const Problem& problem) {
    held.check_gradient(gradient, "edge_bias");
    const detail::EdgesOfCall edges(*table, problem);
    const auto slot =
        [edges, slots = gradient.slots_of_pairs(detail::sizes_of_edges(problem, *table))](const Position& p) -> Index {
      const auto entries = edges.entries(p);
      return entries.empty() ? -1 : slots({0, p.batch, p.head, entries.front()});
    };
    return detail::learned_score([](auto x, auto b, const Position&) { return detail::biased(x, b); }, slot,
                                 detail::EdgeNumbers(held, edges, problem),
                                 detail::EdgeGradient<std::remove_const_t<decltype(gradient)>>{gradient, table.get()},
                                 table->rows == problem.q_len);
  });
}

}  // namespace attn
