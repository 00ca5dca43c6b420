// Integer rounding, ranges, the components of instruction sets, and softmax states.
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/base/ranges.h"
#include "attn/core/simd/softmax_state.h"
#include "attn/core/simd/vector_sets.h"

namespace attn::test {
namespace {

constexpr Index kLargest = std::numeric_limits<Index>::max();

TEST(Ranges, DivisionRoundsTowardsInfinity) {
  for (Index by = 1; by < 8; ++by)
    for (Index n = -40; n <= 40; ++n) {
      const double exact = static_cast<double>(n) / static_cast<double>(by);
      EXPECT_EQ(detail::ceil_div(n, by), static_cast<Index>(std::ceil(exact))) << n << " / " << by;
      EXPECT_EQ(detail::floor_div(n, by), static_cast<Index>(std::floor(exact))) << n << " / " << by;
      EXPECT_EQ(detail::floor_div(n, by) * by + detail::floor_mod(n, by), n);
      EXPECT_GE(detail::floor_mod(n, by), 0);
      EXPECT_LT(detail::floor_mod(n, by), by);
    }
  EXPECT_EQ(detail::ceil_div(kLargest, 2), kLargest / 2 + 1);  // no intermediate sum overflows
  EXPECT_EQ(detail::padded(Index(65), 64), 128);
  EXPECT_EQ(detail::padded(Index(64), 64), 64);
  EXPECT_EQ(detail::padded(Index(0), 64), 0);
}

TEST(Ranges, HullWithAnEmptyRangeIsTheOtherRange) {
  using detail::hull;
  EXPECT_EQ(hull({3, 5}, {9, 11}), (Range{3, 11}));
  EXPECT_EQ(hull({9, 11}, {3, 10}), (Range{3, 11}));
  EXPECT_EQ(hull({7, 7}, {3, 5}), (Range{3, 5}));
  EXPECT_EQ(hull({3, 5}, {7, 2}), (Range{3, 5}));
  EXPECT_TRUE(hull({7, 7}, {9, 2}).empty());
}

TEST(InstructionSets, MatchTheirComponents) {
  for (const Isa isa : kIsas) {
    const detail::IsaParts parts = detail::parts_of(isa);
    EXPECT_EQ(detail::isa_with(parts), isa) << to_string(isa);
    if (!available(isa)) continue;
    EXPECT_TRUE(detail::has_kernels(parts.vectors)) << to_string(isa);
    EXPECT_EQ(detail::with_vectors<float>(parts.vectors, []<detail::VectorSet kSet>() { return kSet; }), parts.vectors);
  }
  EXPECT_FALSE(available(static_cast<Isa>(-1)));
  EXPECT_FALSE(available(static_cast<Isa>(99)));
  EXPECT_TRUE(available(best_isa()));
}

using State = detail::SoftmaxState<double>;
constexpr double kInfinity = State::kInfinity;

/// The state of these scores, merged one by one. If they ascend, every merge rescales.
State over(const std::vector<double>& scores) {
  State all;
  for (const double score : scores) all = merged(all, State::of(score));
  return all;
}

TEST(SoftmaxStates, MergeToTheStateOfAllKeys) {
  const std::vector<double> a{-3, 0.5, 2}, b{1000, -1000, 999.5};
  double sum = 0;
  for (const double score : a) sum += std::exp(score);
  EXPECT_NEAR(over(a).lse(), std::log(sum), 1e-15);
  EXPECT_EQ(over(a).max, 2);
  const State all = merged(over(a), over(b)), reversed = merged(over(b), over(a));
  EXPECT_NEAR(all.lse(), 1000 + std::log(1 + std::exp(-0.5)), 1e-12);
  EXPECT_EQ(all.max, reversed.max);
  EXPECT_DOUBLE_EQ(all.sum, reversed.sum);
  // Part a's contribution to the sum of the whole: its own sum, rescaled to the maximum of the whole.
  const double share = over(a).factor_in(merged(over(a), over({3}))) * over(a).sum;
  EXPECT_NEAR(share, sum / std::exp(3), 1e-15);
}

TEST(SoftmaxStates, WithoutKeysChangeNothing) {
  const State none, one = State::of(5);
  EXPECT_EQ(none.lse(), -kInfinity);
  EXPECT_EQ(State::of(-kInfinity).sum, 0);
  for (const State& all : {merged(none, one), merged(one, none)}) {
    EXPECT_EQ(all.lse(), 5);
    EXPECT_EQ(all.sum, 1);
  }
  EXPECT_EQ(merged(none, none).lse(), -kInfinity);
  EXPECT_EQ(none.factor_in(none), 0);  // not NaN
  EXPECT_TRUE(std::isnan(merged(one, State::of(std::nan(""))).lse()));
}

}  // namespace
}  // namespace attn::test
