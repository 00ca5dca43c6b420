// Properties that hold for any values. None of these tests needs a reference.
#include "support/mod_table.h"
#include "support/paths.h"

namespace attn::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

Options with(Isa isa) {
  Options options;
  options.isa = isa;
  return options;
}

/// Every path: flash with each instruction set, and naive (nullopt).
std::vector<std::optional<Isa>> paths() {
  std::vector<std::optional<Isa>> all{std::nullopt};
  for (Isa isa : instruction_sets()) all.emplace_back(isa);
  return all;
}

template <class M>
Computed<double> compute(std::optional<Isa> path, Arguments<double>& a, const M& mods) {
  return path ? flash(a, mods, with(*path)) : naive(a, mods);
}

/// Within a few roundings of values of magnitude `size`.
template <class T>
void expect_near(const std::vector<T>& a, const std::vector<T>& b, double size, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  const double allowed = 64 * static_cast<double>(std::numeric_limits<T>::epsilon()) * size;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) {
      ASSERT_NEAR(static_cast<double>(a[i]), static_cast<double>(b[i]), allowed) << what << " " << i;
    }
}

TEST(Properties, SizesOfZero) {
  const auto call = [](const Shape<4>& q, const Shape<4>& k, const Shape<4>& v) {
    const Tensor<float, 4> query(q), key(k), value(v);
    const Shape<4> out{q[0], q[1], q[2], v[3]};
    const Shape<3> lse{q[0], q[1], q[2]};
    const auto flash = attention(query, key, value, causal());
    const auto naive = naive_attention(query, key, value, causal());
    EXPECT_EQ(flash.out.shape(), out);
    EXPECT_EQ(naive.out.shape(), out);
    EXPECT_EQ(flash.lse.shape(), lse);
    EXPECT_EQ(naive.lse.shape(), lse);
    for (Index i = 0; i < flash.lse.size(); ++i) {
      EXPECT_EQ(flash.lse.data()[i], naive.lse.data()[i]);
      EXPECT_TRUE(k[2] > 0 || flash.lse.data()[i] == -kInf);
    }
    for (Index i = 0; i < flash.out.size(); ++i) {
      EXPECT_EQ(flash.out.data()[i], 0);
      EXPECT_EQ(naive.out.data()[i], 0);
    }
  };
  call({2, 2, 3, 4}, {2, 1, 0, 4}, {2, 1, 0, 5});  // no keys
  call({2, 2, 0, 4}, {2, 1, 3, 4}, {2, 1, 3, 5});  // no queries
  call({0, 2, 3, 4}, {0, 1, 3, 4}, {0, 1, 3, 5});  // no batch
  call({2, 2, 3, 4}, {2, 1, 3, 4}, {2, 1, 3, 0});  // no values, but a log-sum-exp
  call({2, 2, 0, 4}, {2, 1, 0, 4}, {2, 1, 0, 0});
}

TEST(Properties, ChunksOfQueriesGiveTheWholeResult) {
  Random random(2);
  const Index q_len = 75, kv_len = 90, dim = 16;
  const Eigen::MatrixXf q = Eigen::Map<Eigen::MatrixXd>(random.values(q_len * dim).data(), q_len, dim).cast<float>();
  const Eigen::MatrixXf k = Eigen::Map<Eigen::MatrixXd>(random.values(kv_len * dim).data(), kv_len, dim).cast<float>();
  const Eigen::MatrixXf v = Eigen::Map<Eigen::MatrixXd>(random.values(kv_len * dim).data(), kv_len, dim).cast<float>();
  const auto mods = causal() | sliding_window(30) | lambda_distance();
  for (const std::optional<Isa> path : paths()) {
    const auto call = [&](const auto& rows, Index offset) {
      const Options options{.q_offset = offset, .executor = serial(), .isa = path};
      if (path) return attention(rows, k, v, mods, options).out;
      return naive_attention(rows, k, v, mods, options).out;
    };
    const Eigen::MatrixXf whole = call(q, kv_len - q_len);
    for (Index chunk : {1, 7, 16, 48}) {
      Eigen::MatrixXf parts(q_len, dim);
      for (Index i = 0; i < q_len; i += chunk) {
        const Index n = std::min(chunk, q_len - i);
        parts.middleRows(i, n) = call(q.middleRows(i, n), kv_len - q_len + i);
        // A decoder that has seen i + n tokens so far gets the same result from the default alignment.
        const Index seen = kv_len - q_len + i + n;
        const Eigen::MatrixXf so_far =
            attention(q.middleRows(i, n), k.topRows(seen), v.topRows(seen), mods, {.isa = path}).out;
        EXPECT_LT((so_far - parts.middleRows(i, n)).cwiseAbs().maxCoeff(), 1e-5f);
      }
      EXPECT_LT((whole - parts).cwiseAbs().maxCoeff(), 1e-5f) << "chunks of " << chunk;
    }
  }
}

