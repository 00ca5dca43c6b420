// LatentAttention against the equations of DeepSeek-V2, in long double and plain loops, and its gradients.
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "attn/latent_attention.h"
#include "support/executors.h"
#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
Tensor<T, 3> drawn(std::uint64_t seed, const Shape<3>& shape) {
  return tensor<T>(Random(seed).values(shape[0] * shape[1] * shape[2], 1), shape[0], shape[1], shape[2]);
}

template <class T>
LatentAttention<T> drawn_layer(const LatentAttentionConfig& config) {
  LatentAttention<T> layer(config);
  Random random(7);
  layer.for_each_parameter([&](const std::string& name, std::span<T> values, auto) {
    const bool is_norm = name.find("norm") != name.npos;
    for (T& x : values) x = static_cast<T>(is_norm ? random.uniform(0.5, 1.5) : random.uniform(-0.5, 0.5));
  });
  return layer;
}

const LatentAttentionConfig kCompressed{.embed_dim = 24,
                                        .heads = 3,
                                        .q_rank = 10,
                                        .latent = {.rank = 12, .rope_dim = 4},
                                        .nope_dim = 6,
                                        .v_head_dim = 5,
                                        .rope = Rope({.head_dim = 4, .pairs = RopePairs::interleaved, .base = 30}),
                                        .scale_factor = 1.3};
/// Without q_rank, and with a yarn rope of pairs of halves, which multiplies rotated features.
const LatentAttentionConfig kPlain{
    .embed_dim = 18,
    .heads = 2,
    .latent = {.rank = 16, .rope_dim = 8},
    .nope_dim = 4,
    .rope = Rope({.head_dim = 8, .base = 100, .scaling = RopeScaling::yarn, .factor = 3, .trained_length = 64})};
/// No feature is rotated, and there is none to rotate.
const LatentAttentionConfig kWithoutRope{
    .embed_dim = 16, .heads = 2, .q_rank = 8, .latent = {.rank = 8}, .nope_dim = 8, .norm_eps = 1e-3};

