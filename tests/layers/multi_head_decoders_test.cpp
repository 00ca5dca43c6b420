// MultiHeadAttention with heads of any width, norms of queries and keys, added keys and an output gate.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "support/executors.h"
#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
Tensor<T, 3> drawn_tokens(std::uint64_t seed, const Shape<3>& shape) {
  return tensor<T>(Random(seed).values(shape[0] * shape[1] * shape[2], 1), shape[0], shape[1], shape[2]);
}

template <class T>
MultiHeadAttention<T> drawn_decoder(const MultiHeadConfig& config) {
  MultiHeadAttention<T> layer(config);
  Random random(7);
  layer.for_each_parameter([&](const std::string& name, std::span<T> values, auto) {
    for (T& x : values)
      x = static_cast<T>(name.find("norm") != name.npos ? random.uniform(0.5, 1.5)  //
                                                        : random.uniform(-0.6, 0.6));
  });
  return layer;
}

/// The result of a layer by its formula, in long double and plain loops. All inputs are x (len, embed_dim), and a query
/// sees the keys up to its own row.
struct Formula {
  std::vector<Real> out, weights;

  template <class T>
  Formula(const MultiHeadAttention<T>& layer, const T* x, Index len) {
    const MultiHeadConfig& c = layer.config();
    const Index heads = c.heads, kv_heads = c.kv_heads, dim = c.head_dim, v_dim = c.v_head_dim;
    const Index gate = c.output_gate ? v_dim : 0, extra = (c.add_bias_kv ? 1 : 0) + (c.add_zero_attn ? 1 : 0);
    const auto project = [&](const char* weight, const char* bias) {
      const auto w = layer.weight(weight);
      std::vector<std::vector<Real>> rows;
      for (Index i = 0; i < len; ++i) {
        std::vector<Real> row;
        for (Index o = 0; o < w.dim(0); ++o) {
          Real sum = *c.in_bias ? static_cast<Real>(layer.bias(bias)(o)) : 0;
          for (Index f = 0; f < w.dim(1); ++f)
            sum += static_cast<Real>(w(o, f)) * static_cast<Real>(x[i * c.embed_dim + f]);
          row.push_back(sum);
        }
        rows.push_back(row);
      }
      return rows;
    };
    const auto all_q = project("q_proj.weight", "q_proj.bias");
    auto k = project("k_proj.weight", "k_proj.bias");
    const auto v = project("v_proj.weight", "v_proj.bias");
    std::vector<std::vector<Real>> q, gates;
    for (const auto& row : all_q) {  // Hugging Face's order: each head's query, then its gate
      q.emplace_back(), gates.emplace_back();
      for (std::size_t i = 0; i < row.size(); ++i)
        (static_cast<Index>(i) % (dim + gate) < dim ? q : gates).back().push_back(row[i]);
    }
    const auto normalise = [&](std::vector<Real>& row, const char* name) {
      const auto w = layer.bias(name);
      const std::size_t size = static_cast<std::size_t>(c.qk_norm_scope == NormScope::head ? dim : w.dim(0));
      for (std::size_t first = 0; first < row.size(); first += size) {
        Real mean = 0;
        for (std::size_t i = 0; i < size; ++i) mean += row[first + i] * row[first + i] / static_cast<Real>(size);
        for (std::size_t i = 0; i < size; ++i)
          row[first + i] *= static_cast<Real>(w(static_cast<Index>(i))) / std::sqrt(mean + c.qk_norm_eps);
      }
    };
    const auto rotate = [&](std::vector<Real>& row, Index position) {  // pairs of halves
      if (!c.rope) return;
      const Index rotary = c.rope->config().rotary_dim;
      for (Index first = 0; first < static_cast<Index>(row.size()); first += dim)
        for (Index i = 0; i < rotary / 2; ++i) {
          const Real angle = static_cast<Real>(position) * c.rope->frequencies()[static_cast<std::size_t>(i)];
          Real &a = row[static_cast<std::size_t>(first + i)],
               &b = row[static_cast<std::size_t>(first + rotary / 2 + i)];
          const Real was = a;
          a = was * std::cos(angle) - b * std::sin(angle);
          b = was * std::sin(angle) + b * std::cos(angle);
        }
    };
    for (Index i = 0; i < len; ++i) {
      auto &query = q[static_cast<std::size_t>(i)], &key = k[static_cast<std::size_t>(i)];
      if (c.qk_norm) normalise(query, "q_norm.weight"), normalise(key, "k_norm.weight");
      rotate(query, i), rotate(key, i);
    }
    const auto at = [](const std::vector<Real>& row, Index i) { return row[static_cast<std::size_t>(i)]; };
    weights.assign(static_cast<std::size_t>(heads * len * (len + extra)), 0);
    for (Index i = 0; i < len; ++i) {
      std::vector<Real> joined;
      for (Index h = 0; h < heads; ++h) {
        const Index kv = h / (heads / kv_heads);
        Real* const w = weights.data() + (h * len + i) * (len + extra);
        const auto feature = [&](bool of_key, Index j, Index d) -> Real {
          const Index of_head = kv * (of_key ? dim : v_dim) + d;
          if (j < len) return at((of_key ? k : v)[static_cast<std::size_t>(j)], of_head);
          if (c.add_bias_kv && j == len) return static_cast<Real>(layer.bias(of_key ? "bias_k" : "bias_v")(of_head));
          return 0;
        };
        Real total = 0;
        for (Index j = 0; j < len + extra; ++j) {
          if (j > i && j < len) continue;
          Real score = 0;
          for (Index d = 0; d < dim; ++d)
            score += at(q[static_cast<std::size_t>(i)], h * dim + d) * feature(true, j, d);
          total += w[j] = std::exp(score / std::sqrt(static_cast<Real>(dim)));
        }
        for (Index j = 0; j < len + extra; ++j) w[j] /= total;
        for (Index d = 0; d < v_dim; ++d) {
          Real sum = 0;
          for (Index j = 0; j < len + extra; ++j) sum += w[j] * feature(false, j, d);
          if (gate > 0) sum /= 1 + std::exp(-at(gates[static_cast<std::size_t>(i)], h * v_dim + d));
          joined.push_back(sum);
        }
      }
      const auto o = layer.weight("o_proj.weight");
      for (Index f = 0; f < c.embed_dim; ++f) {
        Real sum = *c.out_bias ? static_cast<Real>(layer.bias("o_proj.bias")(f)) : 0;
        for (Index g = 0; g < heads * v_dim; ++g) sum += static_cast<Real>(o(f, g)) * at(joined, g);
        out.push_back(sum);
      }
    }
  }
};

