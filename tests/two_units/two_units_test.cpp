#include "two_units/units.h"

#include <gtest/gtest.h>

#include <cmath>

// With x = [[1], [0], [2]] the scores of query i are x_i * x, and its output is the mean of x with weights exp(score).
TEST(TwoUnits, EachUnitUsesItsOwnMods) {
  const Eigen::MatrixXf x = Eigen::Vector3f(1, 0, 2);

  // Query 2 sees keys 1 and 2: scores 0 and 4.
  EXPECT_NEAR(windowed(x)(2), 2 * std::exp(4.0) / (1 + std::exp(4.0)), 1e-6);

  // Query 2 sees keys 0, 1 and 2: scores 2, 0 and 4 before the cap.
  const double a = std::exp(2 * std::tanh(1.0)), c = std::exp(2 * std::tanh(2.0));
  EXPECT_NEAR(capped(x)(2), (a + 2 * c) / (a + 1 + c), 1e-6);

  // Query 0 sees itself only, in both.
  EXPECT_EQ(windowed(x)(0), 1);
  EXPECT_EQ(capped(x)(0), 1);
}
