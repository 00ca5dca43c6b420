// Weights computed tile by tile match the definition, and so do sums over them.
#include "attn/attention_weights.h"
#include "attn/mods.h"

#include <mutex>

#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/sample.h"
#include "support/weights.h"

namespace attn::test {
namespace {

template <class T>
struct Case {
  Sizes sizes;
  Arguments<T> arguments;
  TensorView<const T, 4> q, k, v;
  Tensor<T, 4> expected;  ///< the weights
  Tensor<T, 3> lse;

  template <class M>
  Case(const Sizes& s, const M& mods, Random& random, Layout layout = Layout::bhsd)
      : sizes(s),
        arguments(Inputs(s, random), layout, layout, layout),
        q(arguments.q.view()),
        k(arguments.k.view()),
        v(arguments.v.view()) {
    auto naive = naive_attention(q, k, v, mods);
    expected = std::move(naive.weights);
    lse = attention(q, k, v, mods).lse;
  }
};

constexpr Sizes kSizes{2, 4, 2, 70, 150, 16, 8};

TEST(Weights, AllTilesMatchTheDefinition) {
  Random random(1);
  Sample sample;
  for (Index q_len : {1, 3, 70})
    each_erased_row({{2, 4, 2, q_len, 150, 16, 8}, {}, random}, [&](const auto& row) {
      if (!sample.takes_next()) return;
      SCOPED_TRACE(row.name + sample.text());
      const Case<float> c({2, 4, 2, q_len, 150, 16, 8}, row.mod, random, q_len == 3 ? Layout::bhsd : Layout::bshd);
      // A weight is e^(score - lse): its error is a few roundings of these.
      float largest = 0;
      for (Index i = 0; i < c.lse.size(); ++i)
        if (std::isfinite(c.lse.data()[i])) largest = std::max(largest, std::abs(c.lse.data()[i]));
      const float bound = 4 * std::numeric_limits<float>::epsilon() * (3 + largest);
      for (Isa isa : instruction_sets()) {
        const auto got = weights_by_tiles(c.q, c.k, c.lse, row.mod, {.executor = eager_threads(2), .isa = isa});
        for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], c.expected.data()[i], bound);
      }
    });
}

TEST(Weights, TilesOfAHeadAreVisitedOnceAndInOrder) {
  Random random(2);
  const Case<double> c(kSizes, causal(), random);
  std::mutex mutex;
  std::vector<std::vector<WeightTile<double>>> of_head(8);
  for_each_weight_tile(c.q, c.k, c.lse, causal(),
                       [&](const WeightTile<double>& t) {
                         const std::lock_guard lock(mutex);
                         of_head[static_cast<std::size_t>(t.batch * 4 + t.head)].push_back(t);
                       },
                       {.executor = eager_threads(3)});
  for (const auto& tiles : of_head) {
    ASSERT_GT(tiles.size(), 3u);
    for (std::size_t i = 1; i < tiles.size(); ++i) {
      const auto &a = tiles[i - 1], &b = tiles[i];
      EXPECT_TRUE(a.rows == b.rows ? a.keys.end <= b.keys.begin : a.rows.end == b.rows.begin);
    }
  }
}

TEST(Weights, MassIsTheSumOverQueries) {
  Random random(3);
  const auto mods = sliding_window(40) | softcap(2);
  const Case<double> c(kSizes, mods, random);
  const auto mass = attention_mass(c.q, c.k, c.lse, mods);
  ASSERT_EQ(mass.shape(), (Shape<3>{2, 4, 150}));
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index j = 0; j < 150; ++j) EXPECT_NEAR(mass(b, h, j), c.expected.matrix(b, h).col(j).sum(), 1e-13);
}

TEST(Weights, EntropyMatchesTheDefinition) {
  Random random(4);
  const auto mods = causal() | mask_mod([](auto p) { return p.q % 5 != 0; });
  const Case<double> c(kSizes, mods, random);
  const auto sums = entropy(c.q, c.k, c.lse, mods);
  ASSERT_EQ(sums.shape(), (Shape<3>{2, 4, 70}));
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 70; ++i) {
        double expected = 0;
        for (Index j = 0; j < 150; ++j)
          if (const double w = c.expected(b, h, i, j); w > 0) expected -= w * std::log(w);
        EXPECT_NEAR(sums(b, h, i), expected, 1e-13);
      }
  // By hand: four equal keys.
  const Eigen::MatrixXf q = Eigen::MatrixXf::Zero(1, 2), k = Eigen::MatrixXf::Random(4, 2);
  EXPECT_NEAR(entropy(q, k, attention(q, k, k).lse)(0, 0, 0), std::log(4.0f), 1e-6);
}