MultiHeadConfig qwen3() {
  return {.embed_dim = 20,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = 8,
          .bias = false,
          .rope = Rope({.head_dim = 8}),
          .qk_norm = true};
}
std::vector<MultiHeadConfig> decoders() {
  return {
      {.embed_dim = 10, .heads = 3, .head_dim = 5},
      {.embed_dim = 12, .heads = 4, .kv_heads = 2, .head_dim = 6, .v_head_dim = 9},
      {.embed_dim = 12, .heads = 4, .kv_heads = 1, .v_head_dim = 1},
      qwen3(),
      {.embed_dim = 12,
       .heads = 4,
       .kv_heads = 2,
       .rope = Rope({.head_dim = 3, .rotary_dim = 2}),
       .qk_norm = true,
       .qk_norm_scope = NormScope::all_heads,
       .qk_norm_eps = 0.1},
      {.embed_dim = 12, .heads = 3, .bias = false, .add_bias_kv = true},
      {.embed_dim = 12, .heads = 3, .rope = Rope({.head_dim = 4}), .add_zero_attn = true},
      {.embed_dim = 12, .heads = 4, .kv_heads = 2, .v_head_dim = 5, .add_bias_kv = true, .add_zero_attn = true},
      {.embed_dim = 12, .heads = 2, .kv_heads = 1, .output_gate = true},
      {.embed_dim = 16,
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 6,
       .v_head_dim = 7,
       .rope = Rope({.head_dim = 6}),
       .qk_norm = true,
       .add_zero_attn = true,
       .output_gate = true},
  };
}

/// The largest difference from the formula, in units of eps.
template <class T, class X>
double error(const X& got, const std::vector<Real>& want) {
  EXPECT_EQ(static_cast<std::size_t>(got.size()), want.size());
  Real worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i)
    worst = std::max(worst, std::abs(static_cast<Real>(got.data()[i]) - want[i]) / (1 + std::abs(want[i])));
  return static_cast<double>(worst / static_cast<Real>(Eigen::NumTraits<T>::epsilon()));
}

