// The named mods without type erasure, as in users' code: compiled into the loops of every instruction set, at sizes
// that cross tiles. The sweeps test the meaning of each mod.
#include <typeinfo>

#include "support/drawing.h"
#include "support/paths.h"

namespace attn::test {
namespace {

template <class T>
class Masks : public ::testing::Test {
 protected:
  static constexpr Index kTokens = 150, kHeads = 2;

  template <class M>
  void expect_same_on_both_paths(const char* name, const M& mods, Index q_len = kTokens) {
    SCOPED_TRACE(name);
    Random random(1);
    Arguments<T> a(Inputs({1, kHeads, 1, q_len, kTokens, 24, 16}, random));
    const Computed<T> expected = naive(a, mods);
    for (Isa isa : instruction_sets()) {
      SCOPED_TRACE(to_string(isa));
      const Computed<T> got = flash(a, mods, {.isa = isa});
      const T bound = 100 * std::numeric_limits<T>::epsilon();
      for (std::size_t i = 0; i < expected.out.size(); ++i) ASSERT_NEAR(got.out[i], expected.out[i], bound);
      for (std::size_t i = 0; i < expected.lse.size(); ++i) {
        if (expected.lse[i] == got.lse[i]) continue;  // also equal if -inf
        ASSERT_NEAR(got.lse[i], expected.lse[i], bound);
      }
    }
  }
};

using Scalars = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Masks, Scalars);

TYPED_TEST(Masks, OfLengths) {
  this->expect_same_on_both_paths("prefix_lm", prefix_lm({70}));
  this->expect_same_on_both_paths("query_lengths", query_lengths({101}));
  this->expect_same_on_both_paths("documents", documents_at({0, 20, 64, 130, 150}) | causal());
}

TYPED_TEST(Masks, Sparse) {
  this->expect_same_on_both_paths("strided", strided_sparse(12));
  this->expect_same_on_both_paths("fixed", fixed_sparse(20, 3));
  this->expect_same_on_both_paths("dilated", dilated(10, 3, 2));
  Tensor<bool, 2> map({3, 3});
  map(0, 0) = map(1, 1) = map(2, 0) = map(2, 2) = true;
  this->expect_same_on_both_paths("block_sparse", block_sparse(map, 64, 64));
  this->expect_same_on_both_paths("block_sparse, other blocks", block_sparse(map, 50, 70));
}

TYPED_TEST(Masks, OnGrids) {
  this->expect_same_on_both_paths("neighbourhood of a row", neighbourhood({150}, {9}, {4}));
  this->expect_same_on_both_paths("neighbourhood", neighbourhood({15, 10}, {5, 3}));
  this->expect_same_on_both_paths("with a hole", neighbourhood({10, 15}, {3, 3}, {3, 5}) | causal());
  this->expect_same_on_both_paths("of a video", neighbourhood({5, 6, 5}, {2, 3, 3}, {}, {1, 0, 0}) | softcap(2));
  this->expect_same_on_both_paths("of a part", neighbourhood({15, 10}, {5, 3}), 70);
  this->expect_same_on_both_paths("images", bidirectional_spans({{3, 40}, {60, 61}, {100, 130}}));
}

TYPED_TEST(Masks, OfSelectedKeys) {
  Tensor<int, 2> each({this->kTokens, 20}), few({1, 40});
  for (int i = 0; i < each.size(); ++i) each.data()[i] = i * 37 % 151 - 1;
  for (int i = 0; i < few.size(); ++i) few.data()[i] = i * 3;
  this->expect_same_on_both_paths("select", select(each));
  this->expect_same_on_both_paths("the same for all", select(few) | alibi({0.5, 0.25}));
  this->expect_same_on_both_paths("masked", select(each) | causal() | key_lengths({140}));
  Tensor<float, 4> q({1, this->kHeads, this->kTokens, 4}), k({1, 1, this->kTokens, 4});
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<float>(i * 7 % 11) - 5;
  for (Index i = 0; i < k.size(); ++i) k.data()[i] = static_cast<float>(i * 5 % 13) - 6;
  this->expect_same_on_both_paths("blocks", top_k_blocks(q, k, {.count = 2, .block_q = 10, .block_kv = 16}) | causal());
}

/// Heads that share a key head select blocks by the sum of their scores, which is the score of the sum of their
/// queries.
TEST(TopKBlocks, HeadsThatShareAKeyHeadSelectByTheSumOfTheirQueries) {
  const Index group = 4, q_len = 12, kv_len = 96;
  Random random(9);
  const auto q = drawn<float>({1, 2 * group, q_len, 5}, random, 1), k = drawn<float>({1, 2, kv_len, 5}, random, 1);
  const TopKBlocks blocks{.count = 2, .block_kv = 8, .causal = false};
  TopKBlocks together = blocks;
  together.heads_together = true;
  const auto all = attention(q, k, k, top_k_blocks(q, k, together)).out;
  for (Index h = 0; h < 2 * group; ++h) {
    Tensor<float, 4> sum({1, 1, q_len, 5});
    for (Index g = h / group * group; g < (h / group + 1) * group; ++g)
      for (Index i = 0; i < q_len * 5; ++i) sum.data()[i] += q.data()[g * q_len * 5 + i];
    const auto own_q = q.view().slice(1, h, h + 1), own_k = k.view().slice(1, h / group, h / group + 1);
    const auto own = attention(own_q, own_k, own_k, top_k_blocks(sum, own_k, blocks)).out;
    for (Index i = 0; i < q_len; ++i)
      for (Index e = 0; e < 5; ++e) ASSERT_NEAR(all(0, h, i, e), own(0, 0, i, e), 1e-6f) << "head " << h;
  }
}

TEST(TopKBlocks, NaNPropagatesAndTiesKeepTheEarlierBlock) {
  using Matrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Matrix q = Matrix::Ones(3, 4);
  Matrix k = Matrix::Ones(32, 4), v(32, 1);
  for (Index j = 0; j < 32; ++j) v(j, 0) = static_cast<float>(j / 8);
  const TopKBlocks one{.count = 1, .block_kv = 8, .causal = false}, two{.count = 2, .block_kv = 8, .causal = false};
  EXPECT_EQ(attention(q, k, v, top_k_blocks(q, k, one)).out, Matrix::Zero(3, 1));
  EXPECT_EQ(attention(q, k, v, top_k_blocks(q, k, two)).out, Matrix::Constant(3, 1, 0.5f));
  k.middleRows(16, 8).setConstant(2);
  for (const Index j : {0, 9, 18, 27}) {
    Matrix poisoned = k;
    poisoned(j, 2) = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(attention(q, poisoned, v, top_k_blocks(q, poisoned, one)).out.array().isNaN().all()) << j;
  }
}

TYPED_TEST(Masks, CombinationsOfMasks) {
  this->expect_same_on_both_paths("window or global", any_of(sliding_window(9, 9), global_tokens({0, 77})));
  this->expect_same_on_both_paths(
      "three", any_of(all_of(causal(), not_(sliding_window(30))), sliding_window(3), key_lengths({5})));
  this->expect_same_on_both_paths("with a score", softcap(2) | not_(causal()) | temperature({0.5, 2}));
}

// Lambdas that give the same answer at all corners of some tiles, but another one inside.
TYPED_TEST(Masks, OpaqueWithHoles) {
  this->expect_same_on_both_paths("one pair dropped", mask_mod([](auto p) { return p.q != 70 || p.kv != 81; }));
  this->expect_same_on_both_paths("few pairs kept", mask_mod([](auto p) { return p.q % 50 == 20 && p.kv % 64 == 30; }));
  this->expect_same_on_both_paths("in the last row", mask_mod([](auto p) { return p.q != 149 || p.kv != 77; }));
}

TYPED_TEST(Masks, Tree) {
  std::vector<Index> parents;
  for (Index i = 0; i < 60; ++i) parents.push_back(i == 0 ? -1 : (i * 7) % i);
  this->expect_same_on_both_paths("tree", tree(parents), 60);
}

TYPED_TEST(Masks, Distances) {
  Random random(2);
  Tensor<TypeParam, 2> table({this->kHeads, 32});
  for (Index i = 0; i < table.size(); ++i) table.data()[i] = static_cast<TypeParam>(random.uniform(-1, 1));
  this->expect_same_on_both_paths("T5", relative_bias(table, T5Buckets()));
  this->expect_same_on_both_paths("T5, causal", relative_bias(table, T5Buckets(32, 128, false)) | causal());
}

// Bounds of the default buckets as in the original model: 8 single distances, then steps of half an octave up to 128.
TEST(T5Buckets, HavePublishedBounds) {
  const T5Buckets buckets;
  EXPECT_EQ(buckets.buckets(), 32);
  const Index lowest[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
  for (Index b = 0; b < 16; ++b) {
    EXPECT_EQ(buckets(-lowest[b]), b);
    if (b > 0) {
      EXPECT_EQ(buckets(1 - lowest[b]), b - 1);
      EXPECT_EQ(buckets(lowest[b]), b + 16);
    }
  }
  EXPECT_EQ(buckets(-1000000), 15);
  EXPECT_EQ(buckets(1000000), 31);
  const T5Buckets past(32, 128, false);
  EXPECT_EQ(past(5), 0);
  EXPECT_EQ(past(0), 0);
  EXPECT_EQ(past(-15), 15);
  EXPECT_EQ(past(-16), 16);
  EXPECT_EQ(past(-127), 31);
}

// The drawings in the docstrings.
TEST(MaskDrawings, ShowTheKeptPairs) {
  const auto drawing = [](const auto& mod, Index q_len, Index kv_len) {
    return test::drawing(mod, q_len, kv_len, "1", "0", " ");
  };
  EXPECT_EQ(drawing(prefix_lm({2}), 4, 4), "1100 1100 1110 1111 ");
  EXPECT_EQ(drawing(query_lengths({2}), 3, 3), "111 111 000 ");
  EXPECT_EQ(drawing(key_ranges({1}, {4}), 2, 5), "01110 01110 ");
  Tensor<bool, 2> keys({1, 4});
  keys(0, 2) = keys(0, 3) = true;
  EXPECT_EQ(drawing(padding(keys), 2, 4), "1100 1100 ");
  EXPECT_EQ(drawing(keep_keys(keys), 2, 4), "0011 0011 ");
  EXPECT_EQ(drawing(documents({0, 0, 1, 1, 1}), 5, 5), "11000 11000 00111 00111 00111 ");
  EXPECT_EQ(drawing(documents_at({0, 2, 5}), 5, 5), "11000 11000 00111 00111 00111 ");
  EXPECT_EQ(drawing(documents_at({0, 0, 2, 2, 2, 5, 5}), 5, 5), "11000 11000 00111 00111 00111 ");
  EXPECT_EQ(drawing(documents_at({0, 1, 3, 4}, {0, 2, 2, 5}), 4, 5), "11000 00000 00000 00111 ");
  EXPECT_EQ(drawing(strided_sparse(2), 5, 5), "10000 11000 11100 01110 10111 ");
  EXPECT_EQ(drawing(fixed_sparse(3, 1), 5, 5), "10000 11000 11100 00110 00111 ");
  EXPECT_EQ(drawing(dilated(1, 2), 4, 4), "1000 0100 1010 0101 ");
  EXPECT_EQ(drawing(dilated(1, 2, 1), 4, 4), "1010 0101 1010 0101 ");
  EXPECT_EQ(drawing(global_tokens({1}), 4, 4), "0100 1111 0100 0100 ");
  EXPECT_EQ(drawing(any_of(sliding_window(1), global_tokens({0})), 4, 4), "1111 1100 1110 1011 ");
  EXPECT_EQ(drawing(not_(causal()), 3, 3), "011 001 000 ");
  EXPECT_EQ(drawing(all_of(causal(), not_(sliding_window(1))), 4, 4), "0000 0000 1000 1100 ");
  Tensor<bool, 1> even({4});
  even(0) = even(2) = true;
  EXPECT_EQ(drawing(keep(even), 3, 4), "1010 1010 1010 ");
  EXPECT_EQ(drawing(drop(even), 3, 4), "0101 0101 0101 ");
  EXPECT_EQ(drawing(tree({-1, 0, 0, 1}), 4, 6), "111000 111100 111010 111101 ");
  EXPECT_EQ(drawing(neighbourhood({2, 4}, {1, 3}), 8, 8),
            "11100000 11100000 01110000 01110000 00001110 00001110 00000111 00000111 ");
  EXPECT_EQ(drawing(bidirectional_spans({{1, 3}}), 4, 4), "1000 1110 1110 1111 ");
  const int listed[] = {0, 3, 2, 2, 1, -1};
  EXPECT_EQ(drawing(select(TensorView<const int, 2>(listed, {3, 2})), 3, 4), "1001 0010 0100 ");
  Tensor<bool, 2> map({2, 2});
  map(0, 0) = map(1, 0) = map(1, 1) = true;
  EXPECT_EQ(drawing(block_sparse(map, 2, 2), 3, 4), "1100 1100 1111 ");
}

TEST(ByBatch, EachElementHasItsMask) {
  constexpr Index kLen = 70, kDim = 8;
  const std::vector masks{sliding_window(1), sliding_window(5), sliding_window(100)};
  Tensor<float, 4> q({3, 1, kLen, kDim});
  for (Index i = 0; i < q.size(); ++i) q.data()[i] = static_cast<float>(i * 7 % 31) / 31;
  const auto all = attention(q, q, q, by_batch(masks));
  const auto naive = naive_attention(q, q, q, by_batch(masks));
  for (Index b = 0; b < 3; ++b) {
    SCOPED_TRACE(b);
    const TensorView<const float, 4> one(&q(b, 0, 0, 0), {1, 1, kLen, kDim});
    const auto alone = attention(one, one, one, masks[static_cast<std::size_t>(b)]);
    for (Index i = 0; i < kLen; ++i)
      for (Index c = 0; c < kDim; ++c) {
        ASSERT_NEAR(all.out(b, 0, i, c), alone.out(0, 0, i, c), 1e-6f) << i << ", " << c;
        ASSERT_NEAR(naive.out(b, 0, i, c), alone.out(0, 0, i, c), 1e-6f) << i << ", " << c;
      }
  }
}

TEST(Window, UnboundedWindowsMatchFullAndCausal) {
  constexpr Index kAny = std::numeric_limits<Index>::max();
  for (const auto& [q_len, kv_len] : {std::pair<Index, Index>(7, 7), {12, 3}, {3, 12}, {1, 200}, {150, 150}}) {
    SCOPED_TRACE(std::to_string(q_len) + " queries, " + std::to_string(kv_len) + " keys");
    const Eigen::MatrixXf q = Eigen::MatrixXf::Random(q_len, 8), k = Eigen::MatrixXf::Random(kv_len, 8);
    EXPECT_EQ(attention(q, k, k, sliding_window(kAny, kAny)).out, attention(q, k, k, full()).out);
    EXPECT_EQ(attention(q, k, k, sliding_window(kAny, 0)).out, attention(q, k, k, causal()).out);
  }
}

}  // namespace
}  // namespace attn::test
