// MultiHeadAttention::backward() against finite differences.
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>

#include "support/executors.h"
#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

using Layer = MultiHeadAttention<double>;
using Tokens = Tensor<double, 3>;

template <class T = double>
Tensor<T, 3> drawn(std::uint64_t seed, const Shape<3>& shape) {
  return tensor<T>(Random(seed).values(shape[0] * shape[1] * shape[2], 1), shape[0], shape[1], shape[2]);
}

/// A layer with larger random parameters than the initial ones, including biases.
template <class T = double>
MultiHeadAttention<T> drawn_layer(const MultiHeadConfig& config) {
  MultiHeadAttention<T> layer(config);
  Random random(5);
  layer.for_each_parameter([&](const std::string&, std::span<T> values, auto) {
    for (T& x : values) x = static_cast<T>(random.uniform(-0.7, 0.7));
  });
  return layer;
}

/// Checks all gradients of the sum of `grad` * out. Query, key and value may be the same objects: `of_inputs` maps the
/// gradients of the call to those of query, key and value.
template <class M, class OfInputs>
void expect_differences(Layer& layer, Tokens& query, Tokens& key, Tokens& value, const M& mods, const Options& options,
                        const OfInputs& of_inputs) {
  const Tokens grad = drawn(9, query.shape());
  const auto loss = [&] {
    const Tokens out = layer(query, key, value, mods, options);
    return std::inner_product(out.data(), out.data() + out.size(), grad.data(), 0.0);
  };
  // Fourth-order differences, with errors of about h^4 and 1e-16 / h.
  const auto slopes = [&](std::span<double> numbers) {
    std::vector<double> result;
    for (double& x : numbers) {
      const double at = x, h = 1e-3;
      const auto moved = [&](double by) { return x = at + by * h, loss(); };
      result.push_back((8 * (moved(1) - moved(-1)) - (moved(2) - moved(-2))) / (12 * h));
      x = at;
    }
    return result;
  };
  const auto expect_slopes = [](const std::vector<double>& want, std::span<const double> got, const std::string& name) {
    ASSERT_EQ(got.size(), want.size()) << name;
    for (std::size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 1e-9 * (1 + std::abs(want[i]))) << name << "[" << i << "]";
  };
  const auto numbers = [](auto& t) { return std::span(t.data(), static_cast<std::size_t>(t.size())); };

  std::map<std::string, std::vector<double>> want;
  layer.for_each_parameter(
      [&](const std::string& name, std::span<double> values, std::span<double>) { want[name] = slopes(values); });
  const std::vector<double> inputs[] = {slopes(numbers(query)), slopes(numbers(key)), slopes(numbers(value))};
  for (const Path path : {Path::flash, Path::naive}) {
    SCOPED_TRACE(path == Path::flash ? "flash" : "naive");
    const MultiHeadOptions all{.path = path, .keep = true, .attention = options};
    layer.zero_gradients();
    const auto kept = layer(query, key, value, mods, all);
    const auto gradients = of_inputs(layer.backward(grad, query, key, value, kept, mods, all));
    expect_slopes(inputs[0], numbers(gradients.query), "query");
    expect_slopes(inputs[1], numbers(gradients.key), "key");
    expect_slopes(inputs[2], numbers(gradients.value), "value");
    layer.for_each_parameter([&](const std::string& name, std::span<double>, std::span<const double> gradient) {
      expect_slopes(want[name], gradient, name);
    });
  }
}

constexpr auto kApart = [](const auto& g) { return g; };

TEST(MultiHeadGradients, OfGroupedHeadsWithARope) {
  // YaRN scales rotated heads, and so their gradients.
  const Rope rope(
      {.head_dim = 6, .rotary_dim = 4, .base = 100, .scaling = RopeScaling::yarn, .factor = 3, .trained_length = 64});
  ASSERT_GT(rope.attention_factor(), 1.1);
  Layer layer = drawn_layer({.embed_dim = 24, .heads = 4, .kv_heads = 2, .rope = rope});
  Tokens query = drawn(1, {2, 5, 24}), key = drawn(2, {2, 7, 24}), value = drawn(3, {2, 7, 24});
  expect_differences(layer, query, key, value, softcap(3.0) | causal(), {.scale = 0.3, .q_offsets = {1, 4}}, kApart);
}

TEST(MultiHeadGradients, OfInterleavedPairs) {
  const Rope rope({.head_dim = 4, .pairs = RopePairs::interleaved, .base = 10});
  Layer layer = drawn_layer({.embed_dim = 8, .heads = 2, .bias = false, .rope = rope});
  Tokens query = drawn(1, {1, 3, 8}), memory = drawn(2, {1, 70, 8});
  expect_differences(layer, query, memory, memory, Mods<>(), {}, [](const auto& g) {
    return Gradients<Tokens, Tokens, Tokens>{g.query, g.key_and_value(), g.key_and_value()};
  });
}

