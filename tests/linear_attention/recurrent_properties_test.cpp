// Properties of the recurrent forms that need no reference: threads, NaN, normalisers near 0, small and large features,
// errors, types.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "favor_vectors.h"
#include "recurrent_paths.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

struct Inputs4 {
  explicit Inputs4(Index len, Index heads = 4, Index kv_heads = 2)
      : random(3),
        in(random, 2, heads, kv_heads, len, len, 16, 20, 0.2),
        q({2, heads, len, 16}),
        k(token_tensor<float>(in, in.k, in.head_dim)),
        v(token_tensor<float>(in, in.v, in.v_dim)),
        gates(token_tensor<float>(in, in.feature_gate, in.head_dim)),
        a(token_tensor<float>(in, in.a, in.head_dim)),
        b(token_tensor<float>(in, in.b_vector, in.head_dim)),
        gate(token_scalars<float>(in, in.token_gate)),
        beta(token_scalars<float>(in, in.beta)) {
    std::copy_n(as<float>(in.q).data(), q.size(), q.data());
  }
  Random random;
  Recurrent in;
  Tensor<float, 4> q, k, v, gates, a, b;
  Tensor<float, 3> gate, beta;

  /// The outputs of all forms.
  std::vector<std::vector<float>> outputs(const Options& o) const {
    return {plain(linear_attention(q, k, v, elu1(), o).out),
            plain(linear_attention(q, k, v, elu1(), causal(), o).out),
            plain(linear_attention(q, k, v, favor(24, 2), causal(), o).out),
            plain(gated_attention(q, k, v, gate, o).out),
            plain(gated_attention(q, k, v, gates, o).out),
            plain(gated_attention(q, k, v, decay_per_head({-0.1, -0.2}), o).out),
            plain(gated_delta_rule(q, k, v, gate, beta, o).out),
            plain(gated_delta_rule(q, k, v, gates, beta, o).out),
            plain(dplr_delta_rule(q, k, v, a, b, gates, o).out)};
  }
};

TEST(RecurrentProperties, ThreadsDoNotChangeResults) {
  const Inputs4 in(1000);  // long enough that workers run concurrently
  const auto one = in.outputs({.executor = serial()});
  for (const int workers : {2, 3}) {
    const auto more = in.outputs({.executor = eager_threads(workers)});
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], more[i])) << i << ", " << workers;
  }
  const auto by_default = in.outputs({});
  for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(same_bits(one[i], by_default[i])) << i;
}

/// NaN in one token reaches no earlier token, in its own chunk or another, and no other head.
TEST(RecurrentProperties, LaterTokensDoNotAffectEarlierOnes) {
  for (const Index poisoned : {0, 1, 5, 15, 16, 40, 63, 64, 100}) {
    const Inputs4 clean(130);
    for (int what = 0; what < 6; ++what) {
      Inputs4 in(130);
      const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
      if (what == 0) in.k(0, 1, poisoned, 3) = nan;
      if (what == 1) in.v(0, 1, poisoned, 3) = inf;
      if (what == 2) in.gate(0, 1, poisoned) = in.gates(0, 1, poisoned, 2) = nan;
      if (what == 3) in.beta(0, 1, poisoned) = nan;
      if (what == 4) in.a(0, 1, poisoned, 3) = nan;
      if (what == 5) in.b(0, 1, poisoned, 3) = inf;
      const auto want = clean.outputs({.executor = serial()}), got = in.outputs({.executor = serial()});
      for (std::size_t form = 1; form < want.size(); ++form)  // the first one is not causal
        for (Index i = 0; i < static_cast<Index>(want[form].size()); ++i) {
          const Index token = i / 20 % 130, head = i / 20 / 130;
          const bool hears = (head == 2 || head == 3) && token >= poisoned;
          if (!hears) {
            ASSERT_EQ(got[form][static_cast<std::size_t>(i)], want[form][static_cast<std::size_t>(i)])
                << "form " << form << " what " << what << " at " << poisoned << ": token " << token << " of head "
                << head;
          } else if (what == 0 && token == poisoned) {
            ASSERT_TRUE(std::isnan(got[form][static_cast<std::size_t>(i)])) << form;
          }
        }
    }
  }
}

