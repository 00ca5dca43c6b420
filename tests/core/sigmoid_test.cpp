// Sigmoids of scores as weights: both paths against the oracle, values by hand, and unsupported features.
#include <cmath>
#include <sstream>

#include "support/erased_rows.h"
#include "support/executors.h"
#include "support/paths.h"
#include "support/refused.h"
#include "support/sample.h"
#include "support/weights.h"

namespace attn::test {
namespace {

using Eigen::MatrixXd;
using Eigen::MatrixXf;

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

template <class S>
std::vector<S> plain(const auto& t) {
  return t.size() == 0 ? std::vector<S>() : std::vector<S>(t.data(), t.data() + t.size());
}

template <class T, class M>
void expect_right(const Inputs& in, const Numbers& numbers, const Row<M>& row, Layout layout, Layout out_layout) {
  static Sample sample;
  if (::testing::Test::HasFailure() || row.meaning.sink || !sample.takes_next()) return;
  const Sizes& s = in.sizes;
  std::ostringstream text;
  text << row.name << ", " << s << ", bias " << *numbers.sigmoid_bias << sample.text();
  SCOPED_TRACE(text.str());
  const Truth truth = oracle(in, row.meaning, numbers);
  Arguments<T> a(in, layout, layout, layout);
  Options options = options_of(numbers);
  const auto naive = naive_attention(a.q.cview(), a.k.cview(), a.v.cview(), row.mod, options);
  const Computed<T> by_definition{plain<T>(naive.out), plain<Wide<T>>(naive.lse)};
  EXPECT_TRUE(by_definition.lse.empty());
  // Weights do not sum to 1: the tolerance scales with the largest sum of weights.
  Truth sums = truth;
  Real largest = 1;
  for (std::size_t i = 0; i < truth.weights.size(); i += static_cast<std::size_t>(s.kv_len)) {
    Real sum = 0;
    for (Index j = 0; j < s.kv_len; ++j) sum += truth.weights[i + static_cast<std::size_t>(j)];
    largest = std::max(largest, sum);
  }
  sums.largest_value *= largest;
  expect_naive_close(sums, by_definition, s);
  expect_weights_close(truth, plain<T>(naive.weights), s);
  static int turn = 0;
  for (Isa isa : sets_for<T>()) {
    SCOPED_TRACE(to_string(isa));
    options.isa = isa;
    options.executor = ++turn % 2 == 0 ? serial() : eager_threads(2);
    Strided<T> out(out_layout, {s.batch, s.heads, s.q_len, s.v_dim});
    attention_into(out.view(), a.q.cview(), a.k.cview(), a.v.cview(), row.mod, options);
    EXPECT_TRUE(out.gaps_untouched());
    expect_close(sums, by_definition, {out.read(), {}});
    if (std::is_same_v<T, long double>) break;  // all instruction sets share one kernel
  }
}

/// Calls `use(inputs, numbers, setting, number)` for sizes just below and above every tile edge, and for long keys that
/// are split.
template <class T>
void each_case(const auto& use) {
  constexpr Index kLengths[] = {0, 1, 2, 4, 5, 15, 17, 33, 47, 49, 63, 65, 97, 130, 2100};
  Random random(3);
  std::size_t number = 0;
  for (Index q_len : kLengths)
    for (Index kv_len : kLengths) {
      if (q_len * kv_len > 20000) continue;
      const Index many = q_len * kv_len > 1500 ? 1 : 3, kv_heads = random.integer(1, std::min<Index>(many, 2));
      const Sizes s{
          random.integer(1, many), kv_heads * random.integer(1, many), kv_heads, q_len, kv_len, random.integer(1, 20),
          random.integer(1, 20)};
      Numbers numbers;
      if (random.chance(0.4)) numbers.q_offset = random.integer(-5, kv_len + 5);
      numbers.sigmoid_bias =
          random.pick(std::vector{0.0, 1.5, -std::log(static_cast<double>(kv_len + 1)), -80.0, 80.0});
      Inputs in(s, random);
      in.round_to<T>();
      use(in, numbers, Setting{s, numbers, random}, ++number);
    }
}
template <class T>
void sweep() {
  each_case<T>([](const Inputs& in, const Numbers& numbers, const Setting& setting, std::size_t number) {
    std::size_t of_case = number;
    each_erased_row(setting, [&](const auto& row) {
      if (of_case++ % 6 == 0)
        expect_right<T>(in, numbers, row, kOutputLayouts[number % 5], kOutputLayouts[of_case % 5]);
    });
  });
}

TEST(Sigmoid, SweepFloat) { sweep<float>(); }
TEST(Sigmoid, SweepDouble) { sweep<double>(); }
TEST(Sigmoid, SweepBfloat16) { sweep<Eigen::bfloat16>(); }
TEST(Sigmoid, SweepLongDouble) {
  const Row<decltype(causal() | softcap(2))> row{
      "causal | softcap",
      causal() | softcap(2),
      {[](const Pair& p) { return p.kv <= p.q; }, [](Real x, const Pair&) { return 2 * std::tanh(x / 2); }}};
  each_case<long double>([&](const Inputs& in, const Numbers& numbers, const Setting&, std::size_t) {
    expect_right<long double>(in, numbers, row, Layout::bhsd, Layout::bhsd);
  });
}

TEST(Sigmoid, WeightsMatchHandComputedOnes) {
  // Scores ln 3, 0 and -ln 3: sigmoids 3/4, 1/2 and 1/4. With a bias of ln 3 they are 9/10, 3/4 and 1/2.
  const MatrixXd q{{1.0}}, k{{std::log(3.0)}, {0.0}, {-std::log(3.0)}}, v{{20.0}, {40.0}, {80.0}};
  const auto expect = [&](double out, const auto& mods, const Options& options) {
    EXPECT_NEAR(naive_attention(q, k, v, mods, options).out(0, 0), out, 1e-13);
    for (Isa isa : instruction_sets()) {
      Options with_isa = options;
      with_isa.isa = isa;
      EXPECT_NEAR(attention(q, k, v, mods, with_isa).out(0, 0), out, 1e-13);
      // The same as a tile of queries.
      EXPECT_NEAR(attention(q.replicate(7, 1).eval(), k, v, mods, with_isa).out(6, 0), out, 1e-13);
    }
  };
  const Options plain{.scale = 1, .normaliser = Normaliser::sigmoid()},
      biased{.scale = 1, .normaliser = Normaliser::sigmoid(std::log(3.0))};
  expect(15 + 20 + 20, full(), plain);
  expect(18 + 30 + 40, full(), biased);
  expect(15 + 20, key_lengths({2}), plain);
  expect(0, key_lengths({0}), plain);
  // Mods apply first: twice the score is ln 9, 0, -ln 9.
  expect(18 + 20 + 8, score_mod([](auto x, const Position&) { return x + x; }), plain);
  expect(1.0 / (1 + 1e3) * 20 + 20 + 80 * 1e3 / (1 + 1e3), score_mod([](auto x, const Position&) {
           return x * static_cast<decltype(x)>(-std::log(1e3) / std::log(3.0));
         }),
         plain);
}

TEST(Sigmoid, LargeScoresSaturate) {
  for (const double far : {200.0, 1e4, 1e300, kInf}) {
    const MatrixXd q{{1.0}}, k{{far}, {-far}}, v{{3.0}, {5.0}};
    const Options options{.scale = 1, .normaliser = Normaliser::sigmoid(1)};
    EXPECT_NEAR(naive_attention(q, k, v, options).out(0, 0), 3, 1e-13);
    for (Index rows : {1, 7})
      EXPECT_NEAR(attention(q.replicate(rows, 1).eval(), k, v, options).out(rows - 1, 0), 3, 1e-13);
  }
}

TEST(Sigmoid, OutputsOverPartsOfTheKeysAreSummed) {
  Random random(1);
  const Sizes s{1, 2, 1, 9, 3000, 8, 5};
  Arguments<double> a(Inputs(s, random));
  const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
  const Options options{.normaliser = Normaliser::sigmoid(-8)};
  const auto whole = attention(q, k, v, options),
             left = attention(q, k.slice(2, 0, 1000), v.slice(2, 0, 1000), options),
             right = attention(q, k.slice(2, 1000, 3000), v.slice(2, 1000, 3000), options);
  for (Index i = 0; i < whole.out.size(); ++i)
    EXPECT_NEAR(whole.out.data()[i], left.out.data()[i] + right.out.data()[i], 1e-13);
}

TEST(Sigmoid, ThreadsChangeNoBit) {
  Random random(2);
  for (Index q_len : {1, 4, 130}) {
    Arguments<float> a(Inputs({1, 4, 2, q_len, 5000, 8, 5}, random));
    const auto call = [&](const Executor& executor) {
      return plain<float>(attention(a.q.cview(), a.k.cview(), a.v.cview(), causal(),
                                    {.executor = executor, .normaliser = Normaliser::sigmoid(-3)})
                              .out);
    };
    const auto one = call(serial());
    for (int count : {2, 3, 8}) EXPECT_TRUE(same_bits(one, call(eager_threads(count))));
  }
}

TEST(Sigmoid, DroppedPoisonDoesNotSpread) {
  Random random(4);
  for (const double what : {kNaN, kInf, -kInf})
    for (Index q_len : {1, 60}) {
      const Inputs clean({1, 2, 1, q_len, 100, 8, 5}, random);
      Inputs bad = clean;
      for (Index j : {0, 7, 50}) {
        std::fill_n(bad.k.begin() + j * 8, 8, what);
        std::fill_n(bad.v.begin() + j * 5, 5, what);
      }
      const auto mods = sliding_window(30) | mask_mod([](const Position& p) { return p.kv != 50; });
      for (Isa isa : instruction_sets()) {
        const auto call = [&](const Inputs& in) {
          Arguments<float> a(in);
          return attention(a.q.cview(), a.k.cview(), a.v.cview(), mods,
                           {.isa = isa, .normaliser = Normaliser::sigmoid(-3)})
              .out;
        };
        const auto want = call(clean), got = call(bad);
        for (Index i = 0; i < want.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 1e-5);
      }
    }
}

TEST(Sigmoid, CachesAndWeightsSupportIt) {
  Random random(5);
  const Sizes s{2, 4, 2, 1, 300, 8, 8};
  Arguments<float> a(Inputs(s, random));
  const auto q = a.q.cview(), k = a.k.cview(), v = a.v.cview();
  const Options options{.normaliser = Normaliser::sigmoid(-5)};
  const auto naive = naive_attention(q, k, v, causal(), options);
  KvCache<float> cache({.batch = 2, .kv_heads = 2, .capacity = 300, .head_dim = 8});
  cache.append(k, v);
  const auto cached = attention(q, cache, causal(), options);
  EXPECT_EQ(cached.lse.size(), 0);
  for (Index i = 0; i < naive.out.size(); ++i) EXPECT_NEAR(cached.out.data()[i], naive.out.data()[i], 1e-5);
  const auto weights = weights_by_tiles(q, k, cached.lse, causal(), options);
  for (Index i = 0; i < weights.size(); ++i) EXPECT_NEAR(weights.data()[i], naive.weights.data()[i], 1e-6);
}

TEST(Sigmoid, RefusesUnsupportedFeatures) {
  const MatrixXf q(3, 4), k(5, 4), v(5, 2);
  MatrixXf out = MatrixXf::Constant(3, 2, kUntouched);
  Eigen::VectorXf lse(3);
  const Options options{.normaliser = Normaliser::sigmoid(2)};
  expect_refused("lse", {"no log-sum-exp"}, [&] { attention_into(out, lse, q, k, v, options); });
  EXPECT_TRUE((out.array() == kUntouched).all());
  expect_refused("sinks", {"head 0", "0.5"}, [&] { attention(q, k, v, sinks({0.5f}), options); });
  expect_refused("bias", {"inf"}, [&] { attention(q, k, v, {.normaliser = Normaliser::sigmoid(kInf)}); });
  expect_refused("bias in float", {"1e+300"}, [&] { attention(q, k, v, {.normaliser = Normaliser::sigmoid(1e300)}); });
  const auto a = attention(q, k, v, options);
  expect_refused("merge", {"(1, 1, 0)"}, [&] { merge(a, a); });
}

}  // namespace
}  // namespace attn::test
