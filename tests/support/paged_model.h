// A plain model of PagedKvCache without sinks: each sequence is a list of tokens, and the expected use of pages follows
// from the tables.
#pragma once

#include <algorithm>
#include <map>
#include <set>

#include "tokens.h"

namespace attn::test {

template <class T>
class PagedModel {
 public:
  explicit PagedModel(const PagedKvCacheConfig& config)
      : cache(config), sizes_{config.kv_heads, config.head_dim, config.v_dim == 0 ? config.head_dim : config.v_dim} {}

  PagedKvCache<T> cache;
  std::map<Index, Tokens> sequences;
  std::map<Index, Index> offsets;  // how many tokens of each sequence were dropped by its window

  const TokenSizes& sizes() const { return sizes_; }

  Index add() {
    const Index id = cache.add();
    EXPECT_TRUE(sequences.emplace(id, Tokens(sizes_)).second) << "id " << id << " was assigned twice";
    return id;
  }
  Index fork(Index from, std::optional<Index> length = std::nullopt) {
    const Index free = cache.free_pages(), id = cache.fork(from, length);
    Tokens copy = sequences.at(from);
    if (length) copy.truncate(*length);
    EXPECT_TRUE(sequences.emplace(id, std::move(copy)).second) << "id " << id << " was assigned twice";
    offsets[id] = offset(from);
    EXPECT_EQ(cache.free_pages(), free) << "a fork allocated pages";
    return id;
  }
  void release(Index id) {
    cache.release(id);
    sequences.erase(id);
    offsets.erase(id);
    EXPECT_FALSE(cache.has(id));
  }
  Index offset(Index id) const {
    const auto found = offsets.find(id);
    return found == offsets.end() ? 0 : found->second;
  }
  /// The fewest tokens that truncate() and fork() may keep.
  Index least(Index id) const { return offset(id) > 0 ? cache.config().window : 0; }
  void truncate(Index id, Index length) {
    cache.truncate(id, length);
    sequences.at(id).truncate(length);
  }

  /// Removes the tokens that an append drops first.
  void slide(Index id) {
    Tokens& tokens = sequences.at(id);
    const Index left = tokens_leaving(cache.config(), tokens.size());
    tokens = tokens.part(left, tokens.size());
    offsets[id] += left;
  }

  /// Appends more[i] to ids[i], using the overload that fits. Expects OutOfPages if there are too few pages. Returns
  /// whether there were enough.
  bool append(const std::vector<Index>& ids, const std::vector<Tokens>& more, bool ragged, Layout layout) {
    std::vector<Index> lens;
    for (const Tokens& t : more) lens.push_back(t.size());
    auto tables = all_tables();
    const auto tables_before = tables;
    const auto sequences_before = sequences;
    const auto offsets_before = offsets;
    for (const Index id : ids) {
      const Index left = tokens_leaving(cache.config(), sequences.at(id).size());
      tables[id].erase(tables[id].begin(), tables[id].begin() + left / cache.config().page_size);
      slide(id);
    }
    const Index needed = pages_needed(tables, ids, lens), before = cache.free_pages(), free = free_beside(tables);
    if (ids.size() == 1) {
      EXPECT_EQ(cache.pages_needed(ids[0], lens[0]), std::max<Index>(needed - (free - before), 0));
    }
    try {
      if (ragged) {
        Appended<Given<T>> given(concatenated(more), layout);
        cache.append(ids, given.k(), given.v(), lens);
      } else {
        Appended<Given<T>> given(more, layout);
        if (ids.size() == 1)
          cache.append(ids[0], given.k(), given.v());
        else
          cache.append(ids, given.k(), given.v());
      }
    } catch (const OutOfPages& e) {
      EXPECT_GT(needed, free) << "there were enough pages";
      const bool slid = ids.size() > 1;  // one sequence is refused before its window slides
      if (!slid) sequences = sequences_before, offsets = offsets_before;
      EXPECT_EQ(e.needed(), slid ? needed : needed - (free - before));
      EXPECT_EQ(e.free(), slid ? free : before);
      EXPECT_EQ(all_tables(), slid ? tables : tables_before);
      EXPECT_EQ(cache.free_pages(), slid ? free : before);
      expect_contents();
      return false;
    }
    EXPECT_LE(needed, free);
    EXPECT_EQ(cache.free_pages(), free - needed);
    for (std::size_t i = 0; i < ids.size(); ++i) {
      sequences.at(ids[i]).add(more[i]);
      EXPECT_TRUE(holds(cache, ids[i], sequences.at(ids[i])));
    }
    return true;
  }

  /// Checks the invariants: exactly the pages in no table are free, and a table has the number of pages that its tokens
  /// need.
  void expect_sound() const {
    ASSERT_EQ(cache.sequences(), static_cast<Index>(sequences.size()));
    for (const auto& [id, tokens] : sequences) {
      ASSERT_TRUE(cache.has(id));
      ASSERT_EQ(cache.length(id), tokens.size());
      ASSERT_EQ(cache.offset(id), offset(id));
      const auto table = cache.table(id);
      ASSERT_EQ(static_cast<Index>(table.size()), pages_for(tokens.size())) << "sequence " << id;
      ASSERT_EQ(std::set<Index>(table.begin(), table.end()).size(), table.size()) << "sequence " << id;
      for (const Index page : table) ASSERT_TRUE(page >= 0 && page < cache.pages());
    }
    ASSERT_EQ(cache.free_pages(), free_beside(all_tables()));
  }
  void expect_contents() const {
    for (const auto& [id, tokens] : sequences) ASSERT_TRUE(holds(cache, id, tokens));
  }

 private:
  using Tables = std::map<Index, std::vector<Index>>;

  Index pages_for(Index tokens) const {
    const Index size = cache.config().page_size;
    return tokens / size + (tokens % size > 0);
  }
  Tables all_tables() const {
    Tables tables;
    for (const auto& [id, tokens] : sequences) tables[id] = {cache.table(id).begin(), cache.table(id).end()};
    return tables;
  }
  Index free_beside(const Tables& tables) const {
    std::set<Index> used;
    for (const auto& [id, table] : tables) used.insert(table.begin(), table.end());
    return cache.pages() - static_cast<Index>(used.size());
  }
  /// The number of pages that consecutive appends allocate: new ones, and copies of shared pages that are written to.
  Index pages_needed(const Tables& tables, const std::vector<Index>& ids, const std::vector<Index>& lens) const {
    std::map<Index, Index> users;
    for (const auto& [id, table] : tables)
      for (Index page : table) ++users[page];
    Index needed = 0;
    for (std::size_t i = 0; i < ids.size(); ++i) {
      const Index length = sequences.at(ids[i]).size();
      needed += pages_for(length + lens[i]) - pages_for(length);
      if (lens[i] > 0 && length % cache.config().page_size > 0 && users[cache.table(ids[i]).back()] > 1) {
        --users[cache.table(ids[i]).back()];
        ++needed;
      }
    }
    return needed;
  }

  TokenSizes sizes_;
};

}  // namespace attn::test