TEST(MultiHeadGradients, OfInputsOfDifferentWidths) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 3, .key_dim = 5, .value_dim = 7, .out_bias = false});
  Tokens query = drawn(1, {3, 4, 12}), key = drawn(2, {3, 6, 5}), value = drawn(3, {3, 6, 7});
  expect_differences(layer, query, key, value, alibi({0.5, 0.25, 0.125}) | key_lengths({6, 0, 4}), {}, kApart);
}

TEST(MultiHeadGradients, OfSelfAttention) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 4, .kv_heads = 1, .in_bias = false});
  Tokens x = drawn(1, {2, 6, 12});
  const auto bowl = score_mod([](auto s, const Position& p) {
    using std::tanh;
    return s * s * 0.1 + tanh(s) * static_cast<double>(p.q - p.kv);
  });
  expect_differences(layer, x, x, x, bowl | sinks({0.1, 0.2, -0.3, 0.4}) | sliding_window(3), {}, [](const auto& g) {
    return Gradients<Tokens, Tokens, Tokens>{g.all(), g.all(), g.all()};
  });
}

/// More tokens than a single product takes, and more features than a tile.
TEST(MultiHeadGradients, OfManyTokensAndFeatures) {
  const MultiHeadConfig config{.embed_dim = 96, .heads = 2, .kv_heads = 1};
  auto layer = drawn_layer(config);
  const Tokens x = drawn(1, {3, 201, 96}), grad = drawn(2, x.shape());
  const auto kept = layer(x, x, x, causal(), {.keep = true});
  layer.backward(grad, x, x, x, kept, causal());
  // By definition: the sum over tokens of grad times the projection's input.
  const auto weight = layer.weight_gradient("out_proj.weight");
  const auto bias = layer.bias_gradient("out_proj.bias");
  for (Index o = 0; o < 96; ++o) {
    Real of_bias = 0;
    std::vector<Real> of_weight(96);
    for (Index b = 0; b < 3; ++b)
      for (Index i = 0; i < 201; ++i) {
        of_bias += grad(b, i, o);
        for (Index f = 0; f < 96; ++f)
          of_weight[static_cast<std::size_t>(f)] += static_cast<Real>(grad(b, i, o)) * kept.joined(b, i, f);
      }
    ASSERT_NEAR(bias(o), static_cast<double>(of_bias), 1e-12);
    for (Index f = 0; f < 96; ++f)
      ASSERT_NEAR(weight(o, f), static_cast<double>(of_weight[static_cast<std::size_t>(f)]), 1e-11);
  }
}

TEST(MultiHeadGradients, AccumulateUntilZeroed) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 4, .kv_heads = 2});
  expect_refused("none yet", {"backward()"}, [&] { layer.weight_gradient("in_proj_weight"); });
  layer.zero_gradients();
  layer.for_each_parameter([](const std::string&, auto, auto gradient) { EXPECT_TRUE(gradient.empty()); });

  const Tokens x = drawn(1, {2, 5, 12}), y = drawn(2, {2, 5, 12}), grad = drawn(3, {2, 5, 12});
  const auto all_gradients = [&] {
    std::vector<double> all;
    layer.for_each_parameter(
        [&](const std::string&, auto, auto gradient) { all.insert(all.end(), gradient.begin(), gradient.end()); });
    return all;
  };
  const auto gradients_of = [&](const Tokens& input) {
    layer.backward(grad, input, input, input, layer(input, input, input, {.keep = true}));
    return all_gradients();
  };
  const std::vector<double> of_x = gradients_of(x), of_both = gradients_of(y);
  layer.zero_gradients();
  for (double g : all_gradients()) ASSERT_EQ(g, 0);
  const std::vector<double> of_y = gradients_of(y);
  EXPECT_GT(of_x.size(), 400u);
  for (std::size_t i = 0; i < of_x.size(); ++i) {
    ASSERT_NEAR(of_both[i], of_x[i] + of_y[i], 1e-12);
    ASSERT_TRUE(of_x[i] != 0 || of_both[i] == of_y[i]);
  }
}

