// The extra digits that a result carries in addition to its rounded values: gradients, weights and merged results of
// rows whose scores share a large constant, and 16-bit gradients where keys share a common component.
#include <gtest/gtest.h>

#include <attn/attn.h>

#include "support/paths.h"

namespace attn::test {
namespace {

using RowMajorMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

constexpr float kLowest = std::numeric_limits<float>::lowest();
constexpr float kConstants[] = {-1e4f, 1e4f, 1e6f, -1e9f, 1e9f, kLowest};

template <class T>
Tensor<T, 4> random_tensor(const Shape<4>& shape, int seed, float shift = 0) {
  Random random(static_cast<std::uint64_t>(seed));
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i)
    t.data()[i] = static_cast<T>(static_cast<float>(random.uniform(-1.7, 1.7)) + shift);
  return t;
}

/// Adds `constant` to all scores of a call, as for padding in many models.
auto constant_bias(const float& constant, Index keys) {
  return bias(TensorView<const float, 4>(&constant, {1, 1, 1, keys}, {0, 0, 0, 0}));
}

TEST(MoreDigits, WeightsSumToOne) {
  for (const float& constant : kConstants) {
    SCOPED_TRACE(constant);
    const Index keys = 100;
    const Tensor<float, 4> q({1, 1, 50, 8}), k({1, 1, keys, 8}), v = random_tensor<float>({1, 1, keys, 4}, 1);
    const auto mods = constant_bias(constant, keys);
    const auto r = attention(q, k, v, mods);
    const auto mass = attention_mass(q, k, r.lse, mods);
    for (Index j = 0; j < keys; ++j) EXPECT_NEAR(mass(0, 0, j), 0.5, 1e-5);
    const auto g = attention_backward(v.slice(2, 0, 50), q, k, v, r, mods);
    Eigen::RowVectorXf all = v.matrix(0, 0).topRows(50).colwise().sum() / static_cast<float>(keys);
    for (Index j = 0; j < keys; ++j) EXPECT_LT((g.value.matrix(0, 0).row(j) - all).cwiseAbs().maxCoeff(), 1e-5);
  }
}

TEST(MoreDigits, PartsAreWeightedByTheirNumberOfKeys) {
  for (const float& constant : kConstants) {
    SCOPED_TRACE(constant);
    const Tensor<float, 4> q({1, 1, 3, 8}), k({1, 1, 120, 8});
    Tensor<float, 4> v({1, 1, 120, 1});
    std::fill_n(v.data() + 100, 20, 6.0f);
    const auto part = [&](Index begin, Index end) {
      return attention(q, k.slice(2, begin, end), v.slice(2, begin, end), constant_bias(constant, end - begin));
    };
    const auto merged = merge(part(0, 100), part(100, 120));
    EXPECT_NEAR(merged.out(0, 0, 2, 0), 1, 1e-5);
    EXPECT_NEAR(merge(merge(part(0, 7), part(7, 100)), part(100, 120)).out(0, 0, 2, 0), 1, 1e-5);

    Tensor<float, 4> out({1, 1, 3, 1});
    Tensor<float, 3> lse({1, 1, 3});
    const auto go_on = [&](Index begin, Index end) {
      attention_into(out, lse, q, k.slice(2, begin, end), v.slice(2, begin, end), constant_bias(constant, 120),
                     {.q_offset = 117, .kv_offset = begin, .accumulate = begin > 0});
    };
    for (int i = 0; i < 2; ++i) {  // the second time, the first result is overwritten
      go_on(0, 100), go_on(100, 120);
      EXPECT_NEAR(out(0, 0, 0, 0), 1, 1e-5);
    }
    // A single query per head uses another path.
    const TensorView<const float, 4> one = q.slice(2, 0, 1);
    const auto of_one = [&](Index begin, Index end) {
      return attention(one, k.slice(2, begin, end), v.slice(2, begin, end), constant_bias(constant, end - begin));
    };
    EXPECT_NEAR(merge(of_one(0, 100), of_one(100, 120)).out(0, 0, 0, 0), 1, 1e-5);
    auto go_on_one = of_one(0, 100);
    attention_into(go_on_one.out, go_on_one.lse, one, k.slice(2, 100, 120), v.slice(2, 100, 120),
                   constant_bias(constant, 120), {.q_offset = 119, .kv_offset = 100, .accumulate = true});
    EXPECT_NEAR(go_on_one.out(0, 0, 0, 0), 1, 1e-5);
  }
}

TEST(MoreDigits, PassesKeepTheExtraDigitsOfSums) {
  const Index n = 1024;
  // Equal scores, which all paths round alike.
  const Tensor<float, 4> q({1, 1, n, 8}), k({1, 1, n, 8});
  const auto v = random_tensor<float>({1, 1, n, 8}, 3);
  for (const float& constant : kConstants) {
    SCOPED_TRACE(constant);
    const auto mods = strided_sparse(32) | bias(TensorView<const float, 4>(&constant, {1, 1, n, n}, {0, 0, 0, 0}));
    const auto flash = attention(q, k, v, mods);
    const auto naive = naive_attention(q, k, v, mods);
    EXPECT_LT((flash.out.matrix(0, 0) - naive.out.matrix(0, 0)).cwiseAbs().maxCoeff(), 5e-6);
    const auto mass = attention_mass(q, k, flash.lse, mods);
    EXPECT_NEAR(mass.matrix(0).sum(), n, 1e-2);
  }
}

TEST(MoreDigits, MatrixResultsCarryTheExtraDigits) {
  const float constant = -1e9f;
  const RowMajorMatrix q = RowMajorMatrix::Zero(5, 4), k = RowMajorMatrix::Zero(40, 4), v = RowMajorMatrix::Ones(40, 2);
  const auto mods = constant_bias(constant, 40);
  const auto r = attention(q, k, v, mods);
  const auto copy = r;
  EXPECT_NEAR(attention_backward(v.topRows(5), q, k, v, copy, mods).value(7, 1), 5.0 / 40, 1e-6);
  Eigen::MatrixXf gq(5, 4), gk(40, 4), gv(40, 2);
  attention_backward_into(gq, gk, gv, v.topRows(5), q, k, v, r, mods);
  EXPECT_NEAR(gv(7, 1), 5.0 / 40, 1e-6);
  attention_backward_into(gq, gk, gv, v.topRows(5), q, k, v, r.out, r.lse, mods);
  EXPECT_NEAR(gv(7, 1), 5.0 / 40, 1e-6);
  // Plain containers receive only the values.
  const Result<RowMajorMatrix, Eigen::VectorXf> plain = r;
  EXPECT_EQ(plain.out, r.out);
  EXPECT_EQ(plain.lse, r.lse);
}

TEST(MoreDigits, AModifiedLseDiscardsItsExtraDigits) {
  const float constant = -1e9f;
  const Tensor<float, 4> q({1, 1, 1, 8}), k({1, 1, 10, 8}), v({1, 1, 10, 2});
  auto r = attention(q, k, v, constant_bias(constant, 10));
  const auto plain = attention(q, k, v);
  std::copy_n(plain.lse.data(), 1, r.lse.data());
  const auto mass = attention_mass(q, k, r.lse);
  EXPECT_NEAR(mass(0, 0, 0), 0.1, 1e-6);
  r.lse.data()[0] = -std::numeric_limits<float>::infinity();
  std::fill_n(r.out.data(), 2, 7.0f);
  attention_into(r.out, r.lse, q, k, v, Mods<>(), {.accumulate = true});
  EXPECT_EQ(r.out(0, 0, 0, 0), 0);
  EXPECT_EQ(r.lse(0, 0, 0), plain.lse(0, 0, 0));
  // A row without keys (lse -inf) may hold anything, even if its lse was near -1e9 before, with extra digits.
  for (const bool merges : {false, true}) {
    auto again = attention(q, k, v, constant_bias(constant, 10));
    again.lse.data()[0] = -std::numeric_limits<float>::infinity();
    std::fill_n(again.out.data(), 2, std::numeric_limits<float>::quiet_NaN());
    if (merges)
      merge_into(again.out, again.lse, plain.out, plain.lse);
    else
      attention_into(again.out, again.lse, q, k, v, Mods<>(), {.accumulate = true});
    EXPECT_EQ(again.out(0, 0, 0, 0), 0);
    EXPECT_EQ(again.lse(0, 0, 0), plain.lse(0, 0, 0));
  }
}

TEST(MoreDigits, CallsIntoTheSameLseReplaceTheExtraDigits) {
  const float constant = -1e9f;
  const Tensor<float, 4> q({1, 1, 2, 8}), k({1, 1, 10, 8}), v({1, 1, 10, 2});
  Tensor<float, 4> out({1, 1, 2, 2});
  Tensor<float, 3> lse({1, 1, 2});
  const auto large = constant_bias(constant, 10);
  for (int round = 0; round < 2; ++round) {
    attention_into(out, lse, q, k, v, large);
    EXPECT_NEAR(attention_mass(q, k, lse, large)(0, 0, 0), 0.2, 1e-6);
    attention_into(out, lse, q, k, v);
    EXPECT_NEAR(attention_mass(q, k, lse)(0, 0, 0), 0.2, 1e-6);
  }
}

TEST(MoreDigits, TheNaivePathKeepsTheExtraDigits) {
  const float constant = -1e9f;
  const Tensor<float, 4> q({1, 1, 2, 8}), k({1, 1, 10, 8}), v = random_tensor<float>({1, 1, 10, 4}, 1);
  const auto mods = constant_bias(constant, 10);
  const auto naive = naive_attention(q, k, v, mods);
  EXPECT_NEAR(attention_mass(q, k, naive.lse, mods)(0, 0, 3), 0.2, 1e-6);
  const auto g = attention_backward(v.slice(2, 0, 2), q, k, v, naive, mods);
  EXPECT_NEAR(g.value(0, 0, 3, 1), (v(0, 0, 0, 1) + v(0, 0, 1, 1)) / 10, 1e-6);

  // With weights requested, a layer uses the naive path, but its backward() uses the flash path.
  const MultiHeadAttention<float> layer({.embed_dim = 8, .heads = 2});
  const Tensor<float, 3> x({1, 10, 8});
  Tensor<float, 3> grad({1, 10, 8});
  std::fill_n(grad.data(), grad.size(), 1.0f);
  const auto gradient = [&](bool weights) {
    MultiHeadAttention<float> copy = layer;
    const auto y = copy(x, x, x, mods, MultiHeadOptions{.weights = weights, .keep = true});
    return copy.backward(grad, x, x, x, y, mods).value;
  };
  const auto with = gradient(true), without = gradient(false);
  for (Index i = 0; i < with.size(); ++i) EXPECT_NEAR(with.data()[i], without.data()[i], 1e-5);
}

/// The largest error of the query gradient, relative to its largest element, for keys that share the constant `shift`.
template <class T, class Gradient>
double error_of_query_gradient(float shift, const Gradient& gradient) {
  const Index n = 96, d = 32;
  const auto q = random_tensor<T>({1, 2, n, d}, 1), k = random_tensor<T>({1, 2, n, d}, 2, shift),
             v = random_tensor<T>({1, 2, n, d}, 3, 1), g = random_tensor<T>({1, 2, n, d}, 4);
  const auto in_double = [](const Tensor<T, 4>& t) {
    Tensor<double, 4> to(t.shape());
    for (Index i = 0; i < t.size(); ++i) to.data()[i] = static_cast<double>(static_cast<float>(t.data()[i]));
    return to;
  };
  const auto right = naive_attention_backward(in_double(g), in_double(q), in_double(k), in_double(v)).query;
  const Tensor<T, 4> got = gradient(g, q, k, v);
  double error = 0, largest = 0;
  for (Index i = 0; i < got.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(static_cast<float>(got.data()[i])) - right.data()[i]));
    largest = std::max(largest, std::abs(right.data()[i]));
  }
  return error / largest;
}

