// A mask's hints against its predicate on every tile of small problems, and exactness of the hints of named masks.
#include "support/bound.h"
#include "support/mod_table.h"

#include <gtest/gtest.h>

#include <sstream>

namespace attn::test {
namespace {

/// Counts the kept pairs of any tile with a summed-area table.
class KeptPairs {
 public:
  KeptPairs(const Sizes& s, Index first, const Meaning& meaning, Index batch, Index head)
      : columns_(s.kv_len + 1), sums_(static_cast<std::size_t>((s.q_len + 1) * columns_)) {
    for (Index i = 0; i < s.q_len; ++i)
      for (Index j = 0; j < s.kv_len; ++j) {
        const bool kept = !meaning.keep || meaning.keep({batch, head, i, first + i, j});
        at(i + 1, j + 1) = at(i, j + 1) + at(i + 1, j) - at(i, j) + kept;
      }
  }

  Index count(Range rows, Range keys) {
    return at(rows.end, keys.end) - at(rows.begin, keys.end) - at(rows.end, keys.begin) + at(rows.begin, keys.begin);
  }

  /// The smallest range of keys that contains all kept ones; empty if none is kept.
  Range hull(Range rows, Range keys) {
    while (!keys.empty() && count(rows, {keys.begin, keys.begin + 1}) == 0) ++keys.begin;
    while (!keys.empty() && count(rows, {keys.end - 1, keys.end}) == 0) --keys.end;
    return keys;
  }

 private:
  Index& at(Index i, Index j) { return sums_[static_cast<std::size_t>(i * columns_ + j)]; }