TEST(MultiHeadGradients, HaveTheNamesOfParametersAndTheirParts) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 4, .kv_heads = 2});
  const Tokens x = drawn(1, {1, 5, 12});
  layer.backward(x, x, x, x, layer(x, x, x, {.keep = true}));
  EXPECT_EQ(layer.weight_gradient("in_proj_weight").shape(), (Shape<2>{24, 12}));
  EXPECT_EQ(layer.weight_gradient("k_proj.weight").shape(), (Shape<2>{6, 12}));
  EXPECT_EQ(layer.weight_gradient("k_proj_weight").data(), &layer.weight_gradient("in_proj_weight")(12, 0));
  EXPECT_EQ(layer.bias_gradient("v_proj.bias").data(), &layer.bias_gradient("in_proj_bias")(18));
  expect_refused("unknown", {"'w'", "in_proj_weight"}, [&] { layer.weight_gradient("w"); });
  expect_refused("a bias", {"out_proj.bias", "rank 1"}, [&] { layer.weight_gradient("out_proj.bias"); });
}

template <class T>
std::vector<T> all_gradients(MultiHeadAttention<T> layer, const Executor& executor) {
  const auto x = drawn<T>(1, {2, 300, 72}), grad = drawn<T>(2, {2, 300, 72});
  const Options options{.executor = executor};
  const auto kept = layer(x, x, x, causal(), MultiHeadOptions{.keep = true, .attention = options});
  const auto g = layer.backward(grad, x, x, x, kept, causal(), {.executor = executor});
  std::vector<T> all;
  for (const auto* t : {&g.query, &g.key, &g.value}) all.insert(all.end(), t->data(), t->data() + t->size());
  layer.for_each_parameter(
      [&](const std::string&, auto, auto gradient) { all.insert(all.end(), gradient.begin(), gradient.end()); });
  return all;
}

TEST(MultiHeadGradients, DoNotDependOnThreads) {
  const auto layer = drawn_layer<float>({.embed_dim = 72, .heads = 3, .rope = Rope({.head_dim = 24})});
  const auto one = all_gradients(layer, serial());
  for (int workers : {2, 3, 5}) EXPECT_EQ(all_gradients(layer, eager_threads(workers)), one) << workers;
}

/// 0 * NaN is NaN, so the products over tokens must omit dropped tokens.
TEST(MultiHeadGradients, DroppedTokensReachNoGradient) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 4, .kv_heads = 2}), clean = layer;
  const Tokens query = drawn(1, {2, 3, 12}), whole = drawn(2, {2, 20, 12}), grad = drawn(3, {2, 3, 12});
  Tokens poisoned = whole;
  for (Index j = 17; j < 20; ++j)
    for (Index f = 0; f < 12; ++f) poisoned(1, j, f) = std::numeric_limits<double>::quiet_NaN();
  const auto mods = key_lengths({20, 17});
  const auto gradients = [&](Layer& of, const Tokens& memory) {
    return of.backward(grad, query, memory, memory, of(query, memory, memory, mods, {.keep = true}), mods);
  };
  const auto got = gradients(layer, poisoned), want = gradients(clean, whole);
  for (Index i = 0; i < got.key.size(); ++i) {
    ASSERT_NEAR(got.key.data()[i], want.key.data()[i], 1e-13);
    ASSERT_NEAR(got.value.data()[i], want.value.data()[i], 1e-13);
  }
  std::vector<double> numbers;
  clean.for_each_parameter(
      [&](const std::string&, auto, auto g) { numbers.insert(numbers.end(), g.begin(), g.end()); });
  auto next = numbers.begin();
  layer.for_each_parameter([&](const std::string& name, auto, auto g) {
    for (double x : g) ASSERT_NEAR(x, *next++, 1e-13) << name;
  });
}

TEST(MultiHeadGradients, HaveTheShapesOfTheInputs) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 4, .key_dim = 5, .value_dim = 5});
  const Eigen::MatrixXd x = Eigen::MatrixXd::Random(6, 12), grad = Eigen::MatrixXd::Random(6, 12);
  const Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> m = Eigen::MatrixXd::Random(9, 5);
  const auto kept = layer(x, m, m, {.keep = true});
  const auto g = layer.backward(2 * grad, x, m, m, kept);  // of matrices
  Tokens x3({1, 6, 12}), m3({1, 9, 5}), grad3({1, 6, 12});
  x3.matrix(0) = x, m3.matrix(0) = m, grad3.matrix(0) = 2 * grad;
  const auto want = layer.backward(grad3, x3, m3, m3, layer(x3, m3, m3, {.keep = true}));
  EXPECT_EQ(g.query, want.query.matrix(0));
  EXPECT_EQ(g.key_and_value(), want.key.matrix(0) + want.value.matrix(0));
  expect_refused("of two inputs", {"(1, 6, 12)", "(1, 9, 5)"}, [&] { g.all(); });
}