TEST(RecurrentProperties, QueriesWithoutKeysAreZero) {
  const RowMajor q = RowMajor::Random(5, 4), k = RowMajor::Random(3, 4), v = RowMajor::Random(3, 2);
  const RowMajor none(0, 4), no_values(0, 2);
  EXPECT_EQ(linear_attention(q, none, no_values, elu1()).out.cwiseAbs().maxCoeff(), 0);
  EXPECT_EQ(linear_attention(q, k, v, elu1(), causal()).out.topRows(2).cwiseAbs().maxCoeff(), 0);
  EXPECT_EQ(linear_attention(q, k, v, elu1(), key_lengths({0})).out.cwiseAbs().maxCoeff(), 0);
  // Under relu, one side of each product is 0.
  const RowMajor positive = RowMajor::Ones(70, 4), negative = -positive;
  EXPECT_EQ(linear_attention(positive, negative, positive, relu(), causal()).out.cwiseAbs().maxCoeff(), 0);
  EXPECT_EQ(linear_attention(negative, positive, positive, relu()).out.cwiseAbs().maxCoeff(), 0);
  const auto g = linear_attention_backward(positive, positive, negative, positive, relu(), causal());
  EXPECT_EQ(g.query.cwiseAbs().maxCoeff() + g.key.cwiseAbs().maxCoeff() + g.value.cwiseAbs().maxCoeff(), 0);
}

/// The gated delta rule is the DPLR rule with a = e^gate * k, b = -beta * k and key = beta * k.
TEST(RecurrentProperties, DeltaRuleIsDiagonalPlusLowRank) {
  const Inputs4 in(130);
  Tensor<float, 4> a = in.k, b = in.k, k = in.k;
  for (Index i = 0; i < k.size(); ++i) {
    const float beta = in.beta.data()[i / 16];
    a.data()[i] *= std::exp(in.gates.data()[i]);
    b.data()[i] *= -beta;
    k.data()[i] *= beta;
  }
  const auto want = gated_delta_rule(in.q, in.k, in.v, in.gates, in.beta).out,
             got = dplr_delta_rule(in.q, k, in.v, a, b, in.gates).out;
  for (Index i = 0; i < want.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 3e-6) << i;
}

/// A gate of -80, or -infinity, forgets the state; gates of 0 keep it. No decay overflows or is NaN.
TEST(RecurrentProperties, ExtremeGates) {
  for (const float extreme : {-80.0f, -1e30f, -std::numeric_limits<float>::infinity()}) {
    Inputs4 in(200);
    const Index at = 70;
    for (Index i = 0; i < in.gates.size(); ++i) {
      const bool forgets = i / 16 % 200 == at;
      in.gates.data()[i] = in.gate.data()[i / 16] = forgets ? extreme : 0;
    }
    // Without what came before, a sequence begins at this token.
    const auto rest = [&](const auto& t) { return t.view().slice(2, at, 200); };
    const auto expect_same = [&](const Tensor<float, 4>& whole, const Tensor<float, 4>& part) {
      for (Index b = 0; b < 2; ++b)
        for (Index h = 0; h < 4; ++h)
          ASSERT_LE((whole.matrix(b, h).bottomRows(200 - at) - part.matrix(b, h)).cwiseAbs().maxCoeff(), 2e-5f);
    };
    expect_same(gated_attention(in.q, in.k, in.v, in.gates).out,
                gated_attention(rest(in.q), rest(in.k), rest(in.v), rest(in.gates)).out);
    expect_same(gated_delta_rule(in.q, in.k, in.v, in.gate, in.beta).out,
                gated_delta_rule(rest(in.q), rest(in.k), rest(in.v), rest(in.gate), rest(in.beta)).out);
    expect_same(gated_delta_rule(in.q, in.k, in.v, in.gates, in.beta).out,
                gated_delta_rule(rest(in.q), rest(in.k), rest(in.v), rest(in.gates), rest(in.beta)).out);
    for (const float x : plain(dplr_delta_rule(in.q, in.k, in.v, in.a, in.b, in.gates).out)) ASSERT_TRUE(x - x == 0);
  }
}

