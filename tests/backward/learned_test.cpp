// Gradients of the mods' learned parameters against differences of the definition.
#include "attn/attn.h"
#include "support/executors.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T = double>
Tensor<T, 4> drawn(const Shape<4>& shape, unsigned seed) {
  std::srand(seed);
  Tensor<T, 4> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = static_cast<T>(std::rand() / double(RAND_MAX) * 2 - 1);
  return t;
}
template <int kRank>
Tensor<double, kRank> numbers(const Shape<kRank>& shape) {
  Tensor<double, kRank> t(shape);
  for (Index i = 0; i < t.size(); ++i) t.data()[i] = 0.3 + 0.1 * std::sin(static_cast<double>(i));
  return t;
}
std::vector<double> listed(const Tensor<double, 1>& t) { return {t.data(), t.data() + t.size()}; }

struct Lengths {
  Index q_len = 70, kv_len = 90;
  std::optional<Index> q_offset = std::nullopt;
};

/// Checks the gradients of the parameters of the mod make(parameters, gradients). All paths must add them to the
/// existing ones.
template <int kRank, class Make>
void expect_learned(const char* name, Tensor<double, kRank> param, const Make& make, Lengths n = {}) {
  SCOPED_TRACE(name);
  const auto q = drawn({2, 4, n.q_len, 8}, 1), k = drawn({2, 2, n.kv_len, 8}, 2), v = drawn({2, 2, n.kv_len, 8}, 3),
             w = drawn({2, 4, n.q_len, 8}, 4);
  Tensor<double, 3> u({2, 4, n.q_len});  // the loss depends on lse too
  for (Index i = 0; i < u.size(); ++i) u.data()[i] = 0.01 * static_cast<double>(i % 7);
  Tensor<double, kRank> grad(param.shape());
  const auto loss = [&] {
    const auto r = naive_attention(q, k, v, make(param, grad), Options{.q_offset = n.q_offset});
    double sum = 0;
    for (Index i = 0; i < w.size(); ++i) sum += r.out.data()[i] * w.data()[i];
    for (Index i = 0; i < u.size(); ++i)
      if (std::isfinite(r.lse.data()[i])) sum += r.lse.data()[i] * u.data()[i];
    return sum;
  };
  std::vector<double> expected;
  const Index step = param.size() / 12 + 1;
  for (Index i = 0; i < param.size(); i += step) {
    double& x = param.data()[i];
    const double before = x, h = 1e-3;
    const auto at = [&](double by) {
      x = before + by * h;
      return loss();
    };
    expected.push_back((8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h));
    x = before;
  }
  std::vector<double> serial_bits;
  for (const char* path : {"naive", "serial", "2 threads", "3 threads"}) {
    std::fill_n(grad.data(), grad.size(), 0.5);
    const auto mods = make(param, grad);
    const Result into{w.view(), u.view()};
    if (path[0] == 'n') {
      naive_attention_backward(into, q, k, v, mods, Options{.q_offset = n.q_offset});
    } else {
      const Options options{.q_offset = n.q_offset,
                            .executor = path[0] == 's' ? serial() : eager_threads(path[0] - '0')};
      attention_backward(into, q, k, v, attention(q, k, v, mods, options), mods, options);
    }
    double largest = 0;
    for (double x : expected) largest = std::max(largest, std::abs(x));
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(grad.data()[static_cast<Index>(i) * step] - 0.5, expected[i], 1e-8 * (1 + largest))
          << path << " " << i;
    const std::vector<double> bits(grad.data(), grad.data() + grad.size());
    if (path[0] == 's') serial_bits = bits;
    if (path[0] != 'n') {
      EXPECT_EQ(bits, serial_bits) << path;
    }
  }
}

TEST(Learned, BiasOfEveryShape) {
  const auto mod = [](const auto& t, auto& g) { return bias(t, g) | causal(); };
  expect_learned("all pairs, between other score mods", numbers<4>({2, 4, 70, 90}),
                 [](const auto& t, auto& g) { return softcap(2) | bias(t, g) | softcap(3) | sliding_window(40, 5); });
  expect_learned("a head", numbers<3>({4, 1, 90}), mod);
  expect_learned("all heads", numbers<2>({70, 90}), mod);
  expect_learned("keys", numbers<1>({90}), mod);
  expect_learned("queries", numbers<2>({70, 1}), mod);
  expect_learned("a number", numbers<1>({1}), mod);
  expect_learned("too many elements for separate sums per task", numbers<2>({300, 600}), mod, {300, 600});
}

// Like all queries, those before the first key (q_offset < 0) index a tensor over pairs by row.
TEST(Learned, QueriesBeforeTheFirstKey) {
  const auto mod = [](const auto& t, auto& g) { return bias(t, g) | sliding_window(40, 60); };
  for (const Index q_offset : {-30, -1}) {
    const Lengths n{70, 90, q_offset};
    expect_learned("all pairs", numbers<4>({2, 4, 70, 90}), mod, n);
    expect_learned("queries", numbers<2>({70, 1}), mod, n);
    expect_learned(
        "by distance", numbers<2>({4, 301}),
        [](const auto& t, auto& g) { return relative_bias(t, g) | sliding_window(40, 60); }, n);
    expect_learned(
        "a user's lambda", numbers<1>({160}),
        [](const auto& t, auto& g) {
          return learned(
              t, g, [](auto p) { return p.q + 30; }, [](auto x, auto w, auto) { return x * w; });
        },
        n);
  }
  // More queries than keys and no q_offset: the first queries precede the first key.
  expect_learned("more queries than keys", numbers<3>({4, 90, 70}), mod, {90, 70});
}

