// MultiHeadAttention over caches: feeding tokens in any steps gives the results of all tokens at once.
#include "support/multi_head_model.h"
#include "support/refused.h"

namespace attn::test {
namespace {

constexpr Index kEmbed = 24, kHeads = 4, kKvHeads = 2;

/// Several sequences and the layer that processes them.
template <class T>
struct SequencesAndLayer {
  MultiHeadAttention<T> mha;
  std::vector<Tensor<T, 3>> sequences;  // (1, len, kEmbed)

  SequencesAndLayer(const std::optional<Rope>& rope, const std::vector<Index>& lengths)
      : mha({.embed_dim = kEmbed, .heads = kHeads, .kv_heads = kKvHeads, .seed = 3, .rope = rope}) {
    Random random(4);
    for (const Index len : lengths) sequences.push_back(tensor<T>(random.values(len * kEmbed), 1, len, kEmbed));
    mha.load("in_proj_bias", Eigen::VectorXd::LinSpaced(kEmbed * 2, -0.5, 0.5).eval());
  }

  Index count() const { return static_cast<Index>(sequences.size()); }
  const Tensor<T, 3>& sequence(Index s) const { return sequences[static_cast<std::size_t>(s)]; }

  /// Tokens begins[s] … begins[s] + lens[s] - 1 of each sequence s, packed back to back.
  Tensor<T, 3> part(const std::vector<Index>& begins, const std::vector<Index>& lens) const {
    std::vector<T> numbers;
    for (std::size_t s = 0; s < lens.size(); ++s) {
      const T* const first = sequences[s].data() + begins[s] * kEmbed;
      numbers.insert(numbers.end(), first, first + lens[s] * kEmbed);
    }
    const Index tokens = static_cast<Index>(numbers.size()) / kEmbed;
    return Tensor<T, 3>(TensorView<const T, 3>(numbers.data(), {1, tokens, kEmbed}));
  }
};

const std::vector<Index> kLengths{70, 9, 0, 31};

/// Number of tokens of each sequence in each step: a mix of prompt chunks, single tokens and none.
const std::vector<std::vector<Index>> kSteps{{40, 3, 0, 1}, {0, 0, 0, 0}, {1, 1, 0, 1}, {28, 1, 0, 28}, {1, 4, 0, 1}};

/// Feeds all steps and returns the concatenated results of each sequence. feed(x, lens) returns (1, tokens, kEmbed).
template <class T, class Feed>
std::vector<std::vector<T>> fed(const SequencesAndLayer<T>& model, const Feed& feed) {
  std::vector<std::vector<T>> results(model.sequences.size());
  std::vector<Index> begins(model.sequences.size(), 0);
  for (const std::vector<Index>& lens : kSteps) {
    const Tensor<T, 3> y = feed(model.part(begins, lens), lens);
    const T* row = y.data();
    for (std::size_t s = 0; s < lens.size(); ++s) {
      results[s].insert(results[s].end(), row, row + lens[s] * kEmbed);
      row += lens[s] * kEmbed;
      begins[s] += lens[s];
    }
  }
  EXPECT_EQ(begins, kLengths);
  return results;
}

template <class T, class S>
void expect_matches_the_whole(double tolerance) {
  for (const std::optional<Rope>& rope :
       {std::optional<Rope>(), std::optional(Rope({.head_dim = 6})),
        std::optional(Rope({.head_dim = 6, .rotary_dim = 4, .pairs = RopePairs::interleaved}))}) {
    const SequencesAndLayer<T> model(rope, kLengths);
    const Index count = model.count();
    KvCache<S> one_piece = model.mha.template make_cache<S>({.batch = count, .capacity = 2});
    const auto results = fed(model, [&](const Tensor<T, 3>& x, const auto& lens) {
      return model.mha(ragged(x, lens), one_piece, causal()).out;
    });
    double largest = 0;
    for (Index s = 0; s < count; ++s) {
      const Tensor<T, 3>& x = model.sequence(s);
      const Tensor<T, 3> want = model.mha(x, x, x, causal());
      const std::vector<T>& got = results[static_cast<std::size_t>(s)];
      ASSERT_EQ(static_cast<Index>(got.size()), want.size());
      for (std::size_t i = 0; i < got.size(); ++i)
        largest = std::max(largest, std::abs(static_cast<double>(got[i]) - static_cast<double>(want.data()[i])));
    }
    EXPECT_LE(largest, tolerance);

    // Paging changes no bit.
    for (const Index page_size : {4, 64}) {
      PagedKvCache<S> pages = model.mha.template make_paged_cache<S>({.pages = 40, .page_size = page_size});
      std::vector<Index> ids;
      for (Index s = 0; s < count; ++s) ids.push_back(pages.add());
      const auto paged = fed(model, [&](const Tensor<T, 3>& x, const auto& lens) {
        return model.mha(ragged(x, lens), pages.select(ids), causal()).out;
      });
      EXPECT_EQ(paged, results) << "pages of " << page_size;
    }
  }
}

// Results are about 1. The largest measured differences were half of the tolerances.
TEST(MultiHeadCache, MatchesTheWholeInFloat) { expect_matches_the_whole<float, float>(8 * 0x1p-24); }
TEST(MultiHeadCache, MatchesTheWholeInDouble) { expect_matches_the_whole<double, double>(12 * 0x1p-53); }
TEST(MultiHeadCache, MatchesTheWholeInBFloat16) {
  expect_matches_the_whole<Eigen::bfloat16, Eigen::bfloat16>(4 * 0x1p-8);
}
// Narrower caches add their rounding.
TEST(MultiHeadCache, IsNearTheWholeInHalf) { expect_matches_the_whole<float, Eigen::half>(2 * 0x1p-11); }
TEST(MultiHeadCache, IsNearTheWholeInEightBits) { expect_matches_the_whole<float, std::int8_t>(0x1p-6); }

/// Calls with the same number of tokens for all: tensors (batch, len, features), and matrices of one sequence.
TEST(MultiHeadCache, TakesBatchesAndMatrices) {
  const SequencesAndLayer<double> model(Rope({.head_dim = 6}), {12, 12});
  Tensor<double, 3> both({2, 12, kEmbed});
  for (Index s = 0; s < 2; ++s) both.matrix(s) = model.sequence(s).matrix(0);
  const Tensor<double, 3> whole = model.mha(both, both, both, causal());
  auto cache = model.mha.make_cache({.batch = 2});
  auto single = model.mha.make_cache();
  for (Index begin = 0, len = 7; begin < 12; begin += len, len = 1) {
    const TensorView<const double, 3> x(both.data() + begin * kEmbed, {2, len, kEmbed}, {12 * kEmbed, kEmbed, 1});
    const auto y = model.mha(x, cache, causal());
    const Eigen::MatrixXd rows = both.matrix(1).middleRows(begin, len);
    const Eigen::MatrixXd of_one = model.mha(rows, single, causal());
    const Tensor<double, 2> of_ragged =
        model.mha(ragged(Tensor<double, 2>(TensorView<const double, 2>(&both(1, begin, 0), {len, kEmbed})), {len}),
                  KvCache<double>(single), full());
    EXPECT_EQ(of_ragged.dim(0), len);
    ASSERT_EQ(y.out.shape(), (Shape<3>{2, len, kEmbed}));
    for (Index s = 0; s < 2; ++s)
      EXPECT_LT((y.out.matrix(s) - whole.matrix(s).middleRows(begin, len)).cwiseAbs().maxCoeff(), 4e-15);
    EXPECT_LT((of_one - y.out.matrix(1)).cwiseAbs().maxCoeff(), 4e-15);
  }
  EXPECT_EQ(cache.length(1), 12);
  EXPECT_EQ(single.length(0), 12);
}

TEST(MultiHeadCache, ReturnsHeadsAndLogSumExps) {
  const SequencesAndLayer<double> model(Rope({.head_dim = 6}), {12, 20});
  const Tensor<double, 3>&a = model.sequence(0), &b = model.sequence(1);
  const MultiHeadOptions all{.lse = true, .heads = true};
  const auto whole_a = model.mha(a, a, a, causal(), all), whole_b = model.mha(b, b, b, causal(), all);
  auto cache = model.mha.make_cache({.batch = 2});
  model.mha(ragged(model.part({0, 0}, {5, 19}), {5, 19}), cache, causal());
  const auto got = model.mha(ragged(model.part({5, 19}, {7, 1}), {7, 1}), cache, causal(), all);
  ASSERT_EQ(got.query.shape(), (Shape<4>{1, kHeads, 8, 6}));
  ASSERT_EQ(got.value.shape(), (Shape<4>{1, kKvHeads, 8, 6}));
  ASSERT_EQ(got.lse.shape(), (Shape<3>{1, kHeads, 8}));
  for (Index i = 0; i < 8; ++i) {
    const auto& whole = i < 7 ? whole_a : whole_b;
    const Index token = i < 7 ? 5 + i : 19;
    for (Index h = 0; h < kHeads; ++h) {
      EXPECT_NEAR(got.lse(0, h, i), whole.lse(0, h, token), 1e-14);
      for (Index d = 0; d < 6; ++d) EXPECT_NEAR(got.query(0, h, i, d), whole.query(0, h, token, d), 4e-15);
    }
    for (Index h = 0; h < kKvHeads; ++h)
      for (Index d = 0; d < 6; ++d) {
        EXPECT_NEAR(got.key(0, h, i, d), whole.key(0, h, token, d), 4e-15);
        EXPECT_NEAR(got.value(0, h, i, d), whole.value(0, h, token, d), 4e-15);
      }
  }
  const auto read = model.mha.attend(ragged(model.part({5, 19}, {7, 1}), {7, 1}), cache, causal(), all);
  EXPECT_TRUE(std::equal(read.out.data(), read.out.data() + read.out.size(), got.out.data()));
  EXPECT_TRUE(std::equal(read.query.data(), read.query.data() + read.query.size(), got.query.data()));
  EXPECT_EQ(read.key.size(), 0);
}

// The nodes of a tree get the results of their paths, fed token by token, in a batch and in packed sequences of
// different lengths. Once a path is accepted, the sequence continues as if only it had been fed.
TEST(MultiHeadCache, VerifiesTrees) {
  const std::vector<Index> parents{-1, 0, 0, 2, 1, 2, -1}, path{0, 2, 5};
  const Index nodes = 7;
  const Rope rope({.head_dim = 6});
  const SequencesAndLayer<float> model(rope, {20, 26});
  const auto rows = [&](Index s, Index begin, Index end) { return model.sequence(s).slice(1, begin, end); };
  const auto expect_same = [&](const auto& a, Index row, const auto& b) {
    for (Index c = 0; c < kEmbed; ++c) ASSERT_NEAR(a(0, row, c), b(0, 0, c), 1e-6f) << "row " << row;
  };
  auto pages = model.mha.make_paged_cache({.pages = 20, .page_size = 4});
  const std::vector<Index> ids{pages.add(), pages.add()}, contexts{9, 15};  // the next 7 tokens are drafts
  for (Index s = 0; s < 2; ++s)
    model.mha(rows(s, 0, contexts[static_cast<std::size_t>(s)]), pages.select({ids[static_cast<std::size_t>(s)]}),
              causal());
  const auto y = model
                     .mha(ragged(model.part(contexts, {nodes, nodes}), {nodes, nodes}), pages.select(ids),
                          causal() | tree(parents))
                     .out;
  for (Index s = 0; s < 2; ++s) {
    const Index id = ids[static_cast<std::size_t>(s)], context = contexts[static_cast<std::size_t>(s)];
    const auto token = [&](Index node) { return rows(s, context + node, context + node + 1); };
    for (Index node = 0; node < nodes; ++node) {
      std::vector<Index> steps;
      for (Index step = node; step >= 0; step = parents[static_cast<std::size_t>(step)])
        steps.insert(steps.begin(), step);
      auto plain = model.mha.make_cache();
      model.mha.append(rows(s, 0, context), plain);
      for (const Index step : steps) {
        const auto of_path = model.mha(token(step), plain, causal()).out;
        if (step == node) expect_same(y, s * nodes + node, of_path);
      }
      if (steps != path) continue;
      pages.accept(id, path);
      const auto next = rows(s, context + nodes, context + nodes + 1);
      expect_same(model.mha(next, pages.select({id}), causal()).out, 0, model.mha(next, plain, causal()).out);
    }
  }
}

/// Cross-attention: the cache is filled once and then only read.
TEST(MultiHeadCache, AttendsWithoutAppending) {
  const MultiHeadAttention<double> mha({.embed_dim = kEmbed, .heads = kHeads, .key_dim = 10, .value_dim = 10});
  const auto encoder = tensor<double>(Random(1).values(2 * 9 * 10), 2, 9, 10);
  const auto x = tensor<double>(Random(2).values(2 * 3 * kEmbed), 2, 3, kEmbed);
  auto cache = mha.make_cache({.batch = 2});
  mha.append(encoder, cache);
  EXPECT_EQ(cache.length(0), 9);
  const auto expect_same = [](const Tensor<double, 3>& got, const Tensor<double, 3>& want) {
    ASSERT_EQ(got.shape(), want.shape());
    for (Index i = 0; i < want.size(); ++i) ASSERT_NEAR(got.data()[i], want.data()[i], 1e-14);
  };
  const KvCache<double>& only_read = cache;
  expect_same(mha.attend(x, only_read), mha(x, encoder, encoder));
  expect_same(mha.attend(x, only_read, key_lengths({9, 4}), {.scale = 2.0}),
              mha(x, encoder, encoder, key_lengths({9, 4}), {.scale = 2.0}));
  expect_same(mha.attend(x, only_read, {.scale = 2.0}), mha(x, encoder, encoder, {.scale = 2.0}));
  expect_same(mha.attend(x, only_read, {}), mha(x, encoder, encoder));
  EXPECT_EQ(cache.length(0), 9);

  // Encoded sequences of different lengths without padding.
  auto pages = mha.make_paged_cache({.pages = 4, .page_size = 8});
  const Index a = pages.add(), b = pages.add();
  Tensor<double, 3> packed({1, 13, 10});
  packed.matrix(0) << encoder.matrix(0), encoder.matrix(1).topRows(4);
  mha.append(ragged(packed, {9, 4}), pages.select({a, b}));
  expect_same(mha.attend(x, pages.view({a, b})), mha(x, encoder, encoder, key_lengths({9, 4})));
}

}  // namespace
}  // namespace attn::test
