// A plain model of PagedKvCache: each sequence is a list of tokens, and the expected use of pages follows from the
// tables.
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
    EXPECT_EQ(cache.free_pages(), free) << "a fork allocated pages";
    return id;
  }
  void release(Index id) {
    cache.release(id);
    sequences.erase(id);
    EXPECT_FALSE(cache.has(id));
  }
  void truncate(Index id, Index length) {
    cache.truncate(id, length);
    sequences.at(id).truncate(length);
  }

  /// Appends more[i] to ids[i], using the overload that fits. Expects OutOfPages if there are too few pages. Returns
  /// whether there were enough.
  bool append(const std::vector<Index>& ids, const std::vector<Tokens>& more, bool ragged, Layout layout) {
    std::vector<Index> lens;
    for (const Tokens& t : more) lens.push_back(t.size());
    const Index needed = pages_needed(ids, lens), free = cache.free_pages();
    if (ids.size() == 1) {
      EXPECT_EQ(cache.pages_needed(ids[0], lens[0]), needed);
    }
    const auto tables = all_tables();
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
      EXPECT_EQ(e.needed(), needed);
      EXPECT_EQ(e.free(), free);
      EXPECT_EQ(all_tables(), tables);
      EXPECT_EQ(cache.free_pages(), free);
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
    std::set<Index> used;
    for (const auto& [id, tokens] : sequences) {
      ASSERT_TRUE(cache.has(id));
      ASSERT_EQ(cache.length(id), tokens.size());
      const auto table = cache.table(id);
      ASSERT_EQ(static_cast<Index>(table.size()), pages_for(tokens.size())) << "sequence " << id;
      ASSERT_EQ(std::set<Index>(table.begin(), table.end()).size(), table.size()) << "sequence " << id;
      used.insert(table.begin(), table.end());
    }
    ASSERT_TRUE(used.empty() || (*used.begin() >= 0 && *used.rbegin() < cache.pages()));
    ASSERT_EQ(cache.free_pages() + static_cast<Index>(used.size()), cache.pages());
  }
  void expect_contents() const {
    for (const auto& [id, tokens] : sequences) ASSERT_TRUE(holds(cache, id, tokens));
  }

 private:
  Index pages_for(Index tokens) const {
    const Index size = cache.config().page_size;
    return tokens / size + (tokens % size > 0);
  }
  std::map<Index, std::vector<Index>> all_tables() const {
    std::map<Index, std::vector<Index>> tables;
    for (const auto& [id, tokens] : sequences) tables[id] = {cache.table(id).begin(), cache.table(id).end()};
    return tables;
  }
  /// The number of pages that consecutive appends allocate: new ones, and copies of shared pages that are written to.
  Index pages_needed(const std::vector<Index>& ids, const std::vector<Index>& lens) const {
    std::map<Index, Index> users;
    for (const auto& [id, table] : all_tables())
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