template <class T>
void expect_formulas(double limit) {
  for (std::size_t i = 0; i < decoders().size(); ++i)
    for (const Index len : {1, 2, 37}) {
      SCOPED_TRACE(::testing::Message() << "decoder " << i << ", len " << len);
      const MultiHeadConfig config = decoders()[i];
      const auto layer = drawn_decoder<T>(config);
      const auto x = drawn_tokens<T>(3, {1, len, config.embed_dim});
      const Formula want(layer, x.data(), len);
      EXPECT_LE(error<T>(layer(x, x, x, causal()).out, want.out), limit);
      EXPECT_LE(error<T>(layer(x, x, x, causal(), {.path = Path::naive}).out, want.out), limit);
      EXPECT_LE(error<T>(layer(x, x, x, causal(), {.row_invariant = true}).out, want.out), limit);
      const auto weighted = layer(x, x, x, causal(), {.weights = true});
      EXPECT_LE(error<T>(weighted.out, want.out), limit);
      EXPECT_LE(error<T>(weighted.weights, want.weights), limit);
      EXPECT_EQ(weighted.lse.size(), 0);
    }
}

// The largest error was 15.4 eps. The limits leave room for processors that sum in another order.
TEST(MultiHeadDecoders, MatchPlainLoops) {
  expect_formulas<float>(40);
  expect_formulas<double>(40);
  expect_formulas<Eigen::half>(40);
  expect_formulas<Eigen::bfloat16>(40);
}

TEST(MultiHeadDecoders, GiveTheSameResultsOverCaches) {
  for (std::size_t i = 0; i < decoders().size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "decoder " << i);
    const MultiHeadConfig config = decoders()[i];
    const auto layer = drawn_decoder<float>(config);
    const Index len = 21, e = config.embed_dim;
    const auto x = drawn_tokens<float>(3, {2, len, e});
    const auto part = [&](Index first, Index count) {
      return Tensor<float, 3>(x.view().part(first * e, {2, count, e}, x.view().strides()));
    };
    const auto want = layer(x, x, x, causal(), {.lse = true});
    auto cache = layer.make_cache({.batch = 2});
    auto pages = layer.make_paged_cache({.pages = 8, .page_size = 16});
    const std::vector<Index> numbers{pages.add(), pages.add()};
    Index first = 0;
    for (const Index count : {9, 1, 11}) {
      const auto of_cache = layer(part(first, count), cache, causal(), {.lse = true});
      const auto of_pages = layer(part(first, count), pages.select(numbers), causal());
      for (Index b = 0; b < 2; ++b)
        for (Index r = 0; r < count; ++r) {
          for (Index f = 0; f < e; ++f) {
            ASSERT_NEAR(of_cache.out(b, r, f), want.out(b, first + r, f), 4e-6);
            ASSERT_NEAR(of_pages.out(b, r, f), want.out(b, first + r, f), 4e-6);
          }
          for (Index h = 0; h < config.heads; ++h) ASSERT_NEAR(of_cache.lse(b, h, r), want.lse(b, h, first + r), 4e-6);
        }
      first += count;
    }
    EXPECT_EQ(cache.config().head_dim, layer.config().head_dim);
    EXPECT_EQ(cache.config().v_dim, layer.config().v_head_dim);

    // Projected once, attended to without appending.
    auto memory = layer.make_cache({.batch = 2});
    layer.append(x, memory);
    const auto over = layer.attend(part(len - 2, 2), memory, causal());
    for (Index f = 0; f < e; ++f) ASSERT_NEAR(over.out(1, 1, f), want.out(1, len - 1, f), 4e-6);
  }
}

