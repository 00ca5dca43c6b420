// Gradients of additive attention: the definition is compared with central differences of the tests' own oracle, the
// tiled pass with the definition in long double.
#include "additive_case.h"
#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

TEST(AdditiveBackward, DefinitionAgreesWithCentralDifferences) {
  Random random(1);
  for (int round = 0; round < 6; ++round) {
    const Index kv_heads = random.integer(1, 2);
    AdditiveCase c({random.integer(1, 2), kv_heads * random.integer(1, 2), kv_heads, 3, 4, 3, 2}, random.integer(2, 3),
                   3, random);
    const Meaning meaning{[](const Pair& p) { return p.kv <= p.q; },
                          [](Real x, const Pair&) { return 2 * std::tanh(x / 2); }};
    const AdditiveGradients<double> grads = c.naive<double>(causal() | softcap(2));
    const auto check = [&](const char* what, std::vector<double>& numbers, const std::vector<double>& got) {
      ASSERT_EQ(numbers.size(), got.size()) << what;
      for (std::size_t i = 0; i < numbers.size(); ++i) {
        const double before = numbers[i], step = 0x1p-14;
        // Fourth-order central differences: (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12 h.
        const auto at = [&](double x) {
          numbers[i] = before + x;
          return c.loss(meaning);
        };
        const Real slope = (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * Real(step));
        numbers[i] = before;
        ASSERT_NEAR(static_cast<double>(slope), got[i], 1e-10) << what << " " << i;
      }
    };
    check("query", c.model.q, grads.query);
    check("key", c.model.k, grads.key);
    check("value", c.model.v, grads.value);
    check("query_weight", c.model.query_weight.values, grads.query_weight);
    check("key_weight", c.model.key_weight.values, grads.key_weight);
    check("score_weight", c.model.score_weight.values, grads.score_weight);
    check("bias", c.model.bias.values, grads.bias);
  }
}

/// By hand: one query, two keys, one feature. The scores are w tanh(k_j) = ln 3 and 0, so the weights are 3/4 and 1/4.
TEST(AdditiveBackward, GradientsByHand) {
  const double half = std::log(3.0) / 2, w = 2 * std::log(3.0);
  const Eigen::MatrixXd q{{0.0}}, k{{half}, {0.0}}, v{{8.0}, {0.0}}, grad_out{{1.0}}, one{{1.0}};
  const Eigen::VectorXd weight = Eigen::VectorXd::Constant(1, w), bias = Eigen::VectorXd::Zero(1);
  const AdditiveScore<double> score{one, one, weight, bias};
  const auto r = additive_attention(q, k, v, score);
  // dS = P (v - out) = 3/4 (8 - 6), 1/4 (0 - 6) = 3/2, -3/2; tanh = 1/2, 0; its slope 3/4, 1.
  const auto check = [&](const auto& g) {
    EXPECT_NEAR(g.value(0, 0), 0.75, 1e-14);
    EXPECT_NEAR(g.value(1, 0), 0.25, 1e-14);
    EXPECT_NEAR(g.key(0, 0), w * 1.5 * 0.75, 1e-13);
    EXPECT_NEAR(g.key(1, 0), w * -1.5, 1e-13);
    EXPECT_NEAR(g.query(0, 0), w * -0.375, 1e-13);
    EXPECT_NEAR(g.bias(0, 0, 0), w * -0.375, 1e-13);
    EXPECT_NEAR(g.score_weight(0, 0, 0), 0.75, 1e-13);
    EXPECT_NEAR(g.query_weight(0, 0, 0), 0, 1e-13);
    EXPECT_NEAR(g.key_weight(0, 0, 0), half * w * 1.125, 1e-13);
  };
  check(naive_additive_attention_backward(grad_out, q, k, v, score));
  check(additive_attention_backward(grad_out, q, k, v, score, r));
}

/// Allowed error of sums over pairs due to intermediate rounding to 16 bits: the tiled pass computes the mean of each
/// row's gradients from the output, whose rounding error is half an eps of the output.
template <class T>
Real loss_of_rounding(const AdditiveCase& c) {
  const auto largest = [](const std::vector<double>& x) {
    double most = 1;
    for (const double value : x) most = std::max(most, std::abs(value));
    return static_cast<Real>(most);
  };
  Real grad_out = 0;
  for (const double g : c.grad_out) grad_out += std::abs(g);
  return Errors<T>::kNarrowEps / 2 * grad_out * largest(c.model.v) * std::max(largest(c.model.q), largest(c.model.k)) *
         largest(c.model.score_weight.values);
}

