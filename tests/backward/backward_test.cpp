// Backward cases beyond the sweep: results by hand, argument types, memory, threads, NaN and infinities, errors.
#include <numbers>

#include "attn/attn.h"
#include "support/allocations.h"
#include "support/executors.h"
#include "support/gradient_oracle.h"
#include "support/paths.h"
#include "support/refused.h"

namespace attn::test {
namespace {

template <class T>
struct Call {
  Tensor<T, 4> q, k, v, grad_out;

  explicit Call(const Sizes& s, int seed = 5) {
    Random random(static_cast<unsigned>(seed));
    q = drawn<T>({s.batch, s.heads, s.q_len, s.head_dim}, random, 1);
    k = drawn<T>({s.batch, s.kv_heads, s.kv_len, s.head_dim}, random, 1);
    v = drawn<T>({s.batch, s.kv_heads, s.kv_len, s.v_dim}, random, 1);
    grad_out = drawn<T>({s.batch, s.heads, s.q_len, s.v_dim}, random, 1);
  }

  template <class M = Mods<>>
  auto gradients(const M& mods = {}, const Options& options = {}) const {
    return attention_backward(grad_out, q, k, v, attention(q, k, v, mods, options), mods, options);
  }
};

template <class A, class B>
bool same_gradients(const A& a, const B& b) {
  return same_bits(a.query, b.query) && same_bits(a.key, b.key) && same_bits(a.value, b.value);
}

// The gradient of a query is summed over up to eight parts of the keys, each a separate task. The masks keep keys at
// the beginning, in the middle or at the end.
TEST(Backward, EveryPartOfTheKeysReachesTheQueries) {
  for (const Index kv_len : {300, 512, 700, 1030, 1600, 2048, 2500}) {
    const Call<float> c({1, 2, 1, 20, kv_len, 8, 5});
    for (const Index part : {Index(0), kv_len / 2, kv_len - 10}) {
      SCOPED_TRACE(::testing::Message() << kv_len << " keys, from " << part << " on");
      const auto mods = mask_mod([part](auto p) { return p.kv >= part && p.kv < part + 10; });
      const auto expected = naive_attention_backward(c.grad_out, c.q, c.k, c.v, mods);
      for (const Isa isa : instruction_sets()) {
        const auto got = c.gradients(mods, {.isa = isa});
        for (Index i = 0; i < got.query.size(); ++i)
          ASSERT_NEAR(got.query.data()[i], expected.query.data()[i], 1e-6) << to_string(isa) << ' ' << i;
      }
    }
  }
}

// The loss is one row's log-sum-exp: the gradient of that query is the weighted mean of the keys, and all others are 0.
template <class T>
void lse_of_one_row() {
  for (const Index q_len : {1, 7, 16, 24, 33, 48, 97}) {
    const Call<T> c({1, 1, 1, q_len, 40, 8, 5});
    const Tensor<T, 4> none(c.grad_out.shape());
    const auto weights = naive_attention(c.q, c.k, c.v).weights;
    for (const Isa isa : sets_for<T>()) {
      const Options options{.scale = 1 / std::sqrt(8.0), .isa = isa};
      const auto r = attention(c.q, c.k, c.v, options);
      for (Index row = 0; row < q_len; ++row) {
        Tensor<Wide<T>, 3> grad_lse({1, 1, q_len});
        grad_lse(0, 0, row) = 1;
        const auto g = attention_backward(Result{none.view(), grad_lse.view()}, c.q, c.k, c.v, r, options);
        for (Index i = 0; i < q_len; ++i)
          for (Index d = 0; d < 8; ++d) {
            double expected = 0;
            for (Index j = 0; i == row && j < 40; ++j)
              expected += *options.scale * static_cast<double>(static_cast<Wide<T>>(weights(0, 0, i, j))) *
                          static_cast<double>(static_cast<Wide<T>>(c.k(0, 0, j, d)));
            ASSERT_NEAR(static_cast<double>(static_cast<Wide<T>>(g.query(0, 0, i, d))), expected,
                        2 * static_cast<double>(epsilon<T>()))
                << to_string(isa) << ", row " << row << " of " << q_len << ", query " << i;
          }
      }
    }
  }
}
TEST(Backward, LogSumExpOfOneRow) {
  lse_of_one_row<float>();
  lse_of_one_row<double>();
  lse_of_one_row<Eigen::bfloat16>();
}

TEST(Backward, TwoKeysByHand) {
  // Scores 0 and ln 3 give weights 1/4 and 3/4; values 1 and 5 give out 4. With grad_out 2: dP = (2, 10), delta = 8,
  // and the gradients of the scores are 1/4 * (2 - 8) = -1.5 and 3/4 * (10 - 8) = 1.5.
  const double ln3 = std::log(3.0);
  Eigen::MatrixXd q(1, 1), k(2, 1), v(2, 1), grad_out(1, 1);
  q << 2, k << 0, ln3, v << 1, 5, grad_out << 2;
  const Options options{.scale = 0.5};
  const auto expect = [&](const auto& g) {
    EXPECT_NEAR(g.query(0, 0), 0.5 * 1.5 * ln3, 1e-14);
    EXPECT_NEAR(g.key(0, 0), 0.5 * -1.5 * 2, 1e-14);
    EXPECT_NEAR(g.key(1, 0), 0.5 * 1.5 * 2, 1e-14);
    EXPECT_NEAR(g.value(0, 0), 0.25 * 2, 1e-14);
    EXPECT_NEAR(g.value(1, 0), 0.75 * 2, 1e-14);
  };
  const auto r = attention(q, k, v, options);
  expect(attention_backward(grad_out, q, k, v, r, options));
  expect(naive_attention_backward(grad_out, q, k, v, options));

  // lse is ln 4 here; its gradient g adds g times the weights to the gradients of the scores.
  Eigen::VectorXd grad_lse(1);
  grad_lse << 4;
  const Eigen::MatrixXd none = Eigen::MatrixXd::Zero(1, 1);
  const auto with_lse = attention_backward(Result{none, grad_lse}, q, k, v, r, options);
  EXPECT_NEAR(with_lse.query(0, 0), 0.5 * 4 * 0.75 * ln3, 1e-14);
  EXPECT_NEAR(with_lse.key(0, 0), 0.5 * 4 * 0.25 * 2, 1e-14);
  EXPECT_EQ(with_lse.value(1, 0), 0);
}

TEST(Backward, MatricesKeepTheirStorageOrder) {
  using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const RowMajor q = RowMajor::Random(5, 3);
  const Eigen::MatrixXf k = Eigen::MatrixXf::Random(7, 3), v = Eigen::MatrixXf::Random(7, 2),
                        grad_out = Eigen::MatrixXf::Random(5, 2);
  const auto r = attention(q, k, v, causal());
  const auto g = attention_backward(grad_out, q, k, v, r, causal());
  static_assert(std::is_same_v<decltype(g.query), RowMajor>);
  static_assert(std::is_same_v<decltype(g.key), Eigen::MatrixXf>);
  const auto naive = naive_attention_backward(2 * grad_out / 2, q, k, v, causal());
  EXPECT_TRUE(g.query.isApprox(naive.query, 1e-5f) && g.key.isApprox(naive.key, 1e-5f) &&
              g.value.isApprox(naive.value, 1e-5f));
}

TEST(Backward, GradientsOfSharedKeysAreSummedOverHeads) {
  const Call<double> all({1, 4, 2, 70, 90, 8, 8});
  const auto g = all.gradients(causal());
  Tensor<double, 4> k({1, 4, 90, 8}), v({1, 4, 90, 8});  // a copy for each head
  for (Index h = 0; h < 4; ++h)
    for (Index i = 0; i < 90 * 8; ++i)
      k.data()[h * 720 + i] = all.k.data()[h / 2 * 720 + i], v.data()[h * 720 + i] = all.v.data()[h / 2 * 720 + i];
  const auto apart = attention_backward(all.grad_out, all.q, k, v, attention(all.q, k, v, causal()), causal());
  for (Index h = 0; h < 2; ++h)
    for (Index i = 0; i < 720; ++i) {
      EXPECT_NEAR(g.key.data()[h * 720 + i],
                  apart.key.data()[2 * h * 720 + i] + apart.key.data()[(2 * h + 1) * 720 + i], 1e-13);
      EXPECT_NEAR(g.value.data()[h * 720 + i],
                  apart.value.data()[2 * h * 720 + i] + apart.value.data()[(2 * h + 1) * 720 + i], 1e-13);
    }
}

TEST(Backward, ThreadsAndBatchDoNotChangeResults) {
  for (const Sizes& s :
       {Sizes{3, 4, 2, 130, 300, 16, 24}, Sizes{2, 2, 1, 700, 1100, 8, 8}, Sizes{5, 6, 3, 20, 30, 4, 4}}) {
    const Call<float> call(s);
    const auto mods = sliding_window(200, 50) | softcap(3);
    const auto one = call.gradients(mods, {.executor = serial()});
    for (int workers : {2, 3, 7})
      EXPECT_TRUE(same_gradients(one, call.gradients(mods, {.executor = eager_threads(workers)})));
    for (Index b = 0; b < s.batch; ++b) {
      Call<float> part = call;
      const auto cut = [b](const auto& t) { return Tensor<float, 4>(t.view().slice(0, b, b + 1)); };
      part.q = cut(call.q), part.k = cut(call.k), part.v = cut(call.v), part.grad_out = cut(call.grad_out);
      const auto g = part.gradients(mods, {.executor = eager_threads(2)});
      EXPECT_TRUE(same_bits(g.query, cut(one.query)) && same_bits(g.key, cut(one.key)) &&
                  same_bits(g.value, cut(one.value)));
    }
  }
}

/// NaN and inf in keys and values that all queries drop, in queries that keep no key, and in their grad_out.
TEST(Backward, MaskedNaNReachesNoGradient) {
  constexpr float kNaN = std::numeric_limits<float>::quiet_NaN(), kInf = std::numeric_limits<float>::infinity();
  const Sizes s{1, 2, 1, 100, 150, 17, 9};
  const Call<float> clean(s);
  const auto test = [&](const auto& mods, const char* what) {
    SCOPED_TRACE(what);
    const auto expected = clean.gradients(mods, {.executor = serial()});
    for (float poison : {kNaN, kInf, -kInf})
      for (Isa isa : instruction_sets()) {
        Call<float> c = clean;
        for (Index j : {0, 70, 71, 149})  // keys that no query keeps
          for (Index d = 0; d < 17; ++d) c.k(0, 0, j, d) = poison;
        for (Index j : {0, 70, 71, 149})
          for (Index d = 0; d < 9; ++d) c.v(0, 0, j, d) = poison;
        for (Index h = 0; h < 2; ++h)
          for (Index i : {3, 50, 99}) {  // queries that keep no key
            for (Index d = 0; d < 17; ++d) c.q(0, h, i, d) = poison;
            for (Index d = 0; d < 9; ++d) c.grad_out(0, h, i, d) = poison;
          }
        const Options options{.executor = serial(), .isa = isa};
        const auto expect = [&](const auto& g, const char* path) {
          const auto near = [&](const auto& a, const auto& b, const char* name) {
            for (Index i = 0; i < a.size(); ++i)
              ASSERT_NEAR(a.data()[i], b.data()[i], 1e-4) << path << " " << name << " " << i << " " << to_string(isa);
          };
          near(g.query, expected.query, "query");
          near(g.key, expected.key, "key");
          near(g.value, expected.value, "value");
        };
        expect(c.gradients(mods, options), "flash");
        expect(naive_attention_backward(c.grad_out, c.q, c.k, c.v, mods, options), "naive");
      }
  };
  const auto keeps = [](const auto& p) {
    const Index row = p.q - 50;
    return p.kv != 0 && p.kv != 70 && p.kv != 71 && p.kv != 149 && row != 3 && row != 50 && row != 99;
  };
  test(mask_mod(keeps), "mask");
  test(score_mod([keeps](auto x, const auto& p) {
         return keeps(p) ? x : decltype(x)(-std::numeric_limits<float>::infinity());
       }),
       "score");
}

TEST(Backward, RowsWithoutKeysHaveZeroGradient) {
  const Call<float> c({1, 1, 1, 60, 20, 4, 4});
  const auto g = c.gradients(causal());  // the first 40 queries precede all keys
  for (Index i = 0; i < 40; ++i)
    for (Index d = 0; d < 4; ++d) EXPECT_EQ(g.query(0, 0, i, d), 0);
  EXPECT_NE(g.query(0, 0, 59, 0), 0);
  const Call<float> none({1, 1, 1, 5, 0, 4, 4}), no_queries({1, 1, 1, 0, 5, 4, 3});
  for (const Executor& executor : {serial(), eager_threads(2)}) {
    const auto of_none = none.gradients(causal(), {.executor = executor});
    for (Index i = 0; i < 20; ++i) EXPECT_EQ(of_none.query.data()[i], 0);
    const auto of_no_queries = no_queries.gradients(causal(), {.executor = executor});
    for (Index i = 0; i < 20; ++i) EXPECT_EQ(of_no_queries.key.data()[i], 0);
    for (Index i = 0; i < 15; ++i) EXPECT_EQ(of_no_queries.value.data()[i], 0);
  }
}

TEST(Backward, MemoryIsLinearAndTheWorkspaceExact) {
  const auto allocated = [](Index n, Index dim, const Executor& executor) {
    const Call<float> c({1, 1, 1, n, n, dim, dim});
    const Options options{.executor = executor};
    const auto r = attention(c.q, c.k, c.v, options);
    auto gq = c.q, gk = c.k, gv = c.v;
    const auto run = [&](const Options& o) {
      attention_backward_into(gq, gk, gv, c.grad_out, c.q, c.k, c.v, r.out, r.lse, o);
    };
    run(options);
    const std::ptrdiff_t peak = allocations_of([&] { run(options); }).peak;
    std::vector<std::byte> memory(backward_workspace_bytes(c.q, c.k, c.v, options));
    EXPECT_LE(std::abs(static_cast<std::ptrdiff_t>(memory.size()) - peak), 256);
    Options own = options;
    own.workspace = memory;
    EXPECT_EQ(allocations_of([&] { run(own); }).peak, 0);
    own.workspace = std::span(memory).first(memory.size() - 1);
    expect_refused("a byte too little", {std::to_string(memory.size() - 1), std::to_string(memory.size())},
                   [&] { run(own); });
    return peak;
  };
  for (const Executor& executor : {serial(), eager_threads(2)}) {
    const std::ptrdiff_t of_2048 = allocated(2048, 8, executor), of_4096 = allocated(4096, 8, executor);
    EXPECT_LT(of_4096, 2.1 * static_cast<double>(of_2048));
  }
  const Tensor<float, 4> x({1, 1, 8192, 64});
  EXPECT_LT(backward_workspace_bytes(x, x, x, {.executor = serial()}), std::size_t(8 * 3 * 8192 * 64 * sizeof(float)));
}

// The backward pass of few queries computes the sums of their weights itself; a sink is part of them.
TEST(Backward, SinksOfSingleQueries) {
  const Call<double> c({1, 4, 2, 1, 90, 8, 5});
  const auto mods = sinks({1, -1, 0, 2});
  const auto expected = naive_attention_backward(c.grad_out, c.q, c.k, c.v, mods);
  for (const Isa isa : instruction_sets()) {
    const auto got = c.gradients(mods, {.isa = isa});
    for (Index i = 0; i < got.key.size(); ++i) ASSERT_NEAR(got.key.data()[i], expected.key.data()[i], 1e-12);
  }
}

TEST(Backward, RefusesWrongShapes) {
  const Call<float> c({2, 4, 2, 5, 7, 3, 6});
  const auto r = attention(c.q, c.k, c.v);
  const Tensor<float, 4> wrong({2, 4, 5, 3});
  expect_refused("grad_out", {"grad_out", "(2, 4, 5, 3)", "(2, 4, 5, 6)"},
                 [&] { attention_backward(wrong, c.q, c.k, c.v, r); });
  expect_refused("grad_lse", {"grad_lse", "(2, 4, 6)", "(2, 4, 5)"}, [&] {
    attention_backward(Result{c.grad_out, Tensor<float, 3>({2, 4, 6})}, c.q, c.k, c.v, r);
  });
  expect_refused("out", {"out has shape", "(2, 4, 5, 3)"}, [&] {
    attention_backward(c.grad_out, c.q, c.k, c.v, Result{wrong, r.lse});
  });
  expect_refused("lse", {"lse has shape", "(2, 4, 4)"}, [&] {
    attention_backward(c.grad_out, c.q, c.k, c.v, Result{r.out, Tensor<float, 3>({2, 4, 4})});
  });
  auto gq = c.q, gk = c.k, gv = c.v;
  expect_refused("grad_value", {"grad_value", "(2, 2, 7, 3)", "(2, 2, 7, 6)"},
                 [&] { attention_backward_into(gq, gk, gk, c.grad_out, c.q, c.k, c.v, r.out, r.lse); });
  expect_refused("head_dim", {"head_dim", "3", "6"}, [&] { attention_backward(c.grad_out, c.q, c.v, c.v, r); });
}

}  // namespace
}  // namespace attn::test