TEST(MultiHeadDecoders, HaveCorrectGradients) {
  for (std::size_t i = 0; i < decoders().size(); ++i) {
    SCOPED_TRACE(::testing::Message() << "decoder " << i);
    MultiHeadConfig config = decoders()[i];
    config.key_dim = 7;
    auto layer = drawn_decoder<double>(config);
    Tensor<double, 3> query = drawn_tokens<double>(3, {2, 5, config.embed_dim}),
                      key = drawn_tokens<double>(4, {2, 6, 7}),
                      value = drawn_tokens<double>(5, {2, 6, config.embed_dim});
    const auto grad = drawn_tokens<double>(6, query.shape());
    // The first query of the second sequence sees no key but the added ones.
    const auto mods = softcap(3.0) | causal() | key_lengths({6, 3});
    const Options options{.q_offsets = {0, -1}};
    const auto loss = [&] {
      const Tensor<double, 3> out = layer(query, key, value, mods, options);
      return std::inner_product(out.data(), out.data() + out.size(), grad.data(), 0.0);
    };
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
    const auto expect_slopes = [](const std::vector<double>& want, std::span<const double> got,
                                  const std::string& name) {
      ASSERT_EQ(got.size(), want.size()) << name;
      for (std::size_t n = 0; n < got.size(); ++n)
        ASSERT_NEAR(got[n], want[n], 2e-9 * (1 + std::abs(want[n]))) << name << "[" << n << "]";
    };
    const auto all = [](auto& t) { return std::span(t.data(), static_cast<std::size_t>(t.size())); };
    std::map<std::string, std::vector<double>> want;
    layer.for_each_parameter([&](const std::string& name, std::span<double> v, auto) { want[name] = slopes(v); });
    const std::vector<double> inputs[] = {slopes(all(query)), slopes(all(key)), slopes(all(value))};
    for (const Path path : {Path::flash, Path::naive}) {
      const MultiHeadOptions keep{.path = path, .keep = true, .attention = options};
      layer.zero_gradients();
      auto g = layer.backward(grad, query, key, value, layer(query, key, value, mods, keep), mods, keep);
      expect_slopes(inputs[0], all(g.query), "query");
      expect_slopes(inputs[1], all(g.key), "key");
      expect_slopes(inputs[2], all(g.value), "value");
      layer.for_each_parameter(
          [&](const std::string& name, auto, std::span<double> got) { expect_slopes(want[name], got, name); });
    }
  }
}

/// Gradients against those of the same layer in double. The largest error was 13.4 eps of the largest gradient.
template <class T>
void expect_gradients_near_double() {
  for (std::size_t i = 0; i < decoders().size(); ++i) {
    const MultiHeadConfig config = decoders()[i];
    auto layer = drawn_decoder<T>(config);
    MultiHeadAttention<double> exact(config);
    layer.for_each_parameter([&](const std::string& name, std::span<T> values, auto) {
      exact.for_each_parameter([&](const std::string& other, std::span<double> to, auto) {
        for (std::size_t n = 0; name == other && n < to.size(); ++n) to[n] = static_cast<double>(values[n]);
      });
    });
    const auto x = drawn_tokens<T>(1, {2, 30, config.embed_dim}), grad = drawn_tokens<T>(2, x.shape());
    Tensor<double, 3> x_exact(x.shape()), grad_exact(x.shape());
    for (Index n = 0; n < x.size(); ++n) {
      x_exact.data()[n] = static_cast<double>(x.data()[n]);
      grad_exact.data()[n] = static_cast<double>(grad.data()[n]);
    }
    const auto got = layer.backward(grad, x, x, x, layer(x, x, x, causal(), {.keep = true}), causal()).all();
    const auto want = exact
                          .backward(grad_exact, x_exact, x_exact, x_exact,
                                    exact(x_exact, x_exact, x_exact, causal(), {.keep = true}), causal())
                          .all();
    const auto expect_close = [&](const auto* a, const double* b, std::size_t size, const std::string& name) {
      double largest = 0, worst = 0;
      for (std::size_t n = 0; n < size; ++n) {
        largest = std::max(largest, std::abs(b[n]));
        worst = std::max(worst, std::abs(static_cast<double>(a[n]) - b[n]));
      }
      EXPECT_LE(worst, 40 * static_cast<double>(Eigen::NumTraits<T>::epsilon()) * largest)
          << "decoder " << i << " " << name;
    };
    expect_close(got.data(), want.data(), static_cast<std::size_t>(got.size()), "input");
    layer.for_each_parameter([&](const std::string& name, auto, auto gradient) {
      exact.for_each_parameter([&](const std::string& other, auto, auto truth) {
        if (name == other) expect_close(gradient.data(), truth.data(), truth.size(), name);
      });
    });
  }
}
TEST(MultiHeadDecoders, HaveCorrectGradientsInOtherTypes) {
  expect_gradients_near_double<float>();
  expect_gradients_near_double<Eigen::half>();
  expect_gradients_near_double<Eigen::bfloat16>();
}