TEST(Weights, TopKWeightsAreInDescendingOrder) {
  Random random(5);
  const Case<double> c(kSizes, causal(), random);
  for (Index count : {0, 1, 3, 200}) {
    const auto top = top_k_weights(c.q, c.k, c.lse, count, causal());
    ASSERT_EQ(top.keys.shape(), (Shape<4>{2, 4, 70, count}));
    for (Index i = 0; i < 70; ++i) {
      std::vector<std::pair<double, Index>> all;
      for (Index j = 0; j < 150; ++j)
        if (c.expected(1, 2, i, j) > 0) all.emplace_back(-c.expected(1, 2, i, j), j);
      std::sort(all.begin(), all.end());
      for (Index n = 0; n < count; ++n) {
        const bool there = n < static_cast<Index>(all.size());
        EXPECT_EQ(top.keys(1, 2, i, n), there ? all[static_cast<std::size_t>(n)].second : -1);
        EXPECT_NEAR(top.weights(1, 2, i, n), there ? -all[static_cast<std::size_t>(n)].first : 0, 1e-13);
      }
    }
  }
}

TEST(Weights, MatricesAndSizesOfZero) {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Random(5, 4), k = Eigen::MatrixXf::Random(9, 4);
  const auto mass = attention_mass(q, k, attention(q, k, k).lse);
  EXPECT_EQ(mass.shape(), (Shape<3>{1, 1, 9}));
  float sum = 0;
  for (Index j = 0; j < 9; ++j) sum += mass(0, 0, j);
  EXPECT_NEAR(sum, 5, 1e-5);
  const Eigen::MatrixXf none(0, 4);
  EXPECT_EQ(attention_mass(q, none, attention(q, none, none).lse).size(), 0);
  EXPECT_EQ(attention_mass(none, k, attention(none, k, k).lse)(0, 0, 3), 0);
  EXPECT_EQ(entropy(q, none, attention(q, none, none).lse)(0, 0, 4), 0);
  EXPECT_EQ(top_k_weights(q, none, attention(q, none, none).lse, 2).keys(0, 0, 4, 1), -1);
}

// A NaN in a key affects only the rows that keep it, even within one tile.
TEST(Weights, NaNAffectsOnlyRowsThatKeepIt) {
  constexpr Index kPoisoned = 40;
  const Eigen::MatrixXd q = Eigen::MatrixXd::Random(70, 4);
  Eigen::MatrixXd k = Eigen::MatrixXd::Random(70, 4);
  const auto clean = top_k_weights(q, k, attention(q, k, k, causal()).lse, 3, causal());
  k(kPoisoned, 2) = std::numeric_limits<double>::quiet_NaN();
  const auto lse = attention(q, k, k, causal()).lse;
  const auto spread = entropy(q, k, lse, causal());
  const auto top = top_k_weights(q, k, lse, 3, causal());
  const auto mass = attention_mass(q, k, lse, causal() | key_lengths({kPoisoned}));
  for (Index i = 0; i < 70; ++i) {
    EXPECT_EQ(std::isnan(spread(0, 0, i)), i >= kPoisoned) << i;
    for (Index n = 0; n < 3; ++n) {
      EXPECT_EQ(std::isnan(top.weights(0, 0, i, n)), i >= kPoisoned) << i;
      EXPECT_EQ(top.keys(0, 0, i, n), i >= kPoisoned ? n : clean.keys(0, 0, i, n)) << i;
    }
  }
  for (Index j = kPoisoned; j < 70; ++j) EXPECT_EQ(mass(0, 0, j), 0);
}

TEST(Weights, BadInput) {
  const Tensor<float, 4> q({1, 2, 5, 4}), k({1, 2, 9, 4});
  const Tensor<float, 3> lse({1, 2, 6}), right({1, 2, 5});
  EXPECT_THROW(attention_mass(q, k, lse), std::invalid_argument);
  EXPECT_THROW(entropy(q, k, right, key_lengths({10})), std::invalid_argument);
  EXPECT_THROW(top_k_weights(q, k, right, -1), std::invalid_argument);
  EXPECT_NO_THROW(top_k_weights(q, k, right, 1));
}

}  // namespace
}  // namespace attn::test
