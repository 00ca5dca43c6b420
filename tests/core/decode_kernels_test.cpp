// Dot products and weighted sums for single queries: prefetching changes no bit of the results.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "attn/attention.h"
#include "support/paths.h"

namespace attn::test {
namespace {

using detail::DType;
using detail::kKeyTile;

template <class S>
constexpr DType kDTypeOf = std::is_same_v<S, Eigen::bfloat16> ? DType::bf16
                           : std::is_same_v<S, Eigen::half>   ? DType::f16
                           : std::is_same_v<S, std::int8_t>   ? DType::i8
                                                              : DType::native;

template <class S>
constexpr float kLargestValue = std::is_same_v<S, std::int8_t> ? 51 : 1;

/// Some rows of S, `stride` apart, with queries and weights of T.
template <class T, class S>
struct Numbers {
  Numbers(Index rows, Index keys, Index dim, Index stride)
      : query(static_cast<std::size_t>(rows * dim)),
        kv(static_cast<std::size_t>((keys - 1) * stride + dim)),
        weights(static_cast<std::size_t>(rows * kKeyTile)) {
    Index i = 0;
    for (T& x : query) x = static_cast<T>(++i * 37 % 101 - 50) / T(50);
    for (S& x : kv) x = static_cast<S>(static_cast<float>(++i * 71 % 103 - 51) * kLargestValue<S> / 51);
    for (T& x : weights) x = static_cast<T>(++i * 13 % 89) / T(89);
  }
  detail::RowsToRead read(Index stride, Index first = 0) const {
    return {reinterpret_cast<const std::byte*>(kv.data() + first * stride), kDTypeOf<S>, stride, 1};
  }
  std::vector<T> query;
  std::vector<S> kv;
  std::vector<T> weights;
};

/// Calls visit(kernels, rows, keys, dim, stride) for every instruction set, at sizes around the kernels' group sizes.
template <class T, class S, class Visit>
void for_each_size(const Visit& visit) {
  for (const auto& isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    const auto kernels = [&] {
      if constexpr (std::is_same_v<S, std::int8_t>)
        return detail::cached_family<DType::i8>(detail::vectors_of(isa)).decode;
      else
        return detail::choose_kernels<T>({.isa = isa}, detail::Bf16Products::none).full_precision.decode;
    }();
    for (const Index rows : {1, 2, 4, 5, 8, 16})
      for (const Index keys : {1, 2, 3, 4, 5, 17, 40, 63, 64})
        for (const Index dim : {3, 8, 16, 32, 64, 72, 80, 96, 100, 128, 320}) {
          SCOPED_TRACE("rows " + std::to_string(rows) + ", keys " + std::to_string(keys) + ", dim " +
                       std::to_string(dim));
          visit(kernels, rows, keys, dim, dim + (dim == 64 ? 16 : 0));
        }
  }
}

template <class T>
detail::Prefetcher fetching(const detail::RowsToRead& rows, Index count, Index dim) {
  detail::Prefetcher fetching;
  fetching.restart(true);
  fetching.add<T>(rows, dim, count);
  return fetching;
}

/// Calls visit(begin, end) for each run of keys, as in pages of 16 keys if a window contains only the last 11 keys of
/// the first page.
template <class Visit>
void for_each_run(Index keys, const Visit& visit) {
  for (Index begin = 0, end = 11; begin < keys; begin = end, end += 16) visit(begin, std::min(end, keys));
}

template <class T, class S>
void score_sums_up_products() {
  for_each_size<T, S>([](const auto& kernels, Index rows, Index keys, Index dim, Index stride) {
    const Numbers<T, S> n(rows, keys, dim, stride);
    const detail::RowsToRead key = n.read(stride);
    const auto scores = [&](detail::Prefetcher fetching) {
      std::vector<T> to(static_cast<std::size_t>(rows * kKeyTile), T(-7));
      detail::TileMemory<T> m{};
      m.query = const_cast<T*>(n.query.data());
      m.scores = to.data();
      m.row = kKeyTile;
      kernels.score_of(kDTypeOf<S>)(m, rows, key, keys, dim, fetching);
      return to;
    };
    const auto near = scores({});
    const auto far = scores(fetching<T>(key, keys, dim));
    if (rows > 1) {
      std::vector<T> to(static_cast<std::size_t>(rows * kKeyTile), T(-7));
      detail::TileMemory<T> m{};
      m.query = const_cast<T*>(n.query.data());
      m.row = kKeyTile;
      for_each_run(keys, [&](Index begin, Index end) {
        m.scores = to.data() + begin;
        detail::Prefetcher nothing;
        kernels.score_of(kDTypeOf<S>)(m, rows, n.read(stride, begin), end - begin, dim, nothing);
      });
      for (Index r = 0; r < rows; ++r)
        ASSERT_TRUE(
            std::equal(to.begin() + r * kKeyTile, to.begin() + r * kKeyTile + keys, near.begin() + r * kKeyTile))
            << "row " << r;
    }
    for (Index r = 0; r < rows; ++r)
      for (Index j = 0; j < keys; ++j) {
        double expected = 0;
        for (Index d = 0; d < dim; ++d)
          expected += static_cast<double>(n.query[static_cast<std::size_t>(r * dim + d)]) *
                      static_cast<double>(n.kv[static_cast<std::size_t>(j * stride + d)]);
        const auto at = static_cast<std::size_t>(r * kKeyTile + j);
        ASSERT_NEAR(static_cast<double>(near[at]), expected, 1e-4 * kLargestValue<S>) << "row " << r << ", key " << j;
        ASSERT_EQ(near[at], far[at]) << "row " << r << ", key " << j;
      }
  });
}

template <class T, class S>
void value_sums_up_products() {
  for_each_size<T, S>([](const auto& kernels, Index rows, Index keys, Index dim, Index stride) {
    const Numbers<T, S> n(rows, keys, dim, stride);
    const detail::RowsToRead value = n.read(stride);
    // Not representable exactly, so that products are rounded.
    constexpr T kBefore = T(1) / 3, kRescale = T(0.7);
    std::vector<T> rescale(static_cast<std::size_t>(rows), kRescale);
    const auto out = [&](detail::Prefetcher fetching) {
      std::vector<T> to(static_cast<std::size_t>(rows * dim), kBefore), weights = n.weights;
      detail::TileMemory<T> m{};
      m.scores = weights.data();
      m.row = kKeyTile;
      m.out = to.data();
      m.rescale = rescale.data();
      kernels.value_of(kDTypeOf<S>)(m, rows, value, keys, dim, fetching);
      return to;
    };
    const auto in_runs = [&] {
      std::vector<T> to(static_cast<std::size_t>(rows * dim), kBefore), weights = n.weights, sums(to.size(), T(-7));
      detail::TileMemory<T> m{};
      m.row = kKeyTile;
      m.out = to.data();
      m.rescale = rescale.data();
      m.value_sums = sums.data();
      for_each_run(keys, [&](Index begin, Index end) {
        m.scores = weights.data() + begin;
        m.run = {begin == 0, end == keys};
        detail::Prefetcher nothing;
        kernels.value_of(kDTypeOf<S>)(m, rows, n.read(stride, begin), end - begin, dim, nothing);
      });
      return to;
    };
    const auto near = out({}), far = out(fetching<T>(value, keys, dim));
    if (rows > 1) {  // a single query always gets whole tiles
      EXPECT_EQ(in_runs(), near);
    }
    for (Index r = 0; r < rows; ++r)
      for (Index c = 0; c < dim; ++c) {
        double expected = static_cast<double>(kBefore) * static_cast<double>(kRescale);
        for (Index j = 0; j < keys; ++j)
          expected += static_cast<double>(n.weights[static_cast<std::size_t>(r * kKeyTile + j)]) *
                      static_cast<double>(n.kv[static_cast<std::size_t>(j * stride + c)]);
        const auto at = static_cast<std::size_t>(r * dim + c);
        ASSERT_NEAR(static_cast<double>(near[at]), expected, 1e-4 * kLargestValue<S>)
            << "row " << r << ", column " << c;
        ASSERT_EQ(near[at], far[at]) << "row " << r << ", column " << c;
      }
  });
}

/// The rows read next do not follow copied rows in memory, but must still be prefetched.
template <class T, class S>
void lines_of_pages_are_asked_for() {
  for_each_size<T, S>([](const auto& kernels, Index rows, Index keys, Index dim, Index stride) {
    if (keys < kKeyTile || dim % 16 != 0) return;
    const Numbers<T, S> copied(rows, keys, dim, stride), next(rows, keys, dim, stride);
    std::vector<T> to(static_cast<std::size_t>(rows * std::max(dim, kKeyTile))),
        weights = copied.weights, rescale(static_cast<std::size_t>(rows));
    detail::TileMemory<T> m{};
    m.query = const_cast<T*>(copied.query.data());
    m.scores = to.data();
    m.row = kKeyTile;
    m.rescale = rescale.data();
    detail::Prefetcher keys_of_page, values_of_page;
    keys_of_page.add<T>(next.read(stride), dim, keys);
    values_of_page.add<T>(next.read(stride), dim, keys);
    const Index all = keys_of_page.lines_left();
    kernels.score_of(kDTypeOf<S>)(m, rows, copied.read(stride), keys, dim, keys_of_page);
    EXPECT_LT(keys_of_page.lines_left(), all / 8) << "of " << all;
    m.scores = weights.data();
    m.out = to.data();
    kernels.value_of(kDTypeOf<S>)(m, rows, copied.read(stride), keys, dim, values_of_page);
    // A step over three rows of 32 bytes reads one and a half lines, but prefetches only one.
    if (dim >= 32) {
      EXPECT_LT(values_of_page.lines_left(), all / 8) << "of " << all;
    }
  });
}

TEST(DecodeKernels, LinesOfPagesArePrefetched) {
  if (!detail::kPrefetches) GTEST_SKIP() << "WebAssembly has no prefetch instruction";
  lines_of_pages_are_asked_for<float, float>();
  lines_of_pages_are_asked_for<double, double>();
  lines_of_pages_are_asked_for<float, Eigen::half>();
  lines_of_pages_are_asked_for<float, Eigen::bfloat16>();
}
TEST(DecodeKernels, ScoreSumsProducts) {
  score_sums_up_products<float, float>();
  score_sums_up_products<double, double>();
}
TEST(DecodeKernels, ScoreSumsProductsOfHalves) {
  score_sums_up_products<float, Eigen::half>();
  score_sums_up_products<float, Eigen::bfloat16>();
}
TEST(DecodeKernels, ScoreSumsProductsOfIntegers) { score_sums_up_products<float, std::int8_t>(); }
TEST(DecodeKernels, ValueSumsProducts) {
  value_sums_up_products<float, float>();
  value_sums_up_products<double, double>();
}
TEST(DecodeKernels, ValueSumsProductsOfHalves) {
  value_sums_up_products<float, Eigen::half>();
  value_sums_up_products<float, Eigen::bfloat16>();
}
TEST(DecodeKernels, ValueSumsProductsOfIntegers) { value_sums_up_products<float, std::int8_t>(); }

}  // namespace
}  // namespace attn::test