TEST(MultiHeadDecoders, DoNotDependOnThreads) {
  for (const MultiHeadConfig& config : decoders()) {
    auto layer = drawn_decoder<float>(config);
    const auto x = drawn_tokens<float>(1, {2, 300, config.embed_dim});
    const auto results = [&](const Executor& executor) {
      const Options options{.executor = executor};
      layer.zero_gradients();
      const auto kept = layer(x, x, x, causal(), MultiHeadOptions{.keep = true, .attention = options});
      const auto g = layer.backward(x, x, x, x, kept, causal(), options).all();
      std::vector<float> all(kept.out.data(), kept.out.data() + kept.out.size());
      all.insert(all.end(), g.data(), g.data() + g.size());
      layer.for_each_parameter([&](const std::string&, auto, auto v) { all.insert(all.end(), v.begin(), v.end()); });
      return all;
    };
    const auto one = results(serial());
    EXPECT_TRUE(results(eager_threads(3)) == one);
  }
}

/// Dropped keys may hold anything: added keys must not make them visible.
TEST(MultiHeadDecoders, AddedKeysAreSeenWithoutAnyOther) {
  const auto layer = drawn_decoder<float>({.embed_dim = 12, .heads = 3, .add_bias_kv = true});
  auto x = drawn_tokens<float>(1, {1, 4, 12});
  const auto clean = layer(x, x, x, key_lengths({0}), {.lse = true});
  auto poisoned = x;
  std::fill_n(poisoned.data(), poisoned.size(), std::numeric_limits<float>::quiet_NaN());
  const auto got = layer(x, poisoned, poisoned, key_lengths({0}), {.lse = true});
  const auto w = layer.weight("out_proj.weight");
  for (Index f = 0; f < 12; ++f) {
    float want = layer.bias("out_proj.bias")(f);
    for (Index g = 0; g < 12; ++g) want += w(f, g) * layer.bias("bias_v")(g);
    EXPECT_NEAR(got.out(0, 2, f), want, 1e-5);
    EXPECT_EQ(got.out(0, 2, f), clean.out(0, 2, f));
  }
  EXPECT_GT(got.lse(0, 0, 0), -100);
  const Tensor<float, 3> none({1, 0, 12});
  EXPECT_EQ(layer(x, none, none).out(0, 1, 3), got.out(0, 1, 3));
}

TEST(MultiHeadDecoders, AddedKeysWorkWithSigmoids) {
  const auto layer = drawn_decoder<double>({.embed_dim = 4, .heads = 1, .add_zero_attn = true});
  MultiHeadAttention<double> without({.embed_dim = 4, .heads = 1});
  for (const char* name : {"in_proj_weight", "out_proj.weight"}) without.load(name, layer.weight(name));
  for (const char* name : {"in_proj_bias", "out_proj.bias"}) without.load(name, layer.bias(name));
  const auto x = drawn_tokens<double>(1, {1, 5, 4});
  const Options sigmoid{.normaliser = Normaliser::sigmoid()};
  const auto got = layer(x, x, x, sigmoid).out, want = without(x, x, x, sigmoid).out;  // a value of 0 adds nothing
  for (Index i = 0; i < got.size(); ++i) EXPECT_NEAR(got.data()[i], want.data()[i], 1e-14);
  const auto weights = layer(x, x, x, {.weights = true, .attention = sigmoid}).weights;
  EXPECT_EQ(weights.shape(), (Shape<4>{1, 1, 5, 6}));
  EXPECT_EQ(weights(0, 0, 3, 5), 0.5);
}

