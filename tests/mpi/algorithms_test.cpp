// Decoding over the rows of all ranks, and the parts shared by all algorithms: scatter and gather, matrices, layouts.
#include <algorithm>
#include <cstdlib>
#include <functional>
#include <vector>

#include "ranks.h"
#include "support/erased_rows.h"
#include "support/paths.h"

namespace attn::test {

/// Decoding against the oracle.
template <class T>
void check_every_mod_of_decoding() {
  for_each_ring(31, [&](mpi::Ring& ring, Random& random, Sample& sample) {
    Sizes s{random.integer(1, 2), 1, random.integer(1, 3), random.integer(0, 40), 0, random.integer(1, 9),
            random.integer(1, 9)};
    s.kv_len = random.chance(0.5) ? s.q_len : random.integer(0, 50);
    s.heads = s.kv_heads * random.integer(1, 2);
    Inputs inputs(s, random);
    inputs.template round_to<T>();
    Arguments<T> a(inputs);
    const Numbers numbers;
    each_erased_row({s, numbers, random}, [&](const auto& row) {
      if (!sample.takes_next()) return;
      SCOPED_TRACE(row.name);
      const auto k = ring.scatter(a.k.cview()), v = ring.scatter(a.v.cview());
      const auto decoded = ring.decode(a.q.cview(), k, v, row.mod);
      // The results are the same bits on all ranks.
      const Tensor<T, 4> of_root = ring.gather(ring.scatter(decoded.out, 0));
      EXPECT_TRUE(same_bits(plain(of_root), plain(decoded.out)));
      if (ring.rank() != 0 || ::testing::Test::HasFailure()) return;
      const Truth truth = oracle(inputs, row.meaning, numbers);
      expect_close(truth, naive(a, row.mod), Computed<T>{plain(decoded.out), plain(decoded.lse)});
    });
  });
}

TEST(Algorithms, EveryMod) { check_every_mod_of_decoding<float>(); }
TEST(Algorithms, EveryModHalf) { check_every_mod_of_decoding<Eigen::half>(); }

TEST(Algorithms, DecodeWithSigmoids) {
  for_each_ring(32, [&](mpi::Ring& ring, Random&, Sample&) {
    const auto q = drawn<float>({2, 4, 3, 8}, 1), k = drawn<float>({2, 2, 33, 8}, 2),
               v = drawn<float>({2, 2, 33, 5}, 3);
    const Options options{.normaliser = Normaliser::sigmoid(-1)};
    const auto whole = attn::attention(q, k, v, attn::causal(), options);
    const auto r = ring.decode(q, ring.scatter(k), ring.scatter(v), attn::causal(), options);
    EXPECT_EQ(r.lse.size(), 0);
    for (Index i = 0; i < whole.out.size(); ++i) EXPECT_NEAR(r.out.data()[i], whole.out.data()[i], 1e-5);
  });
}

/// A sink counts once for any number of ranks, and mods see the heads' indices in the whole call.
TEST(Algorithms, SinksAndHeads) {
  for_each_ring(33, [&](mpi::Ring& ring, Random&, Sample&) {
    const auto q = drawn<float>({1, 8, 30, 6}, 1), k = drawn<float>({1, 4, 30, 6}, 2),
               v = drawn<float>({1, 4, 30, 5}, 3);
    const auto mods = attn::sinks({0, 1, 2, 3, 4, 5, 6, 7}) | attn::causal() |
                      attn::score_mod([](auto x, auto p) { return x + 0.25f * float(p.head); });
    const auto whole = attn::attention(q, k, v, mods);
    const auto own_k = ring.scatter(k), own_v = ring.scatter(v);
    const auto decoded = ring.decode(q, own_k, own_v, mods);
    const auto by_heads = ring.gather(ring.attention_by_heads(ring.scatter(q), own_k, own_v, mods).out);
    for (Index i = 0; i < whole.out.size(); ++i) {
      ASSERT_NEAR(decoded.out.data()[i], whole.out.data()[i], 1e-5);
      ASSERT_NEAR(by_heads.data()[i], whole.out.data()[i], 1e-5);
    }
    for (Index i = 0; i < whole.lse.size(); ++i) ASSERT_NEAR(decoded.lse.data()[i], whole.lse.data()[i], 1e-5);
  });
}

/// Keys that do not begin at position 0 (Options::kv_offset), against a single call.
TEST(Algorithms, KeysWithAnOffset) {
  for_each_ring(34, [&](mpi::Ring& ring, Random&, Sample&) {
    const auto q = drawn<float>({2, 7, 26, 6}, 1), k = drawn<float>({2, 7, 31, 6}, 2),
               v = drawn<float>({2, 7, 31, 5}, 3), grad = drawn<float>({2, 7, 26, 5}, 4);
    const auto mods = attn::causal() | attn::sliding_window(14) |
                      attn::score_mod([](auto x, auto p) { return x + 0.3f * float((3 * p.kv + p.q) % 5); });
    const Options options{.q_offset = 1010, .kv_offset = 1003};
    const auto whole = attn::attention(q, k, v, mods, options);
    const auto gradients = attn::attention_backward(grad, q, k, v, whole, mods, options);
    const auto expect_same = [](const auto& got, const auto& want, const char* what) {
      ASSERT_EQ(got.shape(), want.shape());
      for (Index i = 0; i < want.size(); ++i) {
        if (got.data()[i] == want.data()[i]) continue;  // also equal if -inf
        ASSERT_NEAR(got.data()[i], want.data()[i], 1e-4) << what << ' ' << i;
      }
    };
    const auto own_q = ring.scatter(q), own_k = ring.scatter(k), own_v = ring.scatter(v), own_grad = ring.scatter(grad);
    const auto check = [&](const auto& r, const auto& g, const char* what) {
      SCOPED_TRACE(what);
      expect_same(ring.gather(r.out), whole.out, "out");
      expect_same(ring.gather(r.lse), whole.lse, "lse");
      expect_same(ring.gather(g.query), gradients.query, "query");
      expect_same(ring.gather(g.key), gradients.key, "key");
      expect_same(ring.gather(g.value), gradients.value, "value");
    };
    const auto r = ring.attention(own_q, own_k, own_v, mods, options);
    check(r, ring.attention_backward(own_grad, own_q, own_k, own_v, r, mods, options), "ring");
    const auto by_heads = ring.attention_by_heads(own_q, own_k, own_v, mods, options);
    check(by_heads, ring.attention_by_heads_backward(own_grad, own_q, own_k, own_v, by_heads, mods, options),
          "by heads");
    const auto decoded = ring.decode(q, own_k, own_v, mods, options);
    expect_same(decoded.out, whole.out, "decoded");
    expect_same(decoded.lse, whole.lse, "decoded lse");
  });
}

TEST(Algorithms, TakesMatrices) {
  for_each_ring(32, [&](mpi::Ring& ring, Random&, Sample&) {
    std::srand(5);  // seeds Random(), the same on all ranks
    Eigen::MatrixXf q = Eigen::MatrixXf::Random(37, 6), k = Eigen::MatrixXf::Random(37, 6),
                    v = Eigen::MatrixXf::Random(37, 4);
    std::vector<Index> rows;
    for (Index i = 0; i < ring.rows(37); ++i) rows.push_back(ring.token(37, i));
    const Eigen::MatrixXf own_q = q(rows, Eigen::all), own_k = k(rows, Eigen::all), own_v = v(rows, Eigen::all);
    const auto whole = attn::attention(q, k, v, attn::causal());
    const auto r = ring.attention(own_q, own_k, own_v, attn::causal());
    static_assert(std::is_same_v<decltype(r.out), decltype(whole.out)>);
    EXPECT_LE((r.out - whole.out(rows, Eigen::all)).cwiseAbs().sum(), 1e-4f);
    const auto g = ring.attention_backward(own_v, own_q, own_k, own_v, r, attn::causal());
    const auto g_whole = attn::attention_backward(v, q, k, v, whole, attn::causal());
    EXPECT_LE((g.query - g_whole.query(rows, Eigen::all)).cwiseAbs().sum(), 1e-4f);
    EXPECT_LE((g.key - g_whole.key(rows, Eigen::all)).cwiseAbs().sum(), 1e-4f);
    const Tensor<float, 2> gathered = ring.gather(r.out);
    EXPECT_EQ(gathered.shape(), (Shape<2>{37, 4}));
  });
}

/// Scattered and gathered by all ranks and by a root, with strides and gaps.
TEST(Algorithms, ScatterAndGather) {
  for_each_ring(32, [&](mpi::Ring& ring, Random&, Sample&) {
    for (const Index len : {0, 1, 6, 23}) {
      const auto memory = drawn<double>({2, len, 3, 5}, 7);
      const auto t = memory.view().transpose(1, 2);  // (batch, heads, len, dim)
      const auto own = ring.scatter(t);
      ASSERT_EQ(own.dim(2), ring.rows(len));
      for (Index i = 0; i < own.dim(2); ++i)
        for (Index h = 0; h < 3; ++h) EXPECT_EQ(own(1, h, i, 4), t(1, h, ring.token(len, i), 4));
      const int root = ring.ranks() - 1;
      const Tensor<double, 4> nothing;
      const auto from_root = ring.rank() == root ? ring.scatter(t, root) : ring.scatter(nothing.view(), root);
      EXPECT_TRUE(same_bits(plain(from_root), plain(own)));
      EXPECT_TRUE(same_bits(plain(ring.gather(own)), plain(Tensor<double, 4>(t))));
      const auto at_root = ring.gather(own, root);
      EXPECT_TRUE(ring.rank() == root ? same_bits(plain(at_root), plain(Tensor<double, 4>(t))) : at_root.size() == 0);
    }
  });
}

/// The tokens of a rank, in the order of its rows.
std::vector<Index> tokens_of(const mpi::Ring& ring, Index len) {
  std::vector<Index> tokens;
  for (Index i = 0; i < ring.rows(len); ++i) tokens.push_back(ring.token(len, i));
  return tokens;
}

/// Each token is on one rank, and the tokens of a rank ascend.
TEST(Algorithms, Layouts) {
  for (const int count : kRanks) {
    const FirstRanks ranks(count);
    if (!ranks.takes_part()) continue;
    for (const mpi::Layout layout : kRankLayouts)
      for (const Index len : {0, 1, 2, 3, 12, 13, 29}) {
        const std::vector<Index> own = tokens_of(mpi::Ring(ranks.get(), layout), len);
        EXPECT_TRUE(std::adjacent_find(own.begin(), own.end(), std::greater_equal<>()) == own.end());
        std::vector<int> holders(static_cast<std::size_t>(len));
        for (const Index token : own) ++holders.at(static_cast<std::size_t>(token));
        int most = static_cast<int>(own.size()), least = most;
        MPI_Allreduce(MPI_IN_PLACE, holders.data(), static_cast<int>(len), MPI_INT, MPI_SUM, ranks.get());
        MPI_Allreduce(MPI_IN_PLACE, &most, 1, MPI_INT, MPI_MAX, ranks.get());
        MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, ranks.get());
        EXPECT_EQ(std::count(holders.begin(), holders.end(), 1), len);
        EXPECT_LE(most - least, layout == mpi::Layout::zigzag ? 2 : 1) << name_of(layout) << ' ' << len;
      }
  }
  const auto expect_tokens = [](mpi::Layout layout, Index len, int rank, const std::vector<Index>& want) {
    on_ranks(4, layout, [&](mpi::Ring& ring) {
      if (ring.rank() != rank) return;
      EXPECT_EQ(tokens_of(ring, len), want) << name_of(layout);
    });
  };
  expect_tokens(mpi::Layout::zigzag, 16, 1, {2, 3, 12, 13});
  expect_tokens(mpi::Layout::striped, 10, 2, {2, 6});
  expect_tokens(mpi::Layout::contiguous, 10, 1, {2, 3, 4});
}

}  // namespace attn::test