template <class T>
void expect_near_double() {
  const MultiHeadConfig config{.embed_dim = 32, .heads = 4, .kv_heads = 2, .rope = Rope({.head_dim = 8})};
  auto layer = drawn_layer<T>(config);
  Layer exact(config);
  layer.for_each_parameter([&](const std::string& name, std::span<T> values, auto) {
    exact.for_each_parameter([&](const std::string& other, std::span<double> to, auto) {
      for (std::size_t i = 0; name == other && i < to.size(); ++i) to[i] = static_cast<double>(values[i]);
    });
  });
  auto x = drawn<T>(1, {2, 40, 32}), grad = drawn<T>(2, {2, 40, 32});
  Tokens x_exact({2, 40, 32}), grad_exact({2, 40, 32});
  for (Index i = 0; i < x.size(); ++i) {
    x_exact.data()[i] = static_cast<double>(x.data()[i]);
    grad_exact.data()[i] = static_cast<double>(grad.data()[i]);
  }
  const auto g = layer.backward(grad, x, x, x, layer(x, x, x, causal(), {.keep = true}), causal()).all();
  const auto want = exact
                        .backward(grad_exact, x_exact, x_exact, x_exact,
                                  exact(x_exact, x_exact, x_exact, causal(), {.keep = true}), causal())
                        .all();
  static_assert(std::is_same_v<decltype(g), const Tensor<T, 3>>);
  const auto expect_close = [](const auto& got, const auto& truth, std::size_t size, const std::string& what) {
    double largest = 0, error = 0;
    for (std::size_t i = 0; i < size; ++i) {
      largest = std::max(largest, std::abs(truth[i]));
      error = std::max(error, std::abs(static_cast<double>(got[i]) - truth[i]));
    }
    // Several roundings in sequence, and the error of a score grows with its size: the largest measured error was 8.3
    // eps of the largest gradient.
    const double eps = std::max<double>(static_cast<double>(Eigen::NumTraits<T>::epsilon()), 1e-16);
    EXPECT_LE(error, 16 * eps * largest) << what;
  };
  expect_close(g.data(), want.data(), static_cast<std::size_t>(g.size()), "input");
  layer.for_each_parameter([&](const std::string& name, auto, auto gradient) {
    static_assert(std::is_same_v<decltype(gradient), std::span<std::conditional_t<sizeof(T) == 2, float, T>>>);
    exact.for_each_parameter([&](const std::string& other, auto, auto truth) {
      if (name == other) expect_close(gradient, truth, truth.size(), name);
    });
  });
}

TEST(MultiHeadGradients, OfEveryScalar) {
  expect_near_double<float>();
  expect_near_double<long double>();
  expect_near_double<Eigen::half>();
  expect_near_double<Eigen::bfloat16>();
}

TEST(MultiHeadGradients, RefuseWrongShapes) {
  Layer layer = drawn_layer({.embed_dim = 12, .heads = 4});
  const Tokens x = drawn(1, {2, 5, 12}), m = drawn(2, {2, 7, 12});
  const auto kept = layer(x, m, m, {.keep = true});
  const auto refuse = [&](const char* what, const Said& said, const Tokens& grad, const Tokens& query,
                          const Tokens& key, const auto& result) {
    expect_refused(what, said, [&] { layer.backward(grad, query, key, key, result); });
  };
  refuse("grad_out", {"grad_out", "(2, 7, 12)", "(2, 5, 12)"}, m, x, m, kept);
  refuse("features", {"has 13", "has 12"}, x, x, drawn(1, {2, 7, 13}), kept);
  refuse("another query", {"joined", "(2, 5, 12)", "(2, 7, 12)"}, m, m, m, kept);
  refuse("another key", {"key", "(2, 4, 7, 3)", "(2, 4, 5, 3)"}, x, x, x, kept);
  refuse("nothing kept", {"joined", "(0, 0, 0)", "(2, 5, 12)", "keep"}, x, x, m, layer(x, m, m));
  auto without_lse = kept;
  without_lse.lse = {};
  refuse("no lse", {"lse", "(0, 0, 0)", "(2, 4, 5)", "keep"}, x, x, m, without_lse);
  auto cache = layer.make_cache({.batch = 2});
  expect_refused("over a cache", {"cache", "backward()"}, [&] { layer(x, cache, {.keep = true}); });
  EXPECT_EQ(cache.length(0), 0);

  const auto throws = score_mod([](auto s, const Position&) {
    if constexpr (!std::is_arithmetic_v<decltype(s)>) throw std::runtime_error("backwards");
    return s;
  });
  layer.backward(x, x, m, m, kept);
  const double before = layer.bias_gradient("out_proj.bias")(3);
  const MultiHeadOptions naive{.path = Path::naive, .attention = {.executor = serial()}};
  EXPECT_THROW(layer.backward(x, x, m, m, kept, throws, naive), std::runtime_error);
  EXPECT_EQ(layer.bias_gradient("out_proj.bias")(3), before);
}

}  // namespace
}  // namespace attn::test
