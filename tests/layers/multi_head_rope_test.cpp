// MultiHeadAttention's rope, and its additional results: log-sum-exps and heads.
#include <cmath>

#include "support/executors.h"
#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using Layer = MultiHeadAttention<double>;

const Rope kRope({.head_dim = 6, .rotary_dim = 4, .base = 100});

/// Rotates heads by kRope's angles, in plain loops.
void turn(const TensorView<double, 4>& heads, Index first) {
  for (Index b = 0; b < heads.dim(0); ++b)
    for (Index h = 0; h < heads.dim(1); ++h)
      for (Index i = 0; i < heads.dim(2); ++i)
        for (Index pair = 0; pair < 2; ++pair) {
          const double angle = static_cast<double>(first + i) * (pair == 0 ? 1 : 0.1);
          double &x = heads(b, h, i, pair), &y = heads(b, h, i, pair + 2);
          const double turned_x = std::cos(angle) * x - std::sin(angle) * y;
          y = std::sin(angle) * x + std::cos(angle) * y;
          x = turned_x;
        }
}

/// Features h * dim … of x * weightᵀ + bias.
Tensor<double, 4> heads_by_definition(const Layer& layer, const char* input, const Tensor<double, 3>& x) {
  const auto w = layer.weight(std::string(input) + "_weight");
  const auto b = layer.bias(std::string(input) + "_bias");
  const Index dim = layer.head_dim();
  Tensor<double, 4> heads({x.dim(0), w.dim(0) / dim, x.dim(1), dim});
  for (Index batch = 0; batch < x.dim(0); ++batch)
    for (Index o = 0; o < w.dim(0); ++o)
      for (Index i = 0; i < x.dim(1); ++i) {
        double sum = b(o);
        for (Index f = 0; f < w.dim(1); ++f) sum += w(o, f) * x(batch, i, f);
        heads(batch, o / dim, i, o % dim) = sum;
      }
  return heads;
}

template <int Rank>
void expect_near(const Tensor<double, Rank>& got, const Tensor<double, Rank>& want, const char* what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  for (Index i = 0; i < want.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 2e-14) << what << "[" << i << "]";
}

class MultiHeadRope : public ::testing::Test {
 protected:
  Model model_{{.embed_dim = 24, .heads = 4, .kv_heads = 2, .key_dim = 24, .value_dim = 24}, 2, 5, 70};
  Tensor<double, 3> x_ = tensor<double>(model_.query, 2, 5, 24), memory_ = tensor<double>(model_.key, 2, 70, 24);

  Layer layer(const std::optional<Rope>& rope) {
    model_.config.rope = rope;
    return model_.layer<double>();
  }
  /// Naive attention over rotated heads, without the output projection.
  auto heads_over(const Layer& layer, const Tensor<double, 3>& query, const Tensor<double, 3>& key, Index first) {
    auto q = heads_by_definition(layer, "q_proj", query), k = heads_by_definition(layer, "k_proj", key),
         v = heads_by_definition(layer, "v_proj", key);
    turn(q, first);
    turn(k, 0);
    return std::tuple(naive_attention(q, k, v, causal(), {.q_offset = first}), q, k, v);
  }
};

TEST_F(MultiHeadRope, RotatesQueriesAndKeysByPosition) {
  const Layer with_rope = layer(kRope);
  Layer identity = with_rope;  // its results are those of the heads
  identity.weight("out_proj.weight").matrix().setIdentity();
  identity.bias("out_proj.bias")(0) = 0;
  for (Index f = 0; f < 24; ++f) identity.bias("out_proj.bias")(f) = 0;
  for (const auto& [key, offset] :
       {std::pair(&memory_, std::optional<Index>()), std::pair(&memory_, std::optional<Index>(3)),
        std::pair(&x_, std::optional<Index>())}) {
    const Index first = offset.value_or(key->dim(1) - 5);
    const auto [want, q, k, v] = heads_over(with_rope, x_, *key, first);
    for (const Path path : {Path::flash, Path::naive}) {
      const auto got =
          identity(x_, *key, *key, causal(),
                   MultiHeadOptions{.path = path, .lse = true, .heads = true, .attention = {.q_offset = offset}});
      expect_near(got.query, q, "query");
      expect_near(got.key, k, "key");
      expect_near(got.value, v, "value");
      expect_near(got.lse, want.lse, "lse");
      for (Index b = 0; b < 2; ++b)
        for (Index i = 0; i < 5; ++i)
          for (Index f = 0; f < 24; ++f) ASSERT_NEAR(got.out(b, i, f), want.out(b, f / 6, i, f % 6), 2e-14);
    }
  }
  // Negative control: without a rope the results differ.
  const auto plain = layer(std::nullopt)(x_, memory_, memory_, causal()),
             rotated = with_rope(x_, memory_, memory_, causal());
  EXPECT_GT(std::abs(plain.out(0, 4, 0) - rotated.out(0, 4, 0)), 1e-3);
}

/// The product of a rotated x with a gradient equals that of x with the gradient rotated back.
TEST_F(MultiHeadRope, GradientsAreRotatedBack) {
  for (const RopePairs pairs : {RopePairs::halves, RopePairs::interleaved}) {
    const Rope rope({.head_dim = 6,
                     .rotary_dim = 4,
                     .pairs = pairs,
                     .base = 100,
                     .scaling = RopeScaling::yarn,
                     .factor = 3,
                     .trained_length = 64});
    const Eigen::MatrixXd x = Eigen::MatrixXd::Random(5, 6), gradient = Eigen::MatrixXd::Random(5, 6);
    Eigen::MatrixXd rotated = x, back = gradient;
    rope.rotate(rotated, 7);
    rope.rotate_gradient(back, 7);
    EXPECT_NEAR(rotated.cwiseProduct(gradient).sum(), x.cwiseProduct(back).sum(), 1e-14);
    EXPECT_GT((back - gradient).norm(), 0.1);
    rope.rotate_gradient(rotated, 7);
    EXPECT_NEAR(rotated(3, 1), x(3, 1) * std::pow(rope.attention_factor(), 2), 1e-14);
    EXPECT_EQ(rotated(3, 5), x(3, 5));  // not part of a pair
  }
}