TEST(MultiHeadDecoders, HaveTheNamesAndShapesOfHuggingFace) {
  MultiHeadAttention<float> layer(qwen3());
  EXPECT_EQ(layer.parameter_names(),
            (std::vector<std::string>{"in_proj_weight", "q_norm.weight", "k_norm.weight", "out_proj.weight"}));
  EXPECT_EQ(layer.head_dim(), 8);
  EXPECT_EQ(layer.config().v_head_dim, 8);
  layer.load("q_proj.weight", Eigen::MatrixXf::Random(48, 20).eval());
  layer.load("k_proj.weight", Eigen::MatrixXf::Random(16, 20).eval());
  layer.load("v_proj.weight", Eigen::MatrixXf::Random(16, 20).eval());
  layer.load("o_proj.weight", Eigen::MatrixXf::Random(20, 48).eval());
  EXPECT_EQ(layer.bias("q_norm.weight")(7), 1);
  layer.load("q_norm.weight", Eigen::VectorXf::Constant(8, 2).eval());
  EXPECT_EQ(layer.bias("q_norm.weight")(7), 2);
  expect_refused("a vector", {"'k_norm.weight'", "rank 1", "bias()"}, [&] { layer.weight("k_norm.weight"); });
  expect_refused("a shape", {"k_norm.weight", "(8)", "(16)"},
                 [&] { layer.load("k_norm.weight", Eigen::VectorXf::Zero(16).eval()); });

  const MultiHeadAttention<float> olmo2(
      {.embed_dim = 12, .heads = 4, .kv_heads = 2, .qk_norm = true, .qk_norm_scope = NormScope::all_heads});
  EXPECT_EQ(olmo2.bias("q_norm.weight").dim(0), 12);
  EXPECT_EQ(olmo2.bias("k_norm.weight").dim(0), 6);

  const MultiHeadAttention<float> qwen3_next({.embed_dim = 12, .heads = 4, .kv_heads = 2, .output_gate = true});
  const Tensor<float, 3> no_tokens({2, 0, 12});
  EXPECT_EQ(qwen3_next(no_tokens, no_tokens, no_tokens).out.shape(), no_tokens.shape());
  EXPECT_EQ(qwen3_next.weight("q_proj.weight").shape(), (Shape<2>{24, 12}));
  EXPECT_EQ(qwen3_next.weight("k_proj.weight").shape(), (Shape<2>{6, 12}));

  const MultiHeadAttention<float> torch({.embed_dim = 12, .heads = 4, .add_bias_kv = true});
  EXPECT_EQ(torch.parameter_names(), (std::vector<std::string>{"in_proj_weight", "in_proj_bias", "bias_k", "bias_v",
                                                               "out_proj.weight", "out_proj.bias"}));
  EXPECT_EQ(torch.bias("bias_v").dim(0), 12);
  EXPECT_NE(torch.bias("bias_k")(3), torch.bias("bias_v")(3));
}

TEST(MultiHeadDecoders, RefuseInvalidConfigurations) {
  const auto refused = [](const MultiHeadConfig& config, const Said& said) {
    expect_refused("config", said, [&] { MultiHeadAttention<float> layer(config); });
  };
  refused({.embed_dim = 8, .heads = 3}, {"embed_dim (8)", "multiple of heads (3)", "head_dim"});
  refused({.embed_dim = 8, .heads = 2, .head_dim = -1}, {"head_dim", "negative", "-1"});
  refused({.embed_dim = 8, .heads = 2, .v_head_dim = -3}, {"v_head_dim", "negative", "-3"});
  refused({.embed_dim = 8, .heads = 2, .head_dim = 6, .rope = Rope({.head_dim = 4})}, {"rope is 4", "layer is 6"});
  refused({.embed_dim = 8, .heads = 2, .rope = Rope({.head_dim = 4}), .add_bias_kv = true}, {"add_bias_kv", "rope"});
  refused({.embed_dim = 8, .heads = 2, .qk_norm_eps = -1}, {"qk_norm_eps", "-1"});
  refused({.embed_dim = 8, .heads = 2, .qk_norm_eps = std::numeric_limits<double>::infinity()}, {"qk_norm_eps", "inf"});
  refused({.embed_dim = 8, .heads = 4, .head_dim = std::numeric_limits<Index>::max()}, {"head_dim", "with 4 heads"});

  const auto layer = drawn_decoder<float>(qwen3());
  KvCache<float> narrow({.kv_heads = 2, .head_dim = 4, .rope = Rope({.head_dim = 4})});
  expect_refused("a cache", {"head_dim 4", "head_dim 8", "v_head_dim 8", "make_cache()"}, [&] {
    layer(drawn_tokens<float>(1, {1, 2, 20}), narrow);
  });
}

}  // namespace
}  // namespace attn::test