/// The results of a causal layer for one sequence x (len, embed_dim), whose first token is at position `first`:
/// equations 9 to 19 of DeepSeek-V2.
template <class T>
std::vector<Real> by_formula(const LatentAttention<T>& layer, const T* x, Index len, Index first = 0) {
  using Row = std::vector<Real>;
  const LatentAttentionConfig& c = layer.config();
  const auto at = [](const Row& row, Index i) { return row[static_cast<std::size_t>(i)]; };
  const auto map = [&](const char* name, const Row& row) {
    const auto w = layer.weight(name);
    Row y;
    for (Index o = 0; o < w.dim(0); ++o) {
      Real sum = 0;
      for (Index f = 0; f < w.dim(1); ++f) sum += static_cast<Real>(w(o, f)) * at(row, f);
      y.push_back(sum);
    }
    return y;
  };
  const auto normalised = [&](const char* name, const Row& row) {
    const auto w = layer.bias(name);
    Real mean = 0;
    for (Index i = 0; i < w.dim(0); ++i) mean += at(row, i) * at(row, i) / static_cast<Real>(w.dim(0));
    Row y;
    for (Index i = 0; i < w.dim(0); ++i)
      y.push_back(at(row, i) * static_cast<Real>(w(i)) / std::sqrt(mean + static_cast<Real>(c.norm_eps)));
    return y;
  };
  const auto rotated = [&](Row row, Index position) {
    if (!c.rope) return row;
    const Index pairs = static_cast<Index>(row.size()) / 2;
    const bool halves = c.rope->config().pairs == RopePairs::halves;
    for (Index i = 0; i < pairs; ++i) {
      const Real angle = static_cast<Real>(position) * c.rope->frequencies()[static_cast<std::size_t>(i)],
                 factor = c.rope->attention_factor();
      Real &a = row[static_cast<std::size_t>(halves ? i : 2 * i)],
           &b = row[static_cast<std::size_t>(halves ? i + pairs : 2 * i + 1)];
      const Real was = a;
      a = factor * (was * std::cos(angle) - b * std::sin(angle));
      b = factor * (was * std::sin(angle) + b * std::cos(angle));
    }
    return row;
  };
  const auto part = [](const Row& row, Index begin, Index count) {
    return Row(row.begin() + begin, row.begin() + begin + count);
  };
  const Index rank = c.latent.rank, rope = c.latent.rope_dim, nope = c.nope_dim, v_dim = c.v_head_dim;
  std::vector<Row> q, kv, k_rope;
  for (Index i = 0; i < len; ++i) {
    const Row token(x + i * c.embed_dim, x + (i + 1) * c.embed_dim), row = map("kv_a_proj_with_mqa.weight", token);
    q.push_back(c.q_rank > 0 ? map("q_b_proj.weight", normalised("q_a_layernorm.weight", map("q_a_proj.weight", token)))
                             : map("q_proj.weight", token));
    kv.push_back(map("kv_b_proj.weight", normalised("kv_a_layernorm.weight", part(row, 0, rank))));
    k_rope.push_back(rotated(part(row, rank, rope), first + i));
  }
  std::vector<Real> out;
  for (Index i = 0; i < len; ++i) {
    Row joined;
    for (Index h = 0; h < c.heads; ++h) {
      const Row q_nope = part(q[static_cast<std::size_t>(i)], h * (nope + rope), nope),
                q_rope = rotated(part(q[static_cast<std::size_t>(i)], h * (nope + rope) + nope, rope), first + i);
      Row weights, sums(static_cast<std::size_t>(v_dim));
      Real total = 0;
      for (Index j = 0; j <= i; ++j) {
        const Row& of_kv = kv[static_cast<std::size_t>(j)];
        Real score = 0;
        for (Index d = 0; d < nope; ++d) score += at(q_nope, d) * at(of_kv, h * (nope + v_dim) + d);
        for (Index d = 0; d < rope; ++d) score += at(q_rope, d) * at(k_rope[static_cast<std::size_t>(j)], d);
        weights.push_back(std::exp(score * c.scale_factor / std::sqrt(static_cast<Real>(nope + rope))));
        total += weights.back();
      }
      for (Index j = 0; j <= i; ++j)
        for (Index d = 0; d < v_dim; ++d)
          sums[static_cast<std::size_t>(d)] +=
              at(weights, j) / total * at(kv[static_cast<std::size_t>(j)], h * (nope + v_dim) + nope + d);
      joined.insert(joined.end(), sums.begin(), sums.end());
    }
    const Row y = map("o_proj.weight", joined);
    out.insert(out.end(), y.begin(), y.end());
  }
  return out;
}

/// The largest difference of `out` (len, embed_dim) from `want`, relative to the largest result.
template <class T>
double difference(const T* out, std::span<const Real> want) {
  Real most = 0, largest = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    most = std::max(most, std::abs(static_cast<Real>(out[i]) - want[i]));
    largest = std::max(largest, std::abs(want[i]));
  }
  return static_cast<double>(most / largest);
}

template <class T>
constexpr double kError = std::is_same_v<T, double>  ? 1e-13
                          : std::is_same_v<T, float> ? 1e-5
                                                     : 0.03;

template <class T>
class LatentLayer : public ::testing::Test {};
using Scalars = ::testing::Types<float, double, Eigen::bfloat16>;
TYPED_TEST_SUITE(LatentLayer, Scalars);

TYPED_TEST(LatentLayer, FollowsTheEquations) {
  using T = TypeParam;
  for (const LatentAttentionConfig& config : {kCompressed, kPlain, kWithoutRope}) {
    const auto layer = drawn_layer<T>(config);
    const Tensor<T, 3> x = drawn<T>(1, {2, 70, config.embed_dim});
    const auto r = layer(x, causal(), {.keep = true});
    const auto naive = layer(x, causal(), {.path = Path::naive});
    EXPECT_EQ(r.query.dim(3), config.nope_dim + config.latent.rope_dim);
    EXPECT_EQ(r.lse.dim(1), config.heads);
    for (Index b = 0; b < 2; ++b) {
      const std::vector<Real> want = by_formula(layer, &x(b, 0, 0), 70);
      EXPECT_LE(difference(&r.out(b, 0, 0), want), kError<T>);
      EXPECT_LE(difference(&naive.out(b, 0, 0), want), kError<T>);
    }
    const Tensor<T, 3> a = layer(x, causal(), Options{.executor = eager_threads(3)}),
                       b = layer(x, causal(), Options{.executor = serial()});
    EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(), b.data()));
  }
}