/// Products of features as small as e^-80 underflow in float, but the ratio of the sums is an ordinary number.
TEST(RecurrentProperties, NormalisersNearZeroAreSafe) {
  for (const Index len : {1, 20, 100}) {
    RowMajor q = RowMajor::Constant(len, 8, -60), k = RowMajor::Constant(len, 8, -50), v = RowMajor::Random(len, 16);
    q.col(0).array() = -58;
    const RowMajor out = linear_attention(q, k, v, elu1(), causal()).out;
    RowMajor mean = v;
    for (Index i = 1; i < len; ++i) mean.row(i) = v.topRows(i + 1).colwise().mean();
    EXPECT_LE((out - mean).cwiseAbs().maxCoeff(), 1e-5) << len;
    // Large features do not overflow.
    for (const float large : {1e30f, 3e38f}) {
      q.setConstant(large);
      const RowMajor of_large = linear_attention(q, k, v, elu1(), causal()).out;
      EXPECT_LE((of_large - mean).cwiseAbs().maxCoeff(), 1e-5) << len << " with " << large;
    }
    // A query whose features all underflow to 0 gives every key a weight of 0.
    q.setConstant(-200);
    EXPECT_EQ(linear_attention(q, k, v, elu1(), causal()).out.cwiseAbs().maxCoeff(), 0);
  }
}

/// A random feature that overflows float becomes infinite instead of being clamped.
TEST(RecurrentProperties, OverflowOfRandomFeaturesGivesNaN) {
  const Index dim = 256;
  const RowMajor k = favor_vectors<float>(4, dim, 1).matrix().topRows(1), q = 0.01f * k, v = RowMajor::Ones(1, 3);
  ASSERT_GT(k.squaredNorm() / 2, 100);  // the exponent of its first feature
  for (const Isa isa : instruction_sets()) {
    const Options options{.scale = 1, .isa = isa};
    EXPECT_TRUE(linear_attention(q, k, v, favor(4, 1), causal(), options).out.array().isNaN().all()) << to_string(isa);
  }
}

/// No map hides NaN: a key's reaches the rows that see the key, and a query's its own row.
TEST(RecurrentProperties, NaNPassesThroughEveryMap) {
  const RowMajor ones = RowMajor::Ones(5, 4);
  RowMajor bad = ones;
  bad.row(2).setConstant(std::numeric_limits<float>::quiet_NaN());
  const auto check = [&](const char* name, const auto& map) {
    for (const Isa isa : instruction_sets()) {
      SCOPED_TRACE(::testing::Message() << name << ", " << to_string(isa));
      const Options options{.isa = isa};
      const auto nan = [&](const RowMajor& q, const RowMajor& k) {
        return linear_attention(q, k, ones, map, causal(), options).out.array().isNaN().eval();
      };
      const auto of_key = nan(ones, bad), of_query = nan(bad, ones);
      EXPECT_FALSE(of_key.topRows(2).any());
      EXPECT_TRUE(of_key.bottomRows(3).all());
      EXPECT_TRUE(of_query.row(2).all());
      EXPECT_EQ(of_query.count(), 4);
    }
  };
  check("elu1", elu1());
  check("relu", relu());
  check("favor", favor(8, 1));
  check("identity", identity());
}

/// With identity(), features computed by the program give the outputs and gradients of the map that computed them.
TEST(RecurrentProperties, IdentityTakesFeaturesOfAnyMap) {
  const Eigen::MatrixXd q = 3 * Eigen::MatrixXd::Random(70, 6), k = Eigen::MatrixXd::Random(70, 6),
                        v = Eigen::MatrixXd::Random(70, 5), grad_out = Eigen::MatrixXd::Random(70, 5);
  const auto mapped = [](const Eigen::MatrixXd& x) {
    return Eigen::MatrixXd((x.array() > 0).select(x.array() + 1, x.array().exp()));
  };
  const auto slope = [](const Eigen::MatrixXd& x) {
    return Eigen::ArrayXXd((x.array() > 0).select(Eigen::ArrayXXd::Ones(70, 6), x.array().exp()));
  };
  const Eigen::MatrixXd fq = 5 * mapped(q), fk = mapped(k);
  const auto want = linear_attention_backward(grad_out, q, k, v, elu1(), causal()),
             got = linear_attention_backward(grad_out, fq, fk, v, identity(), causal());
  EXPECT_LE((linear_attention(fq, fk, v, identity(), causal()).out - linear_attention(q, k, v, elu1(), causal()).out)
                .cwiseAbs()
                .maxCoeff(),
            1e-13);
  EXPECT_LE((5 * got.query.array() * slope(q) - want.query.array()).abs().maxCoeff(), 1e-13);
  EXPECT_LE((got.key.array() * slope(k) - want.key.array()).abs().maxCoeff(), 1e-13);
  EXPECT_LE((got.value - want.value).cwiseAbs().maxCoeff(), 1e-13);
}

