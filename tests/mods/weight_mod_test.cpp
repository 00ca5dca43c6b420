// weight_mod(): functions of weights after the softmax. The sweeps include one among all mods.
#include <cmath>
#include <limits>
#include <sstream>
#include <vector>

#include "attn/attn.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

/// Not 0 at 0, not linear, and different for each pair.
auto curved() {
  return weight_mod(
      [](auto w, auto p) { return w * w * static_cast<float>(1 + (p.q + 2 * p.kv + p.head) % 3) + 0.25f; });
}

template <class T>
Tensor<T, 4> random_tensor(const Shape<4>& shape, Random& random) {
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(random.uniform(-1, 1));
  return t;
}

template <class A, class B>
double difference(const A& a, const B& b) {
  double most = 0;
  for (Index i = 0; i < a.size(); ++i) {
    const double by = std::abs(static_cast<double>(a.data()[i]) - static_cast<double>(b.data()[i]));
    most = by <= most ? most : by;  // NaN stays
  }
  return most;
}

template <class T>
struct Call {
  Tensor<T, 4> q, k, v;

  Call(Index q_len, Index kv_len, Random& random, Index dim = 16)
      : q(random_tensor<T>({2, 4, q_len, dim}, random)),
        k(random_tensor<T>({2, 2, kv_len, dim}, random)),
        v(random_tensor<T>({2, 2, kv_len, 5}, random)) {}
};

TEST(WeightMod, IsAppliedToNormalisedWeights) {
  const Eigen::MatrixXd q = Eigen::MatrixXd::Random(7, 4), k = Eigen::MatrixXd::Random(9, 4),
                        v = Eigen::MatrixXd::Random(9, 3);
  Eigen::MatrixXd weights = (q * k.transpose() / 2).array().exp();
  weights.array().colwise() /= weights.rowwise().sum().array().eval();
  const Eigen::MatrixXd want = (weights.array().square() + 0.5).matrix() * v;
  const auto mod = weight_mod([](auto w, auto) { return w * w + 0.5; });
  EXPECT_LT((attention(q, k, v, mod).out - want).cwiseAbs().maxCoeff(), 1e-14);
  EXPECT_LT((naive_attention(q, k, v, mod).out - want).cwiseAbs().maxCoeff(), 1e-14);
  EXPECT_LT((attention(q, k, v, mod).lse - attention(q, k, v).lse).cwiseAbs().maxCoeff(), 1e-15);
}

TEST(WeightMod, SeveralAreAppliedInOrderBeforeDropout) {
  Random random(2);
  const Call<double> c(20, 30, random);
  const auto first = weight_mod([](auto w, auto) { return w + 0.5; });
  const auto second = weight_mod([](auto w, auto) { return w * w; });
  const auto both = weight_mod([](auto w, auto) { return (w + 0.5) * (w + 0.5); });
  const auto drop = dropout(0.4, 3);
  EXPECT_LT(difference(attention(c.q, c.k, c.v, drop | first | causal() | second).out,
                       naive_attention(c.q, c.k, c.v, causal() | both | drop).out),
            1e-14);
}

/// Compares the flash gradients with central differences of the naive path.
template <class M>
void expect_gradients(Index q_len, Index kv_len, const M& mods, const Options& options = {}) {
  Random random(static_cast<std::uint64_t>(q_len));
  Call<double> c(q_len, kv_len, random, 3);
  const auto grad_out = random_tensor<double>({2, 4, q_len, 5}, random);
  const auto value = [&] {
    const auto out = naive_attention(c.q, c.k, c.v, mods, options).out;
    double sum = 0;
    for (Index i = 0; i < out.size(); ++i) sum += out.data()[i] * grad_out.data()[i];
    return sum;
  };
  const auto r = attention(c.q, c.k, c.v, mods, options);
  const auto flash = attention_backward(grad_out, c.q, c.k, c.v, r, mods, options),
             naive = naive_attention_backward(grad_out, c.q, c.k, c.v, mods, options);
  const auto check = [&](Tensor<double, 4>& of, const Tensor<double, 4>& by_flash, const Tensor<double, 4>& by_naive) {
    EXPECT_LT(difference(by_flash, by_naive), 1e-13);
    for (int i = 0; i < 10; ++i) {
      const Index at = random.integer(0, of.size() - 1);
      constexpr double kStep = 1e-4;
      double& x = of.data()[at];
      const double before = x;
      const auto moved = [&](double by) { return x = before + by, value(); };
      const double want = (8 * (moved(kStep) - moved(-kStep)) - (moved(2 * kStep) - moved(-2 * kStep))) / (12 * kStep);
      x = before;
      EXPECT_NEAR(by_flash.data()[at], want, 1e-9 * (1 + std::abs(want)));
    }
  };
  check(c.q, flash.query, naive.query);
  check(c.k, flash.key, naive.key);
  check(c.v, flash.value, naive.value);
}

