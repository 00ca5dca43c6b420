// Keys that are listed for each query, put in order and gathered.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "attn/detail/base/check.h"
#include "attn/detail/mods/distances.h"
#include "attn/detail/mods/grouping/gathered_mask.h"

namespace attn::detail {

/// Lists of keys in ascending order without repetition. There are (batch or 1, heads or kv_heads or 1, q_len or 1) of
/// them. Behind its own entries a list repeats the last one, so that all of its room may be read.
struct KeyLists {
  Index batch = 1, heads = 1, rows = 1;
  Index room = 0;     ///< entries of each list in memory
  Index longest = 0;  ///< most own entries of a list
  std::vector<Index> keys, counts;

  Index number(Index b, Index head, Index row) const {
    return ((batch == 1 ? 0 : b) * heads + head) * rows + (rows == 1 ? 0 : row);
  }
  std::span<const Index> list(Index number) const {
    return {keys.data() + number * room, static_cast<std::size_t>(counts[static_cast<std::size_t>(number)])};
  }

  /// Adds `given`, put in order, as the next list; -1 stands for no key.
  void add(std::span<const Index> given) {
    const std::size_t first = keys.size();
    for (const Index key : given)
      if (key >= 0) keys.push_back(key);
    sort(first);
    const Index count = static_cast<Index>(keys.size() - first);
    counts.push_back(count);
    longest = std::max(longest, count);
    keys.resize(first + static_cast<std::size_t>(room), count == 0 ? 0 : keys.back());
  }

  /// The same lists, cut down to the keys in a range; entries count from the first key of that range.
  KeyLists part(const Range& of) const {
    KeyLists some;
    some.batch = batch, some.heads = heads, some.rows = rows, some.room = room;
    some.keys.reserve(keys.size());
    std::vector<Index> own;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      own.clear();
      for (const Index key : list(static_cast<Index>(i)))
        if (of.begin <= key && key < of.end) own.push_back(key - of.begin);
      some.add(own);
    }
    return some;
  }

 private:
  /// Sorts the keys from number `first` on. Setting a bit for each key, and then looking at all words of bits, took 4
  /// µs for 2048 of 65536 keys, where std::sort() took 70 µs. Keys that are few and far apart go to std::sort().
  void sort(std::size_t first) {
    const auto begin = keys.begin() + static_cast<std::ptrdiff_t>(first);
    if (std::adjacent_find(begin, keys.end(), std::greater_equal<Index>()) == keys.end()) return;
    const std::size_t count = keys.size() - first,
                      words = static_cast<std::size_t>(*std::max_element(begin, keys.end())) / 64 + 1;
    if (words > 16 * count) {
      std::sort(begin, keys.end());
      keys.erase(std::unique(begin, keys.end()), keys.end());
      return;
    }
    if (bits_.size() < words) bits_.resize(words);
    for (std::size_t i = first; i < keys.size(); ++i)
      bits_[static_cast<std::size_t>(keys[i]) / 64] |= std::uint64_t(1) << (keys[i] % 64);
    std::size_t to = first;
    for (std::size_t w = 0; w < words; ++w)
      for (std::uint64_t left = std::exchange(bits_[w], 0); left != 0; left &= left - 1)
        keys[to++] = static_cast<Index>(w * 64) + std::countr_zero(left);
    keys.resize(to);
  }

  std::vector<std::uint64_t> bits_;  ///< all 0 between calls of sort()
};

/// Which keys of a call are listed.
struct ListedKeys {
  const KeyLists* lists;
  Index heads_of_list;  ///< neighbouring query heads that share a list
  Index q_offset;

  std::span<const Index> of(Index batch, Index head, Index q) const {
    return lists->list(lists->number(batch, head / heads_of_list, q - q_offset));
  }
  bool keep(const Position& p) const {
    const auto list = of(p.batch, p.head, p.q);
    return std::binary_search(list.begin(), list.end(), p.kv);
  }
  /// The queries to ask about: one where a single list serves all.
  Range asked(const Range& q) const { return lists->rows == 1 ? Range{q.begin, q.begin + 1} : q; }