template <class T>
void expect_close(const AdditiveCase& c, Real largest_score, const std::string& how,
                  const AdditiveGradients<long double>& truth, const AdditiveGradients<T>& naive,
                  const AdditiveGradients<T>& got) {
  AdditiveGradients<T>::each([&](const char* what, const auto& member) {
    const auto& want = member(truth);
    Real largest = 1;
    for (const auto x : want) largest = std::max(largest, std::abs(static_cast<Real>(x)));
    const std::vector<Real> reals(want.begin(), want.end());
    // The weights are computed from lse, whose rounding adds an error of a few eps of the scores.
    const Real eps = Errors<T>::kEps * (16 + 4 * largest_score) + 2 * Errors<T>::kNarrowEps;
    EXPECT_LE(largest_error(reals, member(got)),
              2 * largest_error(reals, member(naive)) + eps * largest + loss_of_rounding<T>(c))
        << what << " " << how << ", " << c.model.sizes << " hidden " << c.model.hidden;
  });
}

template <class T>
void sweep(std::uint64_t seed) {
  constexpr Index kLengths[] = {0, 1, 2, 5, 15, 17, 47, 49, 63, 65, 97, 130};
  constexpr Index kHidden[] = {1, 3, 8, 16, 17, 33};
  Random random(seed);
  std::size_t number = 0;
  for (Index q_len : kLengths)
    for (Index kv_len : kLengths) {
      const Index many = q_len * kv_len > 1500 ? 1 : 2, kv_heads = random.integer(1, many);
      const Sizes s{random.integer(1, many), kv_heads * random.integer(1, many), kv_heads, q_len, kv_len, 5, 3};
      AdditiveCase c(s, random.integer(4, 6), kHidden[number % std::size(kHidden)], random);
      c.model.template round_to<T>();
      if constexpr (sizeof(T) == 2)
        for (double& x : c.grad_out) x = static_cast<float>(static_cast<T>(static_cast<float>(x)));
      std::size_t of_case = ++number;
      each_erased_row({s, c.numbers, random}, [&](const auto& row) {
        if (of_case++ % (q_len * kv_len > 2000 ? 48 : 12) != 0 || ::testing::Test::HasFailure()) return;
        const AdditiveGradients<long double> truth = c.naive<long double>(row.mod);
        const AdditiveGradients<T> naive = c.naive<T>(row.mod);
        const Real largest_score = c.model.truth(row.meaning, c.numbers).largest_score;
        for (Isa isa : instruction_sets()) {
          const Layout layout = kOutputLayouts[number % std::size(kOutputLayouts)];
          expect_close<T>(c, largest_score, row.name + ", " + std::string(to_string(isa)), truth, naive,
                          c.tiled<T>(row.mod, isa, number % 2 == 0 ? serial() : eager_threads(2), layout));
        }
      });
    }
}

TEST(AdditiveBackward, SweepFloat) { sweep<float>(2); }
TEST(AdditiveBackward, SweepDouble) { sweep<double>(3); }
TEST(AdditiveBackward, SweepBfloat16) { sweep<Eigen::bfloat16>(3); }

TEST(AdditiveBackward, SigmoidWeights) {
  Random random(7);
  for (Index q_len : {1, 3, 50}) {
    AdditiveCase c({2, 4, 2, q_len, 2100, 4, 3}, 5, 7, random);
    std::fill(c.grad_lse.begin(), c.grad_lse.end(), 0.0);
    AdditiveArguments<double> a(c.model);
    const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
    const auto grad_out = c.incoming<double>().out;
    for (Isa isa : instruction_sets()) {
      const Options options{.isa = isa, .normaliser = Normaliser::sigmoid(-6)};
      const auto naive = naive_additive_attention(q, k, v, a.score(), causal(), options);
      const auto r = additive_attention(q, k, v, a.score(), causal(), options);
      EXPECT_EQ(r.lse.size(), 0);
      for (Index i = 0; i < r.out.size(); ++i) ASSERT_NEAR(r.out.data()[i], naive.out.data()[i], 1e-11);
      const AdditiveGradients<double> want(
          naive_additive_attention_backward(grad_out, q, k, v, a.score(), causal(), options)),
          got(additive_attention_backward(grad_out, q, k, v, a.score(), r, causal(), options));
      AdditiveGradients<double>::each([&](const char* what, const auto& member) {
        for (std::size_t i = 0; i < member(want).size(); ++i)
          ASSERT_NEAR(member(got)[i], member(want)[i], 1e-10 * (1 + std::abs(member(want)[i]))) << what;
      });
    }
  }
}

