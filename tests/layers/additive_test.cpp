// Additive attention: results by hand, properties, NaN and infinities, and errors.
#include "attn/additive_attention.h"

#include <cmath>

#include "support/additive_model.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using Eigen::MatrixXd;
using Eigen::MatrixXf;
using Eigen::VectorXd;
using Eigen::VectorXf;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

/// Checks both paths and all instruction sets.
void expect_both(const MatrixXd& q, const MatrixXd& k, const MatrixXd& v, const AdditiveScore<double>& score,
                 const auto& mods, const Options& options, const MatrixXd& out, const VectorXd& lse) {
  const auto check = [&](const auto& r) {
    for (Index i = 0; i < out.rows(); ++i) {
      EXPECT_NEAR((r.out.row(i) - out.row(i)).cwiseAbs().maxCoeff(), 0, 1e-13) << "row " << i;
      if (lse(i) == -kInf)
        EXPECT_EQ(r.lse(i), -kInf);
      else
        EXPECT_NEAR(r.lse(i), lse(i), 1e-13);
    }
  };
  check(naive_additive_attention(q, k, v, score, mods, options));
  for (Isa isa : instruction_sets()) {
    Options with_isa = options;
    with_isa.isa = isa;
    check(additive_attention(q, k, v, score, mods, with_isa));
  }
}

// tanh(ln 3 / 2) = (3 - 1) / (3 + 1) = 1/2, tanh(ln 2) = (4 - 1) / (4 + 1) = 3/5.
const double kHalf = std::log(3.0) / 2, kThreeFifths = std::log(2.0);

TEST(Additive, WeightsByHand) {
  // Sums of query and key in the two features: (ln 3 / 2, ln 2) for key 0 and (0, 0) for key 1. With weights 2 ln 3 and
  // 5 ln 2 / 3, the scores are ln 3 + ln 2 = ln 6 and 0: weights 6/7 and 1/7.
  MatrixXd q(1, 1), k(2, 3), v(2, 2), wq(2, 1), wk(2, 3);
  VectorXd w(2), b(2);
  q << 2;
  wq << 0.5, 1;           // (1, 2)
  b << -1, -2;            // cancels them
  k << 1, 1, 0, 0, 0, 7;  // the third feature has weight 0
  wk << kHalf, 0, 0, 0, kThreeFifths, 0;
  w << 2 * std::log(3.0), 5 * std::log(2.0) / 3;
  v << 7, 14, 0, -7;
  const MatrixXd out = (MatrixXd(1, 2) << 6, 11).finished();
  expect_both(q, k, v, {wq, wk, w, b}, full(), {}, out, VectorXd::Constant(1, std::log(7.0)));
  // Without the bias the sums are (1 + ln 3 / 2, 2 + ln 2) and (1, 2).
  const double top = w(0) * std::tanh(1 + kHalf) + w(1) * std::tanh(2 + kThreeFifths),
               low = w(0) * std::tanh(1.0) + w(1) * std::tanh(2.0), share = 1 / (1 + std::exp(low - top));
  expect_both(q, k, v, {wq, wk, w}, full(), {}, share * v.row(0) + (1 - share) * v.row(1),
              VectorXd::Constant(1, std::log(std::exp(top) + std::exp(low))));
}

TEST(Additive, DefaultScaleIsOne) {
  // One feature, with tanh 1/2 and 0. With weight 2 ln 3 the scores are ln 3 and 0; times 2 they are ln 9 and 0.
  MatrixXd q = MatrixXd::Zero(1, 1), k(2, 1), v(2, 1);
  k << kHalf, 0;
  v << 10, 0;
  const VectorXd w = VectorXd::Constant(1, 2 * std::log(3.0));
  const auto out = [](double x) { return MatrixXd::Constant(1, 1, x); };
  const auto lse = [](double x) { return VectorXd::Constant(1, std::log(x)); };
  expect_both(q, k, v, {{}, {}, w}, full(), {}, out(7.5), lse(4));
  expect_both(q, k, v, {{}, {}, w}, full(), {.scale = 2}, out(9), lse(10));
  // A mod sees the scaled score, and masks come after it.
  const auto one_more = score_mod([](auto x, const Position& p) { return x + static_cast<decltype(x)>(p.kv) * 0; });
  expect_both(q, k, v, {{}, {}, w}, one_more | key_lengths({1}), {.scale = 2}, out(10), lse(9));
  expect_both(q, k, v, {{}, {}, w}, key_lengths({0}), {}, out(0), VectorXd::Constant(1, -kInf));
}