/// A layer's results for two sequences in steps of these lengths, over caches of S.
template <class S, class T>
Tensor<T, 3> in_steps(const LatentAttention<T>& layer, const Tensor<T, 3>& x, const std::vector<Index>& lens,
                      const Options& options = {},
                      const KvCachesConfig& sizes = {.layers = 2, .pages = 40, .page_size = 16}) {
  auto caches = layer.template make_caches<S>(sizes);
  const std::vector<Index> both{caches.add(), caches.add()};
  Tensor<T, 3> all(x.shape());
  Index first = 0;
  for (const Index len : lens) {
    auto step = caches.step(both, len);
    const Tensor<T, 3> tokens(x.view().slice(1, first, first + len));
    for (const Index l : {0, 1}) {
      const auto r = layer(tokens, step.layer(l), causal(), options);
      for (Index b = 0; b < 2; ++b) std::copy_n(&r.out(b, 0, 0), len * x.dim(2), &all(b, first, 0));
    }
    step.commit();
    first += len;
  }
  EXPECT_EQ(first, x.dim(1));
  return all;
}

template <class T>
void expect_formula(const LatentAttention<T>& layer, const Tensor<T, 3>& x, const Tensor<T, 3>& out, double error,
                    const char* what) {
  for (Index b = 0; b < x.dim(0); ++b)
    EXPECT_LE(difference(&out(b, 0, 0), by_formula(layer, &x(b, 0, 0), x.dim(1))), error) << what << ", sequence " << b;
}

/// Prompts are unfolded, and few tokens absorbed.
TYPED_TEST(LatentLayer, IsTheSameInAnySteps) {
  using T = TypeParam;
  for (const LatentAttentionConfig& config : {kCompressed, kPlain, kWithoutRope}) {
    const auto layer = drawn_layer<T>(config);
    const Tensor<T, 3> x = drawn<T>(2, {2, 81, config.embed_dim});
    expect_formula(layer, x, in_steps<T>(layer, x, {81}), kError<T>, "a prompt");
    expect_formula(layer, x, in_steps<T>(layer, x, std::vector<Index>(81, 1)), 2 * kError<T>, "tokens");
    expect_formula(layer, x, in_steps<T>(layer, x, {50, 1, 3, 17, 1, 1, 8}), 2 * kError<T>, "both");
  }
}

/// With row_invariant, results of a token have the bits of a call without a cache, in any steps.
TYPED_TEST(LatentLayer, IsInvariantIfAsked) {
  using T = TypeParam;
  const auto layer = drawn_layer<T>(kCompressed);
  const Tensor<T, 3> x = drawn<T>(2, {2, 40, kCompressed.embed_dim});
  const Options invariant{.row_invariant = true};
  const auto whole = layer(x, causal(), invariant).out;
  const std::vector<Index> steps[] = {{40}, {38, 2}, {38, 1, 1}, std::vector<Index>(40, 1)};
  for (const std::vector<Index>& lens : steps) {
    const auto out = in_steps<T>(layer, x, lens, invariant);
    for (Index i = 0; i < out.size(); ++i) ASSERT_EQ(out.data()[i], whole.data()[i]) << lens.size() << " steps";
  }
}

TEST(LatentCaches, HoldOtherTypes) {
  const auto layer = drawn_layer<float>(kCompressed);
  const Tensor<float, 3> x = drawn<float>(3, {2, 60, 24});
  const std::vector<Index> steps{40, 1, 17, 1, 1};
  expect_formula(layer, x, in_steps<Eigen::bfloat16>(layer, x, steps), 0.02, "bf16");
  expect_formula(layer, x, in_steps<std::int8_t>(layer, x, steps), 0.04, "8 bits");
  // Tokens are rounded in the cache, so results do not depend on the steps.
  const auto a = in_steps<Eigen::bfloat16>(layer, x, steps), b = in_steps<Eigen::bfloat16>(layer, x, {60});
  for (Index i = 0; i < a.size(); ++i) ASSERT_NEAR(a.data()[i], b.data()[i], 1e-4);
}