/// Outputs average values: with non-negative features they lie between the smallest and the largest value.
TEST(RecurrentProperties, OutputsAreAverages) {
  const Inputs4 in(200);
  for (const auto& out : {linear_attention(in.q, in.k, in.v, elu1(), causal()).out,
                          linear_attention(in.q, in.k, in.v, favor(32, 1), causal()).out})
    for (Index b = 0; b < 2; ++b)
      for (Index h = 0; h < 4; ++h) {
        const auto v = in.v.matrix(b, h / 2);
        const auto o = out.matrix(b, h);
        for (Index e = 0; e < 20; ++e) {
          EXPECT_LE(o.col(e).maxCoeff(), v.col(e).maxCoeff() + 1e-5f);
          EXPECT_GE(o.col(e).minCoeff(), v.col(e).minCoeff() - 1e-5f);
        }
      }
}

/// The mean square error of the weights is at most that of lemma 2 of Choromanski et al., and not far below it.
TEST(RecurrentProperties, FavorEstimatesTheSoftmax) {
  const Index dim = 16, features = 64;
  Random random(2);
  for (const double norm : {0.5, 1.0}) {
    double error = 0, bound = 0;
    const int draws = 400;
    for (int draw = 0; draw < draws; ++draw) {
      Eigen::VectorXd q(dim), k(dim);
      for (Index d = 0; d < dim; ++d) q(d) = random.uniform(-1, 1), k(d) = random.uniform(-1, 1);
      q *= norm / q.norm(), k *= norm / k.norm();
      const Eigen::MatrixXd w =
          favor_vectors<float>(features, dim, static_cast<std::uint64_t>(draw)).matrix().cast<double>();
      double sum = 0;
      for (Index f = 0; f < features; ++f)
        sum += std::exp(w.row(f).dot(q + k) - (q.squaredNorm() + k.squaredNorm()) / 2);
      const double relative = sum / static_cast<double>(features) / std::exp(q.dot(k)) - 1;
      error += relative * relative;
      bound += (std::exp((q + k).squaredNorm()) - 1) / static_cast<double>(features);
    }
    EXPECT_LE(error, 1.3 * bound) << norm;
    EXPECT_GE(error, 0.3 * bound) << norm;
  }
  // With many features the outputs approach softmax attention.
  const RowMajor q = 0.5f * RowMajor::Random(30, 8), k = 0.5f * RowMajor::Random(30, 8), v = RowMajor::Random(30, 4);
  const RowMajor estimate = linear_attention(q, k, v, favor(4096, 1), causal()).out;
  EXPECT_LE((estimate - attention(q, k, v, causal()).out).cwiseAbs().maxCoeff(), 0.01f);
  // Another seed draws other vectors.
  const RowMajor other = linear_attention(q, k, v, favor(8, 1), causal()).out,
                 another = linear_attention(q, k, v, favor(8, 2), causal()).out;
  EXPECT_GE((other - another).cwiseAbs().maxCoeff(), 1e-4f);
}

TEST(RecurrentProperties, FavorVectorsAreOrthogonal) {
  const auto w = favor_vectors<double>(10, 4, 7);
  const auto m = w.matrix();
  for (Index i = 0; i < 10; ++i)
    for (Index j = i / 4 * 4; j < i; ++j) EXPECT_NEAR(m.row(i).dot(m.row(j)), 0, 1e-12) << i << ", " << j;
  EXPECT_GT(m.row(0).norm(), 0.1);
  EXPECT_NE(m.row(0).norm(), m.row(1).norm());
}

