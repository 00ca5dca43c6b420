// Scores at the limits of the scalar's range. Such rows occur in practice: a mask added as the lowest finite value
// instead of -inf may cover a whole row of padding.
#include <algorithm>
#include <cmath>

#include "support/paths.h"

namespace attn::test {
namespace {

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic>;

template <class T>
Matrix<T> matrix(Index rows, Index cols, Random& random) {
  const std::vector<double> x = random.values(rows * cols);
  return Eigen::Map<const Matrix<double>>(x.data(), rows, cols).cast<T>();
}

/// Every instruction set gives finite results that match the definition's.
template <class T, class M = Mods<>>
void expect_as_naive(const Matrix<T>& q, const Matrix<T>& k, const Matrix<T>& v, const M& mods = {},
                     const Options& asked = {}) {
  SCOPED_TRACE(::testing::Message() << "q_len " << q.rows() << ", kv_len " << k.rows());
  const T allowed = 64 * std::numeric_limits<T>::epsilon();
  const auto want = naive_attention(q, k, v, mods, asked);
  ASSERT_TRUE(want.out.allFinite() && want.lse.allFinite());
  for (Isa isa : instruction_sets()) {
    Options options = asked;
    options.isa = isa;
    const auto got = attention(q, k, v, mods, options);
    for (Index i = 0; i < q.rows(); ++i) {
      // The comparison is false for NaN as well.
      EXPECT_TRUE((got.out.row(i) - want.out.row(i)).cwiseAbs().maxCoeff() <= 8 * allowed)
          << to_string(isa) << " row " << i << ": " << got.out.row(i) << " instead of " << want.out.row(i);
      EXPECT_TRUE(std::abs(got.lse(i) - want.lse(i)) <= allowed * (8 + std::abs(want.lse(i))))
          << to_string(isa) << " row " << i << ": lse " << got.lse(i) << " instead of " << want.lse(i);
    }
  }
}

template <class T>
class Extremes : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, long double>;
TYPED_TEST_SUITE(Extremes, Scalars);

TYPED_TEST(Extremes, ARowBiasedWithTheLowestValueIsTheMeanOfTheValues) {
  using T = TypeParam;
  constexpr T kLowest = std::numeric_limits<T>::lowest();
  Random random(1);
  for (Index q_len : {1, 3, 37})
    for (Index kv_len : {5, 64, 150}) {
      const Matrix<T> q = matrix<T>(q_len, 8, random), k = matrix<T>(kv_len, 8, random),
                      v = matrix<T>(kv_len, 3, random);
      Matrix<T> added = Matrix<T>::Zero(q_len, kv_len);
      for (Index i = 0; i < q_len; i += 2) added.row(i).setConstant(kLowest);
      expect_as_naive<T>(q, k, v, bias(added));
      for (Isa isa : instruction_sets()) {
        const auto got = attention(q, k, v, bias(added), {.isa = isa});
        for (Index i = 0; i < q_len; i += 2) {
          EXPECT_TRUE((got.out.row(i) - v.colwise().mean()).cwiseAbs().maxCoeff() <=
                      512 * std::numeric_limits<T>::epsilon())
              << to_string(isa) << " row " << i << ": " << got.out.row(i) << " instead of " << v.colwise().mean();
          EXPECT_TRUE(std::abs(got.lse(i) / kLowest - 1) <= 64 * std::numeric_limits<T>::epsilon())
              << to_string(isa) << " row " << i << ": lse " << got.lse(i);
        }
      }
    }
}

TYPED_TEST(Extremes, KeysBiasedWithTheLowestValueHaveZeroWeightBesideOthers) {
  using T = TypeParam;
  Random random(2);
  for (Index q_len : {1, 37}) {
    const Index kv_len = 150;
    const Matrix<T> q = matrix<T>(q_len, 8, random), k = matrix<T>(kv_len, 8, random), v = matrix<T>(kv_len, 3, random);
    // From one biased key to all but one, at the beginning or at the end, including whole tiles.
    for (Index count : {1, 64, 100, 149})
      for (const bool at_end : {false, true}) {
        Matrix<T> added = Matrix<T>::Zero(1, kv_len);
        added.middleCols(at_end ? kv_len - count : 0, count).setConstant(std::numeric_limits<T>::lowest());
        expect_as_naive<T>(q, k, v, bias(added));
      }
  }
}

TYPED_TEST(Extremes, PlainScoresUpToTheLargestValue) {
  // 0.82 of the largest value, 2.8e38 in float: a factor of log2(e) would overflow.
  using T = TypeParam;
  const T large = std::numeric_limits<T>::max() * T(0.82L), root = std::sqrt(large);
  Random random(3);
  for (Index q_len : {1, 3, 37})
    for (Index kv_len : {5, 150}) {
      const Matrix<T> v = matrix<T>(kv_len, 3, random), ones = Matrix<T>::Ones(q_len, 1);
      Matrix<T> k = Matrix<T>::Ones(kv_len, 1), halves = k;
      for (Index j = 0; j < kv_len; j += 2) halves(j) = T(0.5);
      for (const T sign : {T(1), T(-1)}) {
        const Options options{.scale = 1.0};
        expect_as_naive<T>(ones * root, k * (sign * root), v, full(), options);
        expect_as_naive<T>(ones * root, halves * (sign * root), v, full(), options);
        expect_as_naive<T>(ones, k * (sign * large), v, full(), options);
        expect_as_naive<T>(ones, halves * (sign * large), v, full(), options);
        expect_as_naive<T>(ones * large, halves * sign, v, full(), options);
        // The same under a mask, which uses another path through the kernels.
        expect_as_naive<T>(ones * root, halves * (sign * root), v, causal(), {.scale = 1.0, .q_offset = kv_len - 1});
      }
    }
}

}  // namespace
}  // namespace attn::test
