// Gradients with sigmoid weights: both backward paths against the oracle, over all kinds of mods.
#include "gradient_case.h"

namespace attn::test {
namespace {

template <class T>
void sweep(std::uint64_t seed) {
  Random random(seed);
  std::size_t number = 0;
  for (Index q_len : kGradientLengths)
    for (Index kv_len : kGradientLengths) {
      const Index many = q_len * kv_len > 1500 ? 1 : 2, kv_heads = random.integer(1, many);
      const Sizes s{
          random.integer(1, many), kv_heads * random.integer(1, many), kv_heads, q_len, kv_len, random.integer(1, 17),
          random.integer(1, 17)};
      GradientCase<T> c(s, random);
      c.numbers.sigmoid_bias = random.pick(std::vector{0.0, 1.5, -4.0, 6.0});
      std::size_t of_case = ++number;
      each_erased_row({s, c.numbers, random}, [&](const auto& row) {
        if (of_case++ % (q_len * kv_len > 2000 ? 24 : 6) == 0) c.check(row);
      });
    }
}

TEST(SigmoidBackward, SweepFloat) { sweep<float>(1); }
TEST(SigmoidBackward, SweepDouble) { sweep<double>(2); }
TEST(SigmoidBackward, SweepBfloat16) { sweep<Eigen::bfloat16>(3); }

/// Scores ln 3 and 0 give weights 3/4 and 1/2, whose slopes are 3/16 and 1/4.
TEST(SigmoidBackward, GradientsByHand) {
  const double ln3 = std::log(3.0);
  const Eigen::MatrixXd q{{1.0}}, k{{ln3}, {0.0}}, v{{16.0}, {8.0}}, grad_out{{2.0}};
  const Options options{.scale = 1, .normaliser = Normaliser::sigmoid()};
  const auto check = [&](const auto& g) {
    EXPECT_NEAR(g.value(0, 0), 1.5, 1e-14);
    EXPECT_NEAR(g.value(1, 0), 1.0, 1e-14);
    EXPECT_NEAR(g.key(0, 0), 6, 1e-13);  // 2 * 16 * 3/16
    EXPECT_NEAR(g.key(1, 0), 4, 1e-13);  // 2 * 8 * 1/4
    EXPECT_NEAR(g.query(0, 0), 6 * ln3, 1e-13);
  };
  check(naive_attention_backward(grad_out, q, k, v, options));
  check(attention_backward(grad_out, q, k, v, attention(q, k, v, options), options));
}

/// No query keeps key 3, which is NaN or so large that its products overflow; all queries visit its tile.
TEST(SigmoidBackward, MaskedNaNReachesNoGradient) {
  const Eigen::MatrixXf q = Eigen::MatrixXf::Random(20, 4), k = Eigen::MatrixXf::Random(30, 4);
  const auto mods = mask_mod([](const Position& p) { return p.kv != 3; });
  const Options options{.normaliser = Normaliser::sigmoid(-2)};
  const auto grads = [&](const Eigen::MatrixXf& keys) {
    return attention_backward(q, q, keys, keys, attention(q, keys, keys, mods, options), mods, options);
  };
  const auto want = grads(k);
  for (const float poison : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::max()}) {
    Eigen::MatrixXf bad = k;
    bad.row(3).setConstant(poison);
    const auto got = grads(bad);
    EXPECT_LE((got.query - want.query).cwiseAbs().maxCoeff(), 1e-5f) << poison;
    EXPECT_LE((got.key - want.key).cwiseAbs().maxCoeff(), 1e-5f) << poison;
    EXPECT_LE((got.value - want.value).cwiseAbs().maxCoeff(), 1e-5f) << poison;
    EXPECT_TRUE(got.query.allFinite() && got.key.allFinite() && got.value.allFinite()) << poison;
  }
}

}  // namespace
}  // namespace attn::test
