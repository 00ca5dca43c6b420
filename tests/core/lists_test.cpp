// Lists of integers that store a few elements inline and more on the heap: both preserve their contents.
#include "attn/lists.h"

#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace attn::test {
namespace {

std::vector<Index> ascending(std::size_t count) {
  std::vector<Index> all(count);
  std::iota(all.begin(), all.end(), Index(10));
  return all;
}
std::vector<Index> held(const detail::ShortList<Index>& list) {
  EXPECT_EQ(list.empty(), list.size() == 0);
  std::vector<Index> all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    EXPECT_EQ(&list[i], list.begin() + i);
    all.push_back(list[i]);
  }
  EXPECT_EQ(list.begin() + list.size(), list.end());
  EXPECT_EQ(all, std::vector<Index>(list.begin(), list.end()));
  return all;
}

TEST(Lists, PreserveTheirElementsInlineAndOnTheHeap) {
  constexpr std::size_t kInline = detail::ShortList<Index>::kInline;
  for (std::size_t count = 0; count <= kInline + 3; ++count) {
    const std::vector<Index> want = ascending(count);
    EXPECT_EQ(held(Indices(want).values), want);
    EXPECT_EQ(held(Indices(std::vector<Index>(want)).values), want);
    EXPECT_EQ(held(Indices(std::vector<std::int16_t>(want.begin(), want.end())).values), want);
    EXPECT_EQ(std::move(Indices(want).values).to_vector(), want);
    for (std::size_t less = 0; less <= count; ++less) {
      Indices shorter(want);
      shorter.values.shrink(less);
      EXPECT_EQ(held(shorter.values), ascending(less)) << "of " << count;
      shorter.values.push_back(7);
      std::vector<Index> longer = ascending(less);
      longer.push_back(7);
      EXPECT_EQ(held(shorter.values), longer) << "of " << count;
    }
  }
  EXPECT_EQ(held(Indices{1, 2, 3, 4, 5, 6, 7, 8, 9}.values), (std::vector<Index>{1, 2, 3, 4, 5, 6, 7, 8, 9}));
  EXPECT_EQ(held(Indices{}.values), std::vector<Index>());
}

TEST(Lists, CopiesAreIndependentAndMovesTransferOwnership) {
  for (const std::size_t count : {std::size_t(0), std::size_t(3), std::size_t(8), std::size_t(9), std::size_t(20)}) {
    const std::vector<Index> want = ascending(count);
    Indices first(want), second(ascending(2)), third(ascending(12));
    second = first;
    third = first;
    if (count > 0) first.values[0] = -1;
    EXPECT_EQ(held(second.values), want);
    EXPECT_EQ(held(third.values), want);
    Indices fourth(std::move(second)), fifth(ascending(20));
    fifth = std::move(third);
    EXPECT_EQ(held(fourth.values), want);
    EXPECT_EQ(held(fifth.values), want);
    second = Indices(ascending(4));  // a moved-from list can be assigned to
    EXPECT_EQ(held(second.values), ascending(4));
  }
}

TEST(Lists, AdoptALongVectorsMemory) {
  std::vector<Index> many = ascending(20);
  const Index* const where = many.data();
  const Indices taken(std::move(many));
  EXPECT_EQ(taken.values.data(), where);
}

}  // namespace
}  // namespace attn::test