TEST(Learned, RelativeBias) {
  expect_learned("T5", numbers<2>({4, 32}),
                 [](const auto& t, auto& g) { return relative_bias(t, g, T5Buckets(32, 64)); });
  expect_learned("clipped", numbers<1>({41}), [](const auto& t, auto& g) { return relative_bias(t, g); });
  expect_learned("too many elements for separate sums per task", numbers<2>({4, 3001}),
                 [](const auto& t, auto& g) { return relative_bias(t, g) | causal(); }, {300, 600});
}

/// Lists of `n` keys, some empty, some with a key twice.
struct Edges {
  std::vector<Index> offsets = {0}, indices;

  Edges(Index q_len, Index kv_len, Index n) {
    for (Index i = 0; i < q_len; ++i) {
      for (Index e = 0; i % 7 != 3 && e < n; ++e) indices.push_back((i * 13 + e * e * 5) % kv_len);
      if (i % 5 == 0) indices.push_back((i * 13) % kv_len);
      offsets.push_back(static_cast<Index>(indices.size()));
    }
  }
  Index size() const { return static_cast<Index>(indices.size()); }
};

TEST(Learned, EdgeBias) {
  const Edges few(70, 90, 5), more(70, 90, 10), many(70, 90, 60);
  const auto with = [](const Edges& e) {
    return
        [&e](const auto& t, auto& g) { return select(e.offsets, e.indices) | edge_bias(e.offsets, e.indices, t, g); };
  };
  expect_learned("edges of all heads", numbers<1>({few.size()}), with(few));
  expect_learned("of each head", numbers<2>({4, few.size()}), with(few));
  expect_learned("of each batch element", numbers<3>({2, 1, few.size()}), with(few));
  expect_learned("not gathered", numbers<2>({4, many.size()}), with(many));
  ASSERT_GT(2 * 4 * more.size(), 4096);
  expect_learned("too many elements for separate sums per task", numbers<3>({2, 4, more.size()}), with(more));
  expect_learned("of some pairs, without a list of keys", numbers<1>({few.size()}), [&](const auto& t, auto& g) {
    return edge_bias(few.offsets, few.indices, t, g) | softcap(3) | causal();
  });
  Tensor<double, 1> logits({4});
  expect_learned("beside others", numbers<1>({few.size()}), [&](const auto& t, auto& g) {
    return sinks({1, 2, -1, 0}, logits) | softcap(2) | edge_bias(few.offsets, few.indices, t, g) |
           select(few.offsets, few.indices) | alibi({0.1, 0.2, 0.3, 0.4}) | causal();
  });
  const auto four = numbers<1>({4});
  expect_learned("sinks where keys are gathered", four,
                 [&](const auto& t, auto& g) { return sinks(listed(t), g) | select(few.offsets, few.indices); });
  expect_learned("slopes where keys are gathered", four, [&](const auto& t, auto& g) {
    return select(few.offsets, few.indices) | alibi(listed(t), g) | dropout(0.2, 3);
  });
  Edges shared(1, 90, 12);
  expect_learned("a list for all queries", numbers<1>({shared.size()}), with(shared));
}

TEST(Learned, ParametersOfHeads) {
  const auto four = numbers<1>({4});
  expect_learned("alibi", four, [](const auto& t, auto& g) { return alibi(listed(t), g) | temperature({1, 2, 3, 4}); });
  expect_learned("temperature", four, [](const auto& t, auto& g) { return softcap(1) | temperature(listed(t), g); });
  expect_learned("sinks", four, [](const auto& t, auto& g) { return sinks(listed(t), g) | causal(); });
  expect_learned("sinks beside others", four, [](const auto& t, auto& g) {
    return sinks({1, 2, -1, 0}) | sinks(listed(t), g);
  });
}

TEST(Learned, UserLambda) {
  expect_learned("penalty", numbers<1>({4}), [](const auto& t, auto& g) {
    return learned(
        t, g, [](auto p) { return p.head; },
        [](auto x, auto w, auto p) {
          return x - w * w * tanh(x) * double(p.q > p.kv ? p.q - p.kv : p.kv - p.q) * 0.1;
        });
  });
}

TEST(Learned, SeveralAtOnce) {
  const auto table = numbers<2>({70, 90});
  Tensor<double, 2> table_grad({70, 90}), alone({70, 90});
  Tensor<double, 1> logits({4});
  expect_learned("slopes beside a bias and sinks", numbers<1>({4}), [&](const auto& t, auto& g) {
    return bias(table, table_grad) | alibi(listed(t), g) | sinks({1, 1, 1, 1}, logits);
  });
}