TEST(LatentCaches, TakeRaggedTokens) {
  const auto layer = drawn_layer<double>(kCompressed);
  auto caches = layer.make_caches({.layers = 1, .pages = 20, .page_size = 8});
  const Index a = caches.add(), b = caches.add();
  const std::vector<std::vector<Index>> steps{{30, 2}, {1, 1}, {2, 40}, {1, 3}};
  const Tensor<double, 3> x = drawn<double>(4, {2, 46, 24});
  Index first[2] = {};
  const std::vector<Real> want[2] = {by_formula(layer, &x(0, 0, 0), 34), by_formula(layer, &x(1, 0, 0), 46)};
  for (const std::vector<Index>& lens : steps) {
    Tensor<double, 3> tokens({1, lens[0] + lens[1], 24});
    for (Index s = 0, row = 0; s < 2; row += lens[static_cast<std::size_t>(s++)])
      std::copy_n(&x(s, first[s], 0), lens[static_cast<std::size_t>(s)] * 24, &tokens(0, row, 0));
    auto step = caches.step({a, b}, lens);
    const auto out = layer(ragged(tokens, lens), step.layer(0), causal(), {.lse = true});
    EXPECT_EQ(out.lse.dim(2), tokens.dim(1));
    step.commit();
    for (Index s = 0, row = 0; s < 2; ++s) {
      const Index len = lens[static_cast<std::size_t>(s)];
      const std::span<const Real> part(want[s].data() + first[s] * 24, static_cast<std::size_t>(len * 24));
      EXPECT_LE(difference(&out.out(0, row, 0), part), 1e-12);
      row += len;
      first[s] += len;
    }
  }
}

/// Old tokens leave the window, and the others keep the positions by which they were rotated.
TEST(LatentCaches, KeepPositionsInAWindow) {
  const auto layer = drawn_layer<double>(kPlain);
  const Tensor<double, 3> x = drawn<double>(5, {1, 60, 18});
  auto caches = layer.make_caches({.layers = 1, .pages = 8, .page_size = 4, .window = 12});
  const Index a = caches.add();
  const auto by_position = score_mod([](auto score, const Position& p) {  // sees positions in the whole sequence
    return score + 0.5 * std::sin(static_cast<double>(p.kv));
  });
  const auto mask = by_position | causal() | sliding_window(8);
  const auto want = layer(x, mask);
  for (Index i = 0; i < 60;) {
    const Index len = std::min<Index>(i % 3 == 0 ? 1 : 7, 60 - i);
    auto step = caches.step({a}, len);
    const auto out = layer(Tensor<double, 3>(x.view().slice(1, i, i + len)), step.layer(0), mask).out;
    step.commit();
    for (Index j = 0; j < len; ++j)
      for (Index c = 0; c < 18; ++c) ASSERT_NEAR(out(0, j, c), want.out(0, i + j, c), 1e-12) << i + j;
    i += len;
  }
  EXPECT_GT(caches.offset(a), 0);
}

/// Nodes of a tree have the results of the path to them.
TEST(LatentCaches, RotateNodesOfATreeByDepth) {
  const auto layer = drawn_layer<double>(kCompressed);
  const Tensor<double, 3> x = drawn<double>(6, {1, 24, 24});
  auto caches = layer.make_caches({.layers = 1, .pages = 8, .page_size = 4});
  const Index a = caches.add();
  auto prompt = caches.step({a}, 20);
  layer(Tensor<double, 3>(x.view().slice(1, 0, 20)), prompt.layer(0), causal());
  prompt.commit();
  auto step = caches.step({a}, 4);
  const auto out =
      layer(Tensor<double, 3>(x.view().slice(1, 20, 24)), step.layer(0), tree(std::vector<Index>{-1, 0, 0, 2})).out;
  Tensor<double, 3> path({1, 23, 24});  // node 0, 2, 3
  std::copy_n(x.data(), 21 * 24, path.data());
  std::copy_n(&x(0, 22, 0), 2 * 24, &path(0, 21, 0));
  const std::vector<Real> want = by_formula(layer, path.data(), 23);
  EXPECT_LE(difference(&out(0, 3, 0), std::span(want).subspan(22 * 24, 24)), 1e-12);
}

