// Forward-mode cases beyond the sweep: results by hand, differences, gradients, threads, NaN and infinities, memory,
// errors.

#include "attn/attn.h"
#include "support/allocations.h"
#include "support/executors.h"
#include "support/oracle.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
struct JvpCall {
  Tensor<T, 4> q, k, v, dq, dk, dv;

  explicit JvpCall(const Sizes& s, unsigned seed = 5) {
    Random random(seed);
    for (auto* x : {&q, &dq}) *x = drawn<T>({s.batch, s.heads, s.q_len, s.head_dim}, random, 1);
    for (auto* x : {&k, &dk}) *x = drawn<T>({s.batch, s.kv_heads, s.kv_len, s.head_dim}, random, 1);
    for (auto* x : {&v, &dv}) *x = drawn<T>({s.batch, s.kv_heads, s.kv_len, s.v_dim}, random, 1);
  }

  template <class M = Mods<>>
  auto jvp(const M& mods = {}, const Options& options = {}) const {
    return attention_jvp(q, k, v, dq, dk, dv, mods, options);
  }
  template <class M = Mods<>>
  auto naive(const M& mods = {}, const Options& options = {}) const {
    return naive_attention_jvp(q, k, v, dq, dk, dv, mods, options);
  }
};

double dot(const Tensor<double, 4>& a, const Tensor<double, 4>& b) {
  double sum = 0;
  for (Index i = 0; i < a.size(); ++i) sum += a.data()[i] * b.data()[i];
  return sum;
}

template <class Use>
void each_mods(const Use& use) {
  use(Mods<>(), "plain");
  use(causal() | softcap(2) | alibi({0.1, 0.2}), "causal, softcap, ALiBi");
  use(sliding_window(40, 10) | sinks({0.5, -1}), "window, sinks");
  use(score_mod([](auto x, auto p) { return 3 * tanh(x * x) - sqrt(x + 40) / (1 + 0.1 * double(p.kv % 5)); }),
      "lambda");
  use(temperature({0.7, 1.3}) | strided_sparse(7), "temperature, strided sparse");
}

TEST(Jvp, TwoKeysByHand) {
  // Scores 0 and ln 3 give weights 1/4 and 3/4; values 1 and 5 give out 4. The query moves from 2 by 1, so the scores
  // grow by 0 and ln 3 / 2, on average 3/8 ln 3; the second value grows by 2. The tangent is 1/4 (0 - 3/8) ln 3 * 1 +
  // 3/4 (4/8 - 3/8) ln 3 * 5 + 3/4 * 2.
  const double ln3 = std::log(3.0);
  Eigen::MatrixXd q(1, 1), k(2, 1), v(2, 1), dq(1, 1), dk(2, 1), dv(2, 1);
  q << 2, k << 0, ln3, v << 1, 5, dq << 1, dk << 0, 0, dv << 0, 2;
  const Options options{.scale = 0.5};
  for (const auto& r :
       {attention_jvp(q, k, v, dq, dk, dv, options), naive_attention_jvp(q, k, v, dq, dk, dv, options)}) {
    EXPECT_NEAR(r.out(0, 0), 4, 1e-14);
    EXPECT_NEAR(r.tangent(0, 0), (-3 + 15) / 32.0 * ln3 + 1.5, 1e-14);
  }
}

/// Scores ln 3 and 0 give weights 3/4 and 1/2, whose slopes are 3/16 and 1/4.
TEST(Jvp, SigmoidWeightsByHand) {
  const double ln3 = std::log(3.0);
  const Eigen::MatrixXd q{{1.0}}, k{{ln3}, {0.0}}, v{{16.0}, {8.0}}, dq{{2.0}}, dk{{0.0}, {3.0}}, dv{{4.0}, {0.0}};
  const Options options{.scale = 1, .normaliser = Normaliser::sigmoid()};
  for (const auto& r :
       {attention_jvp(q, k, v, dq, dk, dv, options), naive_attention_jvp(q, k, v, dq, dk, dv, options)}) {
    EXPECT_NEAR(r.out(0, 0), 16, 1e-13);
    EXPECT_NEAR(r.tangent(0, 0), 3.0 / 16 * 2 * ln3 * 16 + 1.0 / 4 * 3 * 8 + 3.0 / 4 * 4, 1e-13);
  }
}