TEST(Additive, LargeSumsSaturate) {
  // From about 20 on, up to infinity, tanh is 1 or -1.
  for (const double far : {25.0, 1e10, 1e300, kInf}) {
    const MatrixXd q = MatrixXd::Zero(2, 1), k = (MatrixXd(2, 1) << far, -far).finished(),
                   v = (MatrixXd(2, 1) << 10, 0).finished();
    const VectorXd w = VectorXd::Constant(1, std::log(3.0) / 2);  // scores ± ln 3 / 2: weights 3/4 and 1/4
    expect_both(q, k, v, {{}, {}, w}, full(), {}, MatrixXd::Constant(2, 1, 7.5),
                VectorXd::Constant(2, std::log(std::sqrt(3.0) + 1 / std::sqrt(3.0))));
  }
}

TEST(Additive, LargeWeightsDoNotOverflow) {
  // Scores of -400 for the first key and 400 for the others, which are the maximum of their tile.
  for (const Index rows : {1, 20}) {
    const MatrixXd q = MatrixXd::Zero(rows, 1), k = (MatrixXd(3, 1) << -30, 30, 30).finished(),
                   v = (MatrixXd(3, 1) << 7, 1, 3).finished();
    const VectorXd w = VectorXd::Constant(1, 400);
    expect_both(q, k, v, {{}, {}, w}, full(), {}, MatrixXd::Constant(rows, 1, 2),
                VectorXd::Constant(rows, 400 + std::log(2.0)));
  }
}

template <class T>
void expect_same_bits(const auto& a, const auto& b) {
  const auto plain = [](const auto& t) { return std::vector<T>(t.data(), t.data() + t.size()); };
  EXPECT_TRUE(same_bits(plain(a.out), plain(b.out)) && same_bits(plain(a.lse), plain(b.lse)));
}

TEST(Additive, ThreadsDoNotChangeResults) {
  Random random(1);
  for (Index q_len : {1, 3, 130})
    for (Index heads : {1, 6}) {
      const AdditiveModel m({1, heads, heads == 1 ? 1 : 2, q_len, 2100, 6, 5}, 4, 9, random);
      AdditiveArguments<float> a(m);
      const auto call = [&](const Executor& executor) {
        return additive_attention(a.q.cview(), a.k.cview(), a.v.cview(), a.score(), causal(), {.executor = executor});
      };
      const auto one = call(serial());
      for (int count : {2, 3, 8}) expect_same_bits<float>(one, call(eager_threads(count)));
    }
}

TEST(Additive, ProjectedKeysGiveTheSameResults) {
  Random random(2);
  const Index hidden = 12;
  const auto drawn = [&](Index rows, Index columns) {
    Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> m(rows, columns);
    for (Index i = 0; i < m.size(); ++i) m.data()[i] = static_cast<float>(random.uniform(-1, 1));
    return m;
  };
  const auto q = drawn(7, 5), k = drawn(90, 8), v = drawn(90, 3), wq = drawn(hidden, 5), wk = drawn(hidden, 8);
  const VectorXf w = drawn(hidden, 1);
  auto projected = drawn(90, hidden);
  linear_into(projected, k, wk, {.executor = serial()});
  for (Index rows : {1, 7}) {
    const auto some = q.topRows(rows);
    const auto whole = additive_attention(some, k, v, {wq, wk, w}),
               before = additive_attention(some, projected, v, {wq, {}, w});
    EXPECT_EQ(whole.out, before.out);
    EXPECT_EQ(whole.lse, before.lse);
  }
}

TEST(Additive, ParametersPerHeadMatchSeparateCalls) {
  Random random(3);
  for (Index q_len : {1, 3, 20}) {
    AdditiveModel m({2, 6, 3, q_len, 70, 4, 5}, 3, 8, random);
    m.query_weight = {6, 8, 4, random, 1};
    m.key_weight = {3, 8, 3, random, 1};
    m.score_weight = {6, 1, 8, random, 1};
    m.bias = {6, 1, 8, random, 1};
    AdditiveArguments<double> a(m);
    const auto all = additive_attention(a.q.cview(), a.k.cview(), a.v.cview(), a.score(), causal());
    for (Index h = 0; h < 6; ++h) {
      const auto own = additive_attention(a.q.cview().slice(1, h, h + 1), a.k.cview().slice(1, h / 2, h / 2 + 1),
                                          a.v.cview().slice(1, h / 2, h / 2 + 1),
                                          {a.query_weight.select(0, h), a.key_weight.select(0, h / 2),
                                           a.score_weight.select(0, h), a.bias.select(0, h)},
                                          causal());
      for (Index b = 0; b < 2; ++b)
        for (Index i = 0; i < q_len; ++i) {
          EXPECT_NEAR(own.lse(b, 0, i), all.lse(b, h, i), 1e-13);
          for (Index c = 0; c < 5; ++c) EXPECT_NEAR(own.out(b, 0, i, c), all.out(b, h, i, c), 1e-13);
        }
    }
  }
}