TEST_F(MultiHeadRope, DoesNotDependOnThreads) {
  const Layer with_rope = layer(kRope);
  const Tensor<double, 3> x = tensor<double>(Random(1).values(3 * 200 * 24), 3, 200, 24);
  const auto one = with_rope(x, x, x, causal(), Options{.executor = serial()});
  const auto many = with_rope(x, x, x, causal(), Options{.executor = eager_threads(3)});
  EXPECT_TRUE(std::equal(one.out.data(), one.out.data() + one.out.size(), many.out.data()));
}

TEST_F(MultiHeadRope, MustFitTheLayersHeads) {
  expect_refused("another head_dim", {"head_dim of the rope is 6", "is 4"},
                 [] { Layer layer({.embed_dim = 8, .heads = 2, .rope = kRope}); });
  expect_refused("a position too far", {"q_offset", "9223372036854775807"},
                 [&] { layer(kRope)(x_, x_, x_, causal(), Options{.q_offset = std::numeric_limits<Index>::max()}); });
}

TEST_F(MultiHeadRope, ReturnsOnlyRequestedResults) {
  const Layer plain = layer(std::nullopt);
  const auto none = plain(x_, memory_, memory_);
  EXPECT_EQ(none.lse.size() + none.query.size() + none.key.size() + none.value.size(), 0);
  const auto lse = plain(x_, memory_, memory_, {}, {.lse = true});
  EXPECT_EQ(lse.lse.shape(), (Shape<3>{2, 4, 5}));
  EXPECT_EQ(lse.query.size(), 0);
  const auto heads = plain(x_, memory_, memory_, {}, {.heads = true});
  EXPECT_EQ(heads.lse.size(), 0);
  expect_near(heads.key, heads_by_definition(plain, "k_proj", memory_), "key");
  // With lse and heads, the weights of a call can be computed later.
  const auto weights = plain(x_, memory_, memory_, {}, {.weights = true, .lse = true, .heads = true});
  const auto naive = naive_attention(weights.query, weights.key, weights.value);
  expect_near(weights.weights, naive.weights, "weights");
  expect_near(weights.lse, naive.lse, "lse");

  const auto halves = MultiHeadAttention<Eigen::bfloat16>({.embed_dim = 4, .heads = 2})(
      Tensor<Eigen::bfloat16, 3>({1, 2, 4}), Tensor<Eigen::bfloat16, 3>({1, 2, 4}),
      Tensor<Eigen::bfloat16, 3>({1, 2, 4}), causal(), MultiHeadOptions{.lse = true});
  static_assert(std::is_same_v<decltype(halves.lse), Tensor<float, 3>>);
  EXPECT_FLOAT_EQ(halves.lse(0, 1, 1), std::log(2.0f));
}

// A step gives the tokens of an image a row and a column; the text after them, drafts, and calls without a cache have
// the same position on both axes.
TEST_F(MultiHeadRope, RotatesByPositionsOnSeveralAxes) {
  const RopeAxes axes({.head_dim = 6, .sections = {1, 1}, .base = 100, .own_frequencies = false});
  const Layer turned = layer(axes), plain = layer(std::nullopt), by_one = layer(kRope);
  const auto same = turned(x_, x_, x_, causal()).out, one = by_one(x_, x_, x_, causal()).out;
  for (Index i = 0; i < same.size(); ++i) ASSERT_EQ(same.data()[i], one.data()[i]);

  KvCaches<double> caches = turned.make_caches({.layers = 1, .pages = 8, .page_size = 4}),
                   ropeless = plain.make_caches({.layers = 1, .pages = 8, .page_size = 4});
  const std::vector<Index> sequences{caches.add(), caches.add()}, others{ropeless.add(), ropeless.add()};
  const auto places_of = [](const std::vector<Index>& rows, const std::vector<Index>& columns) {
    Tensor<Index, 2> places({2, static_cast<Index>(rows.size())});
    std::copy(rows.begin(), rows.end(), places.data());
    std::copy(columns.begin(), columns.end(), places.data() + rows.size());
    return places;
  };
  const auto feed = [&](const AppendOptions& options, const Tensor<Index, 2>& places, const auto& mods) {
    auto step = caches.step(sequences, places.dim(1), options);
    auto other = ropeless.step(others, places.dim(1));
    const Tensor<double, 3> x(x_.slice(1, 0, places.dim(1)));
    const auto got = turned(x, step.layer(0), mods, {.heads = true});
    const auto unrotated = plain(x, other.layer(0), mods, {.heads = true});
    Tensor<double, 4> q(unrotated.query);
    axes.rotate(q, places);
    expect_near(Tensor<double, 4>(got.query), q, "queries");
    step.commit();
    other.commit();
  };
  const Tensor<Index, 2> image = places_of({0, 0, 1, 1, 1}, {0, 1, 0, 1, 2});
  feed({.positions = image}, image, causal());
  feed({}, places_of({3, 4, 5}, {3, 4, 5}), causal());
  feed({}, places_of({6, 7, 7}, {6, 7, 7}), tree({-1, 0, 0}));
}

}  // namespace
}  // namespace attn::test