TEST(Jvp, MatricesKeepTheirStorageOrder) {
  using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const RowMajor q = RowMajor::Random(5, 3);
  const Eigen::MatrixXf k = Eigen::MatrixXf::Random(7, 3), v = Eigen::MatrixXf::Random(7, 2);
  const auto r = attention_jvp(q, k, v, 2 * q, -k, v / 3, causal());
  static_assert(std::is_same_v<decltype(r.tangent), RowMajor>);
  EXPECT_TRUE(r.tangent.isApprox(naive_attention_jvp(q, k, v, 2 * q, -k, v / 3, causal()).tangent, 1e-5f));
  EXPECT_TRUE(r.out.isApprox(attention(q, k, v, causal()).out, 1e-6f));
}

TEST(Jvp, AgreesWithCentralDifferences) {
  const JvpCall<double> m({2, 2, 1, 60, 90, 8, 5});
  const auto check = [&](const auto& mods, const Options& options, const char* name) {
    SCOPED_TRACE(name);
    constexpr double kStep = 1e-5;
    const auto at = [&](double by) {
      const auto moved = [by](Tensor<double, 4> x, const Tensor<double, 4>& direction) {
        for (Index i = 0; i < x.size(); ++i) x.data()[i] += by * direction.data()[i];
        return x;
      };
      return naive_attention(moved(m.q, m.dq), moved(m.k, m.dk), moved(m.v, m.dv), mods, options).out;
    };
    const Tensor<double, 4> above = at(kStep), below = at(-kStep);
    const auto r = m.jvp(mods, options), naive = m.naive(mods, options);
    for (Index i = 0; i < above.size(); ++i) {
      const double difference = (above.data()[i] - below.data()[i]) / (2 * kStep);
      ASSERT_NEAR(r.tangent.data()[i], difference, 1e-8);
      ASSERT_NEAR(naive.tangent.data()[i], difference, 1e-8);
    }
  };
  each_mods([&](const auto& mods, const char* name) { check(mods, {}, name); });
  check(causal() | softcap(2), {.normaliser = Normaliser::sigmoid(-3)}, "sigmoids");
}

/// The derivative of the loss sum(grad_out * out) along a direction is the dot product of its gradients and the
/// direction.
TEST(Jvp, AgreesWithGradients) {
  const JvpCall<double> m({2, 2, 1, 130, 190, 8, 5}), other({2, 2, 1, 130, 190, 8, 5}, 6);
  each_mods([&](const auto& mods, const char* name) {
    const auto g = attention_backward(other.jvp().out, m.q, m.k, m.v, attention(m.q, m.k, m.v, mods), mods);
    const double by_gradients = dot(g.query, m.dq) + dot(g.key, m.dk) + dot(g.value, m.dv);
    EXPECT_NEAR(dot(other.jvp().out, m.jvp(mods).tangent), by_gradients, 1e-11 * (1 + std::abs(by_gradients))) << name;
  });
}

TEST(Jvp, ThreadsAndBatchDoNotChangeResults) {
  for (const Sizes& s :
       {Sizes{3, 4, 2, 130, 300, 16, 24}, Sizes{2, 2, 1, 700, 400, 8, 8}, Sizes{5, 6, 3, 20, 30, 4, 4}}) {
    const JvpCall<float> m(s);
    const auto mods = sliding_window(200, 50) | softcap(3);
    const auto one = m.jvp(mods, {.executor = serial()});
    for (int workers : {2, 3, 7}) {
      const auto more = m.jvp(mods, {.executor = eager_threads(workers)});
      EXPECT_TRUE(same_bits(one.tangent, more.tangent) && same_bits(one.out, more.out)) << workers;
    }
    const auto last = [](const auto& t) { return Tensor<float, 4>(t.view().slice(0, t.dim(0) - 1, t.dim(0))); };
    const auto part = attention_jvp(last(m.q), last(m.k), last(m.v), last(m.dq), last(m.dk), last(m.dv), mods);
    EXPECT_TRUE(same_bits(part.tangent, last(one.tangent)) && same_bits(part.out, last(one.out)));
  }
}