/// 16-bit floats are computed in float and rounded once.
TEST(RecurrentProperties, SixteenBitFloats) {
  using Half = Eigen::Matrix<Eigen::half, Eigen::Dynamic, Eigen::Dynamic>;
  const Half q = RowMajor::Random(70, 12).cast<Eigen::half>(), k = RowMajor::Random(70, 12).cast<Eigen::half>(),
             v = RowMajor::Random(70, 5).cast<Eigen::half>();
  const Half out = linear_attention(q, k, v, elu1(), causal()).out;
  const Eigen::MatrixXf exact =
      linear_attention(q.cast<float>(), k.cast<float>(), v.cast<float>(), elu1(), causal()).out;
  EXPECT_TRUE((out.array() == exact.cast<Eigen::half>().array()).all());
  const Eigen::VectorXf gate = -Eigen::VectorXf::Random(70).cwiseAbs();
  const Half gated = gated_attention(q, k, v, gate).out;
  const Eigen::MatrixXf exact_gated = gated_attention(q.cast<float>(), k.cast<float>(), v.cast<float>(), gate).out;
  EXPECT_TRUE((gated.array() == exact_gated.cast<Eigen::half>().array()).all());
  const RowMajor full = k.cast<float>() / 4;
  const Half a = full.cast<Eigen::half>(), b = (-full).cast<Eigen::half>();
  const Half dplr = dplr_delta_rule(q, k, v, a, b, gate).out;
  const Eigen::MatrixXf exact_dplr =
      dplr_delta_rule(q.cast<float>(), k.cast<float>(), v.cast<float>(), a.cast<float>(), b.cast<float>(), gate).out;
  EXPECT_TRUE((dplr.array() == exact_dplr.cast<Eigen::half>().array()).all());
}

/// Gates and betas of one head as row vectors, column vectors and strided views.
TEST(RecurrentProperties, GatesAndBetasMayHaveAnyLayout) {
  const Index n = 70;
  const RowMajor q = RowMajor::Random(n, 12), k = RowMajor::Random(n, 12) / 4, v = RowMajor::Random(n, 5);
  RowMajor apart = RowMajor::Random(n, 3).cwiseAbs();
  apart.col(1) *= -1;
  const Eigen::VectorXf gate = apart.col(1), beta = apart.col(2);
  const RowMajor want = gated_delta_rule(q, k, v, gate, beta).out;
  const auto expect_same = [&](const char* what, const auto& g, const auto& b) {
    EXPECT_TRUE((gated_delta_rule(q, k, v, g, b).out.array() == want.array()).all()) << what;
  };
  expect_same("rows", Eigen::RowVectorXf(gate.transpose()), Eigen::RowVectorXf(beta.transpose()));
  expect_same("columns of rows", apart.col(1), apart.col(2));
  expect_same("rank 1", TensorView<const float, 1>(&apart(0, 1), {n}, {3}),
              TensorView<const float, 1>(&apart(0, 2), {n}, {3}));
  expect_same("rank 3", TensorView<const float, 3>(&apart(0, 1), {1, 1, n}, {0, 0, 3}),
              TensorView<const float, 3>(&apart(0, 2), {1, 1, n}, {0, 0, 3}));
}

/// A map keeps the vectors it has drawn for each scale it is used with.
TEST(RecurrentProperties, OneMapServesSeveralScales) {
  const RowMajor q = RowMajor::Random(9, 6), k = RowMajor::Random(9, 6), v = RowMajor::Random(9, 4);
  const auto map = favor(8, 1);
  for (const double scale : {0.1, 0.9, 0.1}) {
    const RowMajor kept = linear_attention(q, k, v, map, Options{.scale = scale}).out,
                   drawn = linear_attention(q, k, v, favor(8, 1), Options{.scale = scale}).out;
    EXPECT_TRUE((kept.array() == drawn.array()).all()) << scale;
  }
}

TEST(RecurrentProperties, ExpressionsAndWorkspaces) {
  const RowMajor q = RowMajor::Random(70, 12), k = RowMajor::Random(70, 12), v = RowMajor::Random(70, 5);
  const RowMajor sum = q + k;
  const RowMajor want = linear_attention(sum, k, v, elu1(), causal()).out;
  const RowMajor got = linear_attention(q + k, k, v, elu1(), causal()).out;
  EXPECT_TRUE((want.array() == got.array()).all());
  const Options options{.executor = serial()};
  std::vector<std::byte> workspace(linear_workspace_bytes(q, k, v, elu1(), causal(), options));
  RowMajor out(70, 5);
  linear_attention_into(out, sum, k, v, elu1(), causal(), {.executor = serial(), .workspace = workspace});
  EXPECT_TRUE((want.array() == out.array()).all());
  workspace.pop_back();
  expect_refused("a small workspace", {std::to_string(workspace.size()), std::to_string(workspace.size() + 1)}, [&] {
    linear_attention_into(out, sum, k, v, elu1(), causal(), {.executor = serial(), .workspace = workspace});
  });
}