  Coverage coverage(const Tile& t) const {
    const Range queries = asked(t.q);
    if (is_wide(queries)) return Coverage::some;
    bool any = false, all = true;
    for (Index q = queries.begin; q < queries.end; ++q) {
      const auto list = of(t.batch, t.head, q);
      const auto first = std::lower_bound(list.begin(), list.end(), t.kv.begin);
      const Index count = std::lower_bound(first, list.end(), t.kv.end) - first;
      any |= count > 0;
      all &= count == t.kv.size();
    }
    return all ? Coverage::all : any ? Coverage::some : Coverage::none;
  }
  Range kv_range(const Tile& t) const {
    const Range queries = asked(t.q);
    if (is_wide(queries)) return t.kv;
    Range visited{};
    for (Index q = queries.begin; q < queries.end; ++q)
      if (const auto list = of(t.batch, t.head, q); !list.empty())
        visited = hull(visited, {list.front(), list.back() + 1});
    return visited;
  }
};

/// What a query keeps of its list: its own entries, not those that fill it up. Positions are numbers in the lists.
struct OwnEntries {
  const KeyLists* lists;
  Index first;  ///< the number of the list of text 0 and head 0
  Index of_text, of_head, heads_of_list;

  Index count(Index text, Index head) const {
    return lists->counts[static_cast<std::size_t>(first + text * of_text + head / heads_of_list * of_head)];
  }
  bool keep(const Position& p) const { return p.kv < count(p.batch, p.head); }
  Coverage coverage(const Tile& t) const {
    const Index own = count(t.batch, t.head);
    return t.kv.end <= own ? Coverage::all : t.kv.begin < own ? Coverage::some : Coverage::none;
  }
  Range kv_range(const Tile& t) const { return {0, count(t.batch, t.head)}; }
};

/// Gathers for each query the keys of its list, or for all queries where they share one; see GatheredMask. The entries
/// are rows of keys.
class ListGathering {
 public:
  explicit ListGathering(const KeyLists& lists) : lists_(&lists) {}

  bool pays(const Problem& call) const {
    // Queries with lists of their own are computed one by one.
    const Index cost = lists_->rows == 1 || call.q_len == 1 ? 2 : 4;
    return call.q_len > 0 && call.kv_len > 0 && lists_->longest <= call.kv_len / cost;
  }

  template <class Visit>
  void for_each(const Problem& call, const Visit& visit) const {
    const KeyLists& lists = *lists_;
    const bool shared = lists.rows == 1;
    const Index group = call.heads / call.kv_heads;
    // The lists of query heads that share a key head come one after the other.
    const Index turns = lists.heads == call.heads ? group : 1;
    Problem problem = call;
    problem.q_offsets = {};
    problem.q_offset = problem.kv_offset = 0;
    problem.batch = shared ? 1 : call.q_len;
    problem.q_len = shared ? call.q_len : 1;
    problem.kv_len = lists.longest;
    problem.heads = call.heads / turns;
    for (Index batch = 0; batch < call.batch; ++batch)
      for (Index turn = 0; turn < turns; ++turn) {
        OwnEntries own{lists_, lists.number(batch, turn, 0), shared ? 0 : 1, lists.heads == 1 ? 0 : turns * lists.rows,
                       problem.heads / call.kv_heads};
        GatheredTokens tokens;
        tokens.batch = batch;
        tokens.rows_of_text = problem.q_len;
        tokens.q_offset = call.first_query(batch);
        tokens.kv = {lists.keys.data() + own.first * lists.room, own.of_text * lists.room, own.of_head * lists.room, 1,
                     1};
        tokens.keys = lists.longest;
        tokens.kv_offset = call.kv_offset;
        tokens.first_head = turn;
        tokens.head_step = turns;
        tokens.heads_of_list = own.heads_of_list;
        visit(tokens, own, problem);
      }
  }

 private:
  const KeyLists* lists_;
};

}  // namespace attn::detail