/// NaN and inf in keys, values and their directions where all queries drop them, and in queries that keep no key.
TEST(Jvp, MaskedNaNReachesNoResult) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const JvpCall<float> clean({1, 2, 1, 100, 150, 17, 9});
  const auto test = [&](const auto& mods, const char* what, Options options = {}) {
    SCOPED_TRACE(what);
    const auto expected = clean.jvp(mods, options);
    for (float poison : {kNaN, kInf, -kInf})
      for (int spoiled = 0; spoiled < 4; ++spoiled)
        for (Isa isa : instruction_sets()) {
          const bool directions = spoiled % 2 == 1, values = spoiled < 2;  // finite values: no recomputation
          JvpCall<float> m = clean;
          const auto spoil = [&](auto& t, Index head, std::initializer_list<Index> rows) {
            for (Index i : rows)
              for (Index d = 0; d < t.dim(3); ++d) t(0, head, i, d) = poison;
          };
          spoil(directions ? m.dk : m.k, 0, {0, 70, 71, 149});
          if (values) spoil(directions ? m.dv : m.v, 0, {0, 70, 71, 149});
          for (Index h : {0, 1}) spoil(directions ? m.dq : m.q, h, {3, 50, 99});
          options.isa = isa;
          for (const auto& r : {m.jvp(mods, options), m.naive(mods, options)})
            for (Index i = 0; i < r.out.size(); ++i) {
              ASSERT_NEAR(r.out.data()[i], expected.out.data()[i], 1e-4) << i << " " << to_string(isa);
              ASSERT_NEAR(r.tangent.data()[i], expected.tangent.data()[i], 1e-4) << i << " " << to_string(isa);
            }
        }
  };
  const auto keeps = [](const auto& p) {
    const Index row = p.q - 50;
    return p.kv != 0 && p.kv != 70 && p.kv != 71 && p.kv != 149 && row != 3 && row != 50 && row != 99;
  };
  test(mask_mod(keeps), "mask");
  test(mask_mod(keeps), "sigmoids", {.normaliser = Normaliser::sigmoid(-2)});
  test(score_mod([keeps](auto x, const auto& p) {
         return keeps(p) ? x : decltype(x)(-std::numeric_limits<float>::infinity());
       }),
       "score");
}

TEST(Jvp, RowsWithoutKeysHaveZeroTangent) {
  const auto r = JvpCall<float>({1, 1, 1, 60, 20, 4, 4}).jvp(causal());  // the first 40 queries precede all keys
  for (Index i = 0; i < 40; ++i)
    for (Index d = 0; d < 4; ++d) EXPECT_EQ(r.tangent(0, 0, i, d), 0);
  EXPECT_NE(r.tangent(0, 0, 59, 0), 0);
  const auto none = JvpCall<float>({1, 1, 1, 5, 0, 4, 4}).jvp();
  for (Index i = 0; i < 20; ++i) EXPECT_EQ(none.tangent.data()[i], 0);
  EXPECT_EQ(JvpCall<float>({1, 1, 1, 0, 5, 4, 3}).jvp().out.size(), 0);
}

TEST(Jvp, HugeScoresStayFinite) {
  const JvpCall<double> m({1, 1, 1, 60, 130, 8, 4});
  const Options options{.scale = 3000};
  const auto r = m.jvp(Mods<>(), options), naive = m.naive(Mods<>(), options);
  for (Index i = 0; i < r.out.size(); ++i) {
    ASSERT_NEAR(r.out.data()[i], naive.out.data()[i], 1e-9);
    ASSERT_NEAR(r.tangent.data()[i], naive.tangent.data()[i], 1e-6);
  }
}

TEST(Jvp, MemoryDoesNotGrowWithLengths) {
  const auto allocated = [](Index n) {
    const JvpCall<float> m({1, 1, 1, n, n, 8, 8});
    m.jvp(Mods<>(), {.executor = eager_threads(2)});
    const std::ptrdiff_t results = 2 * m.q.size() * static_cast<Index>(sizeof(float));
    return allocations_of([&] { m.jvp(Mods<>(), {.executor = eager_threads(2)}); }).peak - results;
  };
  EXPECT_LE(std::abs(allocated(4096) - allocated(2048)), 1024);
}

TEST(Jvp, RefusesWrongShapes) {
  const JvpCall<float> m({2, 4, 2, 5, 7, 3, 6});
  expect_refused("query", {"direction_query", "(2, 2, 7, 3)", "(2, 4, 5, 3)"},
                 [&] { attention_jvp(m.q, m.k, m.v, m.dk, m.dk, m.dv); });
  expect_refused("key", {"direction_key", "(2, 2, 7, 6)", "(2, 2, 7, 3)"},
                 [&] { attention_jvp(m.q, m.k, m.v, m.dq, m.dv, m.dv); });
  expect_refused("value", {"direction_value", "(2, 2, 7, 3)", "(2, 2, 7, 6)"},
                 [&] { naive_attention_jvp(m.q, m.k, m.v, m.dq, m.dk, m.dk); });
}

}  // namespace
}  // namespace attn::test