TEST(Properties, ChunksOfKeysMergeThroughLse) {
  Random random(3);
  const Sizes s{1, 1, 1, 40, 100, 8, 6};
  const Inputs in(s, random);
  using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Matrix> q(in.q.data(), 40, 8), k(in.k.data(), 100, 8), v(in.v.data(), 100, 6);
  for (Isa isa : instruction_sets()) {
    const auto whole = attention(q, k, v, causal(), with(isa));
    for (Index chunk : {1, 13, 50, 64}) {
      Matrix sum = Matrix::Zero(40, 6);
      Eigen::VectorXd lse = Eigen::VectorXd::Constant(40, -kInf);
      for (Index j = 0; j < 100; j += chunk) {
        const Index n = std::min<Index>(chunk, 100 - j);
        // Key 0 of the chunk is at position j, so the queries shift by -j.
        const auto part =
            attention(q, k.middleRows(j, n), v.middleRows(j, n), causal(), {.q_offset = 60 - j, .isa = isa});
        for (Index i = 0; i < 40; ++i) {
          const double top = std::max(lse(i), part.lse(i));
          if (top == -kInf) continue;
          const double a = std::exp(lse(i) - top), b = std::exp(part.lse(i) - top);
          sum.row(i) = (a * sum.row(i) + b * part.out.row(i)) / (a + b);
          lse(i) = top + std::log(a + b);
        }
      }
      EXPECT_LT((sum - whole.out).cwiseAbs().maxCoeff(), 1e-13) << "chunks of " << chunk;
      EXPECT_LT((lse - whole.lse).cwiseAbs().maxCoeff(), 1e-13) << "chunks of " << chunk;
    }
  }
}

TEST(Properties, OrderOfKeysDoesNotMatter) {
  Random random(4);
  const Index n = 97;
  const Sizes s{1, 1, 1, 20, n, 5, 4};
  const Inputs in(s, random);
  Inputs permuted = in;
  std::vector<Index> order(static_cast<std::size_t>(n));
  for (Index j = 0; j < n; ++j) {
    order[static_cast<std::size_t>(j)] = j;
    std::swap(order[static_cast<std::size_t>(j)], order[static_cast<std::size_t>(random.integer(0, j))]);
  }
  Tensor<bool, 1> kept({n}), kept_permuted({n});
  for (Index j = 0; j < n; ++j) {
    const Index from = order[static_cast<std::size_t>(j)];
    std::copy_n(in.k.begin() + from * 5, 5, permuted.k.begin() + j * 5);
    std::copy_n(in.v.begin() + from * 4, 4, permuted.v.begin() + j * 4);
  }
  for (Index j = 0; j < n; ++j) kept(j) = random.chance(0.7);
  for (Index j = 0; j < n; ++j) kept_permuted(j) = kept(order[static_cast<std::size_t>(j)]);
  Arguments<double> a(in), b(permuted);
  for (const std::optional<Isa> path : paths()) {
    const auto x = compute(path, a, keep(kept)), y = compute(path, b, keep(kept_permuted));
    expect_near(x.out, y.out, 2, "out");
    expect_near(x.lse, y.lse, 8, "lse");
  }
}

TEST(Properties, ConstantShiftOfScoresMovesOnlyLse) {
  Random random(5);
  const Inputs in({1, 2, 1, 37, 70, 9, 7}, random);
  Arguments<double> a(in);
  for (double shift : {-700.0, -3.0, 40.0, 5000.0}) {
    const auto mods = score_mod([shift](auto x, auto) { return x + static_cast<decltype(x)>(shift); }) | causal();
    for (const std::optional<Isa> path : paths()) {
      const auto plain = compute(path, a, causal());
      auto shifted = compute(path, a, mods);
      for (double& x : shifted.lse) x -= shift;
      const double size = 8 + std::abs(shift);
      expect_near(plain.out, shifted.out, 2 * size, "out");
      expect_near(plain.lse, shifted.lse, size, "lse");
    }
  }
}

TEST(Properties, HugeScoresStayFinite) {
  // One key matches each query far better than the others; its value is exactly the output.
  const Index n = 70;
  for (float size : {1e2f, 1e4f, 1e15f, 1e18f})
    for (float sign : {1.f, -1.f}) {
      Eigen::MatrixXf q = Eigen::MatrixXf::Constant(n, 1, size), k(n, 1), v(n, 1);
      for (Index j = 0; j < n; ++j) {
        k(j, 0) = sign * size * (1 + static_cast<float>((j * 37) % n));
        v(j, 0) = static_cast<float>(j);
      }
      Index best = 0;
      k.col(0).maxCoeff(&best);
      const auto check = [&](const auto& r) {
        for (Index i = 0; i < n; ++i) {
          EXPECT_EQ(r.out(i, 0), v(best, 0)) << "scores of " << sign * size * size << " row " << i;
          EXPECT_NEAR(r.lse(i) / (q(i, 0) * k(best, 0)), 1, 1e-6) << "scores of " << sign * size * size;
        }
      };
      for (Isa isa : instruction_sets()) check(attention(q, k, v, full(), with(isa)));
      check(naive_attention(q, k, v));
    }
}