TEST(RecurrentProperties, RefusesBadArguments) {
  const RowMajor q = RowMajor::Zero(7, 4), k = RowMajor::Zero(9, 4), v = RowMajor::Zero(9, 5), short_v(8, 5),
                 wide(9, 6);
  const Eigen::VectorXf gate = Eigen::VectorXf::Zero(9), beta = gate, short_gate = Eigen::VectorXf::Zero(8);
  expect_refused("kv_len", {"kv_len differs", "9", "8"}, [&] { linear_attention(q, k, short_v, elu1()); });
  expect_refused("head_dim", {"head_dim differs", "4", "6"}, [&] { linear_attention(wide, k, v, elu1()); });
  expect_refused("features", {"features", "is 0"}, [] { favor(0, 1); });
  expect_refused("scale", {"0.5", "favor"}, [&] { linear_attention(q, k, v, elu1(), {.scale = 0.5}); });
  expect_refused("scale of favor", {"-1"}, [&] { linear_attention(q, k, v, favor(4, 1), {.scale = -1}); });
  expect_refused("lengths", {"key_lengths", "10"}, [&] { linear_attention(q, k, v, elu1(), key_lengths({10})); });
  expect_refused("torn documents", {"position 0", "0..8"}, [&] {
    linear_attention(q, k, v, elu1(), documents({0, 0, 1, 1, 1, 1, 1, 1, 0}));
  });
  expect_refused("queries without keys", {"7 queries", "9 keys"}, [&] { gated_attention(q, k, v, gate); });
  expect_refused("q_offset", {"q_offset is 2"}, [&] { gated_attention(k, k, v, gate, {.q_offset = 2}); });
  expect_refused("gates", {"(1, 1, 8, 1)", "(1, 1, 9, 1)"}, [&] { gated_attention(k, k, v, short_gate); });
  expect_refused("gates of features", {"(1, 1, 9, 6)", "(1, 1, 9, 4)"}, [&] { gated_attention(k, k, v, wide); });
  expect_refused("decays", {"2 decays", "1 key/value heads"}, [&] {
    gated_attention(k, k, v, decay_per_head({-1, -1}));
  });
  expect_refused("growth", {"0.5"}, [] { decay_per_head({-1, 0.5}); });
  expect_refused("heads", {"heads", "is 0"}, [] { retention_decay(0); });
  expect_refused("gates of the delta rule", {"(1, 1, 9, 6)"}, [&] { gated_delta_rule(k, k, v, wide, beta); });
  expect_refused("a", {"a has shape (1, 1, 9, 6)", "(1, 1, 9, 4)"}, [&] { dplr_delta_rule(k, k, v, wide, k, gate); });
  expect_refused("b", {"b has shape (1, 1, 7, 4)", "(1, 1, 9, 4)"}, [&] { dplr_delta_rule(k, k, v, k, q, gate); });
  expect_refused("beta", {"beta", "(1, 1, 8, 1)"}, [&] { gated_delta_rule(k, k, v, gate, short_gate); });
  RowMajor a = RowMajor::Zero(9, 5);
  expect_refused("out over b", {"out", "b"}, [&] { dplr_delta_rule_into(a, v, v, v, v, a, gate); });
  expect_refused("grad_a", {"grad_a", "(1, 1, 7, 4)"}, [&] {
    RowMajor gq = k, gk = k, gv = v, gb = k, short_a = q;
    Eigen::VectorXf gg = gate;
    dplr_delta_rule_backward_into(gq, gk, gv, short_a, gb, gg, v, k, k, v, k, k, gate);
  });
  RowMajor out = RowMajor::Constant(7, 6, kUntouched);
  expect_refused("out", {"out has shape (1, 1, 7, 6)", "(1, 1, 7, 5)"},
                 [&] { linear_attention_into(out, q, k, v, elu1()); });
  EXPECT_TRUE((out.array() == kUntouched).all());
  expect_refused("grad_out", {"grad_out", "(1, 1, 7, 6)"}, [&] { linear_attention_backward(out, q, k, v, elu1()); });
}

}  // namespace
}  // namespace attn::test
