// Vectors of each instruction set: the exponential, horizontal sums and maxima, lane permutations.
#include <cmath>
#include <functional>
#include <limits>
#include <numbers>
#include <vector>

#include <gtest/gtest.h>

#include "attn/core/simd/vec.h"

namespace attn::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class V>
ATTN_INLINE V exp_of(const V& x) {
  return exp(x);
}

/// The tested operations, on arrays in memory.
template <class T, int kBytes>
struct Operations {
  using V = detail::Vec<T, kBytes>;
  static constexpr int kLanes = V::kLanes;

  /// Exponentials of `count` elements, a multiple of kLanes.
  static ATTN_INLINE void exp(T* x, Index count) {
    for (Index i = 0; i < count; i += kLanes) exp_of(V::load(x + i)).store(x + i);
  }
  static ATTN_INLINE T largest(const T* x) { return V::load(x).largest(); }
  static ATTN_INLINE T total(const T* x) { return V::load(x).total(); }
  /// Transposes kLanes rows of kLanes elements.
  static ATTN_INLINE void transpose(T* square) {
    detail::Array<V, kLanes> rows;
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i) rows[i] = V::load(square + i * kLanes);
    V::transpose(rows);
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i) rows[i].store(square + i * kLanes);
  }
  /// Stores the sums of kLanes rows in the first row.
  static ATTN_INLINE void sum_lanes(T* square) {
    detail::Array<V, kLanes> rows;
    ATTN_UNROLL for (int i = 0; i < kLanes; ++i) rows[i] = V::load(square + i * kLanes);
    V::sum_lanes(rows).store(square);
  }
  static ATTN_INLINE void drop_where_zero(T* x, const typename V::Int* kept) { detail::drop_where_zero<V>(x, kept); }
  static ATTN_INLINE void add_exactly(T* sum, T* rest, const T* x) {
    V s = V::load(sum), r = V::load(rest);
    detail::add_exactly(s, r, V::load(x));
    s.store(sum);
    r.store(rest);
  }
};

/// The operations compiled for one vector set.
template <class T>
struct Compiled {
  using Int = detail::IntOf<T>;
  Index lanes;
  void (*exp)(T*, Index);
  T (*largest)(const T*);
  T (*total)(const T*);
  void (*transpose)(T*);
  void (*sum_lanes)(T*);
  void (*drop_where_zero)(T*, const Int*);
  void (*add_exactly)(T*, T*, const T*);

  template <detail::VectorSet kSet>
  static constexpr Compiled of() {
    using O = Operations<T, detail::kVectorBytes<kSet>>;
    using detail::compiled;
    return {O::kLanes,
            compiled<kSet, O::exp>,
            compiled<kSet, O::largest>,
            compiled<kSet, O::total>,
            compiled<kSet, O::transpose>,
            compiled<kSet, O::sum_lanes>,
            compiled<kSet, O::drop_where_zero>,
            compiled<kSet, O::add_exactly>};
  }
};