template <class T>
void expect_gradients_as_exact_as_naive() {
  for (const float shift : {0.0f, 4.0f, 30.0f}) {
    SCOPED_TRACE(shift);
    const auto error = [&](const auto& gradient) { return error_of_query_gradient<T>(shift, gradient); };
    const double naive = error([](const auto& g, const auto& q, const auto& k, const auto& v) {
      return naive_attention_backward(g, q, k, v).query;
    });
    EXPECT_LT(error([](const auto& g, const auto& q, const auto& k, const auto& v) {
                return attention_backward(g, q, k, v, attention(q, k, v)).query;
              }),
              1.5 * naive);
    EXPECT_LT(error([](const auto& g, const auto& q, const auto& k, const auto& v) {
                const Index keys = k.dim(2) / 2;
                const auto part = [&](Index begin, Index end) {
                  return attention(q, k.slice(2, begin, end), v.slice(2, begin, end));
                };
                return attention_backward(g, q, k, v, merge(part(0, keys), part(keys, k.dim(2)))).query;
              }),
              1.5 * naive);
    EXPECT_LT(error([](const auto& g, const auto& q, const auto& k, const auto& v) {
                const Shape<4> shape = q.shape();
                Tensor<float, 4> out(shape);
                Tensor<float, 3> lse({shape[0], shape[1], shape[2]});
                attention_into(out, lse, q, k, v);
                Tensor<T, 4> gq(shape), gk(shape), gv(shape);
                attention_backward_into(gq, gk, gv, g, q, k, v, out, lse);
                return gq;
              }),
              1.5 * naive);
  }
}
TEST(MoreDigits, GradientsOfBfloat16) { expect_gradients_as_exact_as_naive<Eigen::bfloat16>(); }
TEST(MoreDigits, GradientsOfHalf) { expect_gradients_as_exact_as_naive<Eigen::half>(); }