TEST(LatentGradients, MatchDifferences) {
  for (const LatentAttentionConfig& config : {kCompressed, kPlain, kWithoutRope}) {
    auto layer = drawn_layer<double>(config);
    Tensor<double, 3> x = drawn<double>(1, {2, 6, config.embed_dim});
    const Tensor<double, 3> grad = drawn<double>(9, x.shape());
    const auto mods = softcap(3.0) | causal();
    const Options options{.q_offset = 2, .kv_offset = 2};
    const auto loss = [&] {
      const Tensor<double, 3> out = layer(x, mods, options);
      return std::inner_product(out.data(), out.data() + out.size(), grad.data(), 0.0);
    };
    const auto slopes = [&](std::span<double> numbers) {  // of fourth order
      std::vector<double> result;
      for (double& n : numbers) {
        const double was = n, h = 1e-3;
        const auto moved = [&](double by) { return n = was + by * h, loss(); };
        result.push_back((8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * h));
        n = was;
      }
      return result;
    };
    const auto expect = [](const std::vector<double>& want, std::span<const double> got, const std::string& name) {
      ASSERT_EQ(got.size(), want.size()) << name;
      for (std::size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-8 * (1 + std::abs(want[i]))) << name << "[" << i << "]";
    };
    std::map<std::string, std::vector<double>> want;
    layer.for_each_parameter(
        [&](const std::string& name, std::span<double> values, std::span<double>) { want[name] = slopes(values); });
    const std::vector<double> of_x = slopes({x.data(), static_cast<std::size_t>(x.size())});
    for (const Path path : {Path::flash, Path::naive}) {
      const MultiHeadOptions all{.path = path, .keep = true, .attention = options};
      layer.zero_gradients();
      const auto kept = layer(x, mods, all);
      const Tensor<double, 3> grad_x = layer.backward(grad, x, kept, mods, all);
      expect(of_x, {grad_x.data(), static_cast<std::size_t>(grad_x.size())}, "x");
      layer.for_each_parameter([&](const std::string& name, std::span<double>, std::span<const double> gradient) {
        expect(want[name], gradient, name);
      });
    }
  }
}

/// Gradients of bfloat16 layers are close to those of the same layer in double, add up, and learn mods.
TEST(LatentGradients, OfRoundedLayersAddUp) {
  auto layer = drawn_layer<Eigen::bfloat16>(kCompressed);
  auto exact = drawn_layer<double>(kCompressed);
  for (const std::string& name : layer.parameter_names()) {
    if (name.find("norm") != name.npos)
      exact.load(name, layer.bias(name));
    else
      exact.load(name, layer.weight(name));
  }
  const auto x = drawn<Eigen::bfloat16>(1, {2, 40, 24}), grad = drawn<Eigen::bfloat16>(2, {2, 40, 24});
  Tensor<double, 3> x_exact(x.shape()), grad_exact(x.shape());
  for (Index i = 0; i < x.size(); ++i) {
    x_exact.data()[i] = static_cast<double>(x.data()[i]);
    grad_exact.data()[i] = static_cast<double>(grad.data()[i]);
  }
  const auto kept = layer(x, causal(), {.keep = true});
  for (int i = 0; i < 2; ++i) layer.backward(grad, x, kept, causal());
  const auto of_exact = exact(x_exact, causal(), {.keep = true});
  exact.backward(grad_exact, x_exact, of_exact, causal());
  for (const char* name : {"q_a_proj.weight", "kv_b_proj.weight", "kv_a_proj_with_mqa.weight"}) {
    const auto a = layer.weight_gradient(name);
    const auto b = exact.weight_gradient(name);
    double most = 0, largest = 0;
    for (Index i = 0; i < a.dim(0); ++i)
      for (Index j = 0; j < a.dim(1); ++j) {
        most = std::max(most, std::abs(static_cast<double>(a(i, j)) - 2 * b(i, j)));
        largest = std::max(largest, std::abs(2 * b(i, j)));
      }
    EXPECT_LE(most, 0.05 * largest) << name;
  }
}