TEST(Additive, WeightsMatchTheDefinition) {
  Random random(4);
  for (Index q_len : {1, 70}) {
    const AdditiveModel m({2, 4, 2, q_len, 150, 4, 5}, 3, 10, random);
    AdditiveArguments<float> a(m);
    const auto mods = sliding_window(20) | softcap(3);
    for (Isa isa : instruction_sets()) {
      const Options options{.q_offset = 60, .isa = isa};
      const auto naive = naive_additive_attention(a.q.cview(), a.k.cview(), a.v.cview(), a.score(), mods, options);
      const auto r = additive_attention(a.q.cview(), a.k.cview(), a.v.cview(), a.score(), mods, options);
      const auto got = additive_attention_weights(a.q.cview(), a.k.cview(), r.lse, a.score(), mods, options);
      ASSERT_EQ(got.shape(), naive.weights.shape());
      for (Index i = 0; i < got.size(); ++i) ASSERT_NEAR(got.data()[i], naive.weights.data()[i], 4e-6);
    }
  }
}

TEST(Additive, MaskedNaNReachesNoResult) {
  Random random(5);
  for (const double what : {kNaN, kInf, -kInf})
    for (Index q_len : {1, 3, 60}) {
      // Queries are at the positions of the last keys, and see neither the first ten keys nor key 50.
      const Index kv_len = 100;
      const auto mods = sliding_window(30) | mask_mod([](const Position& p) { return p.kv != 50; });
      AdditiveModel clean({1, 2, 1, q_len, kv_len, 4, 3}, 5, 7, random), bad = clean;
      for (Index j : {Index(0), Index(5), Index(50)}) {
        std::fill_n(bad.k.begin() + j * 5, 5, what);
        std::fill_n(bad.v.begin() + j * 3, 3, what);
      }
      for (Isa isa : instruction_sets()) {
        const auto call = [&](const AdditiveModel& m) {
          AdditiveArguments<float> a(m);
          return additive_attention(a.q.cview(), a.k.cview(), a.v.cview(), a.score(), mods, {.isa = isa});
        };
        const auto want = call(clean), got = call(bad);
        for (Index i = 0; i < want.out.size(); ++i) ASSERT_NEAR(got.out.data()[i], want.out.data()[i], 1e-5);
        for (Index i = 0; i < want.lse.size(); ++i) ASSERT_NEAR(got.lse.data()[i], want.lse.data()[i], 1e-5);
      }
      // NaN in a kept pair does reach the result.
      AdditiveModel kept = clean;
      std::fill_n(kept.k.begin() + (kv_len - q_len) * 5, 5, kNaN);
      AdditiveArguments<float> a(kept);
      EXPECT_TRUE(std::isnan(additive_attention(a.q.cview(), a.k.cview(), a.v.cview(), a.score(), mods).out.data()[0]));
    }
}

TEST(Additive, ErrorsContainTheValues) {
  const MatrixXf q(3, 4), k(5, 6), v(5, 2), wq(8, 4), wk(8, 6);
  const VectorXf w(8), b(8);
  const auto refused = [&](const char* what, const Said& said, const AdditiveScore<float>& score,
                           const Options& options = {}) {
    expect_refused(what, said, [&] { additive_attention(q, k, v, score, options); });
    expect_refused(what, said, [&] { naive_additive_attention(q, k, v, score, options); });
  };
  refused("no weights", {"needs a score_weight"}, {wq, wk, {}, b});
  refused("queries", {"query_weight has shape (8, 5)", "(8, 4)"}, {MatrixXf(8, 5), wk, w, b});
  refused("keys", {"key_weight has shape (7, 6)", "(8, 6)"}, {wq, MatrixXf(7, 6), w, b});
  refused("no key_weight", {"key has 6 features", "element of score_weight, 8"}, {wq, {}, w, b});
  refused("bias", {"bias has 7 elements", "score_weight has 8"}, {wq, wk, w, VectorXf(7)});
  refused("heads", {"score_weight has 2 heads", "heads is 1"}, {wq, wk, MatrixXf(2, 8), b});
  refused("scale", {"scale must be finite", "inf"}, {wq, wk, w, b}, {.scale = kInf});
  refused("q_offset", {"2305843009213693952"}, {wq, wk, w, b}, {.q_offset = Index(1) << 61});
  expect_refused("values", {"kv_len differs", "5", "4"}, [&] {
    additive_attention(q, k, MatrixXf(4, 2), {wq, wk, w, b});
  });
  MatrixXf out = MatrixXf::Constant(3, 2, kUntouched);
  VectorXf lse = VectorXf::Constant(2, kUntouched);
  expect_refused("lse", {"(1, 1, 2)", "(1, 1, 3)"}, [&] {
    additive_attention_into(out, lse, q, k, v, {wq, wk, w, b});
  });
  EXPECT_TRUE((out.array() == kUntouched).all() && (lse.array() == kUntouched).all());
  expect_refused("lse of weights", {"lse has shape", "(1, 1, 3)"}, [&] {
    additive_attention_weights(q, k, VectorXf(2), {wq, wk, w, b});
  });
}

}  // namespace
}  // namespace attn::test