TEST(AdditiveBackward, ThreadsDoNotChangeResults) {
  Random random(4);
  for (Index heads : {1, 4}) {
    const AdditiveCase c({2, heads, heads == 1 ? 1 : 2, 300, 600, 4, 3}, 5, 6, random);
    const AdditiveGradients<float> one = c.tiled<float>(causal(), default_isa(), serial());
    for (int count : {2, 3, 8}) {
      const AdditiveGradients<float> many = c.tiled<float>(causal(), default_isa(), eager_threads(count));
      AdditiveGradients<float>::each(
          [&](const char* what, const auto& member) { EXPECT_TRUE(same_bits(member(one), member(many))) << what; });
    }
  }
}

TEST(AdditiveBackward, MaskedNaNReachesNoGradient) {
  Random random(5);
  for (Index q_len : {1, 60}) {
    // No query sees key 3 or 70, and no key sees query 0.
    const auto mods =
        mask_mod([=](const Position& p) { return p.kv != 3 && p.kv != 70 && (p.q != 100 - q_len || q_len == 1); });
    AdditiveCase clean({1, 2, 1, q_len, 100, 4, 3}, 5, 7, random);
    clean.numbers = {};
    AdditiveCase bad = clean;
    for (Index j : {3, 70}) {
      std::fill_n(bad.model.k.begin() + j * 5, 5, kNaN);
      std::fill_n(bad.model.v.begin() + j * 3, 3, kNaN);
    }
    if (q_len > 1) {
      std::fill_n(bad.model.q.begin(), 4, kNaN);
      std::fill_n(bad.grad_out.begin(), 3, kNaN);
    }
    std::vector<AdditiveGradients<float>> both_clean{clean.naive<float>(mods)}, both_bad{bad.naive<float>(mods)};
    for (Isa isa : instruction_sets()) {
      both_clean.push_back(clean.tiled<float>(mods, isa, serial()));
      both_bad.push_back(bad.tiled<float>(mods, isa, serial()));
    }
    for (std::size_t path = 0; path < both_bad.size(); ++path)
      AdditiveGradients<float>::each([&](const char* what, const auto& member) {
        const auto &want = member(both_clean[path]), &got = member(both_bad[path]);
        for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-4) << what << " path " << path;
      });
  }
}

TEST(AdditiveBackward, IntoAccumulatesOnlyParameterGradients) {
  Random random(6);
  const AdditiveCase c({2, 4, 2, 20, 30, 4, 3}, 5, 7, random);
  AdditiveArguments<double> a(c.model);
  const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
  const auto r = additive_attention(q, k, v, a.score(), causal());
  const auto grad = c.incoming<double>();
  const auto want = additive_attention_backward(grad, q, k, v, a.score(), r, causal());
  Tensor<double, 4> gq(want.query.shape()), gk(want.key.shape()), gv(want.value.shape());
  std::fill_n(gq.data(), gq.size(), 5.0);
  Tensor<double, 2> gw(want.score_weight.view().squeeze(1).shape());
  std::fill_n(gw.data(), gw.size(), 5.0);
  for (int times = 1; times <= 2; ++times) {
    additive_attention_backward_into(gq, gk, gv, {.score_weight = gw}, grad, q, k, v, a.score(), r.out, r.lse,
                                     causal());
    for (Index i = 0; i < gq.size(); ++i) ASSERT_EQ(gq.data()[i], want.query.data()[i]);
    for (Index i = 0; i < gw.size(); ++i) ASSERT_NEAR(gw.data()[i], 5 + times * want.score_weight.data()[i], 1e-12);
  }
  Tensor<double, 2> wrong({1, 8});
  expect_refused("gradient of w", {"score_weight has shape", "(1, 1, 8)"}, [&] {
    additive_attention_backward_into(gq, gk, gv, {.score_weight = wrong}, grad, q, k, v, a.score(), r.out, r.lse,
                                     causal());
  });
}

}  // namespace
}  // namespace attn::test
