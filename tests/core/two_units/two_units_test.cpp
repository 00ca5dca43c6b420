#include "two_units/units.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace {

// With x = [[1], [0], [2]] the scores of query i are x_i * x, and its output is the mean of x with weights exp(score).
Column three_tokens() {
  Column x({3, 1});
  x(0, 0) = 1;
  x(2, 0) = 2;
  return x;
}

TEST(TwoUnits, EachUsesItsOwnMods) {
  const Column x = three_tokens();
  for (attn::Isa isa : sets_of_first()) {
    const Column out = windowed(x, isa);
    EXPECT_EQ(out(0, 0), 1);  // sees only itself
    // Query 2 sees keys 1 and 2: scores 0 and 4.
    EXPECT_NEAR(out(2, 0), 2 * std::exp(4.0) / (1 + std::exp(4.0)), 1e-6) << to_string(isa);
  }
  for (attn::Isa isa : sets_of_second()) {
    const Column out = capped(x, isa);
    EXPECT_EQ(out(0, 0), 1);
    // Query 2 sees keys 0, 1 and 2: scores 2, 0 and 4 before the cap.
    const double a = std::exp(2 * std::tanh(1.0)), c = std::exp(2 * std::tanh(2.0));
    EXPECT_NEAR(out(2, 0), (a + 2 * c) / (a + 1 + c), 1e-6) << to_string(isa);
  }
}

// Eigen's allocation alignment depends on the flags, and one unit may free memory allocated in another: so all units
// are compiled with the same EIGEN_MAX_ALIGN_BYTES.
TEST(TwoUnits, EachKeepsItsOwnMatrices) {
  EXPECT_NEAR(matrices_of_first(), 63 * 16, 1e-3);
  EXPECT_NEAR(matrices_of_second(), 63 * 16, 1e-3);
}

TEST(TwoUnits, EachHasTheKernelsOfItsOwnFlags) {
  const std::vector<attn::Isa> first = sets_of_first(), second = sets_of_second();
  for (const auto& sets : {first, second}) ASSERT_FALSE(sets.empty());
  EXPECT_NE(std::find(first.begin(), first.end(), default_of_first()), first.end());
  EXPECT_NE(std::find(second.begin(), second.end(), default_of_second()), second.end());
#if defined(ATTN_SECOND_UNIT_HAS_AVX2_FLAGS)
  EXPECT_EQ(first.front(), attn::Isa::generic);
  EXPECT_EQ(second.front(), attn::Isa::avx2);
  for (std::size_t i = 0; i < code_of_first().size(); ++i)
    EXPECT_NE(code_of_first()[i], code_of_second()[i]) << "a processor without AVX2 may be given code that needs it";
#else
  EXPECT_EQ(first, second);
  EXPECT_EQ(code_of_first(), code_of_second());
#endif
}

}  // namespace