/// Calls test(operations) for each vector set of this machine.
template <class T, class Test>
void for_each_set(const Test& test) {
#define ATTN_TEST_SET(set, ...)                               \
  if (detail::cpu_has(detail::VectorSet::set)) {              \
    SCOPED_TRACE(#set);                                       \
    test(Compiled<T>::template of<detail::VectorSet::set>()); \
  }
  ATTN_FOR_EACH_VECTOR_SET(ATTN_TEST_SET)
#undef ATTN_TEST_SET
}

template <class T>
class Simd : public testing::Test {};
using Scalars = testing::Types<float, double>;
TYPED_TEST_SUITE(Simd, Scalars);

template <class T>
std::vector<T> numbers(Index count, const std::function<double(Index)>& number) {
  std::vector<T> x;
  for (Index i = 0; i < count; ++i) x.push_back(static_cast<T>(number(i)));
  return x;
}

TYPED_TEST(Simd, ExpIsWithinItsDocumentedError) {
  using T = TypeParam;
  constexpr double kEps = std::numeric_limits<T>::epsilon();
  const double smallest = detail::Exp2Constants<T>::kSmallest;
  for_each_set<T>([&](const Compiled<T>& set) {
    constexpr Index kCount = 4096;
    const auto x = numbers<T>(kCount, [&](Index i) { return smallest * static_cast<double>(i) / kCount; });
    auto y = x;
    set.exp(y.data(), kCount);
    for (Index i = 0; i < kCount; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const long double truth = std::exp(static_cast<long double>(x[at]));
      const double error = static_cast<double>(std::abs((static_cast<long double>(y[at]) - truth) / truth)) / kEps;
      // The exponent x log2(e) is rounded, since tests are compiled without FMA: that changes the result by up to half
      // a unit of the exponent times ln 2. log2(e) is rounded, too.
      const double exponent = static_cast<double>(-x[at]) * std::numbers::log2e,
                   unit = std::exp2(std::floor(std::log2(exponent + 1)));
      ASSERT_LE(error, 3 + std::numbers::ln2 / 2 * unit + 0.06 * exponent) << "e^" << x[at];
    }
  });
}

TYPED_TEST(Simd, ExpOfZeroInfinityAndNaN) {
  using T = TypeParam;
  for_each_set<T>([](const Compiled<T>& set) {
    const T below = std::nextafter(detail::Exp2Constants<T>::kSmallest, T(-kInf));
    for (const auto& [x, want] :
         {std::pair<T, T>{0, 1}, {T(-kInf), 0}, {std::numeric_limits<T>::lowest(), 0}, {below, 0}}) {
      std::vector<T> y(static_cast<std::size_t>(set.lanes), x);
      set.exp(y.data(), set.lanes);
      for (const T lane : y) EXPECT_EQ(lane, want) << "e^" << x;
    }
    std::vector<T> y(static_cast<std::size_t>(set.lanes), T(0));
    y.back() = std::numeric_limits<T>::quiet_NaN();
    set.exp(y.data(), set.lanes);
    EXPECT_TRUE(std::isnan(y.back()));
    EXPECT_EQ(y.front(), set.lanes == 1 ? y.front() : T(1));
  });
}

TYPED_TEST(Simd, LargestAndTotalSeeEveryLane) {
  using T = TypeParam;
  for_each_set<T>([](const Compiled<T>& set) {
    for (Index lane = 0; lane < set.lanes; ++lane) {
      auto x = numbers<T>(set.lanes, [](Index i) { return -1.0 - static_cast<double>(i); });
      x[static_cast<std::size_t>(lane)] = T(1000);
      EXPECT_EQ(set.largest(x.data()), T(1000)) << lane;
      const double others = -static_cast<double>(set.lanes * (set.lanes + 1)) / 2 + static_cast<double>(lane) + 1;
      EXPECT_EQ(set.total(x.data()), static_cast<T>(others + 1000)) << lane;
    }
    const std::vector<T> low(static_cast<std::size_t>(set.lanes), T(-kInf));
    EXPECT_EQ(set.largest(low.data()), T(-kInf));
  });
}

TYPED_TEST(Simd, TransposeAndSumOfLanes) {
  using T = TypeParam;
  for_each_set<T>([](const Compiled<T>& set) {
    const Index n = set.lanes;
    const auto square = numbers<T>(n * n, [](Index i) { return static_cast<double>(i * i % 97); });
    auto transposed = square, sums = square;
    set.transpose(transposed.data());
    set.sum_lanes(sums.data());
    for (Index r = 0; r < n; ++r) {
      T sum = 0;
      for (Index c = 0; c < n; ++c) {
        sum += square[static_cast<std::size_t>(r * n + c)];
        ASSERT_EQ(transposed[static_cast<std::size_t>(c * n + r)], square[static_cast<std::size_t>(r * n + c)]);
      }
      EXPECT_EQ(sums[static_cast<std::size_t>(r)], sum) << "row " << r;
    }
  });
}

TYPED_TEST(Simd, DropsWhereZero) {
  using T = TypeParam;
  for_each_set<T>([](const Compiled<T>& set) {
    auto x = numbers<T>(set.lanes, [](Index i) { return static_cast<double>(i); });
    x[0] = std::numeric_limits<T>::quiet_NaN();
    std::vector<typename Compiled<T>::Int> kept;
    for (Index i = 0; i < set.lanes; ++i) kept.push_back(i % 3 == 1 ? -1 : 0);
    set.drop_where_zero(x.data(), kept.data());
    for (Index i = 0; i < set.lanes; ++i)
      EXPECT_EQ(x[static_cast<std::size_t>(i)], i % 3 == 1 ? static_cast<T>(i) : T(-kInf)) << i;
  });
}

/// 100,000 small values are added to a large one, which a plain sum would lose.
TYPED_TEST(Simd, SumsKeepRoundingErrors) {
  using T = TypeParam;
  for_each_set<T>([](const Compiled<T>& set) {
    constexpr Index kCount = 100000;
    const T small = std::numeric_limits<T>::epsilon() / 4;
    std::vector<T> sum(static_cast<std::size_t>(set.lanes), T(1)), rest(sum.size(), T(0));
    const std::vector<T> x(sum.size(), small);
    for (Index i = 0; i < kCount; ++i) set.add_exactly(sum.data(), rest.data(), x.data());
    const T plain = T(1) + small, want = T(1) + static_cast<T>(kCount) * small;
    EXPECT_EQ(plain, T(1));
    for (std::size_t i = 0; i < sum.size(); ++i) {
      detail::add_rest(sum[i], rest[i]);
      EXPECT_NEAR(sum[i], want, 4 * std::numeric_limits<T>::epsilon());
    }
  });
}

}  // namespace
}  // namespace attn::test