// No case has two to four queries: they are processed one by one, except where keys must be packed, so their results
// would differ by rounding.
TEST(Properties, LayoutsAgreeBitForBit) {
  Random random(6);
  for (const Sizes& s : {Sizes{2, 4, 2, 50, 71, 17, 9}, Sizes{1, 2, 2, 5, 200, 64, 65}, Sizes{2, 1, 1, 1, 33, 1, 1}}) {
    const Inputs in(s, random);
    Arguments<float> packed(in);
    const auto mods = causal() | lambda_distance();
    const auto expected_naive = naive(packed, mods);
    for (Layout q : kOutputLayouts)
      for (Layout kv : kOutputLayouts) {
        Arguments<float> a(in, q, kv, kv);
        for (Isa isa : instruction_sets())
          EXPECT_TRUE(same_bits(flash(packed, mods, with(isa)), flash(a, mods, with(isa), q)))
              << to_string(isa) << " " << int(q) << " " << int(kv) << ", " << s;
        EXPECT_TRUE(same_bits(expected_naive, naive(a, mods))) << int(q) << " " << int(kv) << ", " << s;
      }
  }
}

TEST(Properties, HeadsDoNotDependOnTheirNeighbours) {
  // A head gives the same bits alone as among others: results do not depend on the batch.
  Random random(7);
  const Sizes s{2, 6, 2, 41, 67, 24, 16};
  const Inputs in(s, random);
  Arguments<float> all(in);
  for (Isa isa : instruction_sets()) {
    const Computed<float> whole = flash(all, causal(), with(isa));
    for (Index b = 0; b < s.batch; ++b)
      for (Index h = 0; h < s.heads; ++h) {
        const auto r = attention(all.q.view().matrix(b, h), all.k.view().matrix(b, h / 3),
                                 all.v.view().matrix(b, h / 3), causal(), with(isa));
        for (Index i = 0; i < s.q_len; ++i)
          for (Index e = 0; e < s.v_dim; ++e)
            ASSERT_EQ(r.out(i, e),
                      whole.out[static_cast<std::size_t>(((b * s.heads + h) * s.q_len + i) * s.v_dim + e)]);
      }
  }
}

TEST(Properties, ExplicitDefaultsChangeNothing) {
  Random random(8);
  const Sizes s{2, 2, 1, 9, 40, 4, 6};
  const Inputs in(s, random);
  Arguments<double> a(in);
  EXPECT_TRUE(same_bits(flash(a, causal()), flash(a, causal(), {.scale = 0.5, .q_offset = 31})));
  EXPECT_TRUE(same_bits(naive(a, causal()), naive(a, causal(), {.scale = 0.5, .q_offset = 31})));
  EXPECT_FALSE(same_bits(flash(a, causal()), flash(a, causal(), {.scale = 0.5, .q_offset = 30})));
  EXPECT_FALSE(same_bits(flash(a, causal()), flash(a, causal(), {.scale = 0.51})));
}

TEST(Properties, RepeatedCallsGiveTheSameBits) {
  Random random(9);
  const Inputs in({2, 4, 2, 100, 130, 16, 16}, random);
  Arguments<float> a(in);
  const auto first = flash(a, causal());
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(same_bits(first, flash(a, causal())));
}

TEST(Properties, WeightsSumToOneAndGiveOut) {
  Random random(10);
  const Sizes s{2, 4, 2, 40, 30, 8, 5};  // the first 10 rows keep no key
  const Inputs in(s, random);
  Arguments<double> a(in);
  std::vector<double> weights;
  const auto r = naive(a, causal() | lambda_distance(), {}, &weights);
  for (Index i = 0; i < s.batch * s.heads * s.q_len; ++i) {
    const Index kv_head = i / (s.heads * s.q_len) * s.kv_heads + i / s.q_len % s.heads / 2;
    double sum = 0, out = 0;
    for (Index j = 0; j < s.kv_len; ++j) {
      const double w = weights[static_cast<std::size_t>(i * s.kv_len + j)];
      EXPECT_GE(w, 0);
      sum += w;
      out += w * in.v[static_cast<std::size_t>((kv_head * s.kv_len + j) * s.v_dim + 4)];
    }
    EXPECT_NEAR(sum, r.lse[static_cast<std::size_t>(i)] == -kInf ? 0 : 1, 1e-14);
    EXPECT_NEAR(r.out[static_cast<std::size_t>(i * s.v_dim + 4)], out, 1e-14);
  }
}

}  // namespace
}  // namespace attn::test