  Index columns_;
  std::vector<Index> sums_;
};

struct Hint {
  bool keeps_first;  ///< the predicate for the first pair
  Coverage coverage;
  Range kv_range;
};

attn::Problem problem_of(const Sizes& s, const Numbers& numbers) {
  attn::Problem problem;
  problem.batch = s.batch;
  problem.heads = s.heads;
  problem.kv_heads = s.kv_heads;
  problem.q_len = s.q_len;
  problem.kv_len = s.kv_len;
  problem.q_offset = numbers.first_position(s);
  return problem;
}

/// Calls `check(row)` for every mask.
template <class Check>
void each_mask(const Setting& setting, const Check& check) {
  each_mod(setting, [&](const auto& row) {
    if constexpr (requires { bound(row.mod, Problem()).coverage(Tile()); })
      check(row);
    else
      EXPECT_FALSE(row.meaning.keep) << row.name << " has no hints";
  });
}

/// Calls `check(tile, hint, kept pairs, all pairs, hull of the kept keys)` for every tile of every head.
template <class M, class Check>
void each_tile(const Sizes& s, const Numbers& numbers, const Row<M>& row, Check check) {
  const Index first = numbers.first_position(s);
  const auto mask = bound(row.mod, problem_of(s, numbers));
  for (Index b = 0; b < s.batch; ++b)
    for (Index h = 0; h < s.heads; ++h) {
      KeptPairs kept(s, first, row.meaning, b, h);
      for (Index i0 = 0; i0 < s.q_len; ++i0)
        for (Index i1 = i0 + 1; i1 <= s.q_len; ++i1)
          for (Index j0 = 0; j0 < s.kv_len; ++j0)
            for (Index j1 = j0 + 1; j1 <= s.kv_len; ++j1) {
              const Tile tile{b, h, {first + i0, first + i1}, {j0, j1}};
              check(tile,
                    Hint{mask.keep(Position{b, h, tile.q.begin, tile.kv.begin}), mask.coverage(tile),
                         mask.kv_range(tile)},
                    kept.count({i0, i1}, {j0, j1}), (i1 - i0) * (j1 - j0), kept.hull({i0, i1}, {j0, j1}));
            }
    }
}

std::string text(const std::string& name, const Tile& t) {
  std::ostringstream s;
  s << name << ", batch " << t.batch << " head " << t.head << ", queries [" << t.q.begin << ", " << t.q.end
    << "), keys [" << t.kv.begin << ", " << t.kv.end << ")";
  return s.str();
}

template <class Check>
void each_size(Check check) {
  for (Index q_len = 1; q_len <= 12; ++q_len)
    for (Index kv_len = 1; kv_len <= 12; ++kv_len) {
      const Sizes s{1, 1, 1, q_len, kv_len, 1, 1};
      check(s, Numbers{});
      for (Index offset : {-13, -3, 0, 2, 14}) check(s, Numbers{{}, offset});
    }
}

template <class M>
void expect_sound(const Sizes& s, const Numbers& numbers, const Row<M>& row) {
  if (::testing::Test::HasFailure()) return;
  each_tile(s, numbers, row, [&](const Tile& tile, const Hint& hint, Index kept, Index all, Range hull) {
    ASSERT_TRUE(all > 1 || hint.keeps_first == (kept == 1)) << text(row.name, tile);  // the predicate, pair by pair
    ASSERT_TRUE(hint.coverage != Coverage::none || kept == 0) << text(row.name, tile);
    ASSERT_TRUE(hint.coverage != Coverage::all || kept == all) << text(row.name, tile);
    if (kept == 0) return;
    ASSERT_LE(hint.kv_range.begin, hull.begin) << text(row.name, tile);
    ASSERT_GE(hint.kv_range.end, hull.end) << text(row.name, tile);
  });
}

TEST(Hints, AgreeWithThePredicate) {
  Random random(1);
  each_size([&](const Sizes& s, const Numbers& numbers) {
    each_mask(Setting{s, numbers, random}, [&](const auto& row) { expect_sound(s, numbers, row); });
  });
}

// A hint that reads the data of the wrong batch element or head is often still sound, because that element keeps more
// pairs or because positions decide. With all queries before the first key only the data decides, and in twenty draws
// some element keeps fewer pairs.
TEST(Hints, AgreeWithThePredicateInEveryBatchElementAndHead) {
  Random random(2);
  const Sizes s{3, 2, 1, 4, 9, 1, 1};
  for (int round = 0; round < 20; ++round)
    for (const Numbers& numbers : {Numbers{}, Numbers{{}, -4}})
      each_mask(Setting{s, numbers, random}, [&](const auto& row) { expect_sound(s, numbers, row); });
}

/// Checks every mask over a problem split into small tiles, with random parameters, offsets and tile sizes.
void expect_sound_in_tiles(const Sizes& s, Random& random) {
  Numbers numbers;
  if (random.chance(0.5)) numbers.q_offset = random.integer(-5, 45);
  const Index height = random.integer(1, 16), width = random.integer(1, 16);
  each_mask(Setting{s, numbers, random}, [&](const auto& row) {
    if (::testing::Test::HasFailure()) return;
    const Index first = numbers.first_position(s);
    const auto mask = bound(row.mod, problem_of(s, numbers));
    for (Index b = 0; b < s.batch; ++b)
      for (Index h = 0; h < s.heads; ++h) {
        KeptPairs kept(s, first, row.meaning, b, h);
        for (Index i = 0; i < s.q_len; i += height) {
          const Range rows{i, std::min(i + height, s.q_len)}, queries{first + rows.begin, first + rows.end};
          const Tile all{b, h, queries, {0, s.kv_len}};
          const Range visited = mask.kv_range(all), hull = kept.hull(rows, all.kv);
          ASSERT_TRUE(hull.empty() || intersect(hull, visited) == hull) << text(row.name, all);
          for (Index j = 0; j < s.kv_len; j += width) {
            const Tile tile{b, h, queries, {j, std::min(j + width, s.kv_len)}};
            const Index count = kept.count(rows, tile.kv), pairs = rows.size() * tile.kv.size();
            const Coverage said = mask.coverage(tile);
            ASSERT_TRUE(said == Coverage::some || count == (said == Coverage::all ? pairs : 0)) << text(row.name, tile);
          }
        }
      }
  });
}

TEST(Hints, AgreeWithThePredicateOnTilesOfUpTo40By40) {
  Random random(5);
  for (Index q_len = 1; q_len <= 40; ++q_len)
    for (Index kv_len = 1; kv_len <= 40; ++kv_len)
      for (int round = 0; round < 6; ++round) expect_sound_in_tiles({1, 1, 1, q_len, kv_len, 1, 1}, random);
}

// The hints of masks stored in blocks of 16 keys depend on batch element and head only if there are several blocks.
TEST(Hints, AgreeWithThePredicateOnTilesOfEveryBatchElementAndHead) {
  Random random(6);
  for (int round = 0; round < 60; ++round)
    expect_sound_in_tiles({3, 2, 1, random.integer(1, 60), random.integer(1, 60), 1, 1}, random);
}

/// Checks that both hints are exact. Exact hints are possible for masks whose kept pairs form a band or a block;
/// inexact ones would waste work there.
template <class M>
void expect_exact(const Sizes& s, const Numbers& numbers, const Row<M>& row) {
  if (::testing::Test::HasFailure()) return;
  each_tile(s, numbers, row, [&](const Tile& tile, const Hint& hint, Index kept, Index all, Range hull) {
    const Coverage best = kept == 0 ? Coverage::none : kept == all ? Coverage::all : Coverage::some;
    ASSERT_EQ(hint.coverage, best) << text(row.name, tile);
    if (kept == 0)
      ASSERT_TRUE(hint.kv_range.empty()) << text(row.name, tile);
    else
      ASSERT_EQ(hint.kv_range, hull) << text(row.name, tile);
  });
}

TEST(Hints, OfNamedMasksAreExact) {
  Random random(4);
  const auto check = [&](const Sizes& s, const Numbers& numbers) {
    const Setting setting{s, numbers, random};
    expect_exact(s, numbers, neutral("full", attn::full())[0]);
    expect_exact(s, numbers, mask("causal", attn::causal(), [](const Pair& p) { return p.q >= p.kv; })[0]);
    for (const auto& row : window_rows(setting)) expect_exact(s, numbers, row);
    MaskRows rows;
    add_lengths(rows, setting);
    add_key_ranges(rows, setting);
    for (const auto& row : rows) expect_exact(s, numbers, row);
    for (const auto& row : key_length_rows(setting)) expect_exact(s, numbers, row);
  };
  each_size(check);
  for (int round = 0; round < 20; ++round) check({3, 2, 1, 4, 9, 1, 1}, {{}, random.integer(-4, 9)});
}

TEST(Hints, SummedAreaTableIsRight) {
  // Tests the class KeptPairs: 3 queries, 3 keys, causal.
  KeptPairs kept({1, 1, 1, 3, 3, 1, 1}, 0, {[](const Pair& p) { return p.kv <= p.q; }, {}}, 0, 0);
  EXPECT_EQ(kept.count({0, 3}, {0, 3}), 6);
  EXPECT_EQ(kept.count({0, 1}, {1, 3}), 0);
  EXPECT_EQ(kept.count({2, 3}, {1, 3}), 2);
  EXPECT_EQ(kept.hull({1, 2}, {0, 3}), (Range{0, 2}));
}

}  // namespace
}  // namespace attn::test
