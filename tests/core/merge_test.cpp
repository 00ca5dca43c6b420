// Merging attention over some keys with attention over the others gives attention over all keys.
#include "support/mod_table.h"
#include "support/paths.h"

namespace attn::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

template <class A, class B>
double distance(const A& a, const B& b) {
  return static_cast<double>((a - b).cwiseAbs().maxCoeff());
}

class Merge : public ::testing::Test {
 protected:
  /// Attention over keys begin .. end - 1 under a mask; each key keeps its position.
  auto part(Index begin, Index end, std::optional<Isa> isa = {}) const {
    return attention(q_, k_.middleRows(begin, end - begin), v_.middleRows(begin, end - begin), causal(),
                     {.q_offset = 60 - begin, .isa = isa});
  }

  Random random_{1};
  Eigen::MatrixXd q_ = matrix(40, 8), k_ = matrix(100, 8), v_ = matrix(100, 6);

 private:
  Eigen::MatrixXd matrix(Index rows, Index cols) {
    const auto values = random_.values(rows * cols);
    return Eigen::Map<const Eigen::MatrixXd>(values.data(), rows, cols);
  }
};

TEST_F(Merge, PartsOfKeysGiveTheWholeResult) {
  for (Isa isa : instruction_sets()) {
    const auto whole = part(0, 100, isa);
    for (Index chunk : {1, 13, 50, 64}) {
      auto sum = part(0, chunk, isa);
      for (Index j = chunk; j < 100; j += chunk)
        sum = merge(std::move(sum), part(j, std::min<Index>(j + chunk, 100), isa));
      EXPECT_LT(distance(sum.out, whole.out), 1e-13) << "chunks of " << chunk;
      EXPECT_LT(distance(sum.lse, whole.lse), 1e-13) << "chunks of " << chunk;
    }
  }
}

TEST_F(Merge, OrderAndGroupingDoNotMatter) {
  const auto a = part(0, 30), b = part(30, 71), c = part(71, 100);
  const auto left = merge(merge(a, b), c), right = merge(a, merge(b, c)), all = merge(c, a, b);
  EXPECT_LT(distance(left.out, right.out), 1e-14);
  EXPECT_LT(distance(left.lse, right.lse), 1e-14);
  EXPECT_LT(distance(left.out, all.out), 1e-14);
  EXPECT_LT(distance(left.out, a.out), 10.0);
  EXPECT_GT(distance(left.out, a.out), 0.1);  // the parts do differ
}

TEST_F(Merge, PartsWithoutKeysChangeNothing) {
  const auto a = part(0, 100);
  auto empty = part(0, 0);
  EXPECT_EQ(empty.lse(3), -kInf);
  EXPECT_EQ(merge(a, empty).out, a.out);
  EXPECT_EQ(merge(a, empty).lse, a.lse);
  EXPECT_EQ(merge(empty, a).out, a.out);
  EXPECT_EQ(merge(empty, a).lse, a.lse);
  EXPECT_EQ(merge(empty, empty).out, empty.out);
  EXPECT_EQ(merge(empty, empty).lse, empty.lse);
  empty.out.setConstant(std::numeric_limits<double>::quiet_NaN());  // these rows must not contribute
  EXPECT_EQ(merge(a, empty).out, a.out);
  EXPECT_EQ(merge(empty, a).out, a.out);
}

TEST_F(Merge, NaNStaysInItsRow) {
  const auto a = part(0, 50);
  auto b = part(50, 100);
  const auto sound = merge(a, b);
  b.out(39, 2) = std::numeric_limits<double>::quiet_NaN();
  const auto got = merge(a, b);
  EXPECT_TRUE(std::isnan(got.out(39, 2)));
  EXPECT_EQ(got.out.topRows(39), sound.out.topRows(39));
  EXPECT_EQ(got.lse, sound.lse);
}

TEST_F(Merge, FarApartLogSumExps) {
  auto a = part(0, 50), b = part(50, 100);
  b.lse.array() += 1e4;
  EXPECT_EQ(merge(a, b).out.row(39), b.out.row(39));
  EXPECT_EQ(merge(b, a).out.row(39), b.out.row(39));
  EXPECT_EQ(merge(b, a).lse(39), b.lse(39));
}

TEST(MergeTensors, ManyHeadsAndStrides) {
  Random random(2);
  const Sizes s{2, 4, 2, 30, 80, 16, 8};
  const Inputs in(s, random);
  Arguments<float> a(in);
  const auto q = a.q.view(), k = a.k.view(), v = a.v.view();
  const auto whole = attention(q, k, v);
  const auto keys = [&](Index begin, Index end) {
    const auto rows = [&](const auto& t) {
      return TensorView<const float, 4>(t.data() + begin * t.stride(2), {t.dim(0), t.dim(1), end - begin, t.dim(3)},
                                        t.strides());
    };
    return attention(q, rows(k), rows(v));
  };
  const auto first = keys(0, 33), second = keys(33, 80);
  const auto both = merge(first, second);
  for (Index i = 0; i < both.out.size(); ++i) EXPECT_NEAR(both.out.data()[i], whole.out.data()[i], 1e-5f);
  for (Index i = 0; i < both.lse.size(); ++i) EXPECT_NEAR(both.lse.data()[i], whole.lse.data()[i], 1e-5f);

  // Into the caller's memory in another order, (batch, len, heads, dim).
  std::vector<float> memory(static_cast<std::size_t>(whole.out.size()));
  auto out = bshd(memory.data(), 2, 30, 4, 8);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h) out.matrix(b, h) = first.out.matrix(b, h);
  Tensor<float, 3> lse = first.lse;
  merge_into(out, lse, second.out, second.lse);
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h) EXPECT_EQ(out.matrix(b, h), both.out.matrix(b, h));
}

}  // namespace
}  // namespace attn::test