// Gradients are then those of an output that has no digits beyond its own.
TEST(MoreDigits, AModifiedOutputDiscardsItsExtraDigits) {
  using T = Eigen::bfloat16;
  const auto q = random_tensor<T>({1, 1, 5, 8}, 1), k = random_tensor<T>({1, 1, 9, 8}, 2),
             v = random_tensor<T>({1, 1, 9, 8}, 3);
  auto r = attention(q, k, v);
  for (Index i = 0; i < r.out.size(); ++i) r.out.data()[i] = T(2);
  const TensorView<const T, 4> plain = r.out;
  const auto g = attention_backward(v.slice(2, 0, 5), q, k, v, r),
             want = attention_backward(v.slice(2, 0, 5), q, k, v, Result{plain, r.lse});
  for (Index i = 0; i < g.query.size(); ++i) EXPECT_EQ(g.query.data()[i], want.query.data()[i]);
}

TEST(MoreDigits, ALayerKeepsTheExtraDigits) {
  using T = Eigen::bfloat16;
  const Index n = 64, dim = 32;
  // A bias of 30 on some features of all keys, as in trained layers.
  const auto gradient = [&](Path path) {
    MultiHeadAttention<T> layer({.embed_dim = dim, .heads = 2});
    for (Index i = dim; i < dim + 4; ++i) layer.bias("in_proj_bias")(i) = T(30);
    Random random(1);
    Tensor<T, 3> x({1, n, dim}), g({1, n, dim});
    for (auto* t : {&x, &g})
      for (Index i = 0; i < t->size(); ++i)
        t->data()[i] = static_cast<T>(static_cast<float>(random.uniform(-1.7, 1.7)));
    const auto y = layer(x, x, x, Mods<>(), MultiHeadOptions{.path = path, .keep = true});
    return layer.backward(g, x, x, x, y, Mods<>(), MultiHeadOptions{.path = path}).query;
  };
  const auto flash = gradient(Path::flash), naive = gradient(Path::naive);
  double error = 0, largest = 0;
  for (Index i = 0; i < flash.size(); ++i) {
    const double a = static_cast<float>(flash.data()[i]), b = static_cast<float>(naive.data()[i]);
    error = std::max(error, std::abs(a - b)), largest = std::max(largest, std::abs(b));
  }
  EXPECT_LT(error, 0.02 * largest);
}

}  // namespace
}  // namespace attn::test