TEST(WeightMod, GradientsAreDerivatives) {
  for (const Index q_len : {1, 2, 9, 70}) {
    expect_gradients(q_len, 70, curved());
    expect_gradients(q_len, 70, causal() | softcap(3.0) | curved() | dropout(0.3, 5));
    expect_gradients(q_len, 70, sinks({0.5, 1, -1, 2}) | curved());
    expect_gradients(q_len, 70, causal() | curved(), {.normaliser = Normaliser::sigmoid(-1)});
  }
}

TEST(WeightMod, SlopeMayBeWritten) {
  Random random(3);
  const Call<double> c(9, 20, random);
  const auto grad_out = random_tensor<double>({2, 4, 9, 5}, random);
  const auto by_hand = weight_mod([](auto w, auto) { return w * w; }, [](auto w, auto) { return 2 * w; });
  const auto by_dual = weight_mod([](auto w, auto) { return w * w; });
  const auto gradients = [&](const auto& mod) {
    return attention_backward(grad_out, c.q, c.k, c.v, attention(c.q, c.k, c.v, mod), mod);
  };
  EXPECT_LT(difference(gradients(by_hand).query, gradients(by_dual).query), 1e-16);
}

TEST(WeightMod, DroppedPairsStayAtZero) {
  Random random(4);
  Call<float> c(40, 90, random);
  const auto grad_out = random_tensor<float>({2, 4, 40, 5}, random);
  const auto mods = key_lengths({70, 0}) | weight_mod([](auto w, auto) { return w + 1.0f; });
  // Keys and values that are dropped may hold anything.
  for (Index h = 0; h < 2; ++h)
    for (Index j = 70; j < 90; ++j) {
      c.k(0, h, j, 3) = std::numeric_limits<float>::quiet_NaN();
      c.v(0, h, j, 1) = std::numeric_limits<float>::infinity();
    }
  for (const Isa isa : instruction_sets()) {
    SCOPED_TRACE(to_string(isa));
    const auto r = attention(c.q, c.k, c.v, mods, {.isa = isa});
    EXPECT_LT(difference(r.out, naive_attention(c.q, c.k, c.v, mods).out), 2e-5);
    const auto g = attention_backward(grad_out, c.q, c.k, c.v, r, mods, {.isa = isa}),
               want = naive_attention_backward(grad_out, c.q, c.k, c.v, mods);
    EXPECT_LT(difference(g.query, want.query), 2e-5);
    EXPECT_LT(difference(g.key, want.key), 2e-5);
    EXPECT_LT(difference(g.value, want.value), 2e-5);
    for (Index h = 0; h < 4; ++h)  // no key is kept
      for (Index i = 0; i < 40; ++i) EXPECT_EQ(r.out(1, h, i, 0), 0);
  }
}

TEST(WeightMod, MasksThatGroupOrListKeysGiveTheSame) {
  Random random(5);
  const Call<float> c(300, 300, random);
  const auto grad_out = random_tensor<float>({2, 4, 300, 5}, random);
  const auto expect_same = [&](const auto& mask) {
    const auto mods = mask | curved();
    const auto r = attention(c.q, c.k, c.v, mods);
    EXPECT_LT(difference(r.out, naive_attention(c.q, c.k, c.v, mods).out), 1e-5);
    const auto g = attention_backward(grad_out, c.q, c.k, c.v, r, mods),
               want = naive_attention_backward(grad_out, c.q, c.k, c.v, mods);
    EXPECT_LT(difference(g.query, want.query), 1e-5);
    EXPECT_LT(difference(g.key, want.key), 1e-5);
    EXPECT_LT(difference(g.value, want.value), 1e-4);
  };
  expect_same(strided_sparse(16));
  expect_same(fixed_sparse(32, 4));
  expect_same(dilated(32, 8));
  expect_same(neighbourhood({15, 20}, {5, 5}));
  Tensor<Index, 4> lists({2, 4, 300, 9});
  for (Index i = 0; i < lists.size(); ++i) lists.data()[i] = i % 9 * 33 + i / 9 % 33;
  expect_same(select(lists));
}