TEST(Learned, ForwardCallsDoNotChangeGradients) {
  const auto table = numbers<2>({70, 90});
  Tensor<double, 2> grad({70, 90});
  const auto q = drawn({1, 1, 70, 8}, 1), k = drawn({1, 1, 90, 8}, 2);
  attention(q, k, k, bias(table, grad));
  naive_attention(q, k, k, bias(table, grad));
  for (Index i = 0; i < grad.size(); ++i) EXPECT_EQ(grad.data()[i], 0);
}

TEST(Learned, MaskedNaNReachesNoGradient) {
  const auto table = numbers<2>({70, 90});
  const auto q = drawn({1, 1, 70, 8}, 1), clean = drawn({1, 1, 90, 8}, 2), w = drawn({1, 1, 70, 8}, 3);
  const auto gradient = [&](const auto& k) {
    Tensor<double, 2> grad({70, 90});
    const auto mods = bias(table, grad) | key_lengths({80});
    attention_backward(w, q, k, k, attention(q, k, k, mods), mods);
    return grad;
  };
  auto poisoned = clean;
  for (Index c = 0; c < 8; ++c) poisoned(0, 0, 85, c) = std::numeric_limits<double>::quiet_NaN();
  const auto want = gradient(clean), got = gradient(poisoned);
  for (Index i = 0; i < want.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 1e-12);
}

// One parameter raises the scores of even keys, whose values are 1, and lowers those of odd keys, whose values are -1.
// With scores of 0 each of the 300 x 600 pairs adds 1/600 to its gradient, 300 in all. A plain float sum would be off
// by 0.1 %.
TEST(Learned, FloatSumsAreAccurate) {
  const Tensor<float, 4> q({1, 1, 300, 8}), k({1, 1, 600, 8});
  Tensor<float, 4> v({1, 1, 600, 1}), grad_out({1, 1, 300, 1});
  for (Index j = 0; j < 600; ++j) v(0, 0, j, 0) = j % 2 == 0 ? 1.0f : -1.0f;
  for (Index i = 0; i < 300; ++i) grad_out(0, 0, i, 0) = 1;
  const Tensor<double, 1> number({1});
  Tensor<double, 1> grad({1});
  const auto mod = learned(
      number, grad, [](auto) { return 0; }, [](auto x, auto w, auto p) { return p.kv % 2 == 0 ? x + w : x - w; });
  attention_backward(grad_out, q, k, v, attention(q, k, v, mod), mod);
  EXPECT_NEAR(grad(0), 300, 300 * 2 * std::numeric_limits<float>::epsilon());
}

// Without keys, the table and its gradient have no elements.
TEST(Learned, BiasOfNoKeys) {
  const auto q = drawn({1, 2, 3, 4}, 1), none = drawn({1, 2, 0, 4}, 2);
  const Tensor<double, 2> table({3, 0});
  Tensor<double, 2> grad({3, 0});
  const auto plain = attention(q, none, none, bias(table)), r = attention(q, none, none, bias(table, grad));
  for (Index i = 0; i < r.out.size(); ++i) EXPECT_EQ(r.out.data()[i], 0);
  for (Index i = 0; i < r.lse.size(); ++i) EXPECT_EQ(r.lse.data()[i], plain.lse.data()[i]);
  const auto g = attention_backward(q, q, none, none, r, bias(table, grad));
  const auto naive = naive_attention_backward(q, q, none, none, bias(table, grad));
  for (Index i = 0; i < g.query.size(); ++i) {
    EXPECT_EQ(g.query.data()[i], 0);
    EXPECT_EQ(naive.query.data()[i], 0);
  }
}

TEST(Learned, RefusesWrongShapes) {
  const auto table = numbers<2>({4, 31});
  Tensor<double, 2> wrong({4, 30});
  Tensor<double, 1> three({3});
  const auto q = drawn({1, 4, 5, 8}, 1);
  const auto call = [&](const auto& mods) { attention(q, q, q, mods); };
  expect_refused("bias", {"bias", "(4, 30)", "(4, 31)"}, [&] { call(bias(table, wrong)); });
  expect_refused("relative_bias", {"relative_bias", "(4, 30)", "(4, 31)"}, [&] { call(relative_bias(table, wrong)); });
  expect_refused("learned", {"learned", "(4, 30)", "(4, 31)"}, [&] {
    learned(
        table, wrong, [](auto) { return 0; }, [](auto x, auto w, auto) { return x * w; });
  });
  expect_refused("alibi", {"alibi", "(3)", "4"}, [&] { call(alibi({1, 1, 1, 1}, three)); });
  expect_refused("temperature", {"temperature", "3", "4"}, [&] { call(temperature({1, 1, 1}, three)); });
  expect_refused("sinks", {"sinks", "(3)", "4"}, [&] { call(sinks({1, 1, 1, 1}, three)); });
  expect_refused("a slope", {"inf"}, [&] { call(alibi({std::numeric_limits<double>::infinity()}, three)); });
}

}  // namespace
}  // namespace attn::test