TEST(LatentParameters, HaveTheNamesOfCheckpoints) {
  const std::vector<std::string> compressed{
      "q_a_proj.weight",       "q_a_layernorm.weight", "q_b_proj.weight", "kv_a_proj_with_mqa.weight",
      "kv_a_layernorm.weight", "kv_b_proj.weight",     "o_proj.weight"};
  LatentAttention<float> layer(kCompressed);
  EXPECT_EQ(layer.parameter_names(), compressed);
  EXPECT_EQ(LatentAttention<float>(kPlain).parameter_names()[0], "q_proj.weight");
  const auto shape = [&](const char* name) { return layer.weight(name).shape(); };
  EXPECT_EQ(shape("q_a_proj.weight"), (Shape<2>{10, 24}));
  EXPECT_EQ(shape("q_b_proj.weight"), (Shape<2>{30, 10}));
  EXPECT_EQ(shape("kv_a_proj_with_mqa.weight"), (Shape<2>{16, 24}));
  EXPECT_EQ(shape("kv_b_proj.weight"), (Shape<2>{33, 12}));
  EXPECT_EQ(shape("o_proj.weight"), (Shape<2>{24, 15}));
  EXPECT_EQ(layer.bias("kv_a_layernorm.weight")(11), 1);
  const Eigen::MatrixXd values = Eigen::MatrixXd::Random(24, 15);
  layer.load("o_proj.weight", values);
  EXPECT_EQ(layer.weight("o_proj.weight")(23, 4), static_cast<float>(values(23, 4)));
  EXPECT_EQ(layer.make_caches<Eigen::bfloat16>({.layers = 3, .pages = 2}).config().head_dim, 16);
}

TEST(LatentErrors, NameTheSizes) {
  const auto made = [](auto change) {
    LatentAttentionConfig c = kCompressed;
    change(c);
    return LatentAttention<float>(c);
  };
  EXPECT_EQ(made([](auto& c) { c.v_head_dim = 0; }).config().v_head_dim, 6);
  expect_refused("heads", {"embed_dim 24, heads 0, latent.rank 12, nope_dim 6 and v_head_dim 5 must be positive"},
                 [&] { made([](auto& c) { c.heads = 0; }); });
  expect_refused("rank", {"latent.rank 0"}, [&] { made([](auto& c) { c.latent.rank = 0; }); });
  expect_refused("rope", {"head_dim of the rope is 4", "latent.rope_dim is 2"},
                 [&] { made([](auto& c) { c.latent.rope_dim = 2; }); });
  expect_refused("scale", {"scale_factor -1 must be positive"}, [&] { made([](auto& c) { c.scale_factor = -1; }); });
  expect_refused("large", {"sizes must be at most", "nope_dim 1152921504606846976"},
                 [&] { made([](auto& c) { c.nope_dim = Index(1) << 60; }); });

  LatentAttention<float> layer(kCompressed);
  expect_refused("name", {"no parameter 'kv_proj.weight'", "kv_b_proj.weight"},
                 [&] { layer.weight("kv_proj.weight"); });
  const Tensor<float, 3> x = drawn<float>(1, {1, 3, 24}), narrow = drawn<float>(1, {1, 3, 20});
  expect_refused("features", {"x has 20, embed_dim has 24"}, [&] { layer(narrow); });
  expect_refused("not kept", {"the result's joined", "MultiHeadOptions::keep"},
                 [&] { layer.backward(x, x, layer(x)); });

  auto caches = layer.make_caches({.layers = 1, .pages = 4, .page_size = 4});
  KvCaches<float> others({.layers = 1, .pages = 4, .page_size = 4, .latent = {.rank = 8, .rope_dim = 4}}),
      plain({.layers = 1, .head_dim = 16, .v_dim = 12, .pages = 4, .page_size = 4});
  const Index a = caches.add();
  auto step = caches.step({a}, 3);
  auto of_others = others.step({others.add()}, 3), of_plain = plain.step({plain.add()}, 3);
  expect_refused("rank",
                 {"keys of 12 and values of 8 features, but the layer has latent rows of 12 + 4", "make_caches()"},
                 [&] { layer(x, of_others.layer(0)); });
  expect_refused("keys and values", {"construct them with .latent"}, [&] { layer(x, of_plain.layer(0)); });
  expect_refused("features", {"x has 20, embed_dim has 24"}, [&] { layer(narrow, step.layer(0)); });
  expect_refused("tokens", {"the step has 3 tokens", "got 2"},
                 [&] { layer(Tensor<float, 3>(x.view().slice(1, 0, 2)), step.layer(0)); });
  expect_refused("heads", {"no heads of keys and values"}, [&] { layer(x, step.layer(0), causal(), {.heads = true}); });
  expect_refused("keep", {"has no backward()"}, [&] { layer(x, step.layer(0), causal(), {.keep = true}); });
  layer(x, step.layer(0));  // the calls that threw have appended nothing
  step.commit();
  EXPECT_EQ(caches.length(a), 3);
}

}  // namespace
}  // namespace attn::test