TEST(WeightMod, CachesGiveTheSame) {
  Random random(6);
  const Call<float> c(3, 5000, random);
  KvCache<float> cache({.batch = 2, .kv_heads = 2, .capacity = 5000, .head_dim = 16, .v_dim = 5});
  cache.append(c.k, c.v);
  const auto mods = causal() | curved();
  const auto cached = attention(c.q, cache, mods), plain = attention(c.q, c.k, c.v, mods);
  EXPECT_EQ(difference(cached.out, plain.out), 0);
  EXPECT_EQ(difference(cached.lse, plain.lse), 0);
  EXPECT_LT(difference(plain.out, naive_attention(c.q, c.k, c.v, mods).out), 2e-5 * 1250);  // 1250: sum of weights
}

TEST(WeightMod, WeightsAreTheNewOnes) {
  Random random(7);
  const Call<double> c(30, 70, random);
  const auto mods = causal() | curved() | dropout(0.2, 1);
  const auto naive = naive_attention(c.q, c.k, c.v, mods);
  const auto r = attention(c.q, c.k, c.v, mods);
  Tensor<double, 4> seen({2, 4, 30, 70});
  const auto copy = [&](const WeightTile<double>& t) {
    for (Index i = 0; i < t.rows.size(); ++i)
      for (Index j = 0; j < t.keys.size(); ++j)
        seen(t.batch, t.head, t.rows.begin + i, t.keys.begin + j) = t.weights(i, j);
  };
  for_each_weight_tile(c.q, c.k, r.lse, mods, copy, {.executor = serial()});
  EXPECT_LT(difference(seen, naive.weights), 1e-13);
}

TEST(WeightMod, AdditiveScores) {
  Random random(8);
  const Call<double> c(20, 70, random);
  const AdditiveScore<double> score{
      .query_weight = {}, .key_weight = {}, .score_weight = Eigen::VectorXd(Eigen::VectorXd::Random(16))};
  EXPECT_LT(difference(additive_attention(c.q, c.k, c.v, score, causal() | curved()).out,
                       naive_additive_attention(c.q, c.k, c.v, score, causal() | curved()).out),
            1e-13);
}

TEST(WeightMod, Layers) {
  const auto mods = causal() | weight_mod([](auto w, auto p) { return w * w + 0.125f * static_cast<float>(p.head); });
  const Eigen::MatrixXd x = Eigen::MatrixXd::Random(20, 8), grad = Eigen::MatrixXd::Random(20, 8);
  MultiHeadAttention<double> layer({.embed_dim = 8, .heads = 2});
  const auto r = layer(x, x, x, mods, {.keep = true});
  const auto naive = layer(x, x, x, mods, {.path = Path::naive, .keep = true});
  EXPECT_LT((r.out - naive.out).cwiseAbs().maxCoeff(), 1e-14);
  const auto g = layer.backward(grad, x, x, x, r, mods),
             want = layer.backward(grad, x, x, x, naive, mods, {.path = Path::naive});
  EXPECT_LT((g.query - want.query).cwiseAbs().maxCoeff(), 1e-13);
  EXPECT_LT((g.value - want.value).cwiseAbs().maxCoeff(), 1e-13);
  auto cache = layer.make_cache({.batch = 1});
  EXPECT_LT((layer(x, cache, mods).out - r.out).cwiseAbs().maxCoeff(), 1e-14);

  // Added keys are attended to separately.
  MultiHeadAttention<double> adding({.embed_dim = 8, .heads = 2, .add_zero_attn = true});
  const Said said = {"weight_mod()", "add_zero_attn"};
  expect_refused("added keys", said, [&] { adding(x, x, x, mods); });
  auto memory = adding.make_cache({.batch = 1});
  expect_refused("added keys over a cache", said, [&] { adding(x, memory, mods); });
  EXPECT_EQ(memory.length(0), 0);
}

TEST(WeightMod, RowsAreInvariant) {
  Random random(9);
  const Call<float> c(60, 4500, random);
  const auto mods = causal() | curved();
  const auto whole = attention(c.q, c.k, c.v, mods, {.row_invariant = true});
  const auto last = c.q.view().slice(2, 57, 60);
  const auto few = attention(last, c.k, c.v, mods, {.row_invariant = true});
  for (Index b = 0; b < 2; ++b)
    for (Index h = 0; h < 4; ++h)
      for (Index i = 0; i < 3; ++i) {
        EXPECT_EQ(few.lse(b, h, i), whole.lse(b, h, 57 + i));
        for (Index e = 0; e < 5; ++e) EXPECT_EQ(few.out(b, h, i, e), whole.out(b, h, 57 + i, e));
      }
}

TEST(WeightMod, ThreadsGiveTheSameBits) {
  Random random(10);
  const Call<float> c(150, 200, random);
  const auto grad_out = random_tensor<float>({2, 4, 150, 5}, random);
  const auto mods = causal() | curved();
  const Options one{.executor = serial()}, four{.executor = eager_threads(4)};
  const auto a = attention(c.q, c.k, c.v, mods, one), b = attention(c.q, c.k, c.v, mods, four);
  EXPECT_EQ(difference(a.out, b.out), 0);
  EXPECT_EQ(difference(attention_backward(grad_out, c.q, c.k, c.v, a, mods, one).key,
                       attention_backward(grad_out, c.q, c.k, c.v, b, mods, four).key),
            0);
}

TEST(WeightMod, ReadsNoMemoryThatItHasNotWritten) {
  Random random(11);
  const Call<float> c(70, 5000, random);
  const auto grad_out = random_tensor<float>({2, 4, 70, 5}, random);
  const auto mods = causal() | curved();
  for (const bool row_invariant : {false, true}) {
    const Options own{.row_invariant = row_invariant};
    const auto r = attention(c.q, c.k, c.v, mods, own);
    const auto g = attention_backward(grad_out, c.q, c.k, c.v, r, mods, own);
    // All bits set is NaN.
    std::vector<std::byte> memory(workspace_bytes(c.q, c.k, c.v, mods, own), std::byte(0xff));
    Options given = own;
    given.workspace = memory;
    Tensor<float, 4> out({2, 4, 70, 5});
    attention_into(out, c.q, c.k, c.v, mods, given);
    EXPECT_EQ(difference(out, r.out), 0);
    memory.assign(backward_workspace_bytes(c.q, c.k, c.v, mods, own), std::byte(0xff));
    given.workspace = memory;
    Tensor<float, 4> query(c.q.shape()), key(c.k.shape()), value(c.v.shape());
    attention_backward_into(query, key, value, grad_out, c.q, c.k, c.v, r, mods, given);
    EXPECT_EQ(difference(query, g.query), 0);
    EXPECT_EQ(difference(key, g.key), 0);
    EXPECT_EQ(difference(value, g.value), 0);
  }
}

TEST(WeightMod, PartsOfTheKeysAreRefused) {
  Random random(12);
  const Call<float> c(4, 20, random);
  Tensor<float, 4> out({2, 4, 4, 5});
  Tensor<float, 3> lse({2, 4, 4});
  expect_refused("accumulate", {"weight_mod()", "accumulate"},
                 [&] { attention_into(out, lse, c.q, c.k, c.v, curved(), {.accumulate = true}); });
  // Weights that are sigmoids have no common sum.
  const Options add{.accumulate = true, .normaliser = Normaliser::sigmoid()};
  attention_into(out, c.q, c.k, c.v, curved(), add);
  attention_into(out, c.q, c.k, c.v, curved(), add);
  auto want = naive_attention(c.q, c.k, c.v, curved(), {.normaliser = Normaliser::sigmoid()}).out;
  for (Index i = 0; i < want.size(); ++i) want.data()[i] *= 2;
  EXPECT_LT(difference(out, want), 1e-5);
}

TEST(WeightMod, IsExplained) {
  Random random(13);
  const Call<float> c(1, 20, random);
  const Explanation e = explain(c.q, c.k, c.v, curved());
  EXPECT_TRUE(e.visits_keys_twice);
  EXPECT_EQ(e.single_queries, 0);
  std::ostringstream text;
  text << e;
  EXPECT_NE(text.str().find("tiles of queries, twice over the keys, because a mod changes weights"), std::string::npos)
      << text.str();
}

}  // namespace
}  // namespace attn::test
